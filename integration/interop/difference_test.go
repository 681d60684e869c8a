package interop

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
)

func TestDifferences(t *testing.T) {
	failed := "no"
	base := func() Tree {
		return Tree{
			Nodes: []Node{{Path: "/", Mode: typeDir | 0o755, Nlink: 3}, {Path: "/f", Mode: typeFile | 0o644, Nlink: 1, Size: 2, Read: 2, SHA256: "ab"},
				{Path: "/l", Mode: typeLink | 0o777, Nlink: 1, Size: 1, Target: "f"}},
			ToolCalls: []ToolCall{{ID: 1, Name: "t", Parameters: json.RawMessage(`{"a": 1, "b": 2}`), Status: "success"}},
			KV:        []Pair{{"k", json.RawMessage(`"v"`)}},
		}
	}
	for name, c := range map[string]struct {
		change func(*Tree)
		want   string
	}{
		"nothing":              {func(*Tree) {}, ""},
		"another order":        {func(x *Tree) { slices.Reverse(x.Nodes) }, ""},
		"links of a directory": {func(x *Tree) { x.Nodes[0].Nlink = 1 }, ""},
		"JSON spelled apart":   {func(x *Tree) { x.ToolCalls[0].Parameters = json.RawMessage(`{"b":2,"a":1}`) }, ""},
		"null for none":        {func(x *Tree) { x.ToolCalls[0].Result = json.RawMessage("null") }, ""},
		"links of a file":      {func(x *Tree) { x.Nodes[1].Nlink = 2 }, `node "/f"`},
		"content":              {func(x *Tree) { x.Nodes[1].SHA256 = "cd" }, `node "/f"`},
		"bytes to read":        {func(x *Tree) { x.Nodes[1].Read = 1 }, `node "/f"`},
		"target":               {func(x *Tree) { x.Nodes[2].Target = "g" }, `node "/l"`},
		"missing":              {func(x *Tree) { x.Nodes = x.Nodes[:2] }, `node "/l" is missing in the second`},
		"more":                 {func(x *Tree) { x.Nodes = append(x.Nodes, Node{Path: "/n"}) }, `node "/n" is missing in the first`},
		"parameters":           {func(x *Tree) { x.ToolCalls[0].Parameters = nil }, `tool call "1"`},
		"error":                {func(x *Tree) { x.ToolCalls[0].Error = &failed }, `tool call "1"`},
		"value":                {func(x *Tree) { x.KV[0].Value = json.RawMessage(`"w"`) }, `key "k"`},
	} {
		t.Run(name, func(t *testing.T) {
			other := base()
			c.change(&other)
			got := strings.Join(base().Differences(other), "\n")
			if (got == "") != (c.want == "") || !strings.HasPrefix(got, c.want) || strings.Count(got, "\n") > 0 {
				t.Errorf("Differences = %q, want %q alone", got, c.want)
			}
		})
	}
}

func TestExpected(t *testing.T) {
	got := Expected{"/": "", "/d": "", "/d/f": "1"}.After([]Operation{
		{Op: Write, Path: "/a/b", Content: []byte("x")}, {Op: Rename, Path: "/d", To: "/e"}, {Op: Copy, Path: "/e/f", To: "/g"},
		{Op: Symlink, Path: "/l", Target: "g"}, {Op: Write, Path: "/e2"}, {Op: RemoveAll, Path: "/e"},
	}, map[string][]byte{"/w": []byte("y")})
	want := Expected{"/": "", "/a": "", "/a/b": digest([]byte("x")), "/g": "1", "/l": "-> g", "/e2": digest(nil), "/w": digest([]byte("y"))}
	if d := want.Differences(got); len(d) > 0 {
		t.Errorf("After differs:\n%s", strings.Join(d, "\n"))
	}
}
