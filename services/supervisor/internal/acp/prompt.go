package acp

import (
	"encoding/json"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/coder/acp-go-sdk"
)

// Prompt is one session/prompt that was queued for the agent.
type Prompt struct {
	client    *Client
	call      *call
	session   string
	sink      func(Update)
	writtenAt atomic.Pointer[time.Time]
	cancelled atomic.Bool

	mu       sync.Mutex
	working  bool // the agent has shown that this prompt runs
	repeated bool // session/cancel was sent again since
}

// StartPrompt queues session/prompt with the exact bytes of blocks that passed CheckBlock. It
// returns before the agent has read them. sink is called on the reader's goroutine, in order, and
// must not block; it is not called after the prompt is done. An error (ErrLineTooLong, ErrBusy,
// ErrEnded) means that nothing of the prompt was queued.
func (c *Client) StartPrompt(session string, blocks [][]byte, sink func(Update)) (*Prompt, error) {
	pending, id, err := c.open()
	if err != nil {
		return nil, err
	}
	p := &Prompt{client: c, call: pending, session: session, sink: sink}
	message, err := promptLine(id, session, blocks)
	if err == nil && len(message) > c.cfg.MaxPromptLine {
		err = ErrLineTooLong
	}
	c.mu.Lock()
	switch {
	case err != nil:
	case c.err != nil:
		err = c.err
	case c.prompt != nil:
		err = ErrBusy
	default:
		c.prompt = p
	}
	if err != nil {
		delete(c.calls, id)
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := c.send(write{line: message, written: p.wrote}); err != nil {
		return nil, err
	}
	return p, nil
}

func (p *Prompt) wrote() {
	now := time.Now()
	p.writtenAt.Store(&now)
}

// WrittenAt is when the whole prompt had been written to the agent; zero until then.
func (p *Prompt) WrittenAt() time.Time {
	if at := p.writtenAt.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// Done closes when the prompt was answered or never will be.
func (p *Prompt) Done() <-chan struct{} { return p.call.done }

// Answer returns the agent's stop reason once Done is closed. Errors are *RPCError, ErrBadAnswer,
// ErrLineTooLong and ErrEnded.
func (p *Prompt) Answer() (stopReason string, err error) {
	if p.call.err != nil {
		return "", p.call.err
	}
	var answer struct {
		StopReason string `json:"stopReason"`
	}
	if err := json.Unmarshal(p.call.result, &answer); err != nil {
		return "", errors.Join(ErrBadAnswer, err)
	}
	if answer.StopReason == "" {
		return "", ErrBadAnswer
	}
	return answer.StopReason, nil
}

// Cancel sends session/cancel, after the prompt itself, and from now on answers permission
// requests with cancelled. Idempotent.
func (p *Prompt) Cancel() {
	if p.cancelled.Swap(true) {
		return
	}
	p.mu.Lock()
	p.repeated = p.working
	p.mu.Unlock()
	p.sendCancel()
}

// Working tells the prompt that the agent runs it, as seen from outside the protocol.
func (p *Prompt) Working() { p.sawWork() }

// sawWork repeats a cancel once. Hermes forgets one that reaches it before it has begun the
// prompt, and runs on; the first sign of work is the earliest moment a cancel holds.
func (p *Prompt) sawWork() {
	p.mu.Lock()
	first := !p.working
	p.working = true
	again := first && p.cancelled.Load() && !p.repeated
	p.repeated = p.repeated || again
	p.mu.Unlock()
	if again {
		p.sendCancel()
	}
}

// sendCancel queues session/cancel unless the prompt is over: it would hit the next one.
func (p *Prompt) sendCancel() {
	message, err := notificationLine(sdk.AgentMethodSessionCancel, sdk.CancelNotification{SessionId: sdk.SessionId(p.session)})
	if err != nil {
		p.client.fail(err)
		return
	}
	full := false
	p.client.mu.Lock()
	if p.client.prompt == p {
		select {
		case p.client.writes <- write{line: message}:
		default:
			full = true
		}
	}
	p.client.mu.Unlock()
	if full {
		p.client.fail(errNotReading)
	}
}
