package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// Snapshot is a consistent copy kept beside the database.
type Snapshot struct {
	Name    string
	Created time.Time
	Size    int64 // bytes of the file
}

// copying takes one of the places for whole copies. Remote databases have none.
func (s *Store) copying(ctx context.Context) (done func(), err error) {
	if s.cfg.Dir == "" {
		return nil, fault.From(agentfs.ErrRemote, "")
	}
	select {
	case s.copies <- struct{}{}:
		return func() { <-s.copies }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for other copies: %w", ctx.Err())
	}
}

func (s *Store) snapshotPath(organization, name string) string {
	return filepath.Join(s.cfg.Dir, snapshots, organization, name+".db")
}

// timed makes a name of the time, which sorts as it does.
func timed(prefix string) string {
	return prefix + strings.ReplaceAll(time.Now().UTC().Format("20060102-150405.000000"), ".", "-")
}

// BeforeRepair is a name for the snapshot that is made before a repair.
func BeforeRepair() string { return timed("before-repair-") }

// CreateSnapshot keeps a copy of now under the name; empty: one made of the time. errs.Conflict with
// SNAPSHOT_EXISTS.
func (s *Store) CreateSnapshot(ctx context.Context, organization, name string) (Snapshot, error) {
	if name == "" {
		name = timed("")
	}
	done, err := s.copying(ctx)
	if err != nil {
		return Snapshot{}, err
	}
	defer done()
	if _, err := os.Lstat(s.snapshotPath(organization, name)); err == nil {
		return Snapshot{}, exists(name)
	}
	copied, err := s.copyNow(ctx, organization)
	if err != nil {
		return Snapshot{}, err
	}
	defer discard(copied)
	if err := s.keep(organization, name, copied); err != nil {
		return Snapshot{}, err
	}
	return s.snapshot(organization, name)
}

func exists(name string) error {
	return errs.New(errs.Conflict, fault.SnapshotExists, "a snapshot %s exists already", name)
}

// copyNow makes a temporary copy of the database, which is the caller's to remove.
func (s *Store) copyNow(ctx context.Context, organization string) (string, error) {
	path, err := s.scratch()
	if err != nil {
		return "", fault.From(err, "the copy")
	}
	err = s.Stream(ctx, organization, func(ctx context.Context, fs *agentfs.FS) error {
		// The core makes the file itself.
		if err := os.Remove(path); err != nil {
			return fmt.Errorf("make room for the copy: %w", err)
		}
		return fs.Snapshot(ctx, path)
	})
	if err == nil {
		err = syncPath(path)
	}
	if err != nil {
		discard(path)
		return "", fault.From(fmt.Errorf("copy the AgentFS of %s: %w", organization, err), "the copy")
	}
	return path, nil
}

// discard removes a temporary file; one that stays, the next start removes.
func discard(path string) { _ = os.Remove(path) }

// keep gives the durable file at path a second name, as a snapshot.
func (s *Store) keep(organization, name, path string) error {
	to := s.snapshotPath(organization, name)
	err := os.MkdirAll(filepath.Dir(to), 0o700)
	if err == nil {
		err = os.Link(path, to)
	}
	if errors.Is(err, os.ErrExist) {
		return exists(name)
	}
	if err == nil {
		err = errors.Join(syncPath(filepath.Dir(to)), syncPath(filepath.Dir(filepath.Dir(to))))
	}
	if err != nil {
		return fault.From(fmt.Errorf("keep snapshot %s: %w", name, err), "the snapshot")
	}
	return nil
}

func (s *Store) snapshot(organization, name string) (Snapshot, error) {
	info, err := os.Lstat(s.snapshotPath(organization, name))
	if errors.Is(err, os.ErrNotExist) {
		return Snapshot{}, errs.New(errs.NotFound, fault.SnapshotNotFound, "there is no snapshot %s", name)
	}
	if err != nil {
		return Snapshot{}, fmt.Errorf("look at snapshot %s: %w", name, err)
	}
	return Snapshot{Name: name, Created: info.ModTime(), Size: info.Size()}, nil
}

// ListSnapshots returns all, newest first.
func (s *Store) ListSnapshots(organization string) ([]Snapshot, error) {
	if s.cfg.Dir == "" {
		return nil, fault.From(agentfs.ErrRemote, "")
	}
	files, err := os.ReadDir(filepath.Join(s.cfg.Dir, snapshots, organization))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the snapshots of %s: %w", organization, err)
	}
	var list []Snapshot
	for _, f := range files {
		name, ok := strings.CutSuffix(f.Name(), ".db")
		if !ok {
			continue
		}
		switch one, err := s.snapshot(organization, name); {
		case errors.Is(err, fault.SnapshotNotFound): // deleted meanwhile
		case err != nil:
			return nil, err
		default:
			list = append(list, one)
		}
	}
	slices.SortFunc(list, func(a, b Snapshot) int {
		return cmp.Or(b.Created.Compare(a.Created), strings.Compare(b.Name, a.Name))
	})
	return list, nil
}

// DeleteSnapshot removes one. errs.NotFound with SNAPSHOT_NOT_FOUND.
func (s *Store) DeleteSnapshot(organization, name string) error {
	if s.cfg.Dir == "" {
		return fault.From(agentfs.ErrRemote, "")
	}
	path := s.snapshotPath(organization, name)
	err := os.Remove(path)
	if errors.Is(err, os.ErrNotExist) {
		return errs.New(errs.NotFound, fault.SnapshotNotFound, "there is no snapshot %s", name)
	}
	if err == nil {
		err = syncPath(filepath.Dir(path))
	}
	if err != nil {
		return fmt.Errorf("delete snapshot %s: %w", name, err)
	}
	return nil
}

// Export returns a copy of now, or of a snapshot, that every AgentFS SDK opens: a file without a
// name, gone when it is closed.
func (s *Store) Export(ctx context.Context, organization, snapshot string) (*os.File, error) {
	done, err := s.copying(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	from := s.snapshotPath(organization, snapshot)
	if snapshot == "" {
		if from, err = s.copyNow(ctx, organization); err != nil {
			return nil, err
		}
		defer discard(from)
	} else if _, err := s.snapshot(organization, snapshot); err != nil {
		return nil, err
	}
	to, err := s.scratch()
	if err != nil {
		return nil, fault.From(err, "the export")
	}
	defer discard(to)
	if err := os.Remove(to); err != nil {
		return nil, fmt.Errorf("make room for the export: %w", err)
	}
	if err := agentfs.Export(ctx, from, to); err != nil {
		return nil, fault.From(fmt.Errorf("export the AgentFS of %s: %w", organization, err), "the export")
	}
	f, err := os.Open(to)
	if err != nil {
		return nil, fmt.Errorf("open the export: %w", err)
	}
	return f, nil
}
