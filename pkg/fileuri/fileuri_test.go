package fileuri_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"humanwork.internal/pkg/fileuri"
)

func TestBothSpellingsNameOneFile(t *testing.T) {
	for _, tc := range []struct {
		path, uri string
		root      fileuri.Root
		names     []string
	}{
		{"workspace/a b.txt", "file:///workspace/a%20b.txt", fileuri.Workspace, []string{"a b.txt"}},
		{"workspace/src/main.go", "file:///workspace/src/main.go", fileuri.Workspace, []string{"src", "main.go"}},
		{"artifacts/inbound/0123456789abcdef/report.pdf", "file:///artifacts/inbound/0123456789abcdef/report.pdf", fileuri.Inbound, []string{"0123456789abcdef", "report.pdf"}},
		{"artifacts/outbound/x", "file:///artifacts/outbound/x", fileuri.Outbound, []string{"x"}},
		{"workspace/it's (1).txt", "file:///workspace/it's%20(1).txt", fileuri.Workspace, []string{"it's (1).txt"}},
		{"workspace/2024-01-05", "file:///workspace/2024-01-05", fileuri.Workspace, []string{"2024-01-05"}},
		{"workspace/-rf", "file:///workspace/-rf", fileuri.Workspace, []string{"-rf"}},
		{"workspace/!$&'()*+,;=:@-._~", "file:///workspace/!$&'()*+,;=:@-._~", fileuri.Workspace, []string{"!$&'()*+,;=:@-._~"}},
		{"workspace/\"<>[\\]^`{|}#?%", "file:///workspace/%22%3C%3E%5B%5C%5D%5E%60%7B%7C%7D%23%3F%25", fileuri.Workspace, []string{"\"<>[\\]^`{|}#?%"}},
		{"workspace/\u00e9/e\u0301", "file:///workspace/%C3%A9/e%CC%81", fileuri.Workspace, []string{"\u00e9", "e\u0301"}},
		{"workspace/👩‍💻\n\x7f", "file:///workspace/%F0%9F%91%A9%E2%80%8D%F0%9F%92%BB%0A%7F", fileuri.Workspace, []string{"👩‍💻\n\x7f"}},
		{"workspace/.../..a/a../.git", "file:///workspace/.../..a/a../.git", fileuri.Workspace, []string{"...", "..a", "a..", ".git"}},
		{"workspace/%2e%2e/%2F", "file:///workspace/%252e%252e/%252F", fileuri.Workspace, []string{"%2e%2e", "%2F"}},
		{"workspace/workspace/artifacts", "file:///workspace/workspace/artifacts", fileuri.Workspace, []string{"workspace", "artifacts"}},
	} {
		p, err := fileuri.ParsePath(tc.path)
		if err != nil {
			t.Errorf("ParsePath(%q) = %v", tc.path, err)
			continue
		}
		if got := p.URI(); got != tc.uri {
			t.Errorf("ParsePath(%q).URI() = %q, want %q", tc.path, got, tc.uri)
		}
		if got := p.String(); got != tc.path {
			t.Errorf("ParsePath(%q).String() = %q", tc.path, got)
		}
		if p.Root() != tc.root || !slices.Equal(p.Names(), tc.names) || p.Name() != tc.names[len(tc.names)-1] {
			t.Errorf("ParsePath(%q) is %v below %v, last %q; want %v below %v", tc.path, p.Names(), p.Root(), p.Name(), tc.names, tc.root)
		}
		if u, err := fileuri.ParseURI(tc.uri); err != nil || u != p {
			t.Errorf("ParseURI(%q) = %v, %v; want the same path", tc.uri, u, err)
		}
	}
}

func TestOtherSpellingsAreRefused(t *testing.T) {
	for uri, want := range map[string]string{
		"":                                     `does not begin with "file:"`,
		"workspace/a":                          `does not begin with "file:"`,
		"http:///workspace/a":                  `does not begin with "file:"`,
		" file:///workspace/a":                 `does not begin with "file:"`,
		"File:///workspace/a":                  "capitals",
		"file:/workspace/a":                    "three slashes",
		"file:workspace/a":                     "three slashes",
		"file://workspace/a":                   "host",
		"file://localhost/workspace/a":         "host",
		"file://user@host:80/workspace/a":      "host",
		"file:////workspace/a":                 "not below",
		"file:///":                             "not below",
		"file:///etc/passwd":                   "not below",
		"file:///Workspace/a":                  "not below",
		"file:///workspaces/a":                 "not below",
		"file:///artifacts/a":                  "not below",
		"file:///artifacts/inboundx/a":         "not below",
		"file:///%77orkspace/a":                `write 'w'`,
		"file:///workspace":                    "names the directory workspace",
		"file:///workspace/":                   "names the directory workspace",
		"file:///artifacts/outbound/":          "names the directory artifacts/outbound",
		"file:///workspace/a/":                 "empty name",
		"file:///workspace//a":                 "empty name",
		"file:///workspace/.":                  `name "."`,
		"file:///workspace/./a":                `name "."`,
		"file:///workspace/..":                 `name ".."`,
		"file:///workspace/../etc":             `name ".."`,
		"file:///artifacts/../workspace/a":     "not below",
		"file:///artifacts/inbound/../b":       `name ".."`,
		"file:///workspace/%2e%2e/a":           "broken escape at byte 18",
		"file:///workspace/%2E%2E/a":           `write '.'`,
		"file:///workspace/a%2Fb":              "slash at byte 19",
		"file:///workspace/a%2fb":              "broken escape",
		"file:///workspace/a%00":               "NUL",
		"file:///workspace/a\x00":              "write %00",
		"file:///workspace/a%":                 "'%' as %25",
		"file:///workspace/a%4":                "'%' as %25",
		"file:///workspace/a%GG":               "broken escape",
		"file:///workspace/a%c3%a9":            "broken escape",
		"file:///workspace/a%41":               `write 'A'`,
		"file:///workspace/a%27":               `write '\''`,
		"file:///workspace/a b":                "write %20",
		"file:///workspace/a\n":                "write %0A",
		"file:///workspace/é":                  "write %C3",
		"file:///workspace/a\\..\\b":           "write %5C",
		"file:///workspace/a?b":                "'?' as %3F",
		"file:///workspace/a#b":                "'#' as %23",
		"file:///workspace/%C3":                "not UTF-8",
		"file:///workspace/%C0%AE%C0%AE":       "not UTF-8",
		"file:///workspace/%ED%A0%80":          "not UTF-8",
		"file:///workspace/" + long(256):       "name of 256 bytes",
		"file:///" + deep(fileuri.MaxPath+1):   "has 4097 bytes",
		"file:///" + strings.Repeat("a", 13e3): "has 13008 bytes",
	} {
		refused(t, "ParseURI", fileuri.ParseURI, uri, want)
	}
	for path, want := range map[string]string{
		"":                         "not below",
		"/workspace/a":             "begins with a slash",
		"./workspace/a":            "not below",
		"../workspace/a":           "not below",
		"workspace":                "names the directory workspace",
		"artifacts/inbound":        "names the directory artifacts/inbound",
		"artifacts":                "not below",
		"artifacts/secret/a":       "not below",
		"workspacea":               "not below",
		".env":                     "not below",
		"conversations/c1/work/a":  "not below",
		"file:///workspace/a":      "not below",
		"workspace/a/":             "empty name",
		"workspace//a":             "empty name",
		"workspace/a/../b":         `name ".."`,
		"workspace/a\x00b":         "NUL",
		"workspace/\xc0\xae\xc0":   "not UTF-8",
		"workspace/\xed\xa0\x80":   "not UTF-8",
		"workspace/" + long(256):   "name of 256 bytes",
		deep(fileuri.MaxPath + 1):  "has 4097 bytes",
		"artifacts/outbound/../..": `name ".."`,
	} {
		refused(t, "ParsePath", fileuri.ParsePath, path, want)
	}
}

func refused(t *testing.T, name string, parse func(string) (fileuri.Path, error), s, want string) {
	t.Helper()
	p, err := parse(s)
	var typed *fileuri.Error
	if !errors.As(err, &typed) || p != (fileuri.Path{}) {
		t.Errorf("%s(%q) = %v, %v; want no path and an *Error", name, s, p, err)
	} else if !strings.Contains(typed.Message, want) {
		t.Errorf("%s(%q) says %q, want %q", name, s, typed.Message, want)
	}
}

func TestLimitsAreInclusive(t *testing.T) {
	for _, path := range []string{"workspace/" + long(255), deep(fileuri.MaxPath), "workspace/" + strings.Repeat("é", 127)} {
		p, err := fileuri.ParsePath(path)
		if err != nil {
			t.Fatalf("ParsePath of %d bytes = %v", len(path), err)
		}
		if u, err := fileuri.ParseURI(p.URI()); err != nil || u != p {
			t.Errorf("ParseURI of %d bytes = %v", len(p.URI()), err)
		}
	}
}

// long is a name of n bytes.
func long(n int) string { return strings.Repeat("n", n) }

// deep is a path of n bytes with short names.
func deep(n int) string {
	return ("workspace/" + strings.Repeat(strings.Repeat("d", 99)+"/", n/100+1))[:n-1] + "f"
}
