package agentfs

import (
	"context"
	"fmt"
	"os"
	"syscall"
)

// Placement says where a file gets a name, and on which conditions.
type Placement struct {
	Parent Ino
	Name   string
	// Replace lets the name be taken already, by anything but a directory.
	Replace bool
	// Check may refuse, in the transaction; old is nil if the name is free. May be nil.
	Check func(old *Attr) error
	// Digest is the SHA-256 of the content, stored for this version; nil: not known.
	Digest []byte
}

// Temp makes a regular file without a name, which counts in the quota of the project (0: only in
// that of the database). It is durable only once placed, and gone after a crash. Mode has
// permissions.
func (f *FS) Temp(ctx context.Context, by Caller, project Ino, mode uint32) (*File, error) {
	x := &File{fs: f, by: by, flags: os.O_RDWR, temp: true}
	counted := false
	err := f.updateLater(ctx, func(t *tx) error {
		if project != 0 {
			dir, err := t.dir(project)
			if err != nil {
				return err
			}
			if dir.Project != project {
				return syscall.EINVAL
			}
		}
		a, err := t.insertInode(by, Attr{}, newInode{mode: TypeFile | mode&permissions, project: project})
		if err != nil {
			return err
		}
		if err := t.insertOrphan(a.Ino); err != nil {
			return err
		}
		x.ino = a.Ino
		f.count(x.ino)
		counted = f.keepOpen(x.ino)
		return nil
	})
	if err != nil {
		if counted {
			f.uncount(x.ino)
		}
		return nil, fail("temp", "", err)
	}
	return x, nil
}

// Place gives a file of Temp its name, atomically and durably: readers of the name see the old
// content or all of the new one. What it replaces leaves its mode, owner and extended attributes
// if it is a regular file. EBUSY with a Holder if that is held, EXDEV if the parent counts in
// another quota. The File stays open.
func (f *FS) Place(ctx context.Context, by Caller, x *File, p Placement) (attr Attr, created bool, err error) {
	x.mu.Lock()
	temp := x.temp
	x.mu.Unlock()
	if err := x.check(temp); err != nil {
		return Attr{}, false, fail("place", p.Name, err)
	}
	var left Ino
	err = f.update(ctx, func(t *tx) error {
		a, err := t.stat(x.ino)
		if err != nil {
			return err
		}
		dir, old, err := t.allow(p)
		if err != nil {
			return err
		}
		if a.Project != dir.Project {
			return syscall.EXDEV
		}
		if _, err := t.exec(`DELETE FROM hw_orphan WHERE ino = ?`, a.Ino); err != nil {
			return fmt.Errorf("delete orphan: %w", err)
		}
		inherit(&a, old)
		a.Nlink, a.Ctime = 1, t.now
		if _, err := t.exec(`UPDATE fs_inode SET nlink = 1, mode = ?, uid = ?, gid = ?, ctime = ?, ctime_nsec = ? WHERE ino = ?`,
			a.Mode, a.UID, a.GID, t.now.Unix(), t.now.Nanosecond(), a.Ino); err != nil {
			return fmt.Errorf("write inode: %w", err)
		}
		t.change(change{kind: changeInode, ino: a.Ino})
		left, err = t.place(by, dir, old, a, p)
		attr, created = a, old == nil
		// In the writer's turn: right after it somebody may remove the name.
		f.mu.Lock()
		delete(f.orphans, x.ino)
		f.mu.Unlock()
		return err
	})
	if err != nil {
		f.keepOpen(x.ino)
		return Attr{}, false, fail("place", p.Name, err)
	}
	x.mu.Lock()
	x.temp = false
	x.mu.Unlock()
	f.reap(left)
	return attr, created, nil
}

// Put is Temp, one write and Place in one transaction, for contents that fit in memory.
func (f *FS) Put(ctx context.Context, by Caller, p Placement, mode uint32, content []byte) (attr Attr, created bool, err error) {
	var left Ino
	err = f.update(ctx, func(t *tx) error {
		dir, old, err := t.allow(p)
		if err != nil {
			return err
		}
		n := newInode{mode: TypeFile | mode&permissions, size: int64(len(content)), nlink: 1, project: dir.Project}
		owner := by
		if old != nil && old.Type() == TypeFile {
			n.mode, owner.UID, owner.GID = old.Mode, old.UID, old.GID
			dir.Mode &^= syscall.S_ISGID
		}
		a, err := t.insertInode(owner, dir, n)
		if err != nil {
			return err
		}
		if err := t.fill(a, content); err != nil {
			return err
		}
		left, err = t.place(by, dir, old, a, p)
		attr, created = a, old == nil
		return err
	})
	if err != nil {
		return Attr{}, false, fail("put", p.Name, err)
	}
	f.reap(left)
	return attr, created, nil
}

// inherit gives a file what a replaced one leaves.
func inherit(a, old *Attr) {
	if old != nil && old.Type() == TypeFile {
		a.Mode, a.UID, a.GID = old.Mode, old.UID, old.GID
	}
}

// allow returns the directory and what has the name now, if the placement is allowed.
func (t *tx) allow(p Placement) (dir Attr, old *Attr, err error) {
	if err := checkName(p.Name); err != nil {
		return dir, nil, err
	}
	if dir, err = t.dir(p.Parent); err != nil {
		return dir, nil, err
	}
	if old, err = t.find(p.Parent, p.Name); err != nil {
		return dir, nil, err
	}
	if p.Check != nil {
		if err := p.Check(old); err != nil {
			return dir, nil, err
		}
	}
	switch {
	case old == nil:
		return dir, nil, nil
	case !p.Replace:
		return dir, nil, syscall.EEXIST
	case old.IsDir():
		return dir, nil, syscall.EISDIR
	}
	return dir, old, t.unheld(old.Ino)
}

// place gives an inode its name and takes it from the old one.
func (t *tx) place(by Caller, dir Attr, old *Attr, a Attr, p Placement) (orphan Ino, err error) {
	action := ActionCreate
	if old == nil {
		err = t.insertName(dir.Ino, p.Name, a.Ino)
	} else {
		action = ActionReplace
		orphan, err = t.takeName(dir, old, a, p.Name)
	}
	if err != nil {
		return 0, err
	}
	if err := t.touchDir(dir.Ino, 0); err != nil {
		return 0, err
	}
	if len(p.Digest) > 0 {
		if _, err := t.exec(`INSERT INTO hw_digest (ino, version, sha256) VALUES (?, ?, ?)
			ON CONFLICT (ino) DO UPDATE SET version = excluded.version, sha256 = excluded.sha256`, a.Ino, a.Version, p.Digest); err != nil {
			return 0, fmt.Errorf("write digest: %w", err)
		}
	}
	path, err := t.below(dir.Ino, p.Name)
	if err != nil {
		return 0, err
	}
	return orphan, t.log(by, action, a, path, "")
}

func (t *tx) takeName(dir Attr, old *Attr, a Attr, name string) (orphan Ino, err error) {
	if _, err := t.exec(`UPDATE fs_dentry SET ino = ? WHERE parent_ino = ? AND name = ?`, a.Ino, dir.Ino, name); err != nil {
		return 0, fmt.Errorf("move entry: %w", err)
	}
	t.change(change{kind: changeName, ino: dir.Ino, name: name})
	if old.Type() == TypeFile {
		changed, err := t.exec(`INSERT OR REPLACE INTO hw_xattr (ino, name, value) SELECT ?, name, value FROM hw_xattr WHERE ino = ?`,
			a.Ino, old.Ino)
		if err != nil {
			return 0, fmt.Errorf("keep extended attributes: %w", err)
		}
		if changed > 0 {
			if err := t.each(`SELECT name FROM hw_xattr WHERE ino = ?`, func(r row) error {
				t.change(change{kind: changeXattr, ino: a.Ino, name: r.text(0)})
				return nil
			}, a.Ino); err != nil {
				return 0, fmt.Errorf("keep extended attributes: %w", err)
			}
		}
	}
	return t.dropName(old)
}
