package agentfs

import (
	"context"
	"time"
)

// Change is what SetAttr sets; nil: stays.
type Change struct {
	// Mode has permissions; the type stays.
	Mode, UID, GID *uint32
	Size           *int64
	Atime, Mtime   *time.Time
}

// Node is one inode to plant.
type Node struct {
	Path string
	// Mode has type and permissions.
	Mode    uint32
	Content []byte
	Target  string
	// Project gives the directory a quota of its own.
	Project bool
}

// Placement says where a file gets a name, and on which conditions.
type Placement struct {
	Parent Ino
	Name   string
	// Replace allows the name to be taken, by anything but a directory.
	Replace bool
	// Check may refuse, in the transaction; old is nil if the name is free. May be nil.
	Check func(old *Attr) error
	// Digest is the SHA-256 of the content, stored for this version; nil: not known.
	Digest []byte
}

// Holding is one hold on a file.
type Holding struct {
	Holder  string
	Created time.Time
}

// Usage is how much of a quota is used; Limits of 0: no limit.
type Usage struct {
	Used, Limit Limits
}

// File is an open regular file.
type File struct{}

func todo() string { return "not written yet" }

func (f *FS) Plant(ctx context.Context, by Caller, nodes []Node) error                { panic(todo()) }
func (f *FS) Lookup(ctx context.Context, parent Ino, name string) (Attr, error)       { panic(todo()) }
func (f *FS) Resolve(ctx context.Context, path string) (Attr, error)                  { panic(todo()) }
func (f *FS) Stat(ctx context.Context, ino Ino) (Attr, error)                         { panic(todo()) }
func (f *FS) SetAttr(ctx context.Context, by Caller, ino Ino, c Change) (Attr, error) { panic(todo()) }
func (f *FS) Mkdir(ctx context.Context, by Caller, parent Ino, name string, mode uint32) (Attr, error) {
	panic(todo())
}
func (f *FS) MkdirAll(ctx context.Context, by Caller, path string, mode uint32) (Attr, error) {
	panic(todo())
}
func (f *FS) Mknod(ctx context.Context, by Caller, parent Ino, name string, mode uint32) (Attr, error) {
	panic(todo())
}
func (f *FS) Symlink(ctx context.Context, by Caller, parent Ino, name, target string) (Attr, error) {
	panic(todo())
}
func (f *FS) Readlink(ctx context.Context, ino Ino) (string, error) { panic(todo()) }
func (f *FS) Link(ctx context.Context, by Caller, ino, parent Ino, name string) (Attr, error) {
	panic(todo())
}
func (f *FS) Unlink(ctx context.Context, by Caller, parent Ino, name string) error { panic(todo()) }
func (f *FS) Rmdir(ctx context.Context, by Caller, parent Ino, name string) error  { panic(todo()) }
func (f *FS) Remove(ctx context.Context, by Caller, parent Ino, name string, check func(Attr) error) error {
	panic(todo())
}
func (f *FS) Rename(ctx context.Context, by Caller, oldParent Ino, oldName string, newParent Ino, newName string, flags uint) error {
	panic(todo())
}
func (f *FS) ReadDir(ctx context.Context, dir Ino, after string, limit int) ([]Entry, error) {
	panic(todo())
}
func (f *FS) Path(ctx context.Context, ino Ino) (string, error)                      { panic(todo()) }
func (f *FS) Open(ctx context.Context, by Caller, ino Ino, flags int) (*File, error) { panic(todo()) }
func (f *FS) Create(ctx context.Context, by Caller, parent Ino, name string, mode uint32, flags int) (*File, error) {
	panic(todo())
}
func (f *FS) Temp(ctx context.Context, by Caller, project Ino, mode uint32) (*File, error) {
	panic(todo())
}
func (f *FS) Place(ctx context.Context, by Caller, file *File, p Placement) (attr Attr, created bool, err error) {
	panic(todo())
}
func (f *FS) Put(ctx context.Context, by Caller, p Placement, mode uint32, content []byte) (attr Attr, created bool, err error) {
	panic(todo())
}
func (f *FS) GetXattr(ctx context.Context, ino Ino, name string) ([]byte, error) { panic(todo()) }
func (f *FS) SetXattr(ctx context.Context, by Caller, ino Ino, name string, value []byte, flags int) error {
	panic(todo())
}
func (f *FS) ListXattr(ctx context.Context, ino Ino) ([]string, error)               { panic(todo()) }
func (f *FS) RemoveXattr(ctx context.Context, by Caller, ino Ino, name string) error { panic(todo()) }

// Statfs returns the use of the whole database and of the quota that the inode counts in.
func (f *FS) Statfs(ctx context.Context, ino Ino) (whole, project Usage, err error)    { panic(todo()) }
func (f *FS) Digest(ctx context.Context, ino Ino, version int64) ([]byte, bool, error) { panic(todo()) }
func (f *FS) Hold(ctx context.Context, holder string, inos []Ino) error                { panic(todo()) }
func (f *FS) Release(ctx context.Context, holder string) error                         { panic(todo()) }
func (f *FS) Holders(ctx context.Context, ino Ino) ([]Holding, error)                  { panic(todo()) }

func (x *File) Ino() Ino                                { panic(todo()) }
func (x *File) Stat() (Attr, error)                     { panic(todo()) }
func (x *File) ReadAt(p []byte, off int64) (int, error) { panic(todo()) }

// ReadVersion is ReadAt that also tells the version of the content that was read.
func (x *File) ReadVersion(ctx context.Context, p []byte, off int64) (n int, version int64, err error) {
	panic(todo())
}
func (x *File) WriteAt(p []byte, off int64) (int, error)  { panic(todo()) }
func (x *File) Truncate(size int64) error                 { panic(todo()) }
func (x *File) Allocate(mode uint32, off, n int64) error  { panic(todo()) }
func (x *File) Seek(off int64, whence int) (int64, error) { panic(todo()) }
func (x *File) Sync() error                               { panic(todo()) }
func (x *File) Close() error                              { panic(todo()) }

func (f *FS) reapAll(ctx context.Context) error   { return nil }
func (t *tx) plant(by Caller, nodes []Node) error { return nil }
