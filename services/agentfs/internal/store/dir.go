package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

const (
	organizations = "organizations"
	snapshots     = "snapshots"
	// temporary holds copies being made or received; whatever is there at start was cut off.
	temporary = "tmp"
)

func (s *Store) path(organization string) string {
	return filepath.Join(s.cfg.Dir, organizations, organization+".db")
}

// take makes the directory and locks it. The lock belongs to the open file and goes with the
// process. With remote databases there is nothing to take.
func (s *Store) take() (release func() error, leftover []string, err error) {
	if s.cfg.Dir == "" {
		return func() error { return nil }, nil, nil
	}
	unusable := func(err error) error {
		return errs.Wrap(err, errs.Precondition, fault.DataDir, "the data directory %s cannot be used", s.cfg.Dir)
	}
	if err := os.MkdirAll(s.cfg.Dir, 0o700); err != nil {
		return nil, nil, unusable(err)
	}
	lock, err := os.OpenFile(filepath.Join(s.cfg.Dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, nil, unusable(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errs.New(errs.Precondition, fault.DataDirInUse, "the data directory %s is in use by another agentfs", s.cfg.Dir)
		} else {
			err = unusable(err)
		}
		return nil, nil, errors.Join(err, lock.Close())
	}
	leftover, err = s.prepare()
	if err != nil {
		return nil, nil, errors.Join(unusable(err), lock.Close())
	}
	return lock.Close, leftover, nil
}

// prepare makes the directories, drops what was cut off, and finds the databases to open.
func (s *Store) prepare() (leftover []string, err error) {
	if err := os.RemoveAll(filepath.Join(s.cfg.Dir, temporary)); err != nil {
		return nil, err
	}
	for _, d := range []string{organizations, snapshots, temporary} {
		if err := os.MkdirAll(filepath.Join(s.cfg.Dir, d), 0o700); err != nil {
			return nil, err
		}
	}
	files, err := os.ReadDir(filepath.Join(s.cfg.Dir, organizations))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		// An orderly end folds the write-ahead log in; a mark says that there is more to announce.
		for _, suffix := range []string{".db-wal", pendingSuffix} {
			if id, ok := strings.CutSuffix(f.Name(), suffix); ok && !slices.Contains(leftover, id) {
				leftover = append(leftover, id)
			}
		}
	}
	return leftover, nil
}

const pendingSuffix = ".pending"

// mark leaves a note for the next start, or removes it.
func (s *Store) mark(organization string, pending bool) error {
	if s.cfg.Dir == "" {
		return nil
	}
	path := filepath.Join(s.cfg.Dir, organizations, organization+pendingSuffix)
	if !pending {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("note that all was announced: %w", err)
		}
		return nil
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("note what was not announced: %w", err)
	}
	return nil
}

// scratch returns the path of a new, empty temporary file.
func (s *Store) scratch() (string, error) {
	f, err := os.CreateTemp(filepath.Join(s.cfg.Dir, temporary), "")
	if err != nil {
		return "", fmt.Errorf("make a temporary file: %w", err)
	}
	return f.Name(), f.Close()
}

// syncPath makes a file's content, or a directory's names, survive a power loss.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync %s: %w", filepath.Base(path), err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync %s: %w", filepath.Base(path), err)
	}
	return nil
}
