package agentfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sample has one of each kind.
func sample(t *testing.T) *FS {
	return create(t, options(t),
		Node{Path: "/dir", Mode: TypeDir | 0o755},
		Node{Path: "/dir/sub", Mode: TypeDir | 0o700},
		Node{Path: "/dir/file", Mode: TypeFile | 0o640, Content: []byte("content")},
		Node{Path: "/dir/link", Mode: TypeSymlink, Target: "file"},
		Node{Path: "/empty", Mode: TypeDir | 0o755},
		Node{Path: "/quota", Mode: TypeDir | 0o755, Project: true},
		Node{Path: "/quota/file", Mode: TypeFile | 0o600, Content: []byte("own")})
}

// at returns the inode of a path, links not followed.
func at(t *testing.T, f *FS, path string) Attr {
	t.Helper()
	a := Attr{Ino: Root}
	for _, n := range strings.Split(strings.Trim(path, "/"), "/") {
		var err error
		if n == "" {
			break
		}
		if a, err = f.Lookup(t.Context(), a.Ino, n); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return a
}

func TestErrnos(t *testing.T) {
	f := sample(t)
	ctx := t.Context()
	dir, sub, file, link := at(t, f, "/dir").Ino, at(t, f, "/dir/sub").Ino, at(t, f, "/dir/file").Ino, at(t, f, "/dir/link").Ino
	quota := at(t, f, "/quota").Ino
	const gone Ino = 99
	lookup := func(parent Ino, name string) func() error {
		return func() error { _, err := f.Lookup(ctx, parent, name); return err }
	}
	resolve := func(path string) func() error {
		return func() error { _, err := f.Resolve(ctx, path); return err }
	}
	mkdir := func(parent Ino, name string) func() error {
		return func() error { _, err := f.Mkdir(ctx, someone, parent, name, 0o755); return err }
	}
	rename := func(from Ino, old string, to Ino, name string, flags uint) func() error {
		return func() error { return f.Rename(ctx, someone, from, old, to, name, flags) }
	}
	open := func(ino Ino) func() error {
		return func() error { _, err := f.Open(ctx, someone, ino, os.O_RDWR); return err }
	}
	xattr := func(ino Ino, name string, size, flags int) func() error {
		return func() error { return f.SetXattr(ctx, someone, ino, name, make([]byte, size), flags) }
	}
	size := func(ino Ino, n int64) func() error {
		return func() error { _, err := f.SetAttr(ctx, someone, ino, Change{Size: &n}); return err }
	}
	before := number(t, f, "SELECT count(*) FROM hw_ledger")
	for _, c := range []struct {
		name string
		do   func() error
		want syscall.Errno
	}{
		{"lookup of nothing", lookup(dir, "none"), syscall.ENOENT},
		{"lookup in a file", lookup(file, "x"), syscall.ENOTDIR},
		{"lookup in nothing", lookup(gone, "x"), syscall.ENOENT},
		{"empty name", lookup(dir, ""), syscall.EINVAL},
		{"dot", lookup(dir, "."), syscall.EINVAL},
		{"dots", lookup(dir, ".."), syscall.EINVAL},
		{"slash", lookup(dir, "a/b"), syscall.EINVAL},
		{"NUL", lookup(dir, "a\x00b"), syscall.EINVAL},
		{"256 bytes", lookup(dir, strings.Repeat("x", 256)), syscall.ENAMETOOLONG},
		{"no UTF-8", lookup(dir, "\xff"), syscall.EILSEQ},
		{"relative path", resolve("dir"), syscall.EINVAL},
		{"path with dots", resolve("/dir/../dir"), syscall.EINVAL},
		{"path with two slashes", resolve("//dir"), syscall.EINVAL},
		{"path over a link", resolve("/dir/link/x"), syscall.ELOOP},
		{"path to a link", resolve("/dir/link"), syscall.ELOOP},
		{"path over a file", resolve("/dir/file/x"), syscall.ENOTDIR},
		{"mkdir over", mkdir(dir, "file"), syscall.EEXIST},
		{"mkdir in a file", mkdir(file, "x"), syscall.ENOTDIR},
		{"mkdir in nothing", mkdir(gone, "x"), syscall.ENOENT},
		{"MkdirAll over a file", func() error { _, err := f.MkdirAll(ctx, someone, "/dir/file/x", 0o755); return err }, syscall.ENOTDIR},
		{"MkdirAll over a link", func() error { _, err := f.MkdirAll(ctx, someone, "/dir/link/x", 0o755); return err }, syscall.ELOOP},
		{"MkdirAll of a file", func() error { _, err := f.MkdirAll(ctx, someone, "/dir/file", 0o755); return err }, syscall.ENOTDIR},
		{"device", func() error { _, err := f.Mknod(ctx, someone, dir, "d", syscall.S_IFCHR); return err }, syscall.EPERM},
		{"node without a type", func() error { _, err := f.Mknod(ctx, someone, dir, "d", 0); return err }, syscall.EINVAL},
		{"empty link", func() error { _, err := f.Symlink(ctx, someone, dir, "l", ""); return err }, syscall.ENOENT},
		{"long link", func() error { _, err := f.Symlink(ctx, someone, dir, "l", strings.Repeat("x", 4096)); return err }, syscall.ENAMETOOLONG},
		{"readlink of a file", func() error { _, err := f.Readlink(ctx, file); return err }, syscall.EINVAL},
		{"readlink of nothing", func() error { _, err := f.Readlink(ctx, gone); return err }, syscall.ENOENT},
		{"link of a directory", func() error { _, err := f.Link(ctx, someone, sub, dir, "x"); return err }, syscall.EPERM},
		{"link over", func() error { _, err := f.Link(ctx, someone, file, dir, "sub"); return err }, syscall.EEXIST},
		{"link into another quota", func() error { _, err := f.Link(ctx, someone, file, quota, "x"); return err }, syscall.EXDEV},
		{"unlink of a directory", func() error { return f.Unlink(ctx, someone, dir, "sub") }, syscall.EISDIR},
		{"unlink of nothing", func() error { return f.Unlink(ctx, someone, dir, "none") }, syscall.ENOENT},
		{"rmdir of a file", func() error { return f.Rmdir(ctx, someone, dir, "file") }, syscall.ENOTDIR},
		{"rmdir of a full one", func() error { return f.Rmdir(ctx, someone, Root, "dir") }, syscall.ENOTEMPTY},
		{"directory into itself", rename(Root, "dir", dir, "x", 0), syscall.EINVAL},
		{"directory below itself", rename(Root, "dir", sub, "x", 0), syscall.EINVAL},
		{"directory over a file", rename(Root, "empty", dir, "file", 0), syscall.ENOTDIR},
		{"file over a directory", rename(dir, "file", Root, "empty", 0), syscall.EISDIR},
		{"over a full directory", rename(Root, "empty", Root, "dir", 0), syscall.ENOTEMPTY},
		{"over its parent", rename(dir, "file", Root, "dir", 0), syscall.ENOTEMPTY},
		{"not to be replaced", rename(dir, "file", dir, "link", unix.RENAME_NOREPLACE), syscall.EEXIST},
		{"exchange with nothing", rename(dir, "file", dir, "none", unix.RENAME_EXCHANGE), syscall.ENOENT},
		{"exchange with its parent", rename(dir, "sub", Root, "dir", unix.RENAME_EXCHANGE), syscall.EINVAL},
		{"whiteout", rename(dir, "file", dir, "y", unix.RENAME_WHITEOUT), syscall.EINVAL},
		{"both flags", rename(dir, "file", dir, "y", unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE), syscall.EINVAL},
		{"rename into another quota", rename(dir, "file", quota, "x", 0), syscall.EXDEV},
		{"quota into another", rename(Root, "empty", quota, "x", 0), syscall.EXDEV},
		{"open of a directory", open(dir), syscall.EISDIR},
		{"open of a link", open(link), syscall.ELOOP},
		{"open of nothing", open(gone), syscall.ENOENT},
		{"create over with O_EXCL", func() error {
			_, err := f.Create(ctx, someone, dir, "file", 0o644, os.O_EXCL|os.O_RDWR)
			return err
		}, syscall.EEXIST},
		{"put over without Replace", func() error {
			_, _, err := f.Put(ctx, someone, Placement{Parent: dir, Name: "file"}, 0o644, nil)
			return err
		}, syscall.EEXIST},
		{"put over a directory", func() error {
			_, _, err := f.Put(ctx, someone, Placement{Parent: dir, Name: "sub", Replace: true}, 0o644, nil)
			return err
		}, syscall.EISDIR},
		{"temp in what is no quota", func() error { _, err := f.Temp(ctx, someone, dir, 0o644); return err }, syscall.EINVAL},
		{"size of a directory", size(dir, 0), syscall.EISDIR},
		{"size of a link", size(link, 0), syscall.EINVAL},
		{"negative size", size(file, -1), syscall.EINVAL},
		{"enormous size", size(file, MaxSize+1), syscall.EFBIG},
		{"readdir of a file", func() error { _, err := f.ReadDir(ctx, file, "", 10); return err }, syscall.ENOTDIR},
		{"readdir without a limit", func() error { _, err := f.ReadDir(ctx, dir, "", 0); return err }, syscall.EINVAL},
		{"no such attribute", func() error { _, err := f.GetXattr(ctx, file, "user.x"); return err }, syscall.ENODATA},
		{"attribute to replace", xattr(file, "user.x", 1, unix.XATTR_REPLACE), syscall.ENODATA},
		{"attribute of a link", xattr(link, "user.x", 1, 0), syscall.EPERM},
		{"attribute of no namespace", xattr(file, "x.y", 1, 0), syscall.EOPNOTSUPP},
		{"attribute without a name", xattr(file, "user.", 1, 0), syscall.EINVAL},
		{"long attribute", xattr(file, "user."+strings.Repeat("x", 251), 1, 0), syscall.ERANGE},
		{"large attribute", xattr(file, "user.x", MaxXattrValue+1, 0), syscall.E2BIG},
		{"removal of no attribute", func() error { return f.RemoveXattr(ctx, someone, file, "user.x") }, syscall.ENODATA},
		{"hold of nothing", func() error { return f.Hold(ctx, "turn", []Ino{file, gone}) }, syscall.ENOENT},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.do()
			var e *Error
			if !errors.Is(err, c.want) || !errors.As(err, &e) {
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
	if n := number(t, f, "SELECT count(*) FROM hw_ledger"); n != before {
		t.Errorf("what failed is in the ledger %d times", n-before)
	}
	if h, err := f.Holders(ctx, file); err != nil || len(h) != 0 {
		t.Errorf("a hold that failed: got %v, %v", h, err)
	}
}

// TestBetterThanTheReference has what the reference implementation does otherwise.
func TestBetterThanTheReference(t *testing.T) {
	ctx := t.Context()
	t.Run("rmdir leaves no inode", func(t *testing.T) {
		f := sample(t)
		before := number(t, f, "SELECT count(*) FROM fs_inode")
		if err := f.Rmdir(ctx, someone, Root, "empty"); err != nil {
			t.Fatal(err)
		}
		if n := number(t, f, "SELECT count(*) FROM fs_inode"); n != before-1 {
			t.Errorf("got %d inodes, want %d", n, before-1)
		}
	})
	t.Run("what is open and unlinked reads on", func(t *testing.T) {
		f := sample(t)
		file := at(t, f, "/dir/file").Ino
		x, err := f.Open(ctx, someone, file, os.O_RDWR)
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Unlink(ctx, someone, at(t, f, "/dir").Ino, "file"); err != nil {
			t.Fatal(err)
		}
		if _, err := x.WriteAt([]byte("C"), 0); err != nil {
			t.Fatal(err)
		}
		p := make([]byte, 7)
		if _, err := x.ReadAt(p, 0); err != nil || string(p) != "Content" {
			t.Errorf("got %q, %v", p, err)
		}
		if a, err := x.Stat(); err != nil || a.Nlink != 0 {
			t.Errorf("got %d links, %v, want 0", a.Nlink, err)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Stat(ctx, file); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("after close: got %v, want ENOENT", err)
		}
		if _, err := x.ReadAt(p, 0); !errors.Is(err, ErrClosed) {
			t.Errorf("read after close: got %v, want ErrClosed", err)
		}
	})
	t.Run("rename to itself and between names of one inode", func(t *testing.T) {
		f := sample(t)
		dir, file := at(t, f, "/dir").Ino, at(t, f, "/dir/file").Ino
		if _, err := f.Link(ctx, someone, file, dir, "other"); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{"file", "other"} {
			if err := f.Rename(ctx, someone, dir, "file", dir, to, 0); err != nil {
				t.Errorf("to %s: %v", to, err)
			}
		}
		if a := at(t, f, "/dir/file"); a.Nlink != 2 || a.Ino != at(t, f, "/dir/other").Ino {
			t.Errorf("got %+v, want both names", a)
		}
	})
	t.Run("chmod leaves mtime", func(t *testing.T) {
		f := sample(t)
		old := at(t, f, "/dir/file")
		mode := uint32(0o4600)
		a, err := f.SetAttr(ctx, someone, old.Ino, Change{Mode: &mode})
		if err != nil || !a.Mtime.Equal(old.Mtime) || !a.Ctime.After(old.Ctime) || a.Mode != TypeFile|0o4600 || a.Version != old.Version {
			t.Errorf("got %+v, %v, before %+v", a, err, old)
		}
	})
	t.Run("a renamed directory keeps its content", func(t *testing.T) {
		f := sample(t)
		if err := f.Rename(ctx, someone, Root, "dir", Root, "moved", 0); err != nil {
			t.Fatal(err)
		}
		if p, err := f.Path(ctx, at(t, f, "/moved/file").Ino); err != nil || p != "/moved/file" {
			t.Errorf("got %q, %v", p, err)
		}
	})
}

// TestNames has the names that others break on, each with a directory and a file.
func TestNames(t *testing.T) {
	o := options(t)
	f := create(t, o)
	names := []string{"2024-01-05", "2024-01-05 10:00:00", "it's.txt", `say "hi".txt`, " leading and trailing ", "-rf", "\u00e9", "e\u0301",
		"日本語", strings.Repeat("é", 127) + "x", "%2F", "a\\b", "\n", "1e5", "NULL", "x'00'", "'; DROP TABLE fs_inode; --"}
	for _, n := range names {
		if _, created, err := f.Put(t.Context(), someone, Placement{Parent: Root, Name: n}, 0o644, []byte(n)); err != nil || !created {
			t.Fatalf("%q: %v, %v", n, created, err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	f = create(t, o)
	for _, n := range names {
		a, err := f.Resolve(t.Context(), "/"+n)
		if err != nil {
			t.Errorf("%q: %v", n, err)
			continue
		}
		if p, err := f.Path(t.Context(), a.Ino); err != nil || p != "/"+n {
			t.Errorf("path of %q: got %q, %v", n, p, err)
		}
		if a.Size != int64(len(n)) {
			t.Errorf("%q: got %d bytes, want %d", n, a.Size, len(n))
		}
	}
	entries, err := f.ReadDir(t.Context(), Root, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(entries); i++ {
		if entries[i-1].Name >= entries[i].Name {
			t.Errorf("%q comes before %q", entries[i-1].Name, entries[i].Name)
		}
	}
	rest, err := f.ReadDir(t.Context(), Root, entries[2].Name, 2)
	if err != nil || len(rest) != 2 || rest[0].Name != entries[3].Name {
		t.Errorf("from %q: got %v, %v", entries[2].Name, rest, err)
	}
}

func TestSparse(t *testing.T) {
	f := create(t, options(t))
	x, err := f.Create(t.Context(), someone, Root, "sparse", 0o644, os.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	const far = 1 << 40
	if _, err := x.WriteAt([]byte("end"), far); err != nil {
		t.Fatal(err)
	}
	if n := number(t, f, "SELECT count(*) FROM fs_data"); n != 1 {
		t.Errorf("got %d chunks, want 1", n)
	}
	for _, c := range []struct {
		off    int64
		whence int
		want   int64
		errno  syscall.Errno
	}{
		{0, unix.SEEK_DATA, far, 0}, {0, unix.SEEK_HOLE, 0, 0}, {far + 1, unix.SEEK_DATA, far + 1, 0},
		{far, unix.SEEK_HOLE, far + 3, 0}, {far + 3, unix.SEEK_DATA, 0, syscall.ENXIO}, {0, 0, 0, syscall.EINVAL},
	} {
		if got, err := x.Seek(c.off, c.whence); got != c.want || c.errno == 0 && err != nil || c.errno != 0 && !errors.Is(err, c.errno) {
			t.Errorf("seek %d from %d: got %d, %v, want %d, %v", c.whence, c.off, got, err, c.want, c.errno)
		}
	}
	p := make([]byte, 8)
	if n, err := x.ReadAt(p, far-5); n != 8 || err != nil || !bytes.Equal(p, []byte("\x00\x00\x00\x00\x00end")) {
		t.Errorf("got %q, %v", p[:n], err)
	}
	if _, err := x.ReadAt(p, far+3); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: got %v, want EOF", err)
	}
	if _, err := x.WriteAt(p, MaxSize-1); !errors.Is(err, syscall.EFBIG) {
		t.Errorf("beyond: got %v, want EFBIG", err)
	}
	if err := x.Allocate(unix.FALLOC_FL_COLLAPSE_RANGE, 0, 10); !errors.Is(err, syscall.EOPNOTSUPP) {
		t.Errorf("collapse: got %v, want EOPNOTSUPP", err)
	}
}

func TestPlace(t *testing.T) {
	f := sample(t)
	ctx := t.Context()
	dir := at(t, f, "/dir").Ino
	old := at(t, f, "/dir/file")
	if err := f.SetXattr(ctx, someone, old.Ino, "user.note", []byte("kept"), 0); err != nil {
		t.Fatal(err)
	}
	old = at(t, f, "/dir/file")
	reader, err := f.Open(ctx, someone, old.Ino, os.O_RDONLY)
	if err != nil {
		t.Fatal(err)
	}
	other := Caller{Actor: "user:other", UID: 7, GID: 8}
	x, err := f.Temp(ctx, other, 0, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.WriteAt(bytes.Repeat([]byte("new"), 100_000), 0); err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("the version is another one")
	p := Placement{Parent: dir, Name: "file", Replace: true, Digest: bytes.Repeat([]byte{7}, 32),
		Check: func(a *Attr) error {
			if a == nil || a.Version != old.Version {
				t.Errorf("checked with %+v, want %+v", a, old)
			}
			return refusal
		}}
	if _, _, err := f.Place(ctx, other, x, p); !errors.Is(err, refusal) {
		t.Fatalf("refused: got %v", err)
	}
	if now := at(t, f, "/dir/file"); now != old {
		t.Errorf("after a refusal: got %+v, want %+v", now, old)
	}
	p.Check = nil
	a, created, err := f.Place(ctx, other, x, p)
	if err != nil || created {
		t.Fatalf("got %v, %v", created, err)
	}
	if a.Ino == old.Ino || a.Mode != old.Mode || a.UID != old.UID || a.GID != old.GID || a.Size != 300_000 || a.Nlink != 1 {
		t.Errorf("got %+v, want the mode and owner of %+v", a, old)
	}
	if v, err := f.GetXattr(ctx, a.Ino, "user.note"); err != nil || string(v) != "kept" {
		t.Errorf("attribute: got %q, %v", v, err)
	}
	if sum, known, err := f.Digest(ctx, a.Ino, a.Version); err != nil || !known || !bytes.Equal(sum, p.Digest) {
		t.Errorf("digest: got %x, %v, %v", sum, known, err)
	}
	got := make([]byte, 7)
	if _, err := reader.ReadAt(got, 0); err != nil || string(got) != "content" {
		t.Errorf("who reads the old one: got %q, %v", got, err)
	}
	if _, _, err := f.Place(ctx, other, x, p); !errors.Is(err, syscall.EBADF) {
		t.Errorf("placed twice: got %v, want EBADF", err)
	}
	if _, err := x.WriteAt([]byte("N"), 0); err != nil {
		t.Fatal(err)
	}
	if _, known, _ := f.Digest(ctx, a.Ino, at(t, f, "/dir/file").Version); known {
		t.Error("the digest is of the version before")
	}
	if err := errors.Join(x.Close(), reader.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := f.Stat(ctx, old.Ino); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("the old inode: got %v, want ENOENT", err)
	}
}

func TestHolds(t *testing.T) {
	f := sample(t)
	ctx := t.Context()
	dir, file := at(t, f, "/dir").Ino, at(t, f, "/dir/file").Ino
	for range 2 {
		if err := f.Hold(ctx, "turn-1", []Ino{file}); err != nil {
			t.Fatal(err)
		}
	}
	if h, err := f.Holders(ctx, file); err != nil || len(h) != 1 || h[0].Holder != "turn-1" || time.Since(h[0].Created) > time.Minute {
		t.Errorf("got %v, %v", h, err)
	}
	put := func() error {
		_, _, err := f.Put(ctx, someone, Placement{Parent: dir, Name: "file", Replace: true}, 0o644, nil)
		return err
	}
	for what, do := range map[string]func() error{
		"unlink": func() error { return f.Unlink(ctx, someone, dir, "file") },
		"remove": func() error { return f.Remove(ctx, someone, dir, "file", func(Attr) error { return nil }) },
		"rename": func() error { return f.Rename(ctx, someone, dir, "link", dir, "file", 0) },
		"put":    put,
	} {
		var e *Error
		if err := do(); !errors.Is(err, syscall.EBUSY) || !errors.As(err, &e) || e.Holder != "turn-1" {
			t.Errorf("%s: got %v, want EBUSY of turn-1", what, err)
		}
	}
	for range 2 {
		if err := f.Release(ctx, "turn-1"); err != nil {
			t.Fatal(err)
		}
	}
	if err := put(); err != nil {
		t.Errorf("after the release: %v", err)
	}
}

func TestXattrs(t *testing.T) {
	f := sample(t)
	ctx := t.Context()
	file := at(t, f, "/dir/file").Ino
	for _, s := range []struct{ name, value string }{{"user.b", "2024-01-05"}, {"user.a", ""}, {"security.x", "\x00\xff"}} {
		if err := f.SetXattr(ctx, someone, file, s.name, []byte(s.value), unix.XATTR_CREATE); err != nil {
			t.Fatal(err)
		}
		if v, err := f.GetXattr(ctx, file, s.name); err != nil || string(v) != s.value {
			t.Errorf("%s: got %q, %v, want %q", s.name, v, err, s.value)
		}
		if err := f.SetXattr(ctx, someone, file, s.name, nil, unix.XATTR_CREATE); !errors.Is(err, syscall.EEXIST) {
			t.Errorf("%s again: got %v, want EEXIST", s.name, err)
		}
	}
	if names, err := f.ListXattr(ctx, file); err != nil || fmt.Sprint(names) != "[security.x user.a user.b]" {
		t.Errorf("got %v, %v", names, err)
	}
	if err := f.RemoveXattr(ctx, someone, file, "user.a"); err != nil {
		t.Fatal(err)
	}
	var err error
	for i := 0; err == nil && i < 10; i++ {
		err = f.SetXattr(ctx, someone, file, fmt.Sprint("user.", i), make([]byte, MaxXattrValue), 0)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("too many: got %v, want ENOSPC", err)
	}
}
