package agentfs

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"
)

// permissions are the bits of a mode that are no type.
const permissions = 0o7777

// newInode is an inode to insert, with the name it gets.
type newInode struct {
	mode    uint32
	size    int64
	nlink   int
	target  string // of a symbolic link
	project Ino
	own     bool // has a quota of its own, in which it counts itself
}

// insertInode adds an inode that belongs to the caller, or to the group of a parent that is
// set-group-ID.
func (t *tx) insertInode(by Caller, parent Attr, n newInode) (Attr, error) {
	id, err := t.ids(2)
	if err != nil {
		return Attr{}, err
	}
	a := Attr{Ino: Ino(id), Mode: n.mode, Nlink: uint32(n.nlink), UID: by.UID, GID: by.GID, Size: n.size,
		Atime: t.now, Mtime: t.now, Ctime: t.now, Version: id + 1, Project: n.project}
	if parent.Mode&syscall.S_ISGID != 0 {
		a.GID = parent.GID
		if a.IsDir() {
			a.Mode |= syscall.S_ISGID
		}
	}
	if n.own {
		a.Project = a.Ino
		if _, err := t.exec(`INSERT INTO hw_project (project) VALUES (?)`, a.Ino); err != nil {
			return Attr{}, fmt.Errorf("insert project: %w", err)
		}
	}
	sec, nsec := t.now.Unix(), t.now.Nanosecond()
	if _, err := t.exec(`INSERT INTO fs_inode (ino, mode, nlink, uid, gid, size, atime, mtime, ctime,
		atime_nsec, mtime_nsec, ctime_nsec, hw_version, hw_project) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		a.Ino, a.Mode, a.Nlink, a.UID, a.GID, a.Size, sec, sec, sec, nsec, nsec, nsec, a.Version, a.Project); err != nil {
		return Attr{}, fmt.Errorf("insert inode: %w", err)
	}
	if n.target != "" {
		if _, err := t.exec(`INSERT INTO fs_symlink (ino, target) VALUES (?, ?)`, a.Ino, n.target); err != nil {
			return Attr{}, fmt.Errorf("insert link: %w", err)
		}
	}
	t.use(a.Project, a.Size, 1)
	t.change(change{kind: changeInode, ino: a.Ino})
	return a, nil
}

// insertName gives an inode a name that is free.
func (t *tx) insertName(parent Ino, name string, ino Ino) error {
	id, err := t.ids(1)
	if err != nil {
		return err
	}
	if _, err := t.exec(`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES (?, ?, ?, ?)`, id, name, parent, ino); err != nil {
		return fmt.Errorf("insert entry: %w", err)
	}
	t.change(change{kind: changeName, ino: parent, name: name})
	return nil
}

// touchDir notes that a directory's names changed, and how many directories it has now.
func (t *tx) touchDir(dir Ino, directories int) error {
	sec, nsec := t.now.Unix(), t.now.Nanosecond()
	if _, err := t.exec(`UPDATE fs_inode SET nlink = nlink + ?, mtime = ?, mtime_nsec = ?, ctime = ?, ctime_nsec = ?
		WHERE ino = ?`, directories, sec, nsec, sec, nsec, dir); err != nil {
		return fmt.Errorf("touch directory: %w", err)
	}
	t.change(change{kind: changeInode, ino: dir})
	return nil
}

// free returns the directory in which the name is free, EEXIST if it is not.
func (t *tx) free(parent Ino, name string) (Attr, error) {
	if err := checkName(name); err != nil {
		return Attr{}, err
	}
	dir, err := t.dir(parent)
	if err != nil {
		return Attr{}, err
	}
	old, err := t.find(parent, name)
	if err == nil && old != nil {
		err = syscall.EEXIST
	}
	return dir, err
}

// make adds an inode with a name; the ledger gets the action.
func (t *tx) make(by Caller, dir Attr, name, action string, n newInode) (Attr, error) {
	subdirectories := 0
	n.nlink = 1
	if n.mode&TypeMask == TypeDir {
		n.nlink, subdirectories = 2, 1
	}
	n.project = dir.Project
	a, err := t.insertInode(by, dir, n)
	if err != nil {
		return a, err
	}
	if err := t.insertName(dir.Ino, name, a.Ino); err != nil {
		return a, err
	}
	if err := t.touchDir(dir.Ino, subdirectories); err != nil {
		return a, err
	}
	p, err := t.below(dir.Ino, name)
	if err != nil {
		return a, err
	}
	return a, t.log(by, action, a, p, n.target)
}

// log records an action on an inode as it is now.
func (t *tx) log(by Caller, action string, a Attr, path, target string) error {
	if err := t.record(Record{Actor: by.Actor, Action: action, Project: a.Project, Ino: a.Ino, Mode: a.Mode,
		Path: path, Target: target, Version: a.Version, Size: a.Size}); err != nil {
		return fmt.Errorf("write the ledger: %w", err)
	}
	return nil
}

// Mkdir makes a directory; mode has permissions.
func (f *FS) Mkdir(ctx context.Context, by Caller, parent Ino, name string, mode uint32) (a Attr, err error) {
	err = f.update(ctx, func(t *tx) error {
		dir, err := t.free(parent, name)
		if err != nil {
			return err
		}
		a, err = t.make(by, dir, name, ActionMkdir, newInode{mode: TypeDir | mode&permissions})
		return err
	})
	return a, fail("mkdir", name, err)
}

// MkdirAll makes a directory and those above it that are missing, and returns it. ENOTDIR or ELOOP
// if something else is on the way.
func (f *FS) MkdirAll(ctx context.Context, by Caller, path string, mode uint32) (a Attr, err error) {
	names, err := split(path)
	if err != nil {
		return Attr{}, fail("mkdir", path, err)
	}
	a, err = f.Resolve(ctx, path)
	if err == nil && !a.IsDir() {
		err = syscall.ENOTDIR
	}
	if !errors.Is(err, syscall.ENOENT) {
		return a, fail("mkdir", path, err)
	}
	err = f.update(ctx, func(t *tx) error {
		if a, err = t.stat(Root); err != nil {
			return err
		}
		for _, name := range names {
			next, err := t.find(a.Ino, name)
			switch {
			case err != nil:
				return err
			case next == nil:
				made, err := t.make(by, a, name, ActionMkdir, newInode{mode: TypeDir | mode&permissions})
				if err != nil {
					return err
				}
				next = &made
			case next.Type() == TypeSymlink:
				return syscall.ELOOP
			case !next.IsDir():
				return syscall.ENOTDIR
			}
			a = *next
		}
		return nil
	})
	return a, fail("mkdir", path, err)
}

// Mknod makes a regular file, FIFO or socket; mode has type and permissions. Devices: EPERM.
func (f *FS) Mknod(ctx context.Context, by Caller, parent Ino, name string, mode uint32) (a Attr, err error) {
	err = f.update(ctx, func(t *tx) error {
		switch mode & TypeMask {
		case TypeFile, TypeFIFO, TypeSocket:
		case syscall.S_IFCHR, syscall.S_IFBLK:
			return syscall.EPERM
		default:
			return syscall.EINVAL
		}
		dir, err := t.free(parent, name)
		if err != nil {
			return err
		}
		a, err = t.make(by, dir, name, ActionCreate, newInode{mode: mode & (TypeMask | permissions)})
		return err
	})
	return a, fail("mknod", name, err)
}

// checkTarget says what a symbolic link may hold: anything, as in POSIX, that the schema can.
func checkTarget(target string) error {
	switch {
	case target == "":
		return syscall.ENOENT
	case len(target) > MaxTarget:
		return syscall.ENAMETOOLONG
	case strings.Contains(target, "\x00"):
		return syscall.EINVAL
	case !utf8.ValidString(target):
		return syscall.EILSEQ
	}
	return nil
}

// Symlink makes a symbolic link.
func (f *FS) Symlink(ctx context.Context, by Caller, parent Ino, name, target string) (a Attr, err error) {
	err = f.update(ctx, func(t *tx) error {
		if err := checkTarget(target); err != nil {
			return err
		}
		dir, err := t.free(parent, name)
		if err != nil {
			return err
		}
		a, err = t.make(by, dir, name, ActionSymlink, symlink(target))
		return err
	})
	return a, fail("symlink", name, err)
}

func symlink(target string) newInode {
	return newInode{mode: TypeSymlink | 0o777, size: int64(len(target)), target: target}
}

// Link gives an inode another name. EPERM for a directory, EXDEV into another quota's directory,
// ENOENT for one that has no name any more.
func (f *FS) Link(ctx context.Context, by Caller, ino, parent Ino, name string) (a Attr, err error) {
	err = f.update(ctx, func(t *tx) error {
		dir, err := t.free(parent, name)
		if err != nil {
			return err
		}
		if a, err = t.stat(ino); err != nil {
			return err
		}
		switch {
		case a.IsDir():
			return syscall.EPERM
		case a.Nlink == 0:
			return syscall.ENOENT
		case a.Project != dir.Project:
			return syscall.EXDEV
		case a.Nlink >= maxLinks:
			return syscall.EMLINK
		}
		from, err := t.path(ino)
		if err != nil {
			return err
		}
		if err := t.insertName(parent, name, ino); err != nil {
			return err
		}
		if err := t.relink(&a, 1); err != nil {
			return err
		}
		if err := t.touchDir(parent, 0); err != nil {
			return err
		}
		to, err := t.below(parent, name)
		if err != nil {
			return err
		}
		return t.log(by, ActionLink, a, from, to)
	})
	return a, fail("link", name, err)
}

const maxLinks = 1 << 31

// relink changes how many names an inode has.
func (t *tx) relink(a *Attr, by int) error {
	a.Nlink = uint32(int64(a.Nlink) + int64(by))
	a.Ctime = t.now
	if _, err := t.exec(`UPDATE fs_inode SET nlink = ?, ctime = ?, ctime_nsec = ? WHERE ino = ?`,
		a.Nlink, t.now.Unix(), t.now.Nanosecond(), a.Ino); err != nil {
		return fmt.Errorf("count links: %w", err)
	}
	t.change(change{kind: changeInode, ino: a.Ino})
	return nil
}

// Node is one inode to plant.
type Node struct {
	// Path is absolute and canonical.
	Path string
	// Mode has type and permissions: a directory, regular file or symbolic link.
	Mode uint32
	// Content is a file's, Target a symbolic link's.
	Content []byte
	Target  string
	// Project gives the directory a quota of its own, in which all below counts.
	Project bool
}

// Plant makes the nodes in one transaction, parents before children; nothing if the first one
// exists, EEXIST if another one does.
func (f *FS) Plant(ctx context.Context, by Caller, nodes []Node) error {
	if len(nodes) == 0 {
		return nil
	}
	err := f.update(ctx, func(t *tx) error {
		_, err := t.resolve(nodes[0].Path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, syscall.ENOENT) {
			return err
		}
		return t.plant(by, nodes)
	})
	return fail("plant", "", err)
}

func (t *tx) plant(by Caller, nodes []Node) error {
	for _, n := range nodes {
		if err := t.plantNode(by, n); err != nil {
			return fail("plant", n.Path, err)
		}
	}
	return nil
}

func (t *tx) plantNode(by Caller, n Node) error {
	names, err := split(n.Path)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		return syscall.EEXIST
	}
	parent, err := t.resolve(path.Dir(n.Path))
	if err != nil {
		return err
	}
	name := names[len(names)-1]
	dir, err := t.free(parent.Ino, name)
	if err != nil {
		return err
	}
	made := newInode{mode: n.Mode & (TypeMask | permissions)}
	switch n.Mode & TypeMask {
	case TypeDir:
	case TypeFile:
		made.size = int64(len(n.Content))
	case TypeSymlink:
		if err := checkTarget(n.Target); err != nil {
			return err
		}
		made = symlink(n.Target)
	default:
		return syscall.EINVAL
	}
	if n.Project && n.Mode&TypeMask != TypeDir {
		return syscall.ENOTDIR
	}
	made.own = n.Project
	a, err := t.make(by, dir, name, ActionProvision, made)
	if err != nil {
		return err
	}
	if a.Type() != TypeFile {
		return nil
	}
	return t.fill(a, n.Content)
}
