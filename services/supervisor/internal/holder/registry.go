package holder

import (
	"slices"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/supervisor/internal/acp"
)

// find returns the attempt, or nil if it is not in the registry. h.mu is held.
func (h *Holder) find(a Attempt) (*turn, error) {
	t := h.turns[a.key()]
	if t != nil && t.attempt.Conversation != a.Conversation {
		return nil, errs.New(errs.Invalid, ReasonAttemptMismatch, "attempt %d of turn %s is of another conversation", a.Number, a.Turn)
	}
	return t, nil
}

// Prompt runs the attempt, or follows it if it is known already. The blocks are the exact bytes
// for the child; the attempt goes on when the subscription is closed.
func (h *Holder) Prompt(a Attempt, session string, blocks [][]byte) (*Subscription, error) {
	for _, b := range blocks {
		if err := acp.CheckBlock(b); err != nil {
			return nil, err
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.enter(a.Organization, a.Conversation, a.Epoch)
	if err != nil {
		return nil, err
	}
	t, err := h.find(a)
	switch {
	case err != nil:
		return nil, err
	case t != nil:
		return t.subscribe(), nil
	case c.settled.has(a.key()):
		return nil, errs.New(errs.Precondition, ReasonTurnSettled, "attempt %d of turn %s can no longer run", a.Number, a.Turn)
	}
	if err := h.accepting(); err != nil {
		return nil, err
	}
	if err := c.busy(); err != nil {
		return nil, err
	}
	// The caller starts a turn only when it has recorded the end of the one before, so results
	// of earlier attempts are not needed any more, acknowledged or not.
	for _, old := range c.ended {
		h.forget(old)
	}
	c.ended = nil
	c.use = useTurn
	t = newTurn(a, c, session)
	h.turns[a.key()] = t
	h.running++
	s := t.subscribe()
	h.work.Go(func() { h.finish(t, h.run(t, blocks)) })
	return s, nil
}

// Attach follows an attempt that may be running. A nil subscription means that the attempt is
// unknown here; from then on it can never run here.
func (h *Holder) Attach(a Attempt) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.enter(a.Organization, a.Conversation, a.Epoch)
	if err != nil {
		return nil, err
	}
	t, err := h.find(a)
	if err != nil {
		return nil, err
	}
	if t == nil {
		c.settled.add(a.key())
		return nil, nil
	}
	return t.subscribe(), nil
}

// Watch follows an attempt that is known.
func (h *Holder) Watch(a Attempt) (*Subscription, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if _, err := h.enter(a.Organization, a.Conversation, a.Epoch); err != nil {
		return nil, err
	}
	t, err := h.find(a)
	if err != nil {
		return nil, err
	}
	if t == nil {
		return nil, errs.New(errs.NotFound, ReasonTurnNotFound, "attempt %d of turn %s is not known here", a.Number, a.Turn)
	}
	return t.subscribe(), nil
}

// Cancel asks Hermes to stop the attempt. One that is not known yet is recorded as cancelled
// before its dispatch, so that its Prompt finds that result.
func (h *Holder) Cancel(a Attempt) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.enter(a.Organization, a.Conversation, a.Epoch)
	if err != nil {
		return err
	}
	t, err := h.find(a)
	switch {
	case err != nil:
		return err
	case t != nil:
		t.askCancel()
	case !c.settled.has(a.key()):
		t = newTurn(a, c, "")
		t.settle(Result{End: EndNotDispatched, Reason: reasonCancelled, Message: "cancelled before it was sent to Hermes", CancelSent: true})
		h.turns[a.key()] = t
		c.ended = append(c.ended, t)
	}
	return nil
}

// Acknowledge lets the result of an ended attempt go. With endChild it returns only after the
// child the attempt ran on is gone, unless that child is at work on another turn already.
func (h *Holder) Acknowledge(a Attempt, endChild bool) error {
	t, x, err := h.acknowledge(a, endChild)
	if err != nil || t == nil || x == nil {
		return err
	}
	x.stop(h.cfg.ExitGrace)
	return nil
}

func (h *Holder) acknowledge(a Attempt, endChild bool) (*turn, *hermes, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	c, err := h.enter(a.Organization, a.Conversation, a.Epoch)
	if err != nil {
		return nil, nil, err
	}
	t, err := h.find(a)
	if err != nil || t == nil {
		return nil, nil, err
	}
	select {
	case <-t.done:
	default:
		return nil, nil, errs.New(errs.Precondition, ReasonTurnRunning, "attempt %d of turn %s has not ended", a.Number, a.Turn)
	}
	h.forget(t)
	c.ended = slices.DeleteFunc(c.ended, func(o *turn) bool { return o == t })
	if !endChild || t.ran == nil || c.child != t.ran || c.use != useNone {
		return t, nil, nil
	}
	c.child.stopping = true
	return t, c.child, nil
}

// forget drops an ended attempt's result and keeps that it can never run again. h.mu is held.
func (h *Holder) forget(t *turn) {
	delete(h.turns, t.attempt.key())
	t.conversation.settled.add(t.attempt.key())
}
