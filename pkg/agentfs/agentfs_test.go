package agentfs

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

var someone = Caller{Actor: "user:test", UID: 1000, GID: 1001}

// tempDir is in memory where it can be: no test here is about a power loss, and most of what a
// commit takes is waiting for the disk.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "agentfs-test-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// options are those of a new database in a directory of the test.
func options(t testing.TB) Options {
	t.Helper()
	return Options{Location: Location{Path: filepath.Join(tempDir(t), "fs.db")}}
}

// withChunk makes an empty database with chunks of another size, as an SDK may have.
func withChunk(t testing.TB, o Options, size int64) *FS {
	t.Helper()
	f, err := Create(context.Background(), o, someone, nil)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Fatalf("Close: %v", err)
	}
	run(t, o.Location.Path, "UPDATE fs_config SET value = '"+strconv.FormatInt(size, 10)+"' WHERE key = 'chunk_size'")
	return create(t, o)
}

// run runs statements on a database that nobody has open.
func run(t testing.TB, path string, statements ...string) {
	t.Helper()
	c, err := dial(Location{Path: path}, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := c.exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
}

// number returns the only value of a query in the writer's connection.
func number(t testing.TB, f *FS, query string, args ...any) (n int64) {
	t.Helper()
	if err := f.read(context.Background(), func(t *tx) error {
		r, err := t.row(query, args...)
		if r != nil {
			n = r.int(0)
		}
		return err
	}); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// create makes a database that is closed with the test.
func create(t testing.TB, o Options, nodes ...Node) *FS {
	t.Helper()
	f, err := Create(context.Background(), o, someone, nodes)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, ErrClosed) {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}
