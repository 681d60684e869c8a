package agentfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestQuotas(t *testing.T) {
	o := options(t)
	o.Project = Limits{Bytes: 1000, Files: 4}
	o.Whole = Limits{Bytes: 1500, Files: 20}
	f := create(t, o, Node{Path: "/a", Mode: TypeDir | 0o755, Project: true}, Node{Path: "/b", Mode: TypeDir | 0o755, Project: true})
	ctx := t.Context()
	a, b := at(t, f, "/a").Ino, at(t, f, "/b").Ino
	put := func(dir Ino, name string, size int) error {
		_, _, err := f.Put(ctx, someone, Placement{Parent: dir, Name: name, Replace: true}, 0o644, make([]byte, size))
		return err
	}
	for i, c := range []struct {
		do   func() error
		want syscall.Errno
	}{
		{func() error { return put(a, "x", 1001) }, syscall.EDQUOT},
		{func() error { return put(a, "x", 1000) }, 0},
		{func() error { return put(a, "y", 1) }, syscall.EDQUOT},
		// Replacing needs room only for what is more.
		{func() error { return put(a, "x", 900) }, 0},
		{func() error { return put(a, "y", 100) }, 0},
		{func() error { return put(a, "z", 0) }, 0},
		{func() error { return put(a, "too many", 0) }, syscall.EDQUOT},
		{func() error { _, err := f.Mkdir(ctx, someone, a, "too many", 0o755); return err }, syscall.EDQUOT},
		// The other directory has its own, the database one of all.
		{func() error { return put(b, "x", 501) }, syscall.EDQUOT},
		{func() error { return put(b, "x", 500) }, 0},
		{func() error { return f.Unlink(ctx, someone, a, "y") }, 0},
		{func() error { return put(b, "x", 600) }, 0},
	} {
		if err := c.do(); c.want == 0 && err != nil || c.want != 0 && !errors.Is(err, c.want) {
			t.Errorf("step %d: got %v, want %v", i, err, c.want)
		}
	}
	whole, project, err := f.Statfs(ctx, b)
	if want := (Usage{Limits{1500, 6}, o.Whole}); err != nil || whole != want {
		t.Errorf("whole: got %+v, %v, want %+v", whole, err, want)
	}
	if want := (Usage{Limits{600, 2}, o.Project}); project != want {
		t.Errorf("project: got %+v, want %+v", project, want)
	}
	// An upload counts before it has a name, and after a failure takes nothing.
	if err := f.Unlink(ctx, someone, b, "x"); err != nil {
		t.Fatal(err)
	}
	x, err := f.Temp(ctx, someone, b, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt(make([]byte, 600), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt(make([]byte, 1), 600); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("write: got %v, want EDQUOT", err)
	}
	if err := x.Truncate(2000); !errors.Is(err, syscall.EDQUOT) {
		t.Errorf("truncate: got %v, want EDQUOT", err)
	}
	if _, _, err := f.Place(ctx, someone, x, Placement{Parent: a, Name: "x", Replace: true}); !errors.Is(err, syscall.EXDEV) {
		t.Errorf("place elsewhere: got %v, want EXDEV", err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if _, project, _ := f.Statfs(ctx, b); project.Used != (Limits{0, 1}) {
		t.Errorf("after the upload was given up: got %+v, want 0 bytes, 1 file", project.Used)
	}
}

// TestCrash copies the database as it is in the middle of an upload, which is what a killed process
// leaves, and opens the copy.
func TestCrash(t *testing.T) {
	o := options(t)
	f := create(t, o, Node{Path: "/kept", Mode: TypeFile | 0o644, Content: []byte("kept")})
	ctx := t.Context()
	x, err := f.Temp(ctx, someone, 0, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	// More than one window of freeing.
	part := bytes.Repeat([]byte("part"), 1<<20)
	for i := range int64(20) {
		if _, err := x.WriteAt(part, i*int64(len(part))); err != nil {
			t.Fatal(err)
		}
	}
	kept, err := f.Open(ctx, someone, at(t, f, "/kept").Ino, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Unlink(ctx, someone, Root, "kept"); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Put(ctx, someone, Placement{Parent: Root, Name: "answered"}, 0o644, []byte("yes")); err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(tempDir(t), "fs.db")
	for _, suffix := range []string{"", "-wal"} {
		raw, err := os.ReadFile(o.Location.Path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(copied+suffix, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	after := create(t, Options{Location: Location{Path: copied}})
	for what, query := range map[string]string{
		"inodes": "SELECT count(*) - 2 FROM fs_inode", "orphans": "SELECT count(*) FROM hw_orphan",
		"chunks": "SELECT count(*) - 1 FROM fs_data", "bytes": "SELECT bytes - 3 FROM hw_project WHERE project = 0",
		"files": "SELECT files - 2 FROM hw_project WHERE project = 0",
	} {
		if n := number(t, after, query); n != 0 {
			t.Errorf("%s: %d too many", what, n)
		}
	}
	if at(t, after, "/answered").Size != 3 {
		t.Error("what was answered is not there")
	}
	if err := errors.Join(x.Close(), kept.Close()); err != nil {
		t.Fatal(err)
	}
	if n := number(t, f, "SELECT count(*) - 2 FROM fs_inode"); n != 0 {
		t.Errorf("the process that lived on has %d inodes too many", n)
	}
}

// TestDiskFull fills a small file system: what fails says ENOSPC and changes nothing, and there is
// room again after a removal.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("agentfs-test", dir, "tmpfs", 0, "size=12m"); err != nil {
		t.Skipf("a file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	f, err := Create(t.Context(), Options{Location: Location{Path: filepath.Join(dir, "fs.db")}}, someone, nil)
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 200_000)
	put := func(name string) error {
		_, _, err := f.Put(t.Context(), someone, Placement{Parent: Root, Name: name}, 0o644, content)
		return err
	}
	stored := 0
	for ; stored < 100; stored++ {
		if err = put(fmt.Sprint(stored)); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("after %d files: got %v, want ENOSPC", stored, err)
	}
	if entries, err := f.ReadDir(t.Context(), Root, "", 1000); err != nil || len(entries) != stored {
		t.Errorf("got %d files, %v, want %d", len(entries), err, stored)
	}
	if n := number(t, f, "SELECT bytes FROM hw_project WHERE project = 0"); n != int64(stored)*200_000 {
		t.Errorf("got %d bytes in use, want %d", n, stored*200_000)
	}
	for i := range 3 {
		if err := f.Unlink(t.Context(), someone, Root, fmt.Sprint(i)); err != nil {
			t.Fatalf("remove: %v", err)
		}
	}
	if err := put("again"); err != nil {
		t.Errorf("after removals: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
}

func TestRefusedDatabasesStayUnchanged(t *testing.T) {
	alter := func(statements ...string) func(*testing.T, string) {
		return func(t *testing.T, path string) { run(t, path, statements...) }
	}
	for _, c := range []struct {
		name string
		want error
		make func(t *testing.T, path string)
	}{
		{"newer version", ErrSchema, alter("UPDATE fs_config SET value = '0.5' WHERE key = 'schema_version'")},
		{"older version", ErrSchema, alter("UPDATE fs_config SET value = '0.2' WHERE key = 'schema_version'")},
		{"no version", ErrSchema, alter("DELETE FROM fs_config WHERE key = 'schema_version'")},
		{"another format", ErrSchema, alter("UPDATE hw_meta SET value = '2' WHERE key = 'format'")},
		{"made by an SDK", ErrSchema, alter("DROP TABLE hw_meta")},
		{"missing table", ErrDamaged, alter("DROP TABLE fs_symlink")},
		{"missing table of ours", ErrDamaged, alter("DROP TABLE hw_hold")},
		{"no root", ErrDamaged, alter("DELETE FROM fs_inode WHERE ino = 1")},
		{"bad chunk size", ErrDamaged, alter("UPDATE fs_config SET value = '-1' WHERE key = 'chunk_size'")},
		{"no writer", ErrDamaged, alter("DELETE FROM hw_meta WHERE key = 'writer'")},
		{"another program's", ErrForeign, func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			run(t, path, "CREATE TABLE messages (id INTEGER)", "INSERT INTO messages VALUES (1)")
		}},
		{"text", ErrForeign, func(t *testing.T, path string) {
			if err := os.WriteFile(path, []byte(strings.Repeat("this is no database ", 10)), 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{"damaged page", ErrDamaged, func(t *testing.T, path string) {
			file, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = file.WriteAt(bytes.Repeat([]byte{0xde, 0xad}, pageSize/2), 3*pageSize)
			if err = errors.Join(err, file.Close()); err != nil {
				t.Fatal(err)
			}
		}},
		{"cut short", ErrDamaged, func(t *testing.T, path string) {
			info, err := os.Stat(path)
			if err == nil {
				err = os.Truncate(path, info.Size()/2/pageSize*pageSize)
			}
			if err != nil {
				t.Fatal(err)
			}
		}},
		{"empty", ErrNotExist, func(t *testing.T, path string) {
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := options(t)
			f, err := Create(t.Context(), o, someone, []Node{{Path: "/a", Mode: TypeFile, Content: make([]byte, 50_000)}})
			if err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
			c.make(t, o.Location.Path)
			sum := func() [32]byte {
				raw, err := os.ReadFile(o.Location.Path)
				if err != nil {
					t.Fatal(err)
				}
				return sha256.Sum256(raw)
			}
			if err := awaitRelease(o.Location.Path); err != nil {
				t.Fatal(err)
			}
			before := sum()
			if f, err := Open(t.Context(), o); !errors.Is(err, c.want) || f != nil {
				t.Errorf("got %v, want %v", err, c.want)
			}
			if err := awaitRelease(o.Location.Path); err != nil {
				t.Fatal(err)
			}
			if sum() != before {
				t.Error("the file was changed")
			}
			left, err := filepath.Glob(o.Location.Path + "-*")
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v, %v", left, err)
			}
		})
	}
	if _, err := Open(t.Context(), options(t)); !errors.Is(err, ErrNotExist) {
		t.Errorf("no file: got %v, want ErrNotExist", err)
	}
}

func TestCreateLeavesWhatExists(t *testing.T) {
	o := options(t)
	f := create(t, o, Node{Path: "/a", Mode: TypeFile, Content: []byte("1")})
	generation := f.Generation()
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); !errors.Is(err, ErrClosed) {
		t.Errorf("closed twice: got %v, want ErrClosed", err)
	}
	if _, err := f.Stat(t.Context(), Root); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: got %v, want ErrClosed", err)
	}
	if left, _ := filepath.Glob(o.Location.Path + "-*"); len(left) > 0 {
		t.Errorf("Close left %v", left)
	}
	f = create(t, o, Node{Path: "/b", Mode: TypeFile})
	if _, err := f.Lookup(t.Context(), Root, "b"); !errors.Is(err, syscall.ENOENT) || f.Generation() != generation || at(t, f, "/a").Size != 1 {
		t.Errorf("the second Create changed it: %v", err)
	}
}

func TestPlantIsAllOrNothing(t *testing.T) {
	f := sample(t)
	ctx := t.Context()
	err := f.Plant(ctx, someone, []Node{{Path: "/new", Mode: TypeDir | 0o755}, {Path: "/dir", Mode: TypeDir | 0o755}})
	if !errors.Is(err, syscall.EEXIST) {
		t.Errorf("got %v, want EEXIST", err)
	}
	if _, err := f.Resolve(ctx, "/new"); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a part was planted: %v", err)
	}
	// Planting again, as after an answer that was lost.
	if err := f.Plant(ctx, someone, []Node{{Path: "/quota", Mode: TypeDir | 0o755, Project: true}, {Path: "/none/x", Mode: TypeFile}}); err != nil {
		t.Errorf("again: %v", err)
	}
	if a := at(t, f, "/quota/file"); a.Project != at(t, f, "/quota").Ino || a.Project == 0 {
		t.Errorf("got project %d, want the directory", a.Project)
	}
}

// TestBusy: another process that keeps the lock is waited for, but not for ever; a caller waits no
// longer than its context for its turn.
func TestBusy(t *testing.T) {
	o := options(t)
	f := create(t, o)
	other, err := dial(o.Location, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer other.close()
	if _, err := other.exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	started := make(chan struct{})
	wg.Go(func() {
		close(started)
		if _, err := f.Mkdir(context.Background(), someone, Root, "a", 0o755); !errors.Is(err, ErrBusy) {
			t.Errorf("got %v, want ErrBusy", err)
		}
	})
	<-started
	begin := time.Now()
	for len(f.writer.turn) == 0 {
		if _, err := f.Stat(t.Context(), Root); err != nil {
			t.Errorf("reading meanwhile: %v", err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := f.Mkdir(ctx, someone, Root, "b", 0o755); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's end", err)
	}
	wg.Wait()
	if took := time.Since(begin); took > 3*busyMilliseconds*time.Millisecond {
		t.Errorf("waited %v, want about %d ms", took, busyMilliseconds)
	}
	if _, err := other.exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Mkdir(t.Context(), someone, Root, "a", 0o755); err != nil {
		t.Errorf("after the lock went: %v", err)
	}
}

// TestManyAtOnce has writers, readers and openers on the same names; run it with -race.
func TestManyAtOnce(t *testing.T) {
	f := sample(t)
	dir := at(t, f, "/dir").Ino
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			content := bytes.Repeat([]byte{byte('a' + w)}, 40_000)
			for i := range 25 {
				p := Placement{Parent: dir, Name: fmt.Sprint("x", i%3), Replace: true}
				if _, _, err := f.Put(t.Context(), someone, p, 0o644, content); err != nil {
					t.Error(err)
				}
				a, err := f.Lookup(t.Context(), dir, p.Name)
				if err != nil {
					t.Error(err)
					return
				}
				x, err := f.Open(t.Context(), someone, a.Ino, os.O_RDONLY)
				if errors.Is(err, syscall.ENOENT) {
					continue // replaced meanwhile
				}
				if err != nil {
					t.Error(err)
					return
				}
				got := make([]byte, len(content))
				if _, err := x.ReadAt(got, 0); err != nil || !bytes.Equal(got, bytes.Repeat(got[:1], len(got))) {
					t.Errorf("a mixture, or %v", err)
				}
				if err := x.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := number(t, f, "SELECT count(*) FROM hw_orphan"); n != 0 || len(f.handles) != 0 || len(f.orphans) != 0 {
		t.Errorf("left: %d orphans, %v, %v", n, f.handles, f.orphans)
	}
}

// TestRemote runs the basic operations against a libSQL server.
func TestRemote(t *testing.T) {
	url := os.Getenv("HUMANWORK_TEST_LIBSQL_URL")
	if url == "" {
		t.Skip("HUMANWORK_TEST_LIBSQL_URL is not set")
	}
	f := create(t, Options{Location: Location{URL: url, Token: os.Getenv("HUMANWORK_TEST_LIBSQL_TOKEN")}})
	name := fmt.Sprint("test-", time.Now().UnixNano())
	content := bytes.Repeat([]byte("remote"), 10_000)
	a, created, err := f.Put(t.Context(), someone, Placement{Parent: Root, Name: name}, 0o644, content)
	if err != nil || !created {
		t.Fatal(created, err)
	}
	x, err := f.Open(t.Context(), someone, a.Ino, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(content))
	if _, err := x.ReadAt(got, 0); err != nil || !bytes.Equal(got, content) {
		t.Errorf("read: %v, or other bytes", err)
	}
	if err := errors.Join(f.Unlink(t.Context(), someone, Root, name), x.Close()); err != nil {
		t.Error(err)
	}
}
