package agentfs

import (
	"context"
	"path/filepath"
	"testing"
)

var someone = Caller{Actor: "user:test", UID: 1000, GID: 1001}

// options are those of a new database in a directory of the test.
func options(t testing.TB) Options {
	t.Helper()
	return Options{Location: Location{Path: filepath.Join(t.TempDir(), "fs.db")}}
}

// create makes a database that is closed with the test.
func create(t testing.TB, o Options, nodes ...Node) *FS {
	t.Helper()
	f, err := Create(context.Background(), o, someone, nodes)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil && err.Error() != "close the AgentFS: file already closed" {
			t.Errorf("Close: %v", err)
		}
	})
	return f
}

func must[T any](t testing.TB) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
