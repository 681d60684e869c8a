package agentfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// releaseTimeout bounds the wait for connections that were closed, or are in use, to be gone.
const releaseTimeout = 10 * time.Second

// awaitRelease returns when this process has the file open no more. The driver closes a connection
// on a thread of its own after its Close returned, and until then SQLite counts it as a user of the
// file: the log stays, and the journal mode cannot change. ErrBusy after ten seconds.
func awaitRelease(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("wait for the file to be closed: %w", err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("wait for the file to be closed: %w", err)
	}
	events := os.NewFile(uintptr(fd), "inotify")
	defer events.Close()
	// Watched before it is looked at, so that no close is missed. SQLite closes the descriptors of
	// one file together with the last of its connections.
	if _, err := unix.InotifyAddWatch(fd, path, unix.IN_CLOSE); err != nil {
		return fmt.Errorf("wait for the file to be closed: %w", err)
	}
	if err := events.SetReadDeadline(time.Now().Add(releaseTimeout)); err != nil {
		return fmt.Errorf("wait for the file to be closed: %w", err)
	}
	event := make([]byte, 4096)
	for {
		open, err := hasOpen(info)
		if err != nil {
			return fmt.Errorf("wait for the file to be closed: %w", err)
		}
		if !open {
			return nil
		}
		if _, err := events.Read(event); errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("wait for the file to be closed: %w", ErrBusy)
		} else if err != nil {
			return fmt.Errorf("wait for the file to be closed: %w", err)
		}
	}
}

// hasOpen says whether a descriptor of this process is the file.
func hasOpen(info os.FileInfo) (bool, error) {
	const descriptors = "/proc/self/fd"
	list, err := os.ReadDir(descriptors)
	if err != nil {
		return false, err
	}
	for _, d := range list {
		// One that was closed meanwhile is not there any more.
		if other, err := os.Stat(filepath.Join(descriptors, d.Name())); err == nil && os.SameFile(info, other) {
			return true, nil
		}
	}
	return false, nil
}

// foldLog leaves one file without a log, when no connection is left.
func foldLog(l Location) error {
	if err := awaitRelease(l.Path); err != nil {
		return err
	}
	c, err := dial(l, "rw")
	if err != nil {
		return err
	}
	mode, err := c.row("PRAGMA journal_mode = DELETE")
	if err == nil && mode.text(0) != "delete" {
		err = fmt.Errorf("fold in the log: %w", ErrBusy)
	}
	return errors.Join(err, c.close(), awaitRelease(l.Path))
}
