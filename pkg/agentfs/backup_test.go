package agentfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func snapshot(t *testing.T, fs *FS) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "snapshot.db")
	if err := fs.Snapshot(context.Background(), path); err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	return path
}

// alone asserts that only the file itself is in its directory.
func alone(t *testing.T, path string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("beside %s: %v, %v, want nothing", filepath.Base(path), files, err)
	}
}

func digestOf(t *testing.T, path string) [32]byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(content)
}

func openRaw(t *testing.T, path string) *raw {
	t.Helper()
	fs, err := Open(context.Background(), Options{Location: Location{Path: path}})
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() { fs.Close() })
	return &raw{t: t, fs: fs, path: path, inos: map[string]Ino{"/": Root}}
}

// content reads a file straight from its chunks, as an SDK does.
func (r *raw) content(path string) []byte {
	r.t.Helper()
	var b []byte
	err := r.fs.view(context.Background(), func(x *tx) error {
		at := Root
		for _, n := range strings.Split(strings.Trim(path, "/"), "/") {
			v, err := x.row(`SELECT ino FROM fs_dentry WHERE parent_ino = ? AND name = ?`, at, n)
			if err != nil || v == nil {
				return fmt.Errorf("no %s: %w", path, err)
			}
			at = Ino(v.int(0))
		}
		return x.each(`SELECT data FROM fs_data WHERE ino = ? ORDER BY chunk_index`, func(v row) error {
			b = append(b, v.bytes(0)...)
			return nil
		}, at)
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

func TestSnapshotIsAPrefixOfWhatWasAcknowledged(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	const writers = 4
	var acknowledged [writers]atomic.Int64
	stop := make(chan struct{})
	var group sync.WaitGroup
	for w := range writers {
		group.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				err := r.fs.update(ctx, func(x *tx) error {
					id, err := x.ids(3)
					if err != nil {
						return err
					}
					for _, s := range []struct {
						query string
						args  []any
					}{
						{`INSERT INTO fs_inode (ino, mode, nlink, size, atime, mtime, ctime, hw_version) VALUES (?, 33188, 1, 5000, 0, 0, 0, ?)`, []any{id, id + 1}},
						{`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES (?, ?, 1, ?)`, []any{id + 2, fmt.Sprintf("%d-%06d", w, i), id}},
						{`INSERT INTO fs_data VALUES (?1, 0, randomblob(4096)), (?1, 1, randomblob(904))`, []any{id}},
					} {
						if _, err := x.exec(s.query, s.args...); err != nil {
							return err
						}
					}
					x.use(0, 5000, 1)
					return x.record(Record{Actor: "w", Action: ActionCreate, Ino: Ino(id), Path: fmt.Sprintf("/%d-%06d", w, i)})
				})
				if err != nil {
					t.Errorf("write: %v", err)
					return
				}
				acknowledged[w].Add(1)
			}
		})
	}
	var copies []string
	var before [][writers]int64
	for range 6 {
		var b [writers]int64
		for w := range writers {
			b[w] = acknowledged[w].Load()
		}
		before = append(before, b)
		copies = append(copies, snapshot(t, r.fs))
	}
	close(stop)
	group.Wait()
	for i, path := range copies {
		alone(t, path)
		if head, err := os.ReadFile(path); err != nil || head[18] != 1 || head[19] != 1 {
			t.Errorf("snapshot %d is in WAL mode (%v)", i, err)
		}
		s := openRaw(t, path)
		if report := s.check(false); len(report.Faults) != 0 {
			t.Fatalf("snapshot %d: %+v", i, report.Faults)
		}
		paths := s.paths()
		for w := range writers {
			n := int64(0)
			for slices.Contains(paths, fmt.Sprintf("/%d-%06d", w, n)) {
				n++
			}
			if n < before[i][w] || n > acknowledged[w].Load() {
				t.Errorf("snapshot %d, writer %d: %d files, want %d to %d", i, w, n, before[i][w], acknowledged[w].Load())
			}
			if got := s.number(fmt.Sprintf(`SELECT count(*) FROM fs_dentry WHERE name GLOB '%d-*'`, w)); got != n {
				t.Errorf("snapshot %d, writer %d: %d files, %d without a gap", i, w, got, n)
			}
		}
	}
}

func TestSnapshotRefuses(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	taken := filepath.Join(t.TempDir(), "taken")
	if err := os.WriteFile(taken, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.fs.Snapshot(ctx, taken); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v, want ErrExist", err)
	}
	if b, _ := os.ReadFile(taken); string(b) != "mine" {
		t.Errorf("the file was changed: %q", b)
	}
	alone(t, taken)
	if err := r.fs.Snapshot(ctx, filepath.Join(t.TempDir(), "no", "such")); err == nil {
		t.Error("in no directory: no error")
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := r.fs.Snapshot(ended, filepath.Join(t.TempDir(), "x")); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	// What a killed process left is no obstacle.
	path := filepath.Join(t.TempDir(), "s.db")
	if err := os.WriteFile(path+partial, []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.fs.Snapshot(ctx, path); err != nil {
		t.Errorf("after a crash: %v", err)
	}
	alone(t, path)
	remote := &FS{location: Location{URL: "libsql://example.invalid"}}
	if err := remote.Snapshot(ctx, path); !errors.Is(err, ErrRemote) {
		t.Errorf("remote: %v, want ErrRemote", err)
	}
}

func TestExportIsPlain(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	r.sql(`UPDATE fs_data SET data = x'61' WHERE ino = {/d/file} AND chunk_index = 1`,
		`INSERT INTO fs_data VALUES ({/d/file}, 7, x'00'), ({/empty}, 0, x'00')`,
		`INSERT INTO tool_calls (id, name, parameters, started_at) VALUES (4294967296, 'x', '', 0)`)
	from := snapshot(t, r.fs)
	before := digestOf(t, from)
	to := filepath.Join(t.TempDir(), "export.db")
	if err := Export(ctx, from, to); err != nil {
		t.Fatalf("Export: %v", err)
	}
	alone(t, to)
	if digestOf(t, from) != before {
		t.Error("the snapshot was changed")
	}
	if head, err := os.ReadFile(to); err != nil || head[18] != 1 || head[19] != 1 || bytes.Contains(head, []byte("oooooo")) {
		t.Errorf("in WAL mode, or an unlinked file is in it (%v)", err)
	}
	e := openRaw(t, to)
	sparse := slices.Concat(bytes.Repeat([]byte("s"), 4096), make([]byte, 4096), bytes.Repeat([]byte("s"), 4096), make([]byte, 4096))
	full := slices.Concat(bytes.Repeat([]byte("a"), 4096), []byte("a"), make([]byte, 4095), bytes.Repeat([]byte("c"), 10000-8192))
	for path, want := range map[string][]byte{"/d/sparse": sparse, "/d/file": full, "/empty": nil, "/d/sub/deep/it's é.txt": []byte("xxxxx")} {
		if got := e.content(path); !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes, want %d, or others", path, len(got), len(want))
		}
	}
	for query, want := range map[string]int64{
		`SELECT count(*) FROM hw_orphan`: 0, `SELECT count(*) FROM fs_inode`: 9,
		`SELECT count(*) FROM fs_inode WHERE (mode & 61440) = 16384 AND nlink <> 1`: 0,
		`SELECT nlink FROM fs_inode WHERE size = 10000`:                             2,
		`SELECT count(*) FROM tool_calls WHERE parameters = ''`:                     0,
		`SELECT count(*) FROM hw_ledger`:                                            9,
		`SELECT files FROM hw_project WHERE project = 0`:                            9,
	} {
		if got := e.number(query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	// Only that directories' links are counted as SDKs do is a fault here.
	for _, f := range e.check(false).Faults {
		if f.Kind != FaultLinks {
			t.Errorf("fault: %+v", f)
		}
	}
}

func TestExportRefuses(t *testing.T) {
	ctx := context.Background()
	for name, c := range foreign(t) {
		before := digestOf(t, c.path)
		to := filepath.Join(t.TempDir(), "out.db")
		if err := Export(ctx, c.path, to); err == nil {
			t.Errorf("%s: exported", name)
		}
		if _, err := os.Lstat(to); !errors.Is(err, os.ErrNotExist) || digestOf(t, c.path) != before {
			t.Errorf("%s: there is an export (%v), or the file was changed", name, err)
		}
	}
	r := newRaw(t)
	from, to := snapshot(t, r.fs), snapshot(t, r.fs)
	if err := Export(ctx, from, to); !errors.Is(err, os.ErrExist) {
		t.Errorf("over a file: %v, want ErrExist", err)
	}
}
