package agentfs

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bounds of extended attributes, in bytes: of a name and a value as Linux has them, and of all of an
// inode, since a quota does not count them.
const (
	MaxXattrName  = 255
	MaxXattrValue = 64 << 10
	MaxXattrs     = 256 << 10
)

// checkXattr says whether an inode may have an attribute of this name.
func checkXattr(a Attr, name string) error {
	namespace, rest, _ := strings.Cut(name, ".")
	switch {
	case name == "" || len(name) > MaxXattrName:
		return syscall.ERANGE
	case rest == "" || strings.Contains(name, "\x00"):
		return syscall.EINVAL
	}
	switch namespace {
	case "user":
		if t := a.Type(); t != TypeFile && t != TypeDir {
			return syscall.EPERM
		}
		return nil
	case "security", "trusted", "system":
		return nil
	}
	return syscall.EOPNOTSUPP
}

func (t *tx) xattr(ino Ino, name string) (value []byte, found bool, err error) {
	r, err := t.row(`SELECT value FROM hw_xattr WHERE ino = ? AND name = ?`, ino, []byte(name))
	if err != nil || r == nil {
		return nil, false, err
	}
	return r.bytes(0), true, nil
}

// GetXattr returns an extended attribute; ENODATA if there is none.
func (f *FS) GetXattr(ctx context.Context, ino Ino, name string) (value []byte, err error) {
	err = f.view(ctx, func(t *tx) error {
		if _, err := t.stat(ino); err != nil {
			return err
		}
		v, found, err := t.xattr(ino, name)
		if err == nil && !found {
			err = syscall.ENODATA
		}
		value = v
		return err
	})
	return value, fail("getxattr", name, err)
}

// SetXattr sets an extended attribute; flags are 0, XATTR_CREATE (EEXIST) or XATTR_REPLACE (ENODATA).
// EOPNOTSUPP for a namespace that Linux does not have, EPERM for user.* on a special file or link,
// ENOSPC above what an inode may have.
func (f *FS) SetXattr(ctx context.Context, by Caller, ino Ino, name string, value []byte, flags int) error {
	err := f.update(ctx, func(t *tx) error {
		a, err := t.stat(ino)
		if err != nil {
			return err
		}
		if err := checkXattr(a, name); err != nil {
			return err
		}
		if len(value) > MaxXattrValue {
			return syscall.E2BIG
		}
		_, found, err := t.xattr(ino, name)
		switch {
		case err != nil:
			return err
		case flags&^(unix.XATTR_CREATE|unix.XATTR_REPLACE) != 0:
			return syscall.EINVAL
		case flags&unix.XATTR_CREATE != 0 && found:
			return syscall.EEXIST
		case flags&unix.XATTR_REPLACE != 0 && !found:
			return syscall.ENODATA
		}
		if _, err := t.exec(`INSERT INTO hw_xattr (ino, name, value) VALUES (?, ?, ?)
			ON CONFLICT (ino, name) DO UPDATE SET value = excluded.value`, ino, []byte(name), append([]byte{}, value...)); err != nil {
			return fmt.Errorf("write attribute: %w", err)
		}
		r, err := t.row(`SELECT sum(length(name) + length(value)) FROM hw_xattr WHERE ino = ?`, ino)
		if err != nil {
			return fmt.Errorf("count attributes: %w", err)
		}
		if r.int(0) > MaxXattrs {
			return syscall.ENOSPC
		}
		return t.changedXattr(by, ActionSetXattr, a, name)
	})
	return fail("setxattr", name, err)
}

// ListXattr returns the names of an inode's extended attributes, ordered.
func (f *FS) ListXattr(ctx context.Context, ino Ino) (names []string, err error) {
	err = f.view(ctx, func(t *tx) error {
		if _, err := t.stat(ino); err != nil {
			return err
		}
		return t.each(`SELECT name FROM hw_xattr WHERE ino = ? ORDER BY name`, func(r row) error {
			names = append(names, r.text(0))
			return nil
		}, ino)
	})
	return names, fail("listxattr", "", err)
}

// RemoveXattr removes an extended attribute; ENODATA if there is none.
func (f *FS) RemoveXattr(ctx context.Context, by Caller, ino Ino, name string) error {
	err := f.update(ctx, func(t *tx) error {
		a, err := t.stat(ino)
		if err != nil {
			return err
		}
		changed, err := t.exec(`DELETE FROM hw_xattr WHERE ino = ? AND name = ?`, ino, []byte(name))
		if err != nil {
			return fmt.Errorf("delete attribute: %w", err)
		}
		if changed == 0 {
			return syscall.ENODATA
		}
		return t.changedXattr(by, ActionRemoveXattr, a, name)
	})
	return fail("removexattr", name, err)
}

func (t *tx) changedXattr(by Caller, action string, a Attr, name string) error {
	a.Ctime = t.now
	if err := t.relink(&a, 0); err != nil {
		return err
	}
	t.change(change{kind: changeXattr, ino: a.Ino, name: name})
	p, err := t.path(a.Ino)
	if err != nil {
		return err
	}
	return t.log(by, action, a, p, "")
}
