package holder

import (
	"context"
	"fmt"
	"time"

	"humanwork.internal/pkg/errs"
)

// admission is the start of a child. It is not bound to the turn that asked for it: a turn that
// is cancelled meanwhile leaves a warm child to the next one.
type admission struct {
	done  chan struct{}
	child *hermes
	err   error
}

// admit returns the conversation's usable child, or the start of one. h.mu is held.
func (h *Holder) admit(c *conversation) *admission {
	if c.admission != nil {
		return c.admission
	}
	a := &admission{done: make(chan struct{})}
	if c.child != nil && c.child.usable() {
		a.child = c.child
		close(a.done)
		return a
	}
	c.admission = a
	h.work.Go(func() {
		a.child, a.err = h.start(c)
		h.mu.Lock()
		c.admission = nil
		h.mu.Unlock()
		close(a.done)
	})
	return a
}

// start brings up a child that has answered initialize. When it fails, nothing of it lives.
func (h *Holder) start(c *conversation) (*hermes, error) {
	if err := h.takeRoom(h.life, c); err != nil {
		return nil, h.unavailable(err)
	}
	began := time.Now()
	ctx, cancel := context.WithTimeout(h.life, h.cfg.AdmissionTimeout)
	defer cancel()
	x, err := h.spawn(ctx, c, false)
	if err != nil {
		h.giveRoom(c)
		return nil, h.unavailable(err)
	}
	if err := x.client.Initialize(ctx); err != nil {
		x.kill()
		<-x.gone
		return nil, h.unavailable(fmt.Errorf("the child ended with %s: %w", x.child.Exit(), err))
	}
	h.observer.ChildStarted(c.organization.id, c.id, time.Since(began))
	return x, nil
}

// unavailable gives an error without a reason of its own the one of a Hermes that cannot run, or
// of a supervisor that stops.
func (h *Holder) unavailable(err error) error {
	switch {
	case errs.ReasonOf(err) != "":
		return err
	case h.life.Err() != nil:
		return errs.Wrap(err, errs.Unavailable, ReasonSupervisorStopping, "the supervisor is stopping")
	}
	return errs.Wrap(err, errs.Precondition, ReasonHermesUnavailable, "Hermes could not be started for this conversation; the supervisor's log has the cause")
}

// takeRoom waits until the conversation's last child is gone and the organization may have one
// more, and counts it. The least recently used idle child makes room; a child in use never does.
func (h *Holder) takeRoom(ctx context.Context, c *conversation) error {
	o := c.organization
	for {
		h.mu.Lock()
		changed := o.changed
		switch {
		case c.child != nil:
			if !c.child.stopping {
				h.retire(c.child)
			}
		case o.children < h.cfg.MaxChildren:
			o.children++
			h.mu.Unlock()
			return nil
		default:
			if idle := o.leastRecentlyUsed(); idle != nil {
				h.retire(idle)
			}
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (h *Holder) giveRoom(c *conversation) {
	h.mu.Lock()
	c.organization.children--
	c.organization.announce()
	h.mu.Unlock()
}

// retire lets an idle child exit in its own time. h.mu is held.
func (h *Holder) retire(x *hermes) {
	x.stopping = true
	h.work.Go(func() { x.stop(h.cfg.ExitGrace) })
}

// leastRecentlyUsed finds an idle child, unless one is already on its way out. h.mu is held.
func (o *organization) leastRecentlyUsed() *hermes {
	var oldest *conversation
	for _, c := range o.conversations {
		if c.child == nil || c.use != useNone || c.admission != nil {
			continue
		}
		if c.child.stopping {
			return nil // its end is announced
		}
		if oldest == nil || c.lastUsed.Before(oldest.lastUsed) {
			oldest = c
		}
	}
	if oldest == nil {
		return nil
	}
	return oldest.child
}
