// Package store keeps one AgentFS database an organization open: local files below a data
// directory that one process holds, or remote libSQL databases.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// Placeholder stands for the organization's id in Config.URL.
const Placeholder = "{organization}"

// Config says where the databases are. Dir or URL is set, never both.
type Config struct {
	// Dir holds organizations/<id>.db, snapshots/<id>/<name>.db and the lock of this process.
	Dir string
	// URL is that of a remote database with Placeholder in it, Token what its server asks for.
	URL, Token string
	// Organization and Project are quotas: of each database, and of each conversation.
	Organization, Project agentfs.Limits
	// Changed is told that a database was opened, or that something was committed to it. It must
	// not wait, nor call the store.
	Changed func(organization string)
}

// Store keeps the databases. It answers SERVICE_STARTING until Run has taken the directory.
type Store struct {
	cfg    Config
	opened chan struct{}
	copies chan struct{} // whole copies being made, each as large as its database

	mu       sync.Mutex
	entries  map[string]*entry // nil while not running
	leftover []string
	stopped  bool
}

// maxCopies bounds the snapshots, exports and restores that run at once: they fill the disk.
const maxCopies = 2

// New returns a store that opens nothing before Run.
func New(cfg Config) *Store {
	return &Store{cfg: cfg, opened: make(chan struct{}), copies: make(chan struct{}, maxCopies)}
}

// Run is called once. It takes the data directory for this process and serves until ctx ends; then
// it ends streams, waits for running operations and closes every database.
func (s *Store) Run(ctx context.Context) error {
	release, leftover, err := s.take()
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.entries, s.leftover = map[string]*entry{}, leftover
	s.mu.Unlock()
	close(s.opened)
	<-ctx.Done()
	s.mu.Lock()
	entries := s.entries
	s.entries, s.stopped = nil, true
	s.mu.Unlock()
	var problems []error
	for organization, e := range entries {
		if err := e.stop(); err != nil {
			problems = append(problems, fmt.Errorf("close the AgentFS of %s: %w", organization, err))
		}
	}
	return errors.Join(append(problems, release())...)
}

// Opened is closed once Run has taken the directory.
func (s *Store) Opened() <-chan struct{} { return s.opened }

// Leftover are the organizations whose databases a process left in need of an opening: it was
// killed, or could not announce everything. Valid once Opened is closed.
func (s *Store) Leftover() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leftover
}

// Ready says whether Run has taken the directory. It touches no file.
func (s *Store) Ready() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running()
}

func (s *Store) running() error {
	switch {
	case s.stopped:
		return errs.New(errs.Unavailable, fault.Stopping, "agentfs is stopping")
	case s.entries == nil:
		return errs.New(errs.Unavailable, fault.Starting, "agentfs has not opened its data directory")
	}
	return nil
}

// Databases is how many are open.
func (s *Store) Databases() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, e := range s.entries {
		if e.fs.Load() != nil {
			n++
		}
	}
	return n
}

func (s *Store) entry(organization string) (*entry, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.running(); err != nil {
		return nil, err
	}
	e := s.entries[organization]
	if e == nil {
		e = newEntry(s, organization)
		s.entries[organization] = e
	}
	return e, nil
}

func (s *Store) options(organization string) agentfs.Options {
	o := agentfs.Options{Whole: s.cfg.Organization, Project: s.cfg.Project,
		Committed: func() { s.cfg.Changed(organization) }}
	if s.cfg.URL != "" {
		o.Location = agentfs.Location{URL: strings.ReplaceAll(s.cfg.URL, Placeholder, organization), Token: s.cfg.Token}
	} else {
		o.Location = agentfs.Location{Path: s.path(organization)}
	}
	return o
}

// Provision creates the organization's database with the nodes in one transaction; of a database
// that exists nothing is changed.
func (s *Store) Provision(ctx context.Context, organization string, by agentfs.Caller, nodes []agentfs.Node) error {
	e, err := s.entry(organization)
	if err != nil {
		return err
	}
	return e.share(ctx, func() error {
		_, err := e.database(ctx, func(ctx context.Context) (*agentfs.FS, error) {
			return agentfs.Create(ctx, s.options(organization), by, nodes)
		})
		return err
	})
}

// With runs fn, which is short, with the organization's database. It waits while the database is
// replaced. errs.NotFound with ORGANIZATION_NOT_PROVISIONED if there is none.
func (s *Store) With(ctx context.Context, organization string, fn func(*agentfs.FS) error) error {
	e, err := s.entry(organization)
	if err != nil {
		return err
	}
	return e.share(ctx, func() error {
		fs, err := e.open(ctx)
		if err != nil {
			return err
		}
		return fn(fs)
	})
}

// Stream is With for what takes as long as a client likes: the context fn gets ends, with a cause
// that is an error for callers, when the database is replaced or the store stops.
func (s *Store) Stream(ctx context.Context, organization string, fn func(context.Context, *agentfs.FS) error) error {
	e, err := s.entry(organization)
	if err != nil {
		return err
	}
	return e.share(ctx, func() error {
		fs, err := e.open(ctx)
		if err != nil {
			return err
		}
		until := e.until()
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(until, func() { cancel(context.Cause(until)) })()
		err = fn(ctx, fs)
		if cause := context.Cause(until); cause != nil && err != nil {
			return cause
		}
		return err
	})
}
