package agentfs

import (
	"context"
	"fmt"
	"syscall"
	"time"
)

// Change is what SetAttr sets; nil: stays.
type Change struct {
	// Mode has permissions; the type stays.
	Mode, UID, GID *uint32
	Size           *int64
	Atime, Mtime   *time.Time
}

// SetAttr changes attributes. A size: EISDIR for a directory, EINVAL for what is no regular file.
func (f *FS) SetAttr(ctx context.Context, by Caller, ino Ino, c Change) (a Attr, err error) {
	err = f.update(ctx, func(t *tx) error {
		if a, err = t.stat(ino); err != nil {
			return err
		}
		p, err := t.path(ino)
		if err != nil {
			return err
		}
		if c.Size != nil {
			switch a.Type() {
			case TypeFile:
			case TypeDir:
				return syscall.EISDIR
			default:
				return syscall.EINVAL
			}
			if err := t.truncate(&a, *c.Size); err != nil {
				return err
			}
			if err := t.log(by, ActionTruncate, a, p, ""); err != nil {
				return err
			}
		}
		if c.Mode == nil && c.UID == nil && c.GID == nil && c.Atime == nil && c.Mtime == nil {
			return nil
		}
		c.apply(&a, t.now)
		if _, err := t.exec(`UPDATE fs_inode SET mode = ?, uid = ?, gid = ?, atime = ?, atime_nsec = ?, mtime = ?, mtime_nsec = ?,
			ctime = ?, ctime_nsec = ? WHERE ino = ?`, a.Mode, a.UID, a.GID, a.Atime.Unix(), a.Atime.Nanosecond(),
			a.Mtime.Unix(), a.Mtime.Nanosecond(), a.Ctime.Unix(), a.Ctime.Nanosecond(), ino); err != nil {
			return fmt.Errorf("write inode: %w", err)
		}
		t.change(change{kind: changeInode, ino: ino})
		return t.log(by, ActionSetAttr, a, p, "")
	})
	return a, fail("setattr", "", err)
}

func (c Change) apply(a *Attr, now time.Time) {
	if c.Mode != nil {
		a.Mode = a.Type() | *c.Mode&permissions
	}
	if c.UID != nil {
		a.UID = *c.UID
	}
	if c.GID != nil {
		a.GID = *c.GID
	}
	if c.Atime != nil {
		a.Atime = *c.Atime
	}
	if c.Mtime != nil {
		a.Mtime = *c.Mtime
	}
	a.Ctime = now
}

// Usage is how much of a quota is used; a limit of 0: none.
type Usage struct{ Used, Limit Limits }

// Statfs returns the use of the whole database and, if the inode counts in a quota of its own
// directory, of that one.
func (f *FS) Statfs(ctx context.Context, ino Ino) (whole, project Usage, err error) {
	whole.Limit = f.whole
	err = f.view(ctx, func(t *tx) error {
		a, err := t.stat(ino)
		if err != nil {
			return err
		}
		if a.Project != 0 {
			project.Limit = f.perProject
		}
		return t.each(`SELECT project, bytes, files FROM hw_project WHERE project IN (0, ?)`, func(r row) error {
			used := Limits{Bytes: r.int(1), Files: r.int(2)}
			if r.int(0) == 0 {
				whole.Used = used
			} else {
				project.Used = used
			}
			return nil
		}, a.Project)
	})
	return whole, project, fail("statfs", "", err)
}

// Digest returns the SHA-256 of the content at a version, false if it is not known.
func (f *FS) Digest(ctx context.Context, ino Ino, version int64) (sum []byte, known bool, err error) {
	err = f.read(ctx, func(t *tx) error {
		r, err := t.row(`SELECT sha256 FROM hw_digest WHERE ino = ? AND version = ?`, ino, version)
		if r != nil {
			sum, known = r.bytes(0), true
		}
		return err
	})
	return sum, known, fail("digest", "", err)
}
