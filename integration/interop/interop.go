// Package interop shows that the official AgentFS SDKs of Python and TypeScript and pkg/agentfs see and
// change the same files: each in a copy of its own, because different engines cannot hold one database
// file open at once.
package interop

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
)

// Tree is all of an AgentFS, as one side sees it.
type Tree struct {
	Nodes     []Node     `json:"nodes"`
	ToolCalls []ToolCall `json:"toolCalls"`
	KV        []Pair     `json:"kv"`
}

// Node is one name; what has several is there several times.
type Node struct {
	// Path is absolute.
	Path  string `json:"path"`
	Ino   int64  `json:"ino"`
	Mode  uint32 `json:"mode"`
	Nlink int64  `json:"nlink"`
	UID   int64  `json:"uid"`
	GID   int64  `json:"gid"`
	// Size is what stat says, in bytes, Read how many bytes there were to read.
	Size int64 `json:"size"`
	Read int64 `json:"read"`
	// Mtime has seconds: the SDKs know no more.
	Mtime int64 `json:"mtime"`
	// SHA256 is hexadecimal, of a regular file's content; Target a symbolic link's.
	SHA256 string `json:"sha256"`
	Target string `json:"target"`
}

// ToolCall is a row of tool_calls, with times in seconds.
type ToolCall struct {
	ID          int64           `json:"id"`
	Name        string          `json:"name"`
	Parameters  json.RawMessage `json:"parameters"`
	Result      json.RawMessage `json:"result"`
	Error       *string         `json:"error"`
	Status      string          `json:"status"`
	StartedAt   int64           `json:"startedAt"`
	CompletedAt *int64          `json:"completedAt"`
	DurationMS  *int64          `json:"durationMs"`
}

// Pair is a row of kv_store.
type Pair struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

// Find returns the node of a path.
func (t Tree) Find(path string) (Node, bool) {
	i := slices.IndexFunc(t.Nodes, func(n Node) bool { return n.Path == path })
	if i < 0 {
		return Node{}, false
	}
	return t.Nodes[i], true
}

// Differences says how two trees differ, one line each; empty: not at all. The number of links of a
// directory is no difference: the SDKs count one a name, POSIX its subdirectories too.
func (t Tree) Differences(other Tree) []string {
	var out []string
	out = append(out, differences("node", byPath(t.Nodes), byPath(other.Nodes))...)
	out = append(out, differences("tool call", byID(t.ToolCalls), byID(other.ToolCalls))...)
	return append(out, differences("key", byKey(t.KV), byKey(other.KV))...)
}

func differences[T any](what string, one, two map[string]T) []string {
	all := maps.Clone(one)
	maps.Copy(all, two)
	var out []string
	for _, k := range slices.Sorted(maps.Keys(all)) {
		a, inOne := one[k]
		b, inTwo := two[k]
		switch {
		case !inTwo:
			out = append(out, fmt.Sprintf("%s %q is missing in the second", what, k))
		case !inOne:
			out = append(out, fmt.Sprintf("%s %q is missing in the first", what, k))
		case !reflect.DeepEqual(a, b):
			out = append(out, fmt.Sprintf("%s %q is %+v and %+v", what, k, a, b))
		}
	}
	return out
}

const (
	typeMask = 0o170000
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

func byPath(nodes []Node) map[string]Node {
	out := map[string]Node{}
	for _, n := range nodes {
		if n.Mode&typeMask == typeDir {
			n.Nlink = 0
		}
		out[n.Path] = n
	}
	return out
}

// comparable forms, in which equal JSON values are equal whatever their spelling.
type call struct {
	ToolCall
	Parameters, Result, Error, Completed, Duration string
}

func byID(calls []ToolCall) map[string]call {
	out := map[string]call{}
	for _, c := range calls {
		k := call{ToolCall: c, Parameters: canonical(c.Parameters), Result: canonical(c.Result),
			Error: spelled(c.Error), Completed: spelled(c.CompletedAt), Duration: spelled(c.DurationMS)}
		k.ToolCall.Parameters, k.ToolCall.Result, k.ToolCall.Error, k.CompletedAt, k.DurationMS = nil, nil, nil, nil, nil
		out[fmt.Sprint(c.ID)] = k
	}
	return out
}

func byKey(pairs []Pair) map[string]string {
	out := map[string]string{}
	for _, p := range pairs {
		out[p.Key] = canonical(p.Value)
	}
	return out
}

func spelled[T any](v *T) string {
	if v == nil {
		return "none"
	}
	return fmt.Sprintf("%#v", *v)
}

func canonical(raw json.RawMessage) string {
	if len(raw) == 0 {
		return "null"
	}
	var v any
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		return fmt.Sprintf("no JSON: %q", raw)
	}
	out, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprintf("no JSON: %q", raw)
	}
	return string(out)
}
