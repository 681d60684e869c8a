package libsql

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/store"
	"humanwork.internal/services/agentfs/internal/store/storetest"
	"humanwork.internal/services/agentfs/internal/tree"
)

// start runs a store on dir until stop, or the end of the test.
func start(t *testing.T, dir string) (s *Store, stop func()) {
	t.Helper()
	s = New(dir)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	select {
	case err := <-done:
		t.Fatalf("Run: %v", err)
	case <-s.Opened():
	}
	return s, stop
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(t *testing.T) store.Store {
		s, _ := start(t, filepath.Join(t.TempDir(), "da ta?%"))
		return s
	})
}

func exec(t *testing.T, path string, statements ...string) {
	t.Helper()
	db, err := sql.Open("libsql", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range statements {
		if _, err := db.Exec(st); err != nil {
			t.Fatalf("%s: %v", st, err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestSurvivesReopening(t *testing.T) {
	dir := t.TempDir()
	s, stop := start(t, dir)
	if err := s.Provision(t.Context(), "acme", []tree.Node{tree.File("/a", []byte("kept"))}); err != nil {
		t.Fatal(err)
	}
	stop()
	if err := s.Plant(t.Context(), "acme", nil); !errors.Is(err, tree.ReasonStarting) {
		t.Errorf("call after the end: got %v, want SERVICE_STARTING", err)
	}
	s, _ = start(t, dir)
	got, err := s.ReadFiles(t.Context(), "acme", []string{"/a"}, 100)
	if err != nil || string(got[0]) != "kept" {
		t.Errorf("ReadFiles after reopening = %q, %v, want kept", got, err)
	}
}

func TestSchemaIsTheSpecifications(t *testing.T) {
	dir := t.TempDir()
	s, stop := start(t, dir)
	if err := s.Provision(t.Context(), "acme", []tree.Node{tree.Dir("/d"), tree.Dir("/d/e"), tree.File("/d/f", make([]byte, 5000))}); err != nil {
		t.Fatal(err)
	}
	stop()
	db, err := sql.Open("libsql", "file:"+filepath.Join(dir, "organizations", "acme.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	for query, want := range map[string]string{
		"SELECT typeof(value)||value FROM fs_config WHERE key='chunk_size'":                                      "text4096",
		"SELECT CAST(value AS BLOB) FROM fs_config WHERE key='schema_version'":                                   "0.4",
		"SELECT mode||','||nlink FROM fs_inode WHERE ino=1":                                                      "16877,3",
		"SELECT mode||','||nlink||','||size FROM fs_inode JOIN fs_dentry USING (ino) WHERE name='d'":             "16832,3,0",
		"SELECT mode||','||nlink||','||size FROM fs_inode JOIN fs_dentry USING (ino) WHERE name='f'":             "33152,1,5000",
		"SELECT group_concat(length(data)) FROM fs_data":                                                         "4096,904",
		"SELECT count(*)||'' FROM fs_dentry WHERE ino=1":                                                         "0",
		"SELECT count(*)||'' FROM sqlite_master WHERE type='trigger'":                                            "0",
		"SELECT count(*)||'' FROM fs_inode WHERE mtime > 1700000000 AND atime=mtime AND mtime=ctime":             "4",
		"SELECT count(*)||'' FROM sqlite_master WHERE name IN ('idx_fs_dentry_parent','idx_fs_whiteout_parent')": "2",
	} {
		var got []byte
		if err := db.QueryRow(query).Scan(&got); err != nil || string(got) != want {
			t.Errorf("%s\ngot %q, %v, want %q", query, got, err, want)
		}
	}
}

// TestRefusesWithoutChanging plants files that are not healthy AgentFS databases of this version.
func TestRefusesWithoutChanging(t *testing.T) {
	healthy := func(t *testing.T, dir string) string {
		s, stop := start(t, dir)
		nodes := []tree.Node{tree.Dir("/d")}
		for _, n := range []string{"a", "b", "c", "e"} {
			nodes = append(nodes, tree.File("/d/"+n, []byte(strings.Repeat(n, 20000))))
		}
		if err := s.Provision(t.Context(), "acme", nodes); err != nil {
			t.Fatal(err)
		}
		stop()
		return filepath.Join(dir, "organizations", "acme.db")
	}
	overwrite := func(t *testing.T, path string, at int64, with string) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte(with), at); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name   string
		reason errs.Reason
		make   func(t *testing.T, path string)
	}{
		{"newer version", tree.ReasonSchemaUnsupported, func(t *testing.T, p string) {
			exec(t, p, "UPDATE fs_config SET value='0.5' WHERE key='schema_version'")
		}},
		{"older version", tree.ReasonSchemaUnsupported, func(t *testing.T, p string) {
			exec(t, p, "UPDATE fs_config SET value='0.2' WHERE key='schema_version'")
		}},
		{"no version", tree.ReasonSchemaUnsupported, func(t *testing.T, p string) { exec(t, p, "DELETE FROM fs_config") }},
		{"missing table", tree.ReasonDamaged, func(t *testing.T, p string) { exec(t, p, "DROP TABLE fs_symlink") }},
		{"no root", tree.ReasonDamaged, func(t *testing.T, p string) { exec(t, p, "DELETE FROM fs_inode WHERE ino=1") }},
		{"bad chunk size", tree.ReasonDamaged, func(t *testing.T, p string) { exec(t, p, "UPDATE fs_config SET value='-1' WHERE key='chunk_size'") }},
		{"another program's database", tree.ReasonForeign, func(t *testing.T, p string) {
			if err := os.Remove(p); err != nil {
				t.Fatal(err)
			}
			exec(t, p, "CREATE TABLE messages (id INTEGER)", "INSERT INTO messages VALUES (1)")
		}},
		{"text file", tree.ReasonForeign, func(t *testing.T, p string) {
			if err := os.WriteFile(p, []byte("hello, this is no database at all"), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged page", tree.ReasonDamaged, func(t *testing.T, p string) { overwrite(t, p, 4096*3, strings.Repeat("\xde\xad", 2048)) }},
		{"cut short", tree.ReasonDamaged, func(t *testing.T, p string) {
			info, err := os.Stat(p)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(p, info.Size()/2/4096*4096); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			path := healthy(t, dir)
			c.make(t, path)
			sum := func() [32]byte {
				raw, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				return sha256.Sum256(raw)
			}
			before := sum()
			s, stop := start(t, dir)
			_, rerr := s.ReadFiles(t.Context(), "acme", []string{"/d/a"}, 1<<20)
			for what, err := range map[string]error{
				"Provision": s.Provision(t.Context(), "acme", []tree.Node{tree.Dir("/x")}),
				"Plant":     s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/x")}),
				"ReadFiles": rerr,
			} {
				if !errors.Is(err, errs.Precondition) || !errors.Is(err, c.reason) {
					t.Errorf("%s: got %v, want %s", what, err, c.reason)
				}
			}
			if err := s.Provision(t.Context(), "other", nil); err != nil {
				t.Errorf("another organization: %v", err)
			}
			stop()
			if sum() != before {
				t.Error("the file was changed")
			}
			for _, suffix := range []string{"-wal", "-shm", "-journal"} {
				if _, err := os.Stat(path + suffix); err == nil {
					t.Errorf("%s was left behind", suffix)
				}
			}
		})
	}
}

func TestFinishesAnInterruptedProvisioning(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "organizations", "acme.db")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	// What is left when the process dies before the transaction commits: an empty file, or one
	// with nothing but SQLite's header.
	for _, c := range []struct {
		name  string
		leave func()
	}{
		{"empty file", func() {
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"header only", func() { exec(t, path, "CREATE TABLE x (y)", "DROP TABLE x") }},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.leave()
			s, stop := start(t, dir)
			_, err := s.ReadFiles(t.Context(), "acme", []string{"/a"}, 10)
			if !errors.Is(err, tree.ReasonNotProvisioned) {
				t.Errorf("before: got %v, want ORGANIZATION_NOT_PROVISIONED", err)
			}
			if err := s.Provision(t.Context(), "acme", []tree.Node{tree.File("/a", []byte("1"))}); err != nil {
				t.Fatal(err)
			}
			if got, err := s.ReadFiles(t.Context(), "acme", []string{"/a"}, 10); err != nil || string(got[0]) != "1" {
				t.Errorf("after: got %q, %v, want 1", got, err)
			}
			stop()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestBusyIsBounded(t *testing.T) {
	dir := t.TempDir()
	s, _ := start(t, dir)
	if err := s.Provision(t.Context(), "acme", nil); err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("libsql", "file:"+filepath.Join(dir, "organizations", "acme.db"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	err = s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/c")})
	if !errors.Is(err, tree.ReasonBusy) || !errors.Is(err, errs.Unavailable) {
		t.Errorf("got %v, want AGENTFS_BUSY", err)
	}
	if took := time.Since(begin); took > 3*busyMilliseconds*time.Millisecond {
		t.Errorf("waited %v, want about %d ms", took, busyMilliseconds)
	}
	if _, err := conn.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(conn.Close(), db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/c")}); err != nil {
		t.Errorf("after the lock went: %v", err)
	}
}

func TestDataDirectoryIsHeldByOne(t *testing.T) {
	dir := t.TempDir()
	start(t, dir)
	if err := New(dir).Run(t.Context()); !errors.Is(err, tree.ReasonDataDirInUse) {
		t.Errorf("second store: got %v, want DATA_DIR_IN_USE", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := New(file).Run(t.Context()); !errors.Is(err, tree.ReasonDataDir) {
		t.Errorf("a file as directory: got %v, want DATA_DIR_UNUSABLE", err)
	}
}
