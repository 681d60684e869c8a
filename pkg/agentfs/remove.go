package agentfs

import (
	"context"
	"fmt"
	"syscall"
)

// reapBytes is how much content one transaction frees, so that nobody waits long for it.
const reapBytes = 64 << 20

// Unlink removes a name of anything but a directory (EISDIR). Who has the file open reads on.
// EBUSY with a Holder if it is held.
func (f *FS) Unlink(ctx context.Context, by Caller, parent Ino, name string) error {
	return f.remove(ctx, "unlink", by, parent, name, nil)
}

// Remove is Unlink after a check in the same transaction, whose error it returns.
func (f *FS) Remove(ctx context.Context, by Caller, parent Ino, name string, check func(Attr) error) error {
	return f.remove(ctx, "remove", by, parent, name, check)
}

func (f *FS) remove(ctx context.Context, op string, by Caller, parent Ino, name string, check func(Attr) error) error {
	var left Ino
	err := f.update(ctx, func(t *tx) error {
		a, err := t.lookup(parent, name)
		if err != nil {
			return err
		}
		if check != nil {
			if err := check(a); err != nil {
				return err
			}
		}
		if a.IsDir() {
			return syscall.EISDIR
		}
		if err := t.unheld(a.Ino); err != nil {
			return err
		}
		p, err := t.below(parent, name)
		if err != nil {
			return err
		}
		if err := t.deleteName(parent, name); err != nil {
			return err
		}
		if err := t.touchDir(parent, 0); err != nil {
			return err
		}
		if left, err = t.dropName(&a); err != nil {
			return err
		}
		return t.log(by, ActionRemove, a, p, "")
	})
	if err != nil {
		return fail(op, name, err)
	}
	f.reap(left)
	return nil
}

// Rmdir removes an empty directory.
func (f *FS) Rmdir(ctx context.Context, by Caller, parent Ino, name string) error {
	err := f.update(ctx, func(t *tx) error {
		a, err := t.lookup(parent, name)
		if err != nil {
			return err
		}
		if !a.IsDir() {
			return syscall.ENOTDIR
		}
		if err := t.empty(a.Ino); err != nil {
			return err
		}
		p, err := t.below(parent, name)
		if err != nil {
			return err
		}
		if err := t.deleteName(parent, name); err != nil {
			return err
		}
		if err := t.touchDir(parent, -1); err != nil {
			return err
		}
		if err := t.deleteInode(a); err != nil {
			return err
		}
		return t.log(by, ActionRmdir, a, p, "")
	})
	return fail("rmdir", name, err)
}

func (t *tx) empty(dir Ino) error {
	r, err := t.row(`SELECT 1 FROM fs_dentry WHERE parent_ino = ? LIMIT 1`, dir)
	if err != nil {
		return fmt.Errorf("look into the directory: %w", err)
	}
	if r != nil {
		return syscall.ENOTEMPTY
	}
	return nil
}

func (t *tx) deleteName(parent Ino, name string) error {
	if _, err := t.exec(`DELETE FROM fs_dentry WHERE parent_ino = ? AND name = ?`, parent, name); err != nil {
		return fmt.Errorf("delete entry: %w", err)
	}
	t.change(change{kind: changeName, ino: parent, name: name})
	return nil
}

// dropName counts a name less of what is no directory. Without any name the inode goes; if it is
// open, or large, it stays as an orphan, which is returned for the caller to reap after the commit.
func (t *tx) dropName(a *Attr) (orphan Ino, err error) {
	if a.Nlink > 1 {
		return 0, t.relink(a, -1)
	}
	if !t.fs.keepOpen(a.Ino) && a.Size <= reapBytes {
		return 0, t.deleteInode(*a)
	}
	if err := t.relink(a, -int(a.Nlink)); err != nil {
		return 0, err
	}
	return a.Ino, t.insertOrphan(a.Ino)
}

func (t *tx) insertOrphan(ino Ino) error {
	if _, err := t.exec(`INSERT OR IGNORE INTO hw_orphan (ino) VALUES (?)`, ino); err != nil {
		return fmt.Errorf("insert orphan: %w", err)
	}
	return nil
}

// deleteInode removes an inode and all that belongs to it but names.
func (t *tx) deleteInode(a Attr) error {
	if a.Type() == TypeFile {
		if _, err := t.exec(`DELETE FROM fs_data WHERE ino = ?`, a.Ino); err != nil {
			return fmt.Errorf("delete content: %w", err)
		}
	}
	if a.Type() == TypeSymlink {
		if _, err := t.exec(`DELETE FROM fs_symlink WHERE ino = ?`, a.Ino); err != nil {
			return fmt.Errorf("delete link: %w", err)
		}
	}
	if a.IsDir() && a.Project == a.Ino {
		if _, err := t.exec(`DELETE FROM hw_project WHERE project = ?`, a.Ino); err != nil {
			return fmt.Errorf("delete project: %w", err)
		}
	}
	for _, table := range []string{"fs_inode", "hw_xattr", "hw_digest", "hw_hold"} {
		if _, err := t.exec(`DELETE FROM `+table+` WHERE ino = ?`, a.Ino); err != nil {
			return fmt.Errorf("delete inode: %w", err)
		}
	}
	t.use(a.Project, -a.Size, -1)
	t.change(change{kind: changeInode, ino: a.Ino})
	return nil
}

// keepOpen says whether somebody has the inode open and, if so, notes that Close must reap it: before
// the commit, because Close may come right after this question.
func (f *FS) keepOpen(ino Ino) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles[ino] == 0 {
		return false
	}
	f.orphans[ino] = true
	return true
}

// reap frees an orphan that nobody has open, in windows. What it cannot free now the next Open
// frees; nobody is told, since the name is gone all the same.
func (f *FS) reap(ino Ino) {
	for more := ino != 0; more; {
		err := f.updateLater(context.Background(), func(t *tx) (err error) {
			more, err = t.reap(ino)
			return err
		})
		if err != nil {
			return
		}
	}
}

// reapAll frees what a crash left. Nobody has anything open.
func (f *FS) reapAll(ctx context.Context) error {
	var orphans []Ino
	err := f.read(ctx, func(t *tx) error {
		return t.each(`SELECT ino FROM hw_orphan`, func(r row) error {
			orphans = append(orphans, Ino(r.int(0)))
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("read orphans: %w", err)
	}
	for _, ino := range orphans {
		for more := true; more; {
			if err := f.updateLater(ctx, func(t *tx) (err error) {
				more, err = t.reap(ino)
				return err
			}); err != nil {
				return fmt.Errorf("free an orphan: %w", err)
			}
		}
	}
	return nil
}

// reap frees a part of an orphan, or does nothing if it is open or no orphan any more. It tells
// whether there is more to free.
func (t *tx) reap(ino Ino) (more bool, err error) {
	if t.fs.keepOpen(ino) {
		return false, nil
	}
	r, err := t.row(`SELECT 1 FROM hw_orphan WHERE ino = ?`, ino)
	if err != nil {
		return false, fmt.Errorf("read orphan: %w", err)
	}
	if r == nil {
		return false, nil
	}
	r, err = t.row(`SELECT `+attrColumn+` FROM fs_inode i WHERE ino = ?`, ino)
	if err != nil {
		return false, fmt.Errorf("read orphan: %w", err)
	}
	if r != nil {
		a := scanAttr(r)
		if a.Size > reapBytes {
			window := (a.Size - reapBytes + t.fs.chunk - 1) / t.fs.chunk
			if _, err := t.exec(`DELETE FROM fs_data WHERE ino = ? AND chunk_index >= ?`, ino, window); err != nil {
				return false, fmt.Errorf("free content: %w", err)
			}
			if _, err := t.exec(`UPDATE fs_inode SET size = ? WHERE ino = ?`, window*t.fs.chunk, ino); err != nil {
				return false, fmt.Errorf("free content: %w", err)
			}
			t.use(a.Project, window*t.fs.chunk-a.Size, 0)
			return true, nil
		}
		if err := t.deleteInode(a); err != nil {
			return false, err
		}
	}
	if _, err := t.exec(`DELETE FROM hw_orphan WHERE ino = ?`, ino); err != nil {
		return false, fmt.Errorf("free orphan: %w", err)
	}
	return false, nil
}
