package holder

import (
	"context"

	"humanwork.internal/pkg/errs"
)

// workspace is where a child's session works, in its own mount namespace.
const workspace = "/workspace"

// establishment is the making of a conversation's native session, and its answer for as long as
// the child that made it lives.
type establishment struct {
	done    chan struct{}
	session string
	err     error
}

// Establish makes the conversation's session, joining one in flight or answering for the child
// that lives. When it fails, no child of the conversation lives.
func (h *Holder) Establish(ctx context.Context, organizationID, conversationID string, epoch int64) (string, error) {
	h.mu.Lock()
	c, err := h.enter(organizationID, conversationID, epoch)
	if err == nil && c.establishment == nil {
		if err = h.accepting(); err == nil {
			err = c.busy()
		}
		if err == nil {
			c.use = useEstablishment
			c.establishment = &establishment{done: make(chan struct{})}
			h.running++
			e := c.establishment
			h.work.Go(func() { h.establish(c, e) })
		}
	}
	if err != nil {
		h.mu.Unlock()
		return "", err
	}
	e := c.establishment
	h.mu.Unlock()
	return e.wait(ctx)
}

func (e *establishment) wait(ctx context.Context) (string, error) {
	select {
	case <-e.done:
		return e.session, e.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (e *establishment) ended() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func (h *Holder) establish(c *conversation, e *establishment) {
	e.session, e.err = h.newSession(c)
	h.mu.Lock()
	if e.err != nil || c.child == nil {
		c.establishment = nil // it answers for a living child only
	}
	c.release()
	h.running--
	if h.phase == phaseDraining && h.running == 0 {
		close(h.drained)
	}
	close(e.done)
	h.mu.Unlock()
}

func (h *Holder) newSession(c *conversation) (string, error) {
	h.mu.Lock()
	a := h.admit(c)
	h.mu.Unlock()
	<-a.done
	if a.err != nil {
		return "", a.err
	}
	ctx, cancel := context.WithTimeout(h.life, h.cfg.AdmissionTimeout)
	defer cancel()
	session, err := a.child.client.NewSession(ctx, workspace)
	if err != nil {
		// The session may be half made: only a child that is gone makes SessionDB final.
		h.discard(a.child)
		a.child.kill()
		<-a.child.gone
		return "", errs.Wrap(err, errs.Unavailable, ReasonEstablishment, "Hermes could not make the session")
	}
	return session, nil
}

// Establishment waits for an establishment in flight and returns its session. NotFound means
// that no child of the conversation lives or is being started; an idle child that knows of no
// establishment is ended first.
func (h *Holder) Establishment(ctx context.Context, organizationID, conversationID string, epoch int64) (string, error) {
	for {
		h.mu.Lock()
		c, err := h.enter(organizationID, conversationID, epoch)
		if err != nil {
			h.mu.Unlock()
			return "", err
		}
		if e := c.establishment; e != nil {
			h.mu.Unlock()
			return e.wait(ctx)
		}
		if err := c.busy(); err != nil {
			h.mu.Unlock()
			return "", err
		}
		changed := c.organization.changed
		if c.child == nil && c.admission == nil {
			h.mu.Unlock()
			return "", errs.New(errs.NotFound, ReasonNoEstablishment, "no session is being made for this conversation")
		}
		if c.child != nil && c.admission == nil && !c.child.stopping && h.phase == phaseRunning {
			h.retire(c.child)
		}
		h.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}
