package agentfs

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// Bytes that one transaction reads or writes, so that nobody waits long for another's transfer.
const (
	readWindow  = 1 << 20
	writeWindow = 4 << 20
)

// File is an open regular file. Its inode lives until Close, named or not. Methods are safe for
// concurrent use. Reading does not change the time of access.
type File struct {
	fs    *FS
	by    Caller
	ino   Ino
	flags int
	temp  bool // made by Temp and not placed

	mu     sync.Mutex
	closed bool
	// wrote: the ledger has the writes since the open or the last Sync as one record.
	wrote bool
}

// Open opens a regular file and records that in the ledger: for good against a killed process, and
// against a power loss with the next change. Flags are an access mode, O_TRUNC and O_APPEND of
// open(2), others are ignored. EISDIR, ELOOP for a symbolic link, ENXIO for anything else.
func (f *FS) Open(ctx context.Context, by Caller, ino Ino, flags int) (*File, error) {
	x, err := f.openFile(ctx, by, flags, func(t *tx) (Attr, error) { return t.stat(ino) })
	return x, fail("open", "", err)
}

// OpenPath opens what is at an absolute canonical path now, in one transaction: whatever happens to
// its names at the same time, the file is the one that check saw. Check may refuse, also what is no
// regular file, and may be nil. Symbolic links are not followed: ELOOP.
func (f *FS) OpenPath(ctx context.Context, by Caller, path string, flags int, check func(Attr) error) (*File, error) {
	x, err := f.openFile(ctx, by, flags, func(t *tx) (Attr, error) {
		a, err := t.resolve(path)
		if err == nil && check != nil {
			err = check(a)
		}
		return a, err
	})
	return x, fail("open", path, err)
}

func (f *FS) openFile(ctx context.Context, by Caller, flags int, find func(*tx) (Attr, error)) (*File, error) {
	x := &File{fs: f, by: by, flags: flags}
	counted := false
	update := f.updateLater
	if flags&os.O_TRUNC != 0 {
		update = f.update
	}
	err := update(ctx, func(t *tx) error {
		a, err := find(t)
		if err != nil {
			return err
		}
		if err := openable(a); err != nil {
			return err
		}
		// Without a name, and open nowhere, it is being freed.
		if a.Nlink == 0 && !f.keepOpen(a.Ino) {
			return syscall.ENOENT
		}
		x.ino = a.Ino
		f.count(a.Ino)
		counted = true
		return t.open(x, &a)
	})
	if err != nil {
		if counted {
			f.uncount(x.ino)
		}
		return nil, err
	}
	return x, nil
}

func openable(a Attr) error {
	switch a.Type() {
	case TypeFile:
		return nil
	case TypeDir:
		return syscall.EISDIR
	case TypeSymlink:
		return syscall.ELOOP
	}
	return syscall.ENXIO
}

// open records the open and truncates if the flags say so.
func (t *tx) open(x *File, a *Attr) error {
	p, err := t.path(a.Ino)
	if err != nil {
		return err
	}
	if err := t.log(x.by, ActionOpen, *a, p, ""); err != nil {
		return err
	}
	if x.flags&os.O_TRUNC == 0 || !x.writable() || a.Size == 0 {
		return nil
	}
	if err := t.truncate(a, 0); err != nil {
		return err
	}
	return t.log(x.by, ActionTruncate, *a, p, "")
}

// Create opens a name, and makes a regular file of it if it is free; with O_EXCL it must be. Mode
// has permissions. Other flags as for Open.
func (f *FS) Create(ctx context.Context, by Caller, parent Ino, name string, mode uint32, flags int) (*File, error) {
	x := &File{fs: f, by: by, flags: flags}
	counted := false
	err := f.update(ctx, func(t *tx) error {
		if err := checkName(name); err != nil {
			return err
		}
		dir, err := t.dir(parent)
		if err != nil {
			return err
		}
		old, err := t.find(parent, name)
		if err != nil {
			return err
		}
		if old != nil {
			if flags&os.O_EXCL != 0 {
				return syscall.EEXIST
			}
			if err := openable(*old); err != nil {
				return err
			}
			x.ino = old.Ino
			f.count(x.ino)
			counted = true
			return t.open(x, old)
		}
		a, err := t.make(by, dir, name, ActionCreate, newInode{mode: TypeFile | mode&permissions})
		if err != nil {
			return err
		}
		x.ino = a.Ino
		f.count(x.ino)
		counted = true
		return nil
	})
	if err != nil {
		if counted {
			f.uncount(x.ino)
		}
		return nil, fail("create", name, err)
	}
	return x, nil
}

// count is called in the writer's turn, so that whoever removes a name knows who has it open.
func (f *FS) count(ino Ino) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.handles[ino]++
}

// uncount tells whether the inode is an orphan that nobody has open any more.
func (f *FS) uncount(ino Ino) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles[ino]--; f.handles[ino] > 0 {
		return false
	}
	delete(f.handles, ino)
	orphan := f.orphans[ino]
	delete(f.orphans, ino)
	return orphan
}

// Ino returns the inode's number.
func (x *File) Ino() Ino { return x.ino }

func (x *File) writable() bool { return x.flags&(os.O_WRONLY|os.O_RDWR) != 0 }

func (x *File) readable() bool { return x.flags&os.O_WRONLY == 0 }

func (x *File) check(allowed bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed {
		return ErrClosed
	}
	if !allowed {
		return syscall.EBADF
	}
	return nil
}

// Stat describes the file.
func (x *File) Stat() (Attr, error) {
	if err := x.check(true); err != nil {
		return Attr{}, fail("stat", "", err)
	}
	return x.fs.Stat(context.Background(), x.ino)
}

// ReadAt implements io.ReaderAt.
func (x *File) ReadAt(p []byte, off int64) (int, error) {
	for n := 0; ; {
		m, _, err := x.ReadVersion(context.Background(), p[n:], off+int64(n))
		if n += m; err != nil || n == len(p) {
			return n, err
		}
	}
}

// ReadVersion reads at most 1 MiB, from one snapshot, and tells the version of the content. It
// returns less than that only at the end, with io.EOF.
func (x *File) ReadVersion(ctx context.Context, p []byte, off int64) (n int, version int64, err error) {
	if err := x.check(x.readable()); err != nil {
		return 0, 0, fail("read", "", err)
	}
	if off < 0 {
		return 0, 0, fail("read", "", syscall.EINVAL)
	}
	p = p[:min(len(p), readWindow)]
	err = x.fs.read(ctx, func(t *tx) error {
		if len(p) == 0 {
			a, err := t.stat(x.ino)
			version = a.Version
			return err
		}
		var a Attr
		n, a, err = t.readAt(x.ino, p, off)
		version = a.Version
		return err
	})
	if err == nil && n < len(p) {
		return n, version, io.EOF
	}
	return n, version, fail("read", "", err)
}

// WriteAt implements io.WriterAt; with O_APPEND the offset does not matter. A write that fails may
// have stored a part of p, a multiple of 4 MiB.
func (x *File) WriteAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fail("write", "", syscall.EINVAL)
	}
	for n < len(p) {
		part := p[n:min(n+writeWindow, len(p))]
		err := x.change(func(t *tx, a *Attr) (string, error) {
			at := off + int64(n)
			if x.flags&os.O_APPEND != 0 {
				at = a.Size
			}
			return ActionWrite, t.writeAt(a, part, at)
		})
		if err != nil {
			return n, fail("write", "", err)
		}
		n += len(part)
	}
	return n, nil
}

// Truncate sets the size.
func (x *File) Truncate(size int64) error {
	return fail("truncate", "", x.change(func(t *tx, a *Attr) (string, error) {
		return ActionTruncate, t.truncate(a, size)
	}))
}

// Allocate is fallocate(2). Space is not reserved: a quota counts sizes, and what is allocated past
// the end makes the file larger unless the mode keeps the size. EOPNOTSUPP for modes that move
// content.
func (x *File) Allocate(mode uint32, off, n int64) error {
	return fail("allocate", "", x.change(func(t *tx, a *Attr) (string, error) {
		if off < 0 || n <= 0 {
			return "", syscall.EINVAL
		}
		if off > MaxSize-n {
			return "", syscall.EFBIG
		}
		keep := mode&unix.FALLOC_FL_KEEP_SIZE != 0
		switch mode &^ unix.FALLOC_FL_KEEP_SIZE {
		case 0:
		case unix.FALLOC_FL_PUNCH_HOLE:
			if !keep {
				return "", syscall.EOPNOTSUPP
			}
			return ActionWrite, t.zero(a, off, off+n)
		case unix.FALLOC_FL_ZERO_RANGE:
			if err := t.zero(a, off, off+n); err != nil {
				return "", err
			}
		default:
			return "", syscall.EOPNOTSUPP
		}
		if keep || off+n <= a.Size {
			return ActionWrite, nil
		}
		return ActionWrite, t.truncate(a, off+n)
	}))
}

// change changes the content in one transaction. A file that was not placed yet is in no ledger and
// need not survive anything.
func (x *File) change(fn func(*tx, *Attr) (action string, err error)) error {
	if err := x.check(x.writable()); err != nil {
		return err
	}
	x.mu.Lock()
	temp := x.temp
	x.mu.Unlock()
	update := x.fs.update
	if temp {
		update = x.fs.updateLater
	}
	logged := false
	err := update(context.Background(), func(t *tx) error {
		a, err := t.stat(x.ino)
		if err != nil {
			return err
		}
		action, err := fn(t, &a)
		if err != nil || temp || !x.mayLog(action) {
			return err
		}
		logged = true
		p, err := t.path(x.ino)
		if err != nil {
			return err
		}
		return t.log(x.by, action, a, p, "")
	})
	if err != nil && logged {
		x.unlog()
	}
	return err
}

// mayLog says whether an action is to be recorded: of writes only the first.
func (x *File) mayLog(action string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if action != ActionWrite {
		return true
	}
	first := !x.wrote
	x.wrote = true
	return first
}

func (x *File) unlog() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.wrote = false
}

// Seek finds data or a hole from the offset on, with SEEK_DATA or SEEK_HOLE of lseek(2), to the
// chunk. ENXIO if there is none, or the offset is not in the file.
func (x *File) Seek(off int64, whence int) (at int64, err error) {
	if err := x.check(true); err != nil {
		return 0, fail("seek", "", err)
	}
	err = x.fs.view(context.Background(), func(t *tx) error {
		a, err := t.stat(x.ino)
		if err != nil {
			return err
		}
		if off < 0 || off >= a.Size {
			return syscall.ENXIO
		}
		switch whence {
		case unix.SEEK_DATA:
			at, err = t.seekData(a, off)
		case unix.SEEK_HOLE:
			at, err = t.seekHole(a, off)
		default:
			err = syscall.EINVAL
		}
		return err
	})
	return at, fail("seek", "", err)
}

func (t *tx) seekData(a Attr, off int64) (int64, error) {
	r, err := t.row(`SELECT chunk_index FROM fs_data WHERE ino = ? AND chunk_index >= ? ORDER BY chunk_index LIMIT 1`,
		a.Ino, off/t.fs.chunk)
	if err != nil {
		return 0, fmt.Errorf("seek: %w", err)
	}
	if r == nil || r.int(0)*t.fs.chunk >= a.Size {
		return 0, syscall.ENXIO
	}
	return max(off, r.int(0)*t.fs.chunk), nil
}

func (t *tx) seekHole(a Attr, off int64) (int64, error) {
	r, err := t.row(`SELECT 1 FROM fs_data WHERE ino = ? AND chunk_index = ?`, a.Ino, off/t.fs.chunk)
	if err != nil {
		return 0, fmt.Errorf("seek: %w", err)
	}
	if r == nil {
		return off, nil
	}
	r, err = t.row(`SELECT d.chunk_index + 1 FROM fs_data d WHERE d.ino = ? AND d.chunk_index >= ? AND NOT EXISTS
		(SELECT 1 FROM fs_data n WHERE n.ino = d.ino AND n.chunk_index = d.chunk_index + 1) ORDER BY d.chunk_index LIMIT 1`,
		a.Ino, off/t.fs.chunk)
	if err != nil {
		return 0, fmt.Errorf("seek: %w", err)
	}
	if r == nil {
		return a.Size, nil
	}
	return min(a.Size, r.int(0)*t.fs.chunk), nil // the end is a hole
}

// Sync returns when all writes are durable, which those of a placed file are already. The next write
// is a record of its own in the ledger.
func (x *File) Sync() error {
	if err := x.check(true); err != nil {
		return fail("sync", "", err)
	}
	x.unlog()
	return nil
}

// Close ends the use of the file. What has no name is freed with its last File.
func (x *File) Close() error {
	x.mu.Lock()
	if x.closed {
		x.mu.Unlock()
		return fail("close", "", ErrClosed)
	}
	x.closed = true
	x.mu.Unlock()
	if x.fs.uncount(x.ino) {
		x.fs.reap(x.ino)
	}
	return nil
}
