package holder

import (
	"errors"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/supervisor/internal/acp"
)

// Reasons of results.
const (
	reasonCancelled      = "CANCELLED_BEFORE_DISPATCH"
	reasonPromptError    = "PROMPT_ERROR"
	reasonSessionUnknown = "SESSION_UNKNOWN"
	reasonChildExited    = "CHILD_EXITED"
	reasonCancelTimeout  = "CANCEL_TIMEOUT"
	reasonWatchdog       = "WATCHDOG"
	reasonLineTooLong    = "LINE_TOO_LONG"
	reasonStopping       = string(ReasonSupervisorStopping)
)

// stopRefusal is Hermes's answer to a session id it does not know. It has written nothing.
const stopRefusal = "refusal"

var reasonMessages = map[string]string{
	reasonCancelled:      "cancelled before it was sent to Hermes",
	reasonPromptError:    "Hermes answered the prompt with an error",
	reasonSessionUnknown: "Hermes does not know the conversation's session",
	reasonChildExited:    "the Hermes process ended before it answered",
	reasonCancelTimeout:  "Hermes did not stop in time after the cancel and was ended",
	reasonWatchdog:       "Hermes showed no progress for too long and was ended",
	reasonLineTooLong:    "a protocol line is over the limit",
	reasonStopping:       "the supervisor stopped before Hermes answered",
}

func ended(end End, reason string) Result {
	return Result{End: end, Reason: reason, Message: reasonMessages[reason]}
}

// attempts bounds how often a child that died idle, just before the prompt, is replaced.
const attempts = 3

// run takes one attempt from its admission to its end. It prompts at most once.
func (h *Holder) run(t *turn, blocks [][]byte) Result {
	var cold time.Duration
	for range attempts {
		x, took, r := h.admitFor(t)
		cold += took
		if x == nil {
			r.Timings.ColdAdmission = cold
			return r
		}
		p, sent, err := t.dispatch(x, blocks)
		if sent {
			t.ran = x
			r := h.follow(t, x, p)
			r.Timings.ColdAdmission = cold
			return r
		}
		switch {
		case err == nil:
			return ended(EndNotDispatched, reasonCancelled)
		case errors.Is(err, acp.ErrLineTooLong):
			return ended(EndNotDispatched, reasonLineTooLong)
		case !errors.Is(err, acp.ErrEnded):
			return notDispatched(err)
		}
	}
	return notDispatched(errs.New(errs.Unavailable, ReasonHermesUnavailable, "the Hermes process ends before it can be prompted"))
}

// admitFor waits for the conversation's child on behalf of the turn. Without a child the result
// says why.
func (h *Holder) admitFor(t *turn) (*hermes, time.Duration, Result) {
	began := time.Now()
	h.mu.Lock()
	a := h.admit(t.conversation)
	h.mu.Unlock()
	select {
	case <-a.done:
		if a.err != nil {
			return nil, time.Since(began), notDispatched(a.err)
		}
		return a.child, 0, Result{}
	default:
	}
	select {
	case <-a.done:
	case <-t.cancel:
		return nil, time.Since(began), ended(EndNotDispatched, reasonCancelled)
	case <-h.life.Done():
		return nil, time.Since(began), ended(EndNotDispatched, reasonStopping)
	}
	if a.err != nil {
		return nil, time.Since(began), notDispatched(a.err)
	}
	return a.child, time.Since(began), Result{}
}

// notDispatched is the result of an attempt that never reached a child.
func notDispatched(err error) Result {
	var e *errs.Error
	if errors.As(err, &e) && e.Reason() != "" {
		return Result{End: EndNotDispatched, Reason: string(e.Reason()), Message: e.Message()}
	}
	return Result{End: EndNotDispatched, Reason: string(ReasonHermesUnavailable), Message: "Hermes could not be started"}
}

// follow stays with a prompt that was handed to the child, until it is answered or the child is
// gone. A turn leaves here in no other way.
func (h *Holder) follow(t *turn, x *hermes, p *acp.Prompt) Result {
	cancel := t.cancel
	deadline := time.NewTimer(0) // armed by a cancel
	stopTimer(deadline)
	defer deadline.Stop()
	watchdog := time.NewTimer(h.cfg.WatchdogTimeout)
	defer watchdog.Stop()
	for {
		select {
		case <-p.Done():
			return h.answered(t, x, p)
		case <-cancel:
			cancel = nil
			p.Cancel()
			deadline.Reset(h.cfg.CancelTimeout)
		case <-deadline.C:
			return h.end(t, x, p, reasonCancelTimeout)
		case <-watchdog.C:
			silent := time.Since(x.relay.Progress())
			if silent >= h.cfg.WatchdogTimeout {
				return h.end(t, x, p, reasonWatchdog)
			}
			watchdog.Reset(h.cfg.WatchdogTimeout - silent)
		case <-h.life.Done():
			return h.end(t, x, p, reasonStopping)
		}
	}
}

func stopTimer(t *time.Timer) {
	if !t.Stop() {
		<-t.C
	}
}

// answered reads how the prompt ended.
func (h *Holder) answered(t *turn, x *hermes, p *acp.Prompt) Result {
	now := time.Now()
	stop, err := p.Answer()
	var r Result
	switch {
	case err == nil:
		r = Result{End: EndAnswered, StopReason: stop}
		if stop == stopRefusal {
			r.Reason, r.Message = reasonSessionUnknown, reasonMessages[reasonSessionUnknown]
		}
	case errors.Is(err, acp.ErrEnded):
		return h.end(t, x, p, reasonChildExited)
	case errors.Is(err, acp.ErrLineTooLong):
		return h.end(t, x, p, reasonLineTooLong)
	default:
		// After an error Hermes may be wedged: it would queue every later prompt and never run it.
		r = ended(EndError, reasonPromptError)
		h.discard(x)
		x.stop(h.cfg.ExitGrace)
		r.ChildEnded = true
	}
	return t.seen(r, p, now)
}

// end kills the child and reports only when all of it is gone: from then on the session's rows
// cannot change. An answer that came at the last moment counts.
func (h *Holder) end(t *turn, x *hermes, p *acp.Prompt, reason string) Result {
	h.discard(x)
	x.kill()
	<-x.gone
	now := time.Now()
	<-p.Done() // the client ended with the child
	r := ended(EndChildExited, reason)
	if stop, err := p.Answer(); err == nil {
		r = Result{End: EndAnswered, StopReason: stop}
	}
	r.ChildEnded = true
	return t.seen(r, p, now)
}

// discard keeps the child from taking new work.
func (h *Holder) discard(x *hermes) {
	h.mu.Lock()
	x.stopping = true
	h.mu.Unlock()
}

// seen adds what was seen of the prompt.
func (t *turn) seen(r Result, p *acp.Prompt, now time.Time) Result {
	t.mu.Lock()
	defer t.mu.Unlock()
	r.TextStreamed = t.textStreamed
	written := p.WrittenAt()
	if written.IsZero() {
		return r
	}
	r.Timings.Attach = written.Sub(t.received)
	r.Timings.ModelToolLoop = now.Sub(written)
	if t.modelAt.After(written) {
		r.Timings.FirstModelRequest = t.modelAt.Sub(written)
	}
	return r
}

// finish publishes the result and gives the conversation to the next turn.
func (h *Holder) finish(t *turn, r Result) {
	t.mu.Lock()
	r.CancelSent = t.cancelAsked
	t.mu.Unlock()
	if t.ran != nil {
		t.ran.turn.CompareAndSwap(t, nil)
	}
	h.observer.TurnEnded(t.attempt, r)
	c := t.conversation
	h.mu.Lock()
	defer h.mu.Unlock()
	// In one step: whoever sees the result may prompt at once.
	t.settle(r)
	c.ended = append(c.ended, t)
	c.release()
	h.running--
	if h.phase == phaseDraining && h.running == 0 {
		close(h.drained)
	}
}
