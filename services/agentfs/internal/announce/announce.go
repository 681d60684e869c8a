// Package announce tells others what happened to public files. The ledger is the outbox: what lies
// above the position that was announced is told, in order, and then the position moves. Commits
// wake it; nothing is asked for while nothing happens.
package announce

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/authority"
	"humanwork.internal/services/agentfs/internal/fault"
)

const (
	// batch is how many records are looked at in one go.
	batch = 500
	// slack is how many records that nobody is told of may lie above the announced position: the
	// record of an opened file must not cost a second commit.
	slack = 100
	// working bounds the organizations that are worked on at once.
	working = 8

	firstWait, lastWait = 200 * time.Millisecond, time.Minute
)

// Databases gives access to the organizations' databases.
type Databases interface {
	With(ctx context.Context, organization string, fn func(*agentfs.FS) error) error
}

// Events is told of changes. It skips those at positions it knows already.
type Events interface {
	Append(ctx context.Context, c authority.Conversation, generation string, changes []Change) error
}

// Announcer wakes for each organization, and tries again what failed.
type Announcer struct {
	failed    func(organization string, err error)
	databases Databases
	events    Events
	places    chan struct{}

	mu      sync.Mutex
	ctx     context.Context // nil before and after Run
	early   []string        // who woke it before Run
	workers map[string]bool // true: woken since its worker last looked
	done    sync.WaitGroup
}

// New makes an announcer that works once Run was called. failed is told of attempts that failed.
func New(e Events, failed func(organization string, err error)) *Announcer {
	return &Announcer{events: e, failed: failed, places: make(chan struct{}, working), workers: map[string]bool{}}
}

// Wake says that an organization's ledger may have grown. It never waits.
func (a *Announcer) Wake(organization string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, working := a.workers[organization]; working {
		a.workers[organization] = true
		return
	}
	if a.ctx == nil {
		a.early = append(a.early, organization) // of no use after Run: the next start opens what is left
		return
	}
	a.workers[organization] = false
	a.done.Add(1)
	go a.work(a.ctx, organization)
}

// Run announces until ctx ends, first for the organizations whose databases need it.
func (a *Announcer) Run(ctx context.Context, d Databases, first []string) {
	a.mu.Lock()
	a.ctx, a.databases = ctx, d
	first = append(first, a.early...)
	a.mu.Unlock()
	for _, organization := range first {
		a.Wake(organization)
	}
	<-ctx.Done()
	// Whoever saw the context before its end has added its worker once the lock is free.
	a.mu.Lock()
	a.ctx = nil
	a.mu.Unlock()
	a.done.Wait()
}

func (a *Announcer) work(ctx context.Context, organization string) {
	defer a.done.Done()
	for wait := firstWait; ; {
		err := a.drain(ctx, organization)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			a.failed(organization, err)
		}
		if err != nil && !hopeless(err) {
			select {
			case <-time.After(wait):
			case <-ctx.Done():
				return
			}
			wait = min(2*wait, lastWait)
			continue
		}
		wait = firstWait
		if a.rest(organization) {
			return
		}
	}
}

// rest ends the worker unless it was woken meanwhile.
func (a *Announcer) rest(organization string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.workers[organization] {
		a.workers[organization] = false
		return false
	}
	delete(a.workers, organization)
	return true
}

// hopeless errors are those of a database that cannot be opened until somebody restores it.
func hopeless(err error) bool {
	kind := errs.KindOf(err)
	return kind == errs.NotFound || kind == errs.Precondition
}

// drain announces all there is.
func (a *Announcer) drain(ctx context.Context, organization string) error {
	select {
	case a.places <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-a.places }()
	for {
		var records []agentfs.Record
		var generation string
		err := a.databases.With(ctx, organization, func(fs *agentfs.FS) (err error) {
			generation = fs.Generation()
			records, err = fs.Pending(ctx, batch)
			return fault.From(err, "the ledger")
		})
		if err != nil || len(records) == 0 {
			return err
		}
		told, err := a.tell(ctx, organization, generation, records)
		if err != nil {
			return err
		}
		if !told && len(records) < slack {
			return nil
		}
		err = a.databases.With(ctx, organization, func(fs *agentfs.FS) error {
			if fs.Generation() != generation {
				return nil // restored meanwhile: positions mean something else
			}
			return fault.From(fs.Announced(ctx, records[len(records)-1].Position), "the ledger")
		})
		if err != nil || len(records) < batch {
			return err
		}
	}
}

// tell sends the changes of each conversation, in order. told: there were any.
func (a *Announcer) tell(ctx context.Context, organization, generation string, records []agentfs.Record) (told bool, err error) {
	var order []string
	changes := map[string][]Change{}
	for _, r := range records {
		for _, c := range changesOf(r) {
			if changes[c.conversation] == nil {
				order = append(order, c.conversation)
			}
			changes[c.conversation] = append(changes[c.conversation], c)
		}
	}
	for _, id := range order {
		err := a.events.Append(ctx, authority.Conversation{Organization: organization, ID: id}, generation, changes[id])
		switch {
		case errors.Is(err, errs.NotFound), errors.Is(err, errs.Invalid):
			// Nobody follows a conversation that is not there, and others must not wait for it.
			a.failed(organization, fmt.Errorf("announce files of %s, given up: %w", id, err))
		case err != nil:
			return false, fmt.Errorf("announce files of %s: %w", id, err)
		}
	}
	return len(order) > 0, nil
}
