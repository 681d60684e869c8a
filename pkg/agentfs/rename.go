package agentfs

import (
	"context"
	"fmt"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Rename moves a name, over what has the new one, as renameat2(2): flags are RENAME_NOREPLACE or
// RENAME_EXCHANGE. Nothing happens between two names of one inode. EINVAL for a directory into
// itself, EXDEV between directories of different quotas, EBUSY with a Holder if what would be
// replaced is held.
func (f *FS) Rename(ctx context.Context, by Caller, oldParent Ino, oldName string, newParent Ino, newName string, flags uint) error {
	var left Ino
	err := f.update(ctx, func(t *tx) (err error) {
		left, err = t.rename(by, name{oldParent, oldName}, name{newParent, newName}, flags)
		return err
	})
	if err != nil {
		return fail("rename", oldName, err)
	}
	f.reap(left)
	return nil
}

// name is a name in a directory.
type name struct {
	dir  Ino
	name string
}

func (t *tx) rename(by Caller, from, to name, flags uint) (orphan Ino, err error) {
	if flags&^(unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE) != 0 || flags == unix.RENAME_NOREPLACE|unix.RENAME_EXCHANGE {
		return 0, syscall.EINVAL
	}
	if err := checkName(to.name); err != nil {
		return 0, err
	}
	source, err := t.lookup(from.dir, from.name)
	if err != nil {
		return 0, err
	}
	oldDir, err := t.dir(from.dir)
	if err != nil {
		return 0, err
	}
	newDir, err := t.dir(to.dir)
	if err != nil {
		return 0, err
	}
	target, err := t.find(to.dir, to.name)
	switch {
	case err != nil:
		return 0, err
	case oldDir.Project != newDir.Project:
		return 0, syscall.EXDEV
	case target == nil && flags == unix.RENAME_EXCHANGE:
		return 0, syscall.ENOENT
	case target != nil && flags == unix.RENAME_NOREPLACE:
		return 0, syscall.EEXIST
	}
	oldPath, err := t.path(from.dir)
	if err != nil {
		return 0, err
	}
	newPath := oldPath
	if from.dir != to.dir {
		if newPath, err = t.path(to.dir); err != nil {
			return 0, err
		}
		// A directory has one path, so that it is within another if its path is.
		if source.IsDir() && within(newPath, oldPath, from.name) ||
			flags == unix.RENAME_EXCHANGE && target.IsDir() && within(oldPath, newPath, to.name) {
			return 0, syscall.EINVAL
		}
		if target != nil && target.IsDir() && within(oldPath, newPath, to.name) {
			return 0, syscall.ENOTEMPTY
		}
	}
	if target != nil && target.Ino == source.Ino {
		return 0, nil
	}
	oldPath, newPath = join(oldPath, from.name), join(newPath, to.name)
	if flags == unix.RENAME_EXCHANGE {
		return 0, t.exchange(by, from, to, source, *target, oldPath, newPath)
	}
	replaced, directories := 0, 0
	if source.IsDir() {
		directories = 1
	}
	if target != nil {
		if orphan, err = t.replace(source, target, to); err != nil {
			return 0, err
		}
		action := ActionRemove
		if target.IsDir() {
			action, replaced = ActionRmdir, 1
		}
		// A record of its own: the rename's does not say that something went.
		if err := t.log(by, action, *target, newPath, ""); err != nil {
			return 0, err
		}
	}
	if _, err := t.exec(`UPDATE fs_dentry SET parent_ino = ?, name = ? WHERE parent_ino = ? AND name = ?`,
		to.dir, to.name, from.dir, from.name); err != nil {
		return 0, fmt.Errorf("move entry: %w", err)
	}
	t.change(change{kind: changeName, ino: from.dir, name: from.name})
	t.change(change{kind: changeName, ino: to.dir, name: to.name})
	if from.dir == to.dir {
		err = t.touchDir(to.dir, -replaced)
	} else if err = t.touchDir(from.dir, -directories); err == nil {
		err = t.touchDir(to.dir, directories-replaced)
	}
	if err != nil {
		return 0, err
	}
	if err := t.relink(&source, 0); err != nil {
		return 0, err
	}
	return orphan, t.log(by, ActionRename, source, oldPath, newPath)
}

// replace takes the name away from what a rename goes over.
func (t *tx) replace(source Attr, target *Attr, at name) (orphan Ino, err error) {
	switch {
	case source.IsDir() && !target.IsDir():
		return 0, syscall.ENOTDIR
	case !source.IsDir() && target.IsDir():
		return 0, syscall.EISDIR
	}
	if target.IsDir() {
		if err := t.empty(target.Ino); err != nil {
			return 0, err
		}
		if err := t.deleteName(at.dir, at.name); err != nil {
			return 0, err
		}
		return 0, t.deleteInode(*target)
	}
	if err := t.unheld(target.Ino); err != nil {
		return 0, err
	}
	if err := t.deleteName(at.dir, at.name); err != nil {
		return 0, err
	}
	return t.dropName(target)
}

func (t *tx) exchange(by Caller, from, to name, source, target Attr, oldPath, newPath string) error {
	for _, m := range []struct {
		name
		a *Attr
	}{{from, &target}, {to, &source}} {
		if _, err := t.exec(`UPDATE fs_dentry SET ino = ? WHERE parent_ino = ? AND name = ?`, m.a.Ino, m.dir, m.name.name); err != nil {
			return fmt.Errorf("exchange entries: %w", err)
		}
		t.change(change{kind: changeName, ino: m.dir, name: m.name.name})
		if err := t.relink(m.a, 0); err != nil {
			return err
		}
	}
	moved := 0 // directories that go from the old to the new parent
	if from.dir != to.dir {
		if source.IsDir() {
			moved++
		}
		if target.IsDir() {
			moved--
		}
		if err := t.touchDir(to.dir, moved); err != nil {
			return err
		}
	}
	if err := t.touchDir(from.dir, -moved); err != nil {
		return err
	}
	return t.log(by, ActionExchange, source, oldPath, newPath)
}

func join(dir, name string) string { return strings.TrimSuffix(dir, "/") + "/" + name }

// within says whether the path is that of the named directory or of something below it.
func within(path, dir, name string) bool {
	return strings.HasPrefix(path+"/", join(dir, name)+"/")
}
