package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// RestoreSnapshot is Restore of a snapshot, which stays.
func (s *Store) RestoreSnapshot(ctx context.Context, organization, name string) (Snapshot, error) {
	return s.Restore(ctx, organization, func(w io.Writer) error {
		if _, err := s.snapshot(organization, name); err != nil {
			return err
		}
		f, err := os.Open(s.snapshotPath(organization, name))
		if err != nil {
			return fmt.Errorf("open snapshot %s: %w", name, err)
		}
		defer f.Close()
		if _, err := io.Copy(w, f); err != nil {
			return fmt.Errorf("copy snapshot %s: %w", name, err)
		}
		return nil
	})
}

// Restore replaces the organization's database, also a damaged or lost one, by what fill writes,
// and keeps it as a snapshot, which is returned; its name is empty if there was none. A copy that
// does not pass every check changes nothing. Streams on the old database end with AGENTFS_REPLACED;
// other callers wait.
func (s *Store) Restore(ctx context.Context, organization string, fill func(io.Writer) error) (Snapshot, error) {
	done, err := s.copying(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer done()
	e, err := s.entry(organization)
	if err != nil {
		return Snapshot{}, err
	}
	path, err := s.scratch()
	if err != nil {
		return Snapshot{}, fault.From(err, "the copy")
	}
	defer func() {
		for _, suffix := range []string{"", "-wal", "-shm", "-journal"} {
			discard(path + suffix)
		}
	}()
	if err := write(path, fill); err != nil {
		return Snapshot{}, fault.From(err, "the copy")
	}
	if err := agentfs.Adopt(ctx, path); err != nil {
		return Snapshot{}, fault.From(fmt.Errorf("check the copy: %w", err), "the copy")
	}
	if err := syncPath(path); err != nil {
		return Snapshot{}, err
	}
	name := timed("before-restore-")
	cause := errs.New(errs.Unavailable, fault.Replaced, "the AgentFS is being replaced by a copy; try again")
	err = e.alone(ctx, cause, func() error {
		// From here on nothing waits for the caller, who may be gone.
		kept, err := s.swap(organization, name, path, e)
		if !kept {
			name = ""
		}
		return err
	})
	if err != nil || name == "" {
		return Snapshot{}, fault.From(err, "the copy")
	}
	return s.snapshot(organization, name)
}

func write(path string, fill func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("write the copy: %w", err)
	}
	return errors.Join(fill(f), f.Close())
}

// swap puts the file at path in the database's place. The old one has a second name before it loses
// its first, so that at any moment of a crash one of both is there whole.
func (s *Store) swap(organization, name, path string, e *entry) (kept bool, err error) {
	present := s.path(organization)
	// A database that cannot be opened was left as it is, its log beside it; that is kept too.
	if err := e.close(); err != nil {
		return false, fmt.Errorf("close the AgentFS of %s: %w", organization, err)
	}
	if _, err := os.Lstat(present); err == nil {
		if err := s.keep(organization, name, present); err != nil {
			return false, err
		}
		kept = true
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, fmt.Errorf("look at the AgentFS of %s: %w", organization, err)
	}
	// The log of one database must never be beside another.
	for _, suffix := range []string{"-wal", "-shm"} {
		err := os.Rename(present+suffix, s.snapshotPath(organization, name)+suffix)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return kept, fmt.Errorf("keep the log of %s: %w", organization, err)
		}
	}
	if err := os.Rename(path, present); err != nil {
		return kept, fmt.Errorf("replace the AgentFS of %s: %w", organization, err)
	}
	return kept, syncPath(filepath.Dir(present))
}
