package queue

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
	"humanwork.internal/services/ingress/internal/wake"
)

// drive is a lane's goroutine: it settles what was taken over, then claims and runs until nothing
// can be claimed.
func (q *Queue) drive(c turn.Conversation, l *lane) {
	for {
		q.mu.Lock()
		run, prompt := l.adopted, false
		if run == nil {
			run, prompt = l.claimed, true
			l.claimed = nil
		} else {
			l.adopted = nil
		}
		if run == nil && !l.again || q.ctx.Err() != nil {
			delete(q.lanes, c)
			q.mu.Unlock()
			return
		}
		l.again = l.again && run != nil // one claim answers all that was asked so far
		if run != nil {
			q.begins(l, *run)
		}
		q.mu.Unlock()
		if run == nil {
			if run = q.claim(c); run == nil {
				continue
			}
			q.mu.Lock()
			q.begins(l, *run)
			q.mu.Unlock()
		}
		more, ended := q.settle(*run, prompt, l)
		q.mu.Lock()
		if a := l.adopted; ended && a != nil && a.TurnID == run.TurnID && a.Attempt == run.Attempt {
			l.adopted = nil
		}
		l.running = ""
		l.again = l.again || more
		q.mu.Unlock()
	}
}

// begins notes what the lane runs. The caller holds mu.
func (q *Queue) begins(l *lane, r turn.Run) {
	l.running = r.TurnID
	l.began = l.accepted[r.TurnID]
	delete(l.accepted, r.TurnID)
	q.settleDoubt(r.Conversation, r.TurnID)
	if l.claimed != nil && l.claimed.TurnID == r.TurnID {
		l.claimed = nil // it was found before it was handed over
	}
}

// claim returns the conversation's next turn, RUNNING, or nil if there is none for this instance.
// Until the place's services can be reached, and the turn's files are ready, the turn stays accepted
// and nothing is locked: it can be cancelled, and whoever takes over from this instance claims it.
func (q *Queue) claim(c turn.Conversation) *turn.Run {
	var pause wake.Backoff
	var ready turn.Run // its files are
	for q.ctx.Err() == nil {
		p, err := q.cfg.Directory.Locate(q.ctx, c)
		if err == nil {
			err = q.cfg.Agent.Reached(q.ctx, p)
		}
		if err != nil {
			q.fault("reach the conversation's cell", c, "", err)
			q.cfg.Directory.Forget(c)
			_ = pause.Pause(q.ctx)
			continue
		}
		moved := q.moves.C()
		instance := q.me()
		if instance == 0 {
			q.await(moved)
			continue
		}
		var upstream error
		claimed, err := q.cfg.Store.Claim(q.ctx, c, instance, ready.TurnID, func(ctx context.Context) (store.Placed, error) {
			// The conversation is locked: acceptance waits for this call.
			ctx, cancel := context.WithTimeout(ctx, q.cfg.ClaimDeadline)
			defer cancel()
			w, err := q.cfg.Sessions.Watermark(ctx, p, c)
			upstream = err
			return store.Placed{SessionID: p.SessionID, Epoch: p.Epoch, Watermark: w}, err
		})
		switch {
		case err == nil:
			q.cfg.Readers.Publish(c, turn.Event{Sequence: claimed.Sequence, Type: turn.EventStarted, TurnID: claimed.Run.TurnID, Created: time.Now().UTC()})
			if claimed.Run.TurnID == ready.TurnID {
				claimed.Run.Blocks, claimed.Run.Ready, claimed.Run.Problem = ready.Blocks, true, ready.Problem
			}
			return &claimed.Run
		case errors.Is(err, store.ErrFilesFirst):
			ready = claimed.Run
			if err := q.ready(&ready); err != nil {
				q.fault("make the turn's files ready", c, ready.TurnID, err)
				ready = turn.Run{}
				_ = pause.Pause(q.ctx)
			}
		case upstream != nil:
			q.fault("ask for the session's watermark", c, "", err)
			q.cfg.Directory.Forget(c)
			_ = pause.Pause(q.ctx)
		case errors.Is(err, store.ErrNothingToClaim):
			return q.lost(c, instance)
		case errors.Is(err, store.ErrNotOwner):
			q.fault("claim turn", c, "", err)
			q.cfg.Disowned()
			q.await(moved)
		default:
			q.fault("claim turn", c, claimed.Run.TurnID, err)
			if claimed.Run.TurnID != "" {
				q.Doubt(c, claimed.Run.TurnID)
			}
			q.cfg.Suspect()
			q.await(moved)
		}
	}
	return nil
}

// lost returns the conversation's running turn if its claim was committed for this instance but
// the answer did not arrive, so that it was not prompted. Any other running turn has its lane, here
// or elsewhere, or is about to be adopted.
func (q *Queue) lost(c turn.Conversation, instance int32) *turn.Run {
	for q.ctx.Err() == nil {
		q.mu.Lock()
		doubted := slices.Collect(maps.Keys(q.doubted[c]))
		q.mu.Unlock()
		if len(doubted) == 0 {
			return nil
		}
		moved := q.moves.C()
		r, err := q.cfg.Store.Running(q.ctx, c)
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			q.fault("read running turn", c, "", err)
			q.cfg.Suspect()
			q.await(moved)
			continue
		}
		q.mu.Lock()
		for _, id := range doubted {
			if id != r.TurnID {
				q.settleDoubt(c, id)
			}
		}
		q.mu.Unlock()
		// Claimed by the instance this process was before, it comes back when it is taken over.
		if slices.Contains(doubted, r.TurnID) && r.Owner == instance {
			return &r
		}
		return nil
	}
	return nil
}

func (q *Queue) me() int32 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.instance
}

func (q *Queue) await(moved <-chan struct{}) {
	select {
	case <-moved:
	case <-q.ctx.Done():
	}
}

func (q *Queue) fault(action string, c turn.Conversation, turnID string, err error) {
	if q.ctx.Err() == nil {
		q.cfg.Fault(action, c, turnID, err)
	}
}

// settle takes a running turn to its end: prompt once, or attach; read the rows; decide; commit;
// acknowledge. It reports whether another turn of the conversation may be claimed, and whether it
// ended this one. If the context ends first the turn stays RUNNING, for whoever takes it over.
func (q *Queue) settle(r turn.Run, prompt bool, l *lane) (more, ended bool) {
	if r.Blocks == nil && !q.load(&r) {
		return false, false
	}
	var timings turn.Timings
	waited, dispatched := false, func() {}
	if r.Ready || turn.FileURIs(r.Blocks) != nil {
		dispatched = sync.OnceFunc(func() { q.Release(r.Conversation, r.TurnID) })
		if prompt {
			var ok bool
			if waited, ok = q.prepare(&r); !ok {
				return q.ctx.Err() == nil, false
			}
			if r.CancelRequested || r.Problem != nil {
				more, ended = q.end(unsent(r))
				dispatched()
				return more, ended
			}
		}
	}
	prompted := time.Now()
	res, p, ok := q.follow(r, prompt, waited, dispatched)
	if !ok {
		return false, false
	}
	dispatched()
	answered := time.Now()
	timings.ColdAdmission, timings.FirstModelRequest, timings.ModelToolLoop = millis(res.ColdAdmission), millis(res.FirstModelRequest), millis(res.ModelToolLoop)
	if prompt && !l.began.IsZero() && res.Attach > 0 {
		timings.AcceptToAttach = millis(prompted.Sub(l.began) + res.Attach)
	}
	text, shape, others := shapeOf(r.Blocks)
	rows, damaged, ok := q.rows(r, p, text, others)
	if !ok {
		return false, false
	}
	d := outcome.Decide(rows, res.Seen, shape)
	if damaged {
		d = outcome.Decision{State: turn.Failed, KeepBlocks: true, Error: &turn.Error{Reason: turn.ReasonOutcomeUnknown,
			Message: "the session's file cannot be read, so nobody can tell what became of the turn"}}
	}
	if d.EndChild {
		// Before the end is committed: from then on another instance may claim the next turn, and
		// must not give it to this child.
		q.acknowledge(r, p, true)
	}
	timings.PersistDeliver = millis(time.Since(answered))
	more, ended = q.end(store.Ending{Run: r, Decision: d, Rows: rows, Timings: timings})
	if ended && !d.EndChild {
		q.aside(func() { q.acknowledge(r, p, false) })
	}
	return more, ended
}

// load reads the blocks of a turn that was taken over.
func (q *Queue) load(r *turn.Run) bool {
	for q.ctx.Err() == nil {
		moved := q.moves.C()
		blocks, err := q.cfg.Store.Blocks(q.ctx, r.Conversation, r.TurnID)
		if err == nil {
			r.Blocks = blocks
			return true
		}
		q.fault("read the turn's blocks", r.Conversation, r.TurnID, err)
		q.cfg.Suspect()
		q.await(moved)
	}
	return false
}

// follow returns the attempt's result. Prompt is called again only after the supervisor's word that
// it began nothing: whatever else breaks is mended by attaching, which never starts anything. again:
// the turn is to be reviewed before its first prompt too. dispatched is called with each update:
// Hermes has the message then.
func (q *Queue) follow(r turn.Run, prompt, again bool, dispatched func()) (Result, Place, bool) {
	var pause wake.Backoff
	announced := false
	live := func(u turn.Update) {
		dispatched()
		q.cfg.Readers.Live(r.Conversation, r.TurnID, u)
		if !announced && q.hasPeers() {
			announced = true
			q.announce(r)
		}
	}
	var refusal error
	for q.ctx.Err() == nil {
		p, err := q.cfg.Directory.Locate(q.ctx, r.Conversation)
		if err != nil {
			q.fault("locate conversation", r.Conversation, r.TurnID, err)
			_ = pause.Pause(q.ctx)
			continue
		}
		if p.Epoch > r.Epoch {
			// Routing has placed the organization anew, which it does only when nothing runs at
			// the old place any more (rules 15 and 16).
			return Result{Seen: q.gone(r, refusal)}, p, true
		}
		var res Result
		action, prompts := "attach to turn", prompt // prompts: this time
		if again || !prompts {
			owned, err := q.review(p, &r)
			if prompts && err != nil {
				_ = pause.Pause(q.ctx)
				continue
			}
			// Whoever owns the turn by now may have ended it, and the supervisor that was told so may
			// be gone.
			prompts = prompts && owned
		}
		if again = true; prompts {
			prompt, action = false, "prompt"
			res, err = q.cfg.Agent.Prompt(q.ctx, p, r, live)
		} else {
			res, err = q.cfg.Agent.Attach(q.ctx, p, r, live)
		}
		if err == nil {
			if res.Seen.End == outcome.Gone {
				res.Seen = q.gone(r, refusal)
			}
			return res, p, true
		}
		q.fault(action, r.Conversation, r.TurnID, err)
		switch q.cfg.Judge(err) {
		case NotStarted:
			prompt = prompts
		case Moved:
			q.cfg.Directory.Forget(r.Conversation)
		case Refused:
			refusal = err
		}
		_ = pause.Pause(q.ctx)
	}
	return Result{}, Place{}, false
}

// gone is what is known of an attempt nobody has seen: only whether somebody wished it cancelled.
func (q *Queue) gone(r turn.Run, refusal error) outcome.Seen {
	seen := outcome.Seen{End: outcome.Gone, CancelSent: r.CancelRequested}
	for q.ctx.Err() == nil {
		moved := q.moves.C()
		now, err := q.cfg.Store.Running(q.ctx, r.Conversation)
		if err == nil && now.TurnID == r.TurnID {
			seen.CancelSent = now.CancelRequested
		}
		if err == nil || errors.Is(err, store.ErrNotFound) {
			break
		}
		q.fault("read running turn", r.Conversation, r.TurnID, err)
		q.cfg.Suspect()
		q.await(moved)
	}
	if refusal != nil {
		seen.Reason, seen.Message = turn.ReasonDispatchRefused, "the agent's host refused the message"
	}
	return seen
}

// review looks at the turn again: whether it is still this instance's, and whether somebody wishes
// it cancelled. A wish is repeated: whoever had it may have died, or not reached the supervisor.
func (q *Queue) review(p Place, r *turn.Run) (owned bool, err error) {
	now, err := q.cfg.Store.Running(q.ctx, r.Conversation)
	switch {
	case err == nil && now.TurnID == r.TurnID:
		owned = now.Owner == q.me()
		r.CancelRequested = now.CancelRequested
	case errors.Is(err, store.ErrNotFound):
		err = nil
	case err != nil:
		q.fault("read running turn", r.Conversation, r.TurnID, err)
	}
	if r.CancelRequested {
		if err := q.cfg.Agent.Cancel(q.ctx, p, *r); err != nil {
			q.fault("cancel turn", r.Conversation, r.TurnID, err)
		}
	}
	return owned, err
}

func (q *Queue) announce(r turn.Run) {
	q.aside(func() {
		if err := q.cfg.Store.Announce(q.ctx, r.Conversation, r.TurnID); err != nil {
			q.fault("announce turn", r.Conversation, r.TurnID, err)
		}
	})
}

// aside does what nothing waits for.
func (q *Queue) aside(f func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.closed {
		q.work.Go(f)
	}
}

// rows reads what the turn left, however long that takes: only rows decide.
func (q *Queue) rows(r turn.Run, p Place, text string, others bool) (rows outcome.Rows, damaged, ok bool) {
	var pause wake.Backoff
	for q.ctx.Err() == nil {
		rows, err := q.cfg.Sessions.Outcome(q.ctx, p, r, text, others)
		if err == nil {
			return rows, false, true
		}
		q.fault("read the turn's rows", r.Conversation, r.TurnID, err)
		if q.cfg.Judge(err) == Damaged {
			return outcome.Rows{}, true, true
		}
		_ = pause.Pause(q.ctx)
		q.cfg.Directory.Forget(r.Conversation)
		if now, err := q.cfg.Directory.Locate(q.ctx, r.Conversation); err == nil {
			p = now
		}
	}
	return outcome.Rows{}, false, false
}

// end commits the outcome, when the store can be reached, if the turn is still this instance's.
func (q *Queue) end(e store.Ending) (more, ok bool) {
	c := e.Run.Conversation
	for q.ctx.Err() == nil {
		moved := q.moves.C()
		if e.Instance = q.me(); e.Instance == 0 {
			q.await(moved)
			continue
		}
		ended, err := q.commit(e)
		switch {
		case err == nil:
			q.cfg.Readers.Publish(c, ended.Events...)
			return ended.Waiting, true
		case errors.Is(err, store.ErrNotOwner):
			// Ended or being ended by another instance, or by this one with an answer that was
			// lost. Either way the next turn may wait.
			return true, false
		case errors.Is(err, store.ErrAlreadyDelivered):
			q.fault("deliver replies", c, e.Run.TurnID, err)
			e.Decision = outcome.Decision{State: turn.Failed, KeepBlocks: true, Error: &turn.Error{Reason: turn.ReasonAlreadyDelivered,
				Message: "the rows found after the turn are another turn's replies"}}
		default:
			q.fault("end turn", c, e.Run.TurnID, err)
			q.cfg.Suspect()
			q.await(moved)
		}
	}
	return false, false
}

// commit tries to end the turn once and tells those who await it: while the commit takes its time
// they read the replies.
func (q *Queue) commit(e store.Ending) (store.Ended, error) {
	c, id, d := e.Run.Conversation, e.Run.TurnID, e.Decision
	var end *turn.End
	replies := make([]turn.Locator, len(d.Replies))
	for i, m := range d.Replies {
		replies[i] = turn.Locator{SessionID: e.Run.SessionID, MessageID: m}
	}
	q.cfg.Readers.Ending(c, id, replies)
	ended, err := q.cfg.Store.End(q.ctx, e)
	if err == nil {
		end = &turn.End{State: d.State, Replies: replies, Error: d.Error, Timings: e.Timings, Time: ended.Time}
	}
	q.cfg.Readers.Ended(c, id, end)
	return ended, err
}

// acknowledgeDeadline bounds the wait for a supervisor that went away after its turn: what it kept
// is gone with it.
const acknowledgeDeadline = 10 * time.Second

func (q *Queue) acknowledge(r turn.Run, p Place, endChild bool) {
	ctx, cancel := context.WithTimeout(q.ctx, acknowledgeDeadline)
	defer cancel()
	if err := q.cfg.Agent.Acknowledge(ctx, p, r, endChild); err != nil {
		q.fault("acknowledge turn", r.Conversation, r.TurnID, err)
	}
}

func millis(d time.Duration) *float64 {
	if d <= 0 {
		return nil
	}
	ms := float64(d) / float64(time.Millisecond)
	return &ms
}
