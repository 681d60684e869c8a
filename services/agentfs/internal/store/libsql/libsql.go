// Package libsql keeps each organization's AgentFS in a libSQL file. It is the only importer of
// the driver in this service.
package libsql

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/store"
	"humanwork.internal/services/agentfs/internal/tree"
)

var _ store.Store = (*Store)(nil)

// Store is a store.Store over the files <dir>/organizations/<id>.db. It answers SERVICE_STARTING
// until Run has taken the directory.
type Store struct {
	dir    string
	opened chan struct{}

	// life is held for reading by every operation and for writing to open and close.
	life sync.RWMutex
	open map[string]*database // nil while not running
	mu   sync.Mutex           // guards open's entries
}

// New returns a store that opens nothing before Run.
func New(dir string) *Store { return &Store{dir: dir, opened: make(chan struct{})} }

// Run is called once. It takes the data directory for this process and serves until ctx ends; then it
// waits for running operations and closes every database.
func (s *Store) Run(ctx context.Context) error {
	release, err := s.take()
	if err != nil {
		return err
	}
	s.life.Lock()
	s.open = map[string]*database{}
	s.life.Unlock()
	close(s.opened)
	<-ctx.Done()
	s.life.Lock()
	defer s.life.Unlock()
	var problems []error
	for id, db := range s.open {
		if err := db.close(); err != nil {
			problems = append(problems, fmt.Errorf("close the AgentFS of %s: %w", id, err))
		}
	}
	s.open = nil
	return errors.Join(append(problems, release())...)
}

// take makes the directory and locks it. The lock belongs to the open file and goes with the
// process.
func (s *Store) take() (release func() error, err error) {
	unusable := func(err error) error {
		return errs.Wrap(err, errs.Precondition, tree.ReasonDataDir, "the data directory %s cannot be used", s.dir)
	}
	if err := os.MkdirAll(filepath.Join(s.dir, "organizations"), 0o700); err != nil {
		return nil, unusable(err)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "lock"), os.O_CREATE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, unusable(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = errs.New(errs.Precondition, tree.ReasonDataDirInUse, "the data directory %s is in use by another agentfs", s.dir)
		} else {
			err = unusable(err)
		}
		return nil, errors.Join(err, lock.Close())
	}
	return lock.Close, nil
}

// Opened is closed once Run has taken the directory.
func (s *Store) Opened() <-chan struct{} { return s.opened }

// Ready says whether Run has taken the directory. It touches no file.
func (s *Store) Ready() error {
	s.life.RLock()
	defer s.life.RUnlock()
	return s.running()
}

func (s *Store) running() error {
	if s.open == nil {
		return errs.New(errs.Unavailable, tree.ReasonStarting, "agentfs has not opened its data directory")
	}
	return nil
}

// with runs fn with the organization's database to itself.
func (s *Store) with(ctx context.Context, organization string, create bool, fn func(*database) error) error {
	s.life.RLock()
	defer s.life.RUnlock()
	if err := s.running(); err != nil {
		return err
	}
	s.mu.Lock()
	db := s.open[organization]
	if db == nil {
		db = newDatabase(filepath.Join(s.dir, "organizations", organization+".db"))
		s.open[organization] = db
	}
	s.mu.Unlock()
	if err := db.enter(ctx); err != nil {
		return fmt.Errorf("wait for the AgentFS of %s: %w", organization, err)
	}
	defer db.leave()
	// The driver ignores a context while a call runs, and database/sql would close rows under it
	// from another goroutine.
	if err := db.ensure(context.WithoutCancel(ctx), create); err != nil {
		return translate(err, organization)
	}
	return translate(fn(db), organization)
}

// Provision implements store.Store.
func (s *Store) Provision(ctx context.Context, organization string, nodes []tree.Node) error {
	return s.with(ctx, organization, true, func(db *database) error {
		if db.provisioned {
			return nil
		}
		return db.provision(context.WithoutCancel(ctx), nodes)
	})
}

// Plant implements store.Store.
func (s *Store) Plant(ctx context.Context, organization string, nodes []tree.Node) error {
	return s.with(ctx, organization, false, func(db *database) error {
		return db.plant(context.WithoutCancel(ctx), nodes)
	})
}

// ReadFiles implements store.Store.
func (s *Store) ReadFiles(ctx context.Context, organization string, paths []string, limit int64) ([][]byte, error) {
	var contents [][]byte
	err := s.with(ctx, organization, false, func(db *database) (err error) {
		contents, err = db.readFiles(context.WithoutCancel(ctx), paths, limit)
		return err
	})
	return contents, err
}

// translate gives a driver's error its kind. The driver has no error types, only SQLite's text.
func translate(err error, organization string) error {
	var known *errs.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
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
		return errors.New("bind a value: the driver refused it")
	case has("malformed", "corrupt"):
		return errs.Wrap(err, errs.Precondition, tree.ReasonDamaged, "the AgentFS of %s is damaged; restore it from a copy", organization)
	case has("not a database", "file is encrypted"):
		return errs.Wrap(err, errs.Precondition, tree.ReasonForeign, "the AgentFS of %s is not a database of this service", organization)
	case has("locked", "busy"):
		return errs.Wrap(err, errs.Unavailable, tree.ReasonBusy, "the AgentFS of %s is busy", organization)
	case has("readonly", "read-only", "disk I/O", "disk is full", "unable to open", "permission denied"):
		return errs.Wrap(err, errs.Unavailable, tree.ReasonStorage, "the AgentFS of %s cannot be written", organization)
	}
	return err
}
