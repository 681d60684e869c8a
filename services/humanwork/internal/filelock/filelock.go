// Package filelock holds an exclusive flock on a file: the lock is free again when every process that holds the open
// file description has ended, however it ended, so that no stale lock is ever to be judged.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// ErrHeld says that another open file description holds the lock.
var ErrHeld = errors.New("lock is held")

// A Lock is one held flock. Its descriptor is close-on-exec; a child that is to keep the lock gets File as an extra file.
type Lock struct {
	file *os.File
}

// Try takes the lock of path, which it creates with mode 0600, or returns an error that wraps ErrHeld.
func Try(path string) (*Lock, error) {
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	if err := flock(file, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		file.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrHeld
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return &Lock{file: file}, nil
}

// Wait takes the lock of path as soon as it is free, or returns ctx's error.
func Wait(ctx context.Context, path string) (*Lock, error) {
	lock, err := Try(path)
	if !errors.Is(err, ErrHeld) {
		return lock, err
	}
	file, err := open(path)
	if err != nil {
		return nil, err
	}
	taken := make(chan error, 1)
	go func() { taken <- flock(file, unix.LOCK_EX) }()
	select {
	case err := <-taken:
		if err != nil {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		return &Lock{file: file}, nil
	case <-ctx.Done():
		// A blocked flock can't be called off: whoever frees the lock ends the call, and it is given back at once.
		go func() {
			if err := <-taken; err == nil {
				_ = flock(file, unix.LOCK_UN)
			}
			file.Close()
		}()
		return nil, fmt.Errorf("lock %s: %w", path, context.Cause(ctx))
	}
}

// File is the locked file, to be written to or handed to a child that shall hold the lock with us.
func (l *Lock) File() *os.File { return l.file }

// Drop gives up our share: the lock is free when the children that were given File have ended too.
func (l *Lock) Drop() { l.file.Close() }

// Unlock frees the lock for all who share it. It is the right end for a lock no child was given: another goroutine's
// child, between its fork and its exec, has a copy of the descriptor for a moment, and Drop would leave it locked so long.
func (l *Lock) Unlock() {
	_ = flock(l.file, unix.LOCK_UN)
	l.file.Close()
}

func open(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock file: %w", err)
	}
	return file, nil
}

func flock(file *os.File, how int) error {
	for {
		err := unix.Flock(int(file.Fd()), how)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
