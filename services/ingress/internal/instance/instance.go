// Package instance keeps this process registered as an owner of turns, takes over those of
// instances that died, and keeps the store's notices coming (rules 13 and 14).
package instance

import (
	"context"
	"sync"
	"time"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
	"humanwork.internal/services/ingress/internal/wake"
)

// Store is what the keeper needs of the store.
type Store interface {
	store.Instances
	Listen(ctx context.Context, l store.Listener) error
	Claimable(ctx context.Context, after turn.Conversation, limit int) ([]turn.Conversation, error)
}

// Queue runs turns.
type Queue interface {
	Own(instance int32)
	Peers(exist bool)
	Back()
	Kick(c turn.Conversation)
	Adopt(r turn.Run)
}

// Readers is the hub.
type Readers interface {
	Notified(c turn.Conversation, sequence int64, turnID string, ended bool)
	Watch(c turn.Conversation)
	Resync()
}

// page is how many conversations one read of claimable work returns.
const page = 500

// steady is how long a connection must have held for its loss to be answered at once.
const steady = 5 * time.Second

// Keeper keeps two connections: one holds the instance's lock, one listens. Both are made anew,
// with pauses that grow, whenever they break or are suspected.
type Keeper struct {
	store   Store
	queue   Queue
	readers Readers
	fault   func(action string, err error)

	work sync.WaitGroup

	mu        sync.Mutex
	ctx       context.Context
	me        int32 // 0: not registered
	listening bool
	watched   map[int32]struct{}
	endHold   context.CancelFunc // ends the present session; nil: none
	endListen context.CancelFunc
	changed   wake.Signal // me changed
}

// New makes a keeper; Run starts it.
func New(s Store, q Queue, r Readers, fault func(action string, err error)) *Keeper {
	return &Keeper{store: s, queue: q, readers: r, fault: fault, watched: make(map[int32]struct{})}
}

// Run works until ctx ends and returns when all it started has ended.
func (k *Keeper) Run(ctx context.Context) {
	k.mu.Lock()
	k.ctx = ctx
	k.mu.Unlock()
	k.work.Go(func() { k.keep(ctx, "hold instance lock", &k.endHold, k.hold) })
	k.work.Go(func() { k.keep(ctx, "listen for notices", &k.endListen, k.listen) })
	<-ctx.Done()
	k.work.Wait()
}

// Suspect makes the listening connection anew: a statement failed, and what came meanwhile may be
// lost. Once it stands, everything is read again and all who wait for the store try again.
func (k *Keeper) Suspect() { k.end(&k.endListen) }

// Disowned registers this process as a new instance: the present one was taken over.
func (k *Keeper) Disowned() { k.end(&k.endHold) }

func (k *Keeper) end(session *context.CancelFunc) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if *session != nil {
		(*session)()
	}
}

// Ready reports whether this process is registered and hears notices.
func (k *Keeper) Ready() (registered, listening bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.me != 0, k.listening
}

func (k *Keeper) keep(ctx context.Context, action string, end *context.CancelFunc, session func(context.Context) error) {
	var pause wake.Backoff
	for ctx.Err() == nil {
		sctx, cancel := context.WithCancel(ctx)
		k.mu.Lock()
		*end = cancel
		k.mu.Unlock()
		began := time.Now()
		err := session(sctx)
		asked := sctx.Err() != nil
		cancel()
		if !asked {
			k.fault(action, err)
		}
		if time.Since(began) > steady {
			pause.Reset()
		}
		_ = pause.Pause(ctx)
	}
}

func (k *Keeper) hold(ctx context.Context) error {
	defer k.own(0)
	return k.store.Hold(ctx, func(id int32) {
		k.own(id)
		if err := k.review(ctx); err != nil {
			k.fault("look for peers", err)
			k.Suspect() // which reviews again
		}
	})
}

func (k *Keeper) own(id int32) {
	k.mu.Lock()
	k.me = id
	k.mu.Unlock()
	k.queue.Own(id)
	k.changed.Fire()
}

func (k *Keeper) listen(ctx context.Context) error {
	defer k.hears(false)
	return k.store.Listen(ctx, k)
}

func (k *Keeper) hears(yes bool) {
	k.mu.Lock()
	k.listening = yes
	k.mu.Unlock()
}

// Connected implements store.Listener: everything that may have been missed is read once.
func (k *Keeper) Connected(ctx context.Context) error {
	if err := k.claimable(ctx); err != nil {
		return err
	}
	if err := k.review(ctx); err != nil {
		return err
	}
	k.readers.Resync()
	k.hears(true)
	k.queue.Back()
	return nil
}

// Notified implements store.Listener.
func (k *Keeper) Notified(n store.Notice) {
	switch {
	case n.Instance != 0:
		k.watch(n.Instance)
	case n.Live:
		k.readers.Watch(n.Conversation)
	default:
		k.readers.Notified(n.Conversation, n.Sequence, n.TurnID, n.Ended)
	}
}

// claimable claims whatever waits and nobody runs.
func (k *Keeper) claimable(ctx context.Context) error {
	var after turn.Conversation
	for {
		found, err := k.store.Claimable(ctx, after, page)
		if err != nil {
			return err
		}
		for _, c := range found {
			k.queue.Kick(c)
			after = c
		}
		if len(found) < page {
			return nil
		}
	}
}

// review watches every registered instance but this one: the living until they die, the dead are
// found so at once.
func (k *Keeper) review(ctx context.Context) error {
	ids, err := k.store.Peers(ctx)
	if err != nil {
		return err
	}
	for _, id := range ids {
		k.watch(id)
	}
	return nil
}

func (k *Keeper) watch(id int32) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.watched[id]; ok || id == k.me || k.me == 0 || k.ctx.Err() != nil {
		return // without an id of its own it could not tell itself from a peer; hold reviews again
	}
	k.watched[id] = struct{}{}
	k.queue.Peers(true)
	k.work.Go(func() {
		err := k.succeed(id)
		k.mu.Lock()
		delete(k.watched, id)
		k.queue.Peers(len(k.watched) > 0)
		k.mu.Unlock()
		if err != nil && k.ctx.Err() == nil {
			k.fault("watch a peer", err)
			k.Suspect() // and review again
		}
	})
}

// succeed waits for a peer's death and takes its turns over.
func (k *Keeper) succeed(id int32) error {
	if err := k.store.AwaitDeath(k.ctx, id); err != nil {
		return err
	}
	changed := k.changed.C()
	k.mu.Lock()
	me := k.me
	k.mu.Unlock()
	for me == 0 {
		select {
		case <-changed:
		case <-k.ctx.Done():
			return k.ctx.Err()
		}
		changed = k.changed.C()
		k.mu.Lock()
		me = k.me
		k.mu.Unlock()
	}
	runs, err := k.store.TakeOver(k.ctx, id, me)
	if err != nil {
		return err
	}
	for _, r := range runs {
		k.queue.Adopt(r)
	}
	// It may have died between two turns, or before it claimed what it had accepted.
	return k.claimable(k.ctx)
}
