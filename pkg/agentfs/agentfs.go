// Package agentfs reads and writes AgentFS databases: a file system with POSIX meaning, its audit
// ledger and its change records, in one libSQL database that the official AgentFS 0.4 SDKs can
// open too. It is a file format's library, as SQLite is one: it knows no organization, conversation
// or turn. The cloud authority uses it, and so does the mount of a machine's delta.
//
// Every operation is one transaction: content, names, times, quota, change records and the ledger's
// record become durable together or not at all. Operations on inodes never follow symbolic links.
// What POSIX has an errno for fails with an *Error that wraps it, so that errors.Is(err,
// syscall.ENOENT) holds.
package agentfs

import (
	"syscall"
	"time"
)

// Ino is an inode number, positive and below 2^53.
type Ino int64

// Root is the root directory.
const Root Ino = 1

// File types and permissions, as st_mode has them.
const (
	TypeMask    = syscall.S_IFMT
	TypeDir     = syscall.S_IFDIR
	TypeFile    = syscall.S_IFREG
	TypeSymlink = syscall.S_IFLNK
	TypeFIFO    = syscall.S_IFIFO
	TypeSocket  = syscall.S_IFSOCK
)

// MaxName is the longest name in bytes, MaxTarget the longest target of a symbolic link.
const (
	MaxName   = 255
	MaxTarget = 4095
)

// Attr describes an inode as stat(2) does.
type Attr struct {
	Ino      Ino
	Mode     uint32
	Nlink    uint32
	UID, GID uint32
	Size     int64
	Rdev     uint32
	// Times have nanoseconds.
	Atime, Mtime, Ctime time.Time
	// Version changes with every change of the content and is never used twice, by any writer.
	Version int64
	// Project is the directory whose quota the inode counts in, 0 for the organization's own.
	Project Ino
}

// Entry is one name of a directory.
type Entry struct {
	Name string
	Attr Attr
}

// Caller is who does something: Actor goes to the ledger, UID and GID become those of what is made.
type Caller struct {
	Actor    string
	UID, GID uint32
}

// Limits bound a quota; 0: no limit.
type Limits struct {
	// Bytes is the sum of the sizes of regular files and symbolic links.
	Bytes int64
	// Files counts inodes of any kind.
	Files int64
}

// Error is a failure with an errno.
type Error struct {
	Op    string
	Path  string // or a name; empty where only an inode is known
	Errno syscall.Errno
	// Holder is set with EBUSY: who holds the file.
	Holder string
}

// Error returns the operation, the path and the errno's text.
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Op + ": " + e.Errno.Error()
	}
	return e.Op + " " + e.Path + ": " + e.Errno.Error()
}

// Unwrap returns the errno.
func (e *Error) Unwrap() error { return e.Errno }
