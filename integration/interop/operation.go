package interop

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
)

// Kinds of operations.
const (
	Write       = "write" // parents are made
	Mkdir       = "mkdir"
	Rmdir       = "rmdir"
	Unlink      = "unlink"
	RemoveAll   = "rm"
	Rename      = "rename"
	Copy        = "copy"
	Symlink     = "symlink"
	WriteAt     = "pwrite"
	Truncate    = "truncate"
	Set         = "kv"
	Record      = "tool"
	RecordStart = "tool-pending"
)

// Operation is something an SDK does.
type Operation struct {
	Op          string `json:"op"`
	Path        string `json:"path,omitempty"`
	To          string `json:"to,omitempty"`
	Target      string `json:"target,omitempty"`
	Content     []byte `json:"content,omitempty"`
	Offset      int64  `json:"offset,omitempty"`
	Size        int64  `json:"size,omitempty"`
	Key         string `json:"key,omitempty"`
	Value       any    `json:"value,omitempty"`
	Name        string `json:"name,omitempty"`
	Parameters  any    `json:"parameters,omitempty"`
	Result      any    `json:"result,omitempty"`
	Error       string `json:"error,omitempty"`
	StartedAt   int64  `json:"startedAt,omitempty"`
	CompletedAt int64  `json:"completedAt,omitempty"`
}

// Expected is what must be there after operations: a directory is empty, a link its target behind "-> ", a
// file its content's SHA-256.
type Expected map[string]string

const linkMark = "-> "

// ExpectedOf is what a tree holds.
func ExpectedOf(t Tree) Expected {
	e := Expected{}
	for _, n := range t.Nodes {
		switch n.Mode & typeMask {
		case typeDir:
			e[n.Path] = ""
		case typeLink:
			e[n.Path] = linkMark + n.Target
		default:
			e[n.Path] = n.SHA256
		}
	}
	return e
}

// After is what must be there after the operations. Contents written at an offset or truncated are in
// whole, because a digest cannot be changed in part.
func (e Expected) After(operations []Operation, whole map[string][]byte) Expected {
	e = maps.Clone(e)
	for _, o := range operations {
		switch o.Op {
		case Write:
			for i := 1; i < len(o.Path); i++ {
				if o.Path[i] == '/' {
					e[o.Path[:i]] = ""
				}
			}
			e[o.Path] = digest(o.Content)
		case Mkdir:
			e[o.Path] = ""
		case Rmdir, Unlink:
			delete(e, o.Path)
		case RemoveAll:
			maps.DeleteFunc(e, func(path, _ string) bool { return path == o.Path || strings.HasPrefix(path, o.Path+"/") })
		case Rename:
			for path, v := range maps.Clone(e) {
				if below, ok := strings.CutPrefix(path, o.Path); ok && (below == "" || below[0] == '/') {
					delete(e, path)
					e[o.To+below] = v
				}
			}
		case Copy:
			e[o.To] = e[o.Path]
		case Symlink:
			e[o.Path] = linkMark + o.Target
		}
	}
	for path, content := range whole {
		e[path] = digest(content)
	}
	return e
}

// Differences compares by path, one line each.
func (e Expected) Differences(got Expected) []string { return differences("path", e, got) }

func digest(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

// Changes are operations of every kind that the SDK has, below a directory root that is not there yet,
// and the contents they leave that Expected cannot compute.
func (s SDK) Changes(root string) ([]Operation, map[string][]byte) {
	at := func(name string) string { return root + "/" + name }
	whole := map[string][]byte{}
	var out []Operation
	for _, size := range []int{0, 1, 4095, 4096, 4097, 1 << 20} {
		out = append(out, Operation{Op: Write, Path: at(fmt.Sprintf("sizes/%d", size)), Content: pattern(size)})
	}
	for i, name := range Names() {
		out = append(out, Operation{Op: Write, Path: at("names/" + name), Content: fmt.Appendf(nil, "file %d", i)})
	}
	out = append(out,
		Operation{Op: Write, Path: at("overwritten"), Content: pattern(9000)},
		Operation{Op: Write, Path: at("overwritten"), Content: pattern(10)},
		Operation{Op: Write, Path: at("removed"), Content: pattern(5000)}, Operation{Op: Unlink, Path: at("removed")},
		Operation{Op: Write, Path: at("old name"), Content: pattern(77)}, Operation{Op: Rename, Path: at("old name"), To: at("new name")},
		Operation{Op: Write, Path: at("over"), Content: pattern(3)}, Operation{Op: Write, Path: at("target"), Content: pattern(8200)},
		Operation{Op: Rename, Path: at("over"), To: at("target")},
		Operation{Op: Write, Path: at("dir/deep/file"), Content: pattern(12)}, Operation{Op: Rename, Path: at("dir"), To: at("moved")},
		Operation{Op: Mkdir, Path: at("empty")}, Operation{Op: Mkdir, Path: at("gone")}, Operation{Op: Rmdir, Path: at("gone")},
		Operation{Op: Write, Path: at("whole/a/b"), Content: pattern(1)}, Operation{Op: RemoveAll, Path: at("whole")},
		Operation{Op: Copy, Path: at("sizes/4097"), To: at("copied")},
		Operation{Op: Set, Key: "text'" + s.Name, Value: "värde \n"}, Operation{Op: Set, Key: "object", Value: map[string]any{"n": 1.5, "list": []any{nil, true}}},
		Operation{Op: Record, Name: "search", StartedAt: 1700000000, CompletedAt: 1700000002, Parameters: map[string]any{"q": "it's"}, Result: []any{1, "two"}},
		Operation{Op: Record, Name: "search", StartedAt: 1700000003, CompletedAt: 1700000003, Error: "no network"},
		Operation{Op: RecordStart, Name: "2024-01-05", Parameters: "only text"},
	)
	if s.Symlinks {
		out = append(out, Operation{Op: Symlink, Path: at("link"), Target: "sizes/1"}, Operation{Op: Symlink, Path: at("länk"), Target: "/nowhere/ä 😀"})
	}
	if s.Handles {
		out = append(out,
			Operation{Op: Write, Path: at("inside"), Content: make([]byte, 10000)}, Operation{Op: WriteAt, Path: at("inside"), Offset: 4090, Content: []byte("across a chunk's end")},
			Operation{Op: Write, Path: at("past the end"), Content: []byte("x")}, Operation{Op: WriteAt, Path: at("past the end"), Offset: 9000, Content: []byte("y")},
			Operation{Op: Write, Path: at("shorter"), Content: pattern(9000)}, Operation{Op: Truncate, Path: at("shorter"), Size: 4100},
			Operation{Op: Write, Path: at(Longer), Content: []byte("z")}, Operation{Op: Truncate, Path: at(Longer), Size: 9000})
		inside, past, longer := make([]byte, 10000), make([]byte, 9001), make([]byte, 9000)
		copy(inside[4090:], "across a chunk's end")
		past[0], past[9000], longer[0] = 'x', 'y', 'z'
		whole[at("inside")], whole[at("past the end")], whole[at("shorter")], whole[at(Longer)] = inside, past, pattern(9000)[:4100], longer
	}
	return out, whole
}

// Longer is the name of a file that was truncated to more than it had: the SDK that can do so sets the
// size and stores nothing, and then reads only what is stored.
const Longer = "longer"

// Names are those that break others' work.
func Names() []string {
	return []string{
		"with space", "it's.txt", `"quoted"`, "2024-01-05", "2024-01-05 10:11:12", "12345", "-rf", "new\nline", "tab\there", "%", "_", "*",
		`back\slash`, "caf\u00e9", "cafe\u0301", "😀", strings.Repeat("n", 255), strings.Repeat("é", 127), "NULL", ".hidden", "...",
	}
}

// pattern is content in which every chunk differs.
func pattern(size int) []byte {
	out := make([]byte, size)
	for i := range out {
		out[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return out
}
