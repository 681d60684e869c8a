package holder

import (
	"context"

	"humanwork.internal/services/supervisor/internal/relay"
)

// Native is a child that a native ACP client speaks to itself.
type Native struct {
	holder *Holder
	child  *hermes
}

// AttachNative takes the conversation, ends its idle child, whose memory would go stale, and
// starts one that nothing but the caller speaks to. The caller must Close it.
func (h *Holder) AttachNative(ctx context.Context, organizationID, conversationID string, epoch int64) (*Native, error) {
	h.mu.Lock()
	c, err := h.enter(organizationID, conversationID, epoch)
	if err == nil {
		err = h.accepting()
	}
	if err == nil {
		err = c.busy()
	}
	if err != nil {
		h.mu.Unlock()
		return nil, err
	}
	c.use = useNative
	h.work.Add(1) // until Close
	admission := c.admission
	h.mu.Unlock()

	x, err := h.startNative(ctx, c, admission)
	if err != nil {
		h.mu.Lock()
		c.release()
		h.mu.Unlock()
		h.work.Done()
		return nil, err
	}
	return &Native{holder: h, child: x}, nil
}

func (h *Holder) startNative(ctx context.Context, c *conversation, admission *admission) (*hermes, error) {
	if admission != nil { // a cancelled turn left a start behind
		select {
		case <-admission.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := h.takeRoom(ctx, c); err != nil {
		return nil, h.unavailable(err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.AdmissionTimeout)
	defer cancel()
	x, err := h.spawn(ctx, c, true)
	if err != nil {
		h.giveRoom(c)
		return nil, h.unavailable(err)
	}
	return x, nil
}

// Relay carries the child's bytes.
func (n *Native) Relay() *relay.Relay { return n.child.relay }

// Done closes when the child must not be spoken to any more: it is gone, or the supervisor stops.
func (n *Native) Done() <-chan struct{} { return n.holder.life.Done() }

// Close ends the child and gives the conversation back when it is gone.
func (n *Native) Close() {
	n.child.stop(n.holder.cfg.ExitGrace)
	_ = n.child.relay.Close() // both ends are of no use any more
	n.holder.mu.Lock()
	n.child.conversation.release()
	n.holder.mu.Unlock()
	n.holder.work.Done()
}
