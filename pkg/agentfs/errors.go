package agentfs

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// What Open, Create and Adopt refuse a database for, without having changed it.
var (
	// ErrNotExist: there is no database, or only what a crash within Create left.
	ErrNotExist = errors.New("there is no AgentFS")
	// ErrSchema: an AgentFS of another version, or one that was not adopted.
	ErrSchema = errors.New("the AgentFS has an unsupported schema")
	// ErrForeign: not a database, or not an AgentFS.
	ErrForeign = errors.New("the file is no AgentFS")
	// ErrDamaged: a part is missing or malformed.
	ErrDamaged = errors.New("the AgentFS is damaged")
	// ErrBusy: another process held its lock for too long.
	ErrBusy = errors.New("the AgentFS is locked by another process")
	// ErrRemote: a remote server does this itself.
	ErrRemote = errors.New("the AgentFS is on a remote server")
	// ErrClosed: the FS or the File was closed.
	ErrClosed = os.ErrClosed
)

// held is an EBUSY that names who holds the file.
type held string

func (h held) Error() string { return "held by " + string(h) }

func (held) Unwrap() error { return syscall.EBUSY }

// fail gives an operation's failure its public form: *Error where POSIX has an errno, else one of
// the variables above or the driver's text, wrapped.
func fail(op, path string, err error) error {
	if err == nil {
		return nil
	}
	var public *Error
	if errors.As(err, &public) {
		return err
	}
	var errno syscall.Errno
	if errors.As(err, &errno) {
		e := &Error{Op: op, Path: path, Errno: errno}
		var h held
		if errors.As(err, &h) {
			e.Holder = string(h)
		}
		return e
	}
	if path != "" {
		op += " " + path
	}
	return fmt.Errorf("%s: %w", op, err)
}

// translate gives a driver's error its meaning. The driver has no error types, only SQLite's text.
func translate(err error) error {
	text := err.Error()
	has := func(parts ...string) bool {
		for _, p := range parts {
			if strings.Contains(text, p) {
				return true
			}
		}
		return false
	}
	switch {
	case has("failed to bind argument"):
		// This text quotes the value, which may be a secret.
		return errors.New("the driver refused a value")
	case has("disk is full"):
		return syscall.ENOSPC
	case has("malformed", "corrupt"):
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	case has("not a database", "file is encrypted"):
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case has("locked", "busy"):
		return fmt.Errorf("%w: %w", ErrBusy, err)
	case has("readonly", "read-only"):
		return syscall.EROFS
	case has("disk I/O"):
		return syscall.EIO
	}
	return err
}
