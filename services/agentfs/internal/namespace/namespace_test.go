package namespace

import (
	"testing"

	"humanwork.internal/pkg/fileuri"
)

func TestPublicPathsReturn(t *testing.T) {
	for public, private := range map[string]string{
		"workspace/a":                    "/conversations/c1/work/a",
		"workspace/work/2024-01-05":      "/conversations/c1/work/work/2024-01-05",
		"workspace/conversations/c2/x":   "/conversations/c1/work/conversations/c2/x",
		"artifacts/inbound/ab/it's.txt":  "/conversations/c1/artifacts/inbound/ab/it's.txt",
		"artifacts/outbound/-rf/\u00e9é": "/conversations/c1/artifacts/outbound/-rf/\u00e9é",
	} {
		p, err := fileuri.ParsePath(public)
		if err != nil {
			t.Fatal(err)
		}
		if got := Private("c1", p); got != private {
			t.Errorf("Private(%q) = %q, want %q", public, got, private)
		}
		c, back, ok := Public(private)
		if !ok || c != "c1" || back != p {
			t.Errorf("Public(%q) = %q, %q, %t, want c1, %q", private, c, back, ok, public)
		}
	}
}

func TestPrivatePathsHaveNoPublicOne(t *testing.T) {
	for _, p := range []string{"", "/", "/.env", "/memory/x", "/conversations", "/conversations/c1", "/conversations/c1/.env",
		"/conversations/c1/state/state.db", "/conversations/c1/logs/x", "/conversations/c1/work", "/conversations/c1/work/",
		"/conversations/c1/artifacts", "/conversations/c1/artifacts/x", "/conversations/c1/artifacts/inbound",
		"/conversations/c1/artifacts/inboundx/y", "/conversations/c1/workx/y", "conversations/c1/work/a", "/conversations/c1/work//a"} {
		if c, got, ok := Public(p); ok {
			t.Errorf("Public(%q) = %s %s, want none", p, c, got)
		}
	}
}
