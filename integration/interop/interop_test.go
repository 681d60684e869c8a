package interop

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"humanwork.internal/pkg/agentfs"
)

var author = agentfs.Caller{Actor: "test", UID: 1000, GID: 100}

func environment(t *testing.T) Environment {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the SDKs")
	}
	env, err := FromEnvironment()
	if err != nil {
		t.Skip(err)
	}
	return env
}

func create(t *testing.T, path string) *agentfs.FS {
	t.Helper()
	fs, err := agentfs.Create(t.Context(), agentfs.Options{Location: agentfs.Location{Path: path}}, author, []agentfs.Node{
		{Path: "/conversations", Mode: agentfs.TypeDir | 0o755}, {Path: "/conversations/c-1", Mode: agentfs.TypeDir | 0o700, Project: true},
	})
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	return fs
}

// fill writes all that pkg/agentfs can hold.
func fill(t *testing.T, fs *agentfs.FS) {
	t.Helper()
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir := func(path string) agentfs.Ino {
		t.Helper()
		a, err := fs.MkdirAll(ctx, author, path, 0o755)
		must(err)
		return a.Ino
	}
	put := func(parent agentfs.Ino, name string, mode uint32, content []byte) agentfs.Attr {
		t.Helper()
		a, _, err := fs.Put(ctx, author, agentfs.Placement{Parent: parent, Name: name}, mode, content)
		must(err)
		return a
	}
	names := dir("/conversations/c-1/work/names")
	for i, name := range Names() {
		put(names, name, 0o644, fmt.Appendf(nil, "content %d", i))
	}
	sizes := dir("/conversations/c-1/work/sizes")
	for _, size := range []int{0, 1, 4095, 4096, 4097, 5 << 20} {
		put(sizes, fmt.Sprint(size), 0o640, pattern(size))
	}
	modes := dir("/conversations/c-1/work/modes")
	for _, mode := range []uint32{0, 0o400, 0o755, 0o4755, 0o2755, 0o777} {
		put(modes, fmt.Sprintf("%o", mode), mode, []byte("x"))
	}
	_, err := fs.Mkdir(ctx, author, modes, "sticky", 0o1777)
	must(err)
	_, err = fs.Mkdir(ctx, author, names, "-dir with 'quotes'", 0o755)
	must(err)
	sparse, err := fs.Create(ctx, author, sizes, "sparse", 0o644, os.O_RDWR)
	must(err)
	_, err = sparse.WriteAt([]byte("in the middle"), 1<<20)
	must(err)
	must(sparse.Truncate(3<<20 + 5))
	must(sparse.Close())
	short, err := fs.Create(ctx, author, sizes, "grown", 0o644, os.O_RDWR)
	must(err)
	_, err = short.WriteAt([]byte("begin"), 0)
	must(err)
	must(short.Truncate(10_000))
	must(short.Close())
	links := dir("/conversations/c-1/work/links")
	for name, target := range map[string]string{"relative": "../sizes/1", "dangling": "/nowhere", "länk": "ä/😀", "2024-01-06": "2024-01-05", "dir": "../names"} {
		_, err := fs.Symlink(ctx, author, links, name, target)
		must(err)
	}
	shared := put(links, "one", 0o600, pattern(6000))
	_, err = fs.Link(ctx, author, shared.Ino, links, "two")
	must(err)
	_, err = fs.Link(ctx, author, shared.Ino, names, "three's")
	must(err)
	at := time.Date(2001, 2, 3, 4, 5, 6, 789, time.UTC)
	_, err = fs.SetAttr(ctx, author, shared.Ino, agentfs.Change{Mtime: &at})
	must(err)
	must(fs.SetXattr(ctx, author, shared.Ino, "user.a", []byte{0, 1}, 0))
	project, err := fs.Resolve(ctx, "/conversations/c-1")
	must(err)
	for _, call := range []agentfs.ToolCall{
		{Name: "terminal", Status: agentfs.ToolSuccess, Parameters: `{"command": "ls 'a b'"}`, Result: `{"code": 0}`, Started: at, Completed: at.Add(2 * time.Second), Duration: 2 * time.Second},
		{Name: "no parameters", Status: agentfs.ToolError, Error: "failed: ä", Started: at, Completed: at},
		{Name: "2024-01-05", Status: agentfs.ToolPending, Started: at},
	} {
		_, err := fs.RecordToolCall(ctx, author, project.Ino, call)
		must(err)
	}
	// What is open without a name must not be in an export.
	gone, err := fs.Create(ctx, author, sizes, "unlinked", 0o644, os.O_RDWR)
	must(err)
	t.Cleanup(func() { gone.Close() })
	must(fs.Unlink(ctx, author, sizes, "unlinked"))
}

// setKeys writes kv_store, for which pkg/agentfs has no functions, in a closed database.
func setKeys(t *testing.T, path string, pairs map[string]string) {
	t.Helper()
	db, err := sql.Open("libsql", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range pairs {
		if _, err := db.ExecContext(t.Context(), `INSERT INTO kv_store (key, value) VALUES (?, ?)`, k, v); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func export(t *testing.T, fs *agentfs.FS, pairs map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	snapshot, exported := filepath.Join(dir, "snapshot.db"), filepath.Join(dir, "export.db")
	if err := fs.Snapshot(t.Context(), snapshot); err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	setKeys(t, snapshot, pairs)
	if err := agentfs.Export(t.Context(), snapshot, exported); err != nil {
		t.Fatalf("Export: %v", err)
	}
	return exported
}

func TestBothDirectionsOnAnExport(t *testing.T) {
	env := environment(t)
	fs := create(t, filepath.Join(t.TempDir(), "ours.db"))
	defer fs.Close()
	fill(t, fs)
	exported := export(t, fs, map[string]string{"plain": `"value"`, "2024-01-05": `{"a":[1,null]}`, "it's": `"ä\n"`})
	before, err := os.ReadFile(exported)
	if err != nil {
		t.Fatal(err)
	}
	shown, err := Run(t.Context(), env, exported, t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Log(shown)
	if want := int64(len(Names()) + 6 + 6 + 2 + 3); shown.Files != want || shown.Links != 5 || shown.ToolCalls != 3 || len(shown.Tree.KV) != 3 {
		t.Errorf("saw %d files, %d links, %d tool calls, %d keys, want %d, 5, 3, 3", shown.Files, shown.Links, shown.ToolCalls, len(shown.Tree.KV), want)
	}
	// Against the live database: the export itself could have lost something.
	live := Tree{KV: shown.Tree.KV, ToolCalls: shown.Tree.ToolCalls}
	root, err := fs.Stat(t.Context(), agentfs.Root)
	if err != nil {
		t.Fatal(err)
	}
	live.Nodes = []Node{nodeOf("/", root)}
	if err := live.walk(t.Context(), fs, "/", agentfs.Root); err != nil {
		t.Fatal(err)
	}
	if err := same("the live database and its export", live.Differences(shown.Tree)); err != nil {
		t.Error(err)
	}
	if after, err := os.ReadFile(exported); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the exported file was changed (%v)", err)
	}
}

// TestChangesOfAnExport removes and overwrites what we wrote with each SDK.
func TestChangesOfAnExport(t *testing.T) {
	env := environment(t)
	fs := create(t, filepath.Join(t.TempDir(), "ours.db"))
	defer fs.Close()
	fill(t, fs)
	_, err := fs.MkdirAll(t.Context(), author, "/conversations/c-1/empty/er", 0o755)
	if err != nil {
		t.Fatal(err)
	}
	exported := export(t, fs, nil)
	for _, sdk := range env.SDKs() {
		t.Run(sdk.Name, func(t *testing.T) {
			ctx, work := t.Context(), "/conversations/c-1/work/"
			file := filepath.Join(t.TempDir(), "changed.db")
			if err := duplicate(exported, file); err != nil {
				t.Fatal(err)
			}
			base := adopt(t, exported)
			operations, whole := sdk.Changes("/made")
			operations = append(operations,
				Operation{Op: Write, Path: work + "sizes/sparse", Content: pattern(4100)},
				Operation{Op: Rmdir, Path: "/conversations/c-1/empty/er"}, Operation{Op: Rmdir, Path: "/conversations/c-1/empty"},
				Operation{Op: Unlink, Path: work + "links/one"}, // it has two more names
				Operation{Op: Write, Path: work + "links/two", Content: []byte("through another name")},
				Operation{Op: Unlink, Path: work + "names/it's.txt"},
				Operation{Op: Rename, Path: work + "names/2024-01-05", To: work + "names/with space"},
				Operation{Op: RemoveAll, Path: work + "modes"},
			)
			if err := sdk.Change(ctx, file, operations); err != nil {
				t.Fatal(err)
			}
			want := ExpectedOf(base).After(operations, whole)
			want[work+"names/three's"] = digest([]byte("through another name"))
			if err := adopted(ctx, sdk, file, want); err != nil {
				t.Fatal(err)
			}
			versions(t, file+".back", exported)
		})
	}
}

// versions asserts that no content has a version, and so an ETag, that it or another had before.
func versions(t *testing.T, after, before string) {
	t.Helper()
	seen := map[int64]bool{}
	back := filepath.Join(t.TempDir(), "before.db")
	if err := duplicate(before, back); err != nil {
		t.Fatal(err)
	}
	each := func(path string, f func(agentfs.Attr)) {
		db, err := sql.Open("libsql", "file:"+path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		rows, err := db.QueryContext(t.Context(), `SELECT ino, hw_version FROM fs_inode WHERE mode & 61440 = 32768`)
		if err != nil {
			t.Fatal(err)
		}
		defer rows.Close()
		for rows.Next() {
			var a agentfs.Attr
			if err := rows.Scan(&a.Ino, &a.Version); err != nil {
				t.Fatal(err)
			}
			f(a)
		}
	}
	each(back, func(a agentfs.Attr) { seen[a.Version] = true })
	n := 0
	each(after, func(a agentfs.Attr) {
		n++
		if a.Version == 0 || seen[a.Version] {
			t.Errorf("inode %d has the version %d again", a.Ino, a.Version)
		}
	})
	if n < 20 || len(seen) < 20 {
		t.Errorf("compared %d files with %d versions, want more", n, len(seen))
	}
}

// adopt returns what is in a copy.
func adopt(t *testing.T, file string) Tree {
	t.Helper()
	ours := filepath.Join(t.TempDir(), "adopted.db")
	if err := duplicate(file, ours); err != nil {
		t.Fatal(err)
	}
	if err := agentfs.Adopt(t.Context(), ours); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	tree, err := View(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	return tree
}

// TestDatabaseOfAnSDK adopts what an SDK made from nothing, and gives it back to both.
func TestDatabaseOfAnSDK(t *testing.T) {
	env := environment(t)
	for _, sdk := range env.SDKs() {
		t.Run(sdk.Name, func(t *testing.T) {
			ctx := t.Context()
			file := filepath.Join(t.TempDir(), "theirs.db")
			operations, whole := sdk.Changes("/made")
			if err := sdk.Change(ctx, file, operations); err != nil {
				t.Fatal(err)
			}
			if err := adopted(ctx, sdk, file, Expected{"/": ""}.After(operations, whole)); err != nil {
				t.Fatal(err)
			}
			fs, err := agentfs.Open(ctx, agentfs.Options{Location: agentfs.Location{Path: file + ".back"}})
			if err != nil {
				t.Fatal(err)
			}
			defer fs.Close()
			if _, _, err := fs.Put(ctx, author, agentfs.Placement{Parent: agentfs.Root, Name: "ours"}, 0o644, pattern(5000)); err != nil {
				t.Fatalf("Put: %v", err)
			}
			if _, err := Run(ctx, env, export(t, fs, nil), t.TempDir(), ""); err != nil {
				t.Error(err)
			}
		})
	}
}

// An SDK must not be able to hang a test.
func TestViewEndsWithItsContext(t *testing.T) {
	env := environment(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := env.PythonSDK().View(ctx, filepath.Join(t.TempDir(), "x.db")); err == nil {
		t.Error("View = nil, want an error")
	}
}
