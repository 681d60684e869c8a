package server

import (
	"encoding/json"
	"strings"
	"testing"

	"humanwork.internal/proto"
	"humanwork.internal/services/gateway/internal/apidoc"
)

// TestEveryRouteIsDescribed holds the routes against the description, both ways.
func TestEveryRouteIsDescribed(t *testing.T) {
	raw, err := apidoc.Build(proto.OpenAPI, "test")
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		Paths map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for path, methods := range doc.Paths {
		for method := range methods {
			described[strings.ToUpper(method)+" "+path] = true
		}
	}
	for _, r := range (&Server{}).Routes() {
		name := r.Method + " " + strings.Replace(r.Pattern, "...}", "}", 1)
		if strings.HasPrefix(r.Pattern, "/docs/") {
			continue // the page's own files
		}
		if !described[name] {
			t.Errorf("%s is not described", name)
		}
		delete(described, name)
	}
	for name := range described {
		t.Errorf("%s is described and does not exist", name)
	}
}
