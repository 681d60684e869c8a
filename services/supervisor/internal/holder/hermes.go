package holder

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"humanwork.internal/services/supervisor/internal/acp"
	"humanwork.internal/services/supervisor/internal/relay"
	"humanwork.internal/services/supervisor/internal/stderrlog"
)

// modelRequestMark begins the line Hermes writes when it opens a turn's model request.
const modelRequestMark = "OpenAI client created (chat_completion_stream_request"

// drainAfterExit bounds the wait for the end of a gone child's output. It comes at once unless
// someone else holds the pipe.
const drainAfterExit = 2 * time.Second

// hermes is one child with what speaks to it.
type hermes struct {
	conversation *conversation
	child        Child
	relay        *relay.Relay
	client       *acp.Client // nil on a native client's child
	stderr       *stderrlog.Log
	began        time.Time
	gone         chan struct{} // closed when the child, and all below it, is gone and accounted for

	stopping bool // guarded by Holder.mu: takes no new work
	turn     atomic.Pointer[turn]
	prompted atomic.Bool // was ever given a prompt
	killOnce sync.Once
}

// kill ends the child at once.
func (c *hermes) kill() {
	// A failed kill means that it is ending already; gone tells in either case.
	c.killOnce.Do(func() { _ = c.child.Kill() })
}

// stop closes the child's input, which Hermes takes as a request to flush and exit, kills it
// after the grace, and returns when it is gone.
func (c *hermes) stop(grace time.Duration) {
	_ = c.relay.CloseWrite() // closed already: it is ending
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-c.gone:
		return
	case <-timer.C:
		c.kill()
	}
	<-c.gone
}

// spawn starts a child for the conversation, with an ACP client unless native. Its place in the
// organization's count was taken by the caller; from here on watch gives it back.
func (h *Holder) spawn(ctx context.Context, c *conversation, native bool) (*hermes, error) {
	began := time.Now()
	o := c.organization
	home, err := h.homes.ConversationHome(ctx, o.id, c.id)
	if err != nil {
		return nil, fmt.Errorf("read the conversation's private files: %w", err)
	}
	child, err := h.spawnOn(ctx, c, home)
	if err != nil {
		return nil, err
	}
	x := &hermes{
		conversation: c, child: child, began: began,
		relay:  relay.New(child.Stdin(), child.Stdout()),
		stderr: stderrlog.New(stderrlog.NewRedactor(home[".env"], home["config.yaml"])),
		gone:   make(chan struct{}),
	}
	if !native {
		x.client = acp.NewClient(x.relay, h.cfg.ACP)
	}
	h.mu.Lock()
	c.child = x
	h.mu.Unlock()
	h.work.Go(func() { h.watch(x) })
	return x, nil
}

// watch stays with a child until it is gone, and is the only one to take it off the books.
func (h *Holder) watch(x *hermes) {
	var streams sync.WaitGroup
	stderr := x.child.Stderr()
	streams.Go(func() { x.stderr.Drain(stderr, x.stderrLine(h.observer)) })
	var report ChildReport
	if x.client == nil {
		<-x.child.Done()
	} else {
		streams.Go(func() { _ = x.client.Run() }) // it ends because the child does: Exit says more
		h.endWithOutput(x)
		report.Dropped = x.client.Counters()
		_ = x.relay.Close()
	}
	late := time.AfterFunc(drainAfterExit, func() { _ = stderr.Close() })
	streams.Wait()
	late.Stop()
	_ = stderr.Close()

	o := x.conversation.organization
	report.Organization, report.Conversation = o.id, x.conversation.id
	report.Exit, report.Lived = x.child.Exit(), time.Since(x.began)
	if !x.prompted.Load() {
		report.Stderr, _ = x.stderr.Tail()
	}
	h.observer.ChildEnded(report)
	h.mu.Lock()
	if x.conversation.child == x {
		x.conversation.child = nil
		if e := x.conversation.establishment; e != nil && e.ended() {
			x.conversation.establishment = nil
		}
	}
	o.children--
	o.announce()
	h.mu.Unlock()
	close(x.gone)
}

// endWithOutput ends a child that can no longer be spoken to, and reads a child that ended to the
// end of its output, where its last answer may be.
func (h *Holder) endWithOutput(x *hermes) {
	timer := time.NewTimer(h.cfg.ExitGrace)
	defer timer.Stop()
	select {
	case <-x.client.Done():
		timer.Reset(h.cfg.ExitGrace) // a child that closed its output may still be flushing
		select {
		case <-x.child.Done():
		case <-timer.C:
			x.kill()
			<-x.child.Done()
		}
	case <-x.child.Done():
		timer.Reset(drainAfterExit)
		select {
		case <-x.client.Done():
		case <-timer.C:
		}
	}
}

func (x *hermes) stderrLine(observer Observer) func(string) {
	o, c := x.conversation.organization.id, x.conversation.id
	return func(line string) {
		x.relay.Touch()
		if t := x.turn.Load(); t != nil && strings.Contains(line, modelRequestMark) {
			t.modelRequested(time.Now())
		}
		observer.ChildLine(o, c, line)
	}
}

// usable says whether the child can take a prompt. h.mu is held.
func (x *hermes) usable() bool {
	if x.stopping || x.client == nil {
		return false
	}
	select {
	case <-x.client.Done():
		return false
	case <-x.child.Done():
		return false
	default:
		return true
	}
}
