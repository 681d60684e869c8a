// Package queue runs accepted turns: of each conversation one at a time, first in, first out. One
// goroutine, the lane, does all that a conversation needs and exists only while there is something
// to do. It waits for events, not for time: for the stream of the running turn, for a connection,
// for the store to come back.
package queue

import (
	"context"
	"sync"
	"time"

	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
	"humanwork.internal/services/ingress/internal/wake"
)

// Place is where a conversation's session lives.
type Place struct {
	SessionID        string
	Epoch            int64
	SupervisorTarget string
	SessionDBTarget  string
}

// Directory knows where conversations live.
type Directory interface {
	// Locate returns a conversation's place; it may remember it.
	Locate(ctx context.Context, c turn.Conversation) (Place, error)
	// Forget makes the next Locate ask anew where the organization lives.
	Forget(c turn.Conversation)
}

// Result is what the supervisor saw of an attempt. Its durations are 0 where a phase did not happen.
type Result struct {
	Seen                                                    outcome.Seen
	Attach, ColdAdmission, FirstModelRequest, ModelToolLoop time.Duration
}

// Agent is a cell's supervisor. Its calls wait until the supervisor can be reached.
type Agent interface {
	// Reachable reports whether connections to the place's services exist now.
	Reachable(p Place) bool
	// Reached returns once connections to the place's services exist.
	Reached(ctx context.Context, p Place) error
	// Prompt starts the attempt and follows it to its result.
	Prompt(ctx context.Context, p Place, r turn.Run, live func(turn.Update)) (Result, error)
	// Attach follows an attempt that may run; Seen.End is Gone if the supervisor does not know it.
	Attach(ctx context.Context, p Place, r turn.Run, live func(turn.Update)) (Result, error)
	Cancel(ctx context.Context, p Place, r turn.Run) error
	Acknowledge(ctx context.Context, p Place, r turn.Run, endChild bool) error
}

// Sessions is a cell's session database.
type Sessions interface {
	// Watermark fails rather than wait.
	Watermark(ctx context.Context, p Place, c turn.Conversation) (int64, error)
	// Outcome waits until the service can be reached. prompt is the text of all text blocks.
	Outcome(ctx context.Context, p Place, r turn.Run, prompt string, otherBlocks bool) (outcome.Rows, error)
}

// Store is the durable queue.
type Store interface {
	store.Turns
	Running(ctx context.Context, c turn.Conversation) (turn.Run, error)
	Blocks(ctx context.Context, c turn.Conversation, turnID string) ([]turn.Block, error)
	Announce(ctx context.Context, c turn.Conversation, turnID string) error
}

// Readers is told what happens.
type Readers interface {
	Publish(c turn.Conversation, events ...turn.Event)
	Live(c turn.Conversation, turnID string, u turn.Update)
	// Ending and Ended are called around each attempt to commit a turn's end; end is nil if it
	// failed.
	Ending(c turn.Conversation, turnID string, replies []turn.Locator)
	Ended(c turn.Conversation, turnID string, end *turn.End)
}

// Verdict is what an upstream's error means to a turn.
type Verdict uint8

// The verdicts.
const (
	TryAgain   Verdict = iota // the upstream may answer otherwise later
	NotStarted                // so, and certainly nothing was begun
	Settled                   // the attempt was given up elsewhere
	Moved                     // the organization's placement is another
	Refused                   // the upstream will never take this
	Damaged                   // the session's file can't be read by anybody
)

// Config is what a queue works with.
type Config struct {
	Store     Store
	Directory Directory
	Agent     Agent
	Sessions  Sessions
	Files     Files
	Readers   Readers
	// Judge tells what an error of an upstream means.
	Judge func(error) Verdict
	// ClaimDeadline bounds how long a claim may hold the conversation while it asks for the watermark.
	ClaimDeadline time.Duration
	// Suspect is told that the store failed; the store's connection is then made anew, and Back
	// called.
	Suspect func()
	// Disowned is told that the instance was taken over; Own is then called with a new one.
	Disowned func()
	// Fault is told about errors nobody else is.
	Fault func(action string, c turn.Conversation, turnID string, err error)
}

// Queue runs turns between Start and the end of its context.
type Queue struct {
	cfg   Config
	ctx   context.Context
	work  sync.WaitGroup
	moves wake.Signal // fires when the store is back or the instance changes

	mu       sync.Mutex
	closed   bool
	instance int32 // 0: none
	peers    bool
	lanes    map[turn.Conversation]*lane
	// doubted are turns this process may have claimed without an answer: RUNNING perhaps, and
	// prompted by nobody.
	doubted map[turn.Conversation]map[string]struct{}
}

// lane is one conversation with work here. Guarded by Queue.mu.
type lane struct {
	again    bool                 // claim once more before leaving
	adopted  *turn.Run            // taken over, to be settled
	claimed  *turn.Run            // claimed with its acceptance, to be prompted
	running  string               // id of the turn that runs
	began    time.Time            // when this process accepted running; zero: it did not. The lane's own
	accepted map[string]time.Time // when this process accepted turns that wait
}

// New makes a queue that works until ctx ends.
func New(ctx context.Context, cfg Config) *Queue {
	return &Queue{cfg: cfg, ctx: ctx, lanes: make(map[turn.Conversation]*lane), doubted: make(map[turn.Conversation]map[string]struct{})}
}

// Wait returns when all lanes have ended, after the queue's context has.
func (q *Queue) Wait() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.work.Wait()
}

// directDeadline bounds how long an acceptance may wait for the watermark of a claim in the same
// commit; after it the turn is accepted and claimed later.
const directDeadline = 250 * time.Millisecond

// Direct returns how to claim a turn of the conversation with its acceptance, nil if the
// conversation is busy here, this process owns nothing, or the place is not connected.
func (q *Queue) Direct(c turn.Conversation, p Place) *store.Direct {
	if !q.cfg.Agent.Reachable(p) {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if l := q.lanes[c]; q.instance == 0 || q.closed || l != nil && l.running != "" {
		return nil
	}
	return &store.Direct{Instance: q.instance, Place: func(ctx context.Context) (store.Placed, error) {
		ctx, cancel := context.WithTimeout(ctx, min(directDeadline, q.cfg.ClaimDeadline))
		defer cancel()
		w, err := q.cfg.Sessions.Watermark(ctx, p, c)
		return store.Placed{SessionID: p.SessionID, Epoch: p.Epoch, Watermark: w}, err
	}}
}

// Accepted tells the queue of a turn this process has just accepted.
func (q *Queue) Accepted(a store.Acceptance) {
	q.mu.Lock()
	defer q.mu.Unlock()
	c := a.Turn.Conversation
	// If a turn runs elsewhere, whoever ends it claims next.
	if q.lanes[c] == nil && !a.Claimable {
		return
	}
	l := q.lane(c)
	if l.accepted == nil {
		l.accepted = make(map[string]time.Time)
	}
	l.accepted[a.Turn.ID] = time.Now()
	if a.Claimed != nil {
		l.claimed = &a.Claimed.Run
	}
}

// Doubt makes the queue look whether the turn is RUNNING, or waits, without anybody knowing: the
// store's answer to its claim or acceptance was lost. Nobody may have prompted it.
func (q *Queue) Doubt(c turn.Conversation, turnID string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.doubted[c] == nil {
		q.doubted[c] = make(map[string]struct{})
	}
	q.doubted[c][turnID] = struct{}{}
	q.lane(c)
}

// settleDoubt forgets a doubt. The caller holds mu.
func (q *Queue) settleDoubt(c turn.Conversation, turnID string) {
	delete(q.doubted[c], turnID)
	if len(q.doubted[c]) == 0 {
		delete(q.doubted, c)
	}
}

// Kick claims the conversation's next turn if it can be claimed.
func (q *Queue) Kick(c turn.Conversation) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.lane(c)
}

// Adopt settles a running turn that is now this instance's. If a lane of this process still runs it,
// that lane ends it as the new instance, and it is settled again only if that fails.
func (q *Queue) Adopt(r turn.Run) {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lane(r.Conversation)
	// A turn that nobody has prompted is prompted: an attach would keep it from ever running.
	if _, unprompted := q.doubted[r.Conversation][r.TurnID]; unprompted {
		l.claimed = &r
	}
	if l.claimed == nil || l.claimed.TurnID != r.TurnID {
		l.adopted = &r
	}
}

// lane returns the conversation's lane, with one more round to do. The caller holds mu.
func (q *Queue) lane(c turn.Conversation) *lane {
	l := q.lanes[c]
	if l == nil {
		l = &lane{}
		if q.closed {
			return l
		}
		q.lanes[c] = l
		q.work.Go(func() { q.drive(c, l) })
	}
	l.again = true
	return l
}

// Runs reports whether the turn runs in this process, which then gives its updates to Readers.
func (q *Queue) Runs(c turn.Conversation, turnID string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	l := q.lanes[c]
	return l != nil && l.running == turnID
}

// Own makes the queue act as the instance; 0: as none, so that it claims and ends nothing.
func (q *Queue) Own(instance int32) {
	q.mu.Lock()
	q.instance = instance
	q.mu.Unlock()
	q.moves.Fire()
}

// Peers tells the queue whether other instances exist that may have readers of its turns.
func (q *Queue) Peers(exist bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.peers = exist
}

func (q *Queue) hasPeers() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.peers
}

// Back tells the queue that the store can be reached.
func (q *Queue) Back() { q.moves.Fire() }

// Cancel tells the supervisor to stop a running attempt.
func (q *Queue) Cancel(ctx context.Context, r turn.Run) error {
	p, err := q.cfg.Directory.Locate(ctx, r.Conversation)
	if err != nil {
		return err
	}
	if p.Epoch != r.Epoch {
		return nil // the place it ran at is gone, and the turn with it
	}
	if err := q.cfg.Agent.Cancel(ctx, p, r); err != nil && q.cfg.Judge(err) != Settled {
		return err
	}
	return nil
}
