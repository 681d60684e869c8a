package agentfs

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// attrColumn is what scanAttr reads, of fs_inode as i: all in one column, because each costs several
// calls into the driver.
const attrColumn = `CAST(concat_ws(' ', i.ino, i.mode, i.nlink, i.uid, i.gid, i.size, i.rdev, i.atime, i.atime_nsec,
	i.mtime, i.mtime_nsec, i.ctime, i.ctime_nsec, i.hw_version, i.hw_project) AS BLOB)`

func scanAttr(r row) Attr {
	var n [15]int64
	i, negative := 0, false
	for _, c := range r.bytes(0) {
		switch {
		case c == ' ' && i < len(n)-1:
			if negative {
				n[i] = -n[i]
			}
			i, negative = i+1, false
		case c == '-':
			negative = true
		case c >= '0' && c <= '9':
			n[i] = n[i]*10 + int64(c-'0')
		}
	}
	return Attr{
		Ino: Ino(n[0]), Mode: uint32(n[1]), Nlink: uint32(n[2]), UID: uint32(n[3]), GID: uint32(n[4]), Size: n[5], Rdev: uint32(n[6]),
		Atime: time.Unix(n[7], n[8]), Mtime: time.Unix(n[9], n[10]), Ctime: time.Unix(n[11], n[12]), Version: n[13], Project: Ino(n[14]),
	}
}

// Type returns the bits of Mode that say what the inode is.
func (a Attr) Type() uint32 { return a.Mode & TypeMask }

// IsDir says whether the inode is a directory.
func (a Attr) IsDir() bool { return a.Type() == TypeDir }

// checkName refuses what the schema's TEXT and the driver cannot hold, and what no directory has.
func checkName(name string) error {
	switch {
	case name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00"):
		return syscall.EINVAL
	case len(name) > MaxName:
		return syscall.ENAMETOOLONG
	case !utf8.ValidString(name):
		return syscall.EILSEQ
	}
	return nil
}

// stat returns an inode, ENOENT if there is none.
func (t *tx) stat(ino Ino) (Attr, error) {
	r, err := t.row(`SELECT `+attrColumn+` FROM fs_inode i WHERE i.ino = ?`, ino)
	if err != nil {
		return Attr{}, fmt.Errorf("read inode: %w", err)
	}
	if r == nil {
		return Attr{}, syscall.ENOENT
	}
	return scanAttr(r), nil
}

// dir returns a directory, ENOTDIR if it is something else.
func (t *tx) dir(ino Ino) (Attr, error) {
	a, err := t.stat(ino)
	if err == nil && !a.IsDir() {
		err = syscall.ENOTDIR
	}
	return a, err
}

// find returns what the name in a directory is, nil if it is free. The directory is not looked at.
func (t *tx) find(parent Ino, name string) (*Attr, error) {
	r, err := t.row(`SELECT `+attrColumn+` FROM fs_dentry d CROSS JOIN fs_inode i ON i.ino = d.ino
		WHERE d.parent_ino = ? AND d.name = ?`, parent, name)
	if err != nil {
		return nil, fmt.Errorf("look up: %w", err)
	}
	if r == nil {
		return nil, nil
	}
	a := scanAttr(r)
	return &a, nil
}

// lookup is find that needs the directory and the name to be there.
func (t *tx) lookup(parent Ino, name string) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	a, err := t.find(parent, name)
	if err != nil {
		return Attr{}, err
	}
	if a == nil {
		if _, err := t.dir(parent); err != nil {
			return Attr{}, err
		}
		return Attr{}, syscall.ENOENT
	}
	return *a, nil
}

// split cuts an absolute canonical path into its names.
func split(path string) ([]string, error) {
	if path == "/" {
		return nil, nil
	}
	if !strings.HasPrefix(path, "/") {
		return nil, syscall.EINVAL
	}
	names := strings.Split(path[1:], "/")
	for _, n := range names {
		if err := checkName(n); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// resolve walks a path and follows no symbolic link: ELOOP if one is on it.
func (t *tx) resolve(path string) (Attr, error) {
	names, err := split(path)
	if err != nil {
		return Attr{}, err
	}
	if len(names) == 0 {
		return t.stat(Root)
	}
	a := Attr{Ino: Root, Mode: TypeDir}
	for _, name := range names {
		if !a.IsDir() {
			return Attr{}, syscall.ENOTDIR
		}
		next, err := t.find(a.Ino, name)
		switch {
		case err != nil:
			return Attr{}, err
		case next == nil:
			return Attr{}, syscall.ENOENT
		case next.Type() == TypeSymlink:
			return Attr{}, syscall.ELOOP
		}
		a = *next
	}
	return a, nil
}

// path returns one path of the inode, "" if it has no name.
func (t *tx) path(ino Ino) (string, error) {
	if ino == Root {
		return "/", nil
	}
	// UNION ends a walk through damaged entries that go round.
	names, at := []string{}, Ino(0)
	err := t.each(`WITH RECURSIVE up(ino, parent, name) AS (
			SELECT ino, parent_ino, name FROM (SELECT ino, parent_ino, name FROM fs_dentry WHERE ino = ? LIMIT 1)
			UNION SELECT d.ino, d.parent_ino, d.name FROM up JOIN fs_dentry d ON d.ino = up.parent)
		SELECT parent, CAST(name AS BLOB) FROM up`, func(r row) error {
		at = Ino(r.int(0))
		names = append(names, r.text(1))
		return nil
	}, ino)
	if err != nil {
		return "", fmt.Errorf("find the path: %w", err)
	}
	if at != Root { // no name, or below a directory that was removed
		return "", nil
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteByte('/')
		b.WriteString(names[i])
	}
	return b.String(), nil
}

// below returns the path of a name in a directory.
func (t *tx) below(parent Ino, name string) (string, error) {
	p, err := t.path(parent)
	if err != nil {
		return "", err
	}
	return strings.TrimSuffix(p, "/") + "/" + name, nil
}

// Lookup returns what the name in the directory parent is.
func (f *FS) Lookup(ctx context.Context, parent Ino, name string) (a Attr, err error) {
	err = f.read(ctx, func(t *tx) error {
		a, err = t.lookup(parent, name)
		return err
	})
	return a, fail("lookup", name, err)
}

// Resolve returns what is at an absolute canonical path, from one snapshot. It follows no symbolic
// link: ELOOP if one is on the way or at the end.
func (f *FS) Resolve(ctx context.Context, path string) (a Attr, err error) {
	err = f.view(ctx, func(t *tx) error {
		a, err = t.resolve(path)
		return err
	})
	return a, fail("resolve", path, err)
}

// Stat describes an inode.
func (f *FS) Stat(ctx context.Context, ino Ino) (a Attr, err error) {
	err = f.read(ctx, func(t *tx) error {
		a, err = t.stat(ino)
		return err
	})
	return a, fail("stat", "", err)
}

// Path returns a path of the inode: of a directory the only one, of a file one of them. ENOENT if
// it has none.
func (f *FS) Path(ctx context.Context, ino Ino) (path string, err error) {
	err = f.read(ctx, func(t *tx) error {
		if path, err = t.path(ino); err == nil && path == "" {
			err = syscall.ENOENT
		}
		return err
	})
	return path, fail("path", "", err)
}

// maxEntries bounds one answer of ReadDir.
const maxEntries = 10000

// ReadDir returns at most limit names of a directory, ordered by their bytes, that come after the
// given one; without "." and "..". A limit from 1 to 10000.
func (f *FS) ReadDir(ctx context.Context, dir Ino, after string, limit int) (entries []Entry, err error) {
	err = f.view(ctx, func(t *tx) error {
		if limit < 1 || limit > maxEntries || !utf8.ValidString(after) || strings.Contains(after, "\x00") {
			return syscall.EINVAL
		}
		if _, err := t.dir(dir); err != nil {
			return err
		}
		return t.each(`SELECT `+attrColumn+`, CAST(d.name AS BLOB) FROM fs_dentry d CROSS JOIN fs_inode i ON i.ino = d.ino
			WHERE d.parent_ino = ? AND d.name > ? ORDER BY d.name LIMIT ?`, func(r row) error {
			entries = append(entries, Entry{Name: r.text(1), Attr: scanAttr(r)})
			return nil
		}, dir, after, limit)
	})
	return entries, fail("readdir", "", err)
}

// Readlink returns the target of a symbolic link, EINVAL for anything else.
func (f *FS) Readlink(ctx context.Context, ino Ino) (target string, err error) {
	err = f.read(ctx, func(t *tx) error {
		r, err := t.row(`SELECT CAST(target AS BLOB) FROM fs_symlink WHERE ino = ?`, ino)
		if err != nil {
			return fmt.Errorf("read link: %w", err)
		}
		if r == nil {
			if _, err := t.stat(ino); err != nil {
				return err
			}
			return syscall.EINVAL
		}
		target = r.text(0)
		return nil
	})
	return target, fail("readlink", "", err)
}
