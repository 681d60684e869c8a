package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// all are the shares of an entry; who has all of them is alone.
const all = 1 << 30

// entry is one organization's database.
type entry struct {
	store        *Store
	organization string
	// shares: operations take one, whoever replaces or closes the database takes all. It is first
	// come, first served, so that a replacement neither starves nor is overtaken.
	shares *semaphore.Weighted
	// opening holds one token: who has it may set fs.
	opening chan struct{}
	fs      atomic.Pointer[agentfs.FS]

	mu   sync.Mutex
	life context.Context // of streams on the present database
	end  context.CancelCauseFunc
	gone bool // the store has stopped
}

func newEntry(s *Store, organization string) *entry {
	e := &entry{store: s, organization: organization, shares: semaphore.NewWeighted(all), opening: make(chan struct{}, 1)}
	e.renew()
	return e
}

// share runs fn while nobody replaces the database.
func (e *entry) share(ctx context.Context, fn func() error) error {
	if err := e.shares.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("wait for the AgentFS of %s: %w", e.organization, err)
	}
	defer e.shares.Release(1)
	e.mu.Lock()
	gone := e.gone
	e.mu.Unlock()
	if gone {
		return errs.New(errs.Unavailable, fault.Stopping, "agentfs is stopping")
	}
	return fn()
}

// alone ends the streams with cause, waits for all operations and runs fn; those who come meanwhile
// wait for its end.
func (e *entry) alone(ctx context.Context, cause error, fn func() error) error {
	e.mu.Lock()
	e.end(cause)
	e.mu.Unlock()
	if err := e.shares.Acquire(ctx, all); err != nil {
		e.renew()
		return fmt.Errorf("wait for the AgentFS of %s: %w", e.organization, err)
	}
	defer e.shares.Release(all)
	defer e.renew()
	return fn()
}

func (e *entry) renew() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	e.life, e.end = context.WithCancelCause(context.Background())
}

func (e *entry) until() context.Context {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.life
}

func (e *entry) open(ctx context.Context) (*agentfs.FS, error) {
	return e.database(ctx, func(ctx context.Context) (*agentfs.FS, error) {
		return agentfs.Open(ctx, e.store.options(e.organization))
	})
}

// database returns the open database, or what make makes. The caller has a share.
func (e *entry) database(ctx context.Context, open func(context.Context) (*agentfs.FS, error)) (*agentfs.FS, error) {
	if fs := e.fs.Load(); fs != nil {
		return fs, nil
	}
	select {
	case e.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the AgentFS of %s to open: %w", e.organization, ctx.Err())
	}
	defer func() { <-e.opening }()
	if fs := e.fs.Load(); fs != nil {
		return fs, nil
	}
	// Others wait for it too: an opening does not end with the caller it began for.
	fs, err := open(context.WithoutCancel(ctx))
	if err != nil {
		return nil, fault.From(fmt.Errorf("open the AgentFS of %s: %w", e.organization, err), "the AgentFS")
	}
	e.fs.Store(fs)
	// A process that ended before may have left changes that nobody was told.
	e.store.cfg.Changed(e.organization)
	return fs, nil
}

// close closes the database if it is open. The caller is alone.
func (e *entry) close() error {
	fs := e.fs.Swap(nil)
	if fs == nil {
		return nil
	}
	pending, err := fs.Pending(context.Background(), 1)
	return errors.Join(err, fs.Close(), e.store.mark(e.organization, len(pending) > 0))
}

func (e *entry) stop() error {
	return e.alone(context.Background(), errs.New(errs.Unavailable, fault.Stopping, "agentfs is stopping"), func() error {
		e.mu.Lock()
		e.gone = true
		e.mu.Unlock()
		return e.close()
	})
}
