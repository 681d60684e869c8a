package hub

import "humanwork.internal/services/ingress/internal/turn"

// Sign is what somebody who awaits a turn's end learns. The zero Sign: the turn may have ended.
type Sign struct {
	// Coming are the replies of a turn whose end is being committed by this process. Another sign
	// follows: until then nothing has ended.
	Coming []turn.Locator
	// End was committed by this process.
	End *turn.End
}

type endKey struct {
	c  turn.Conversation
	id string
}

// ends are the turns somebody awaits. Guarded by Hub.mu.
type ends struct {
	// A waiter gets at most one Sign that is coming and one that is not, and leaves with that: its
	// channel has room for both.
	waiters map[endKey]map[chan Sign]struct{}
	// committing holds the replies of turns between Ending and Ended.
	committing map[endKey][]turn.Locator
}

// AwaitEnd returns a channel of the turn's signs, up to the first that is not Coming; take it
// before reading the turn.
func (h *Hub) AwaitEnd(c turn.Conversation, turnID string) (<-chan Sign, func()) {
	k, ch := endKey{c, turnID}, make(chan Sign, 2)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ends.waiters[k] == nil {
		h.ends.waiters[k] = make(map[chan Sign]struct{})
	}
	h.ends.waiters[k][ch] = struct{}{}
	if replies := h.ends.committing[k]; len(replies) > 0 {
		ch <- Sign{Coming: replies}
	}
	return ch, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.ends.waiters[k], ch)
		if len(h.ends.waiters[k]) == 0 {
			delete(h.ends.waiters, k)
		}
	}
}

// Ending tells that the turn's end is about to be committed, with these replies. Ended must follow,
// whatever becomes of it.
func (h *Hub) Ending(c turn.Conversation, turnID string, replies []turn.Locator) {
	k := endKey{c, turnID}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends.committing[k] = replies
	if len(replies) == 0 {
		return
	}
	for ch := range h.ends.waiters[k] {
		ch <- Sign{Coming: replies}
	}
}

// Ended tells of the end that was committed, or with nil that the commit failed: then the turn may
// have ended all the same.
func (h *Hub) Ended(c turn.Conversation, turnID string, end *turn.End) {
	k := endKey{c, turnID}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.ends.committing, k)
	h.sign(k, Sign{End: end})
}

// noticed wakes those who await the turn to read it, except while this process commits its end:
// they get that, and need not read. The caller holds mu.
func (h *Hub) noticed(k endKey) {
	if _, here := h.ends.committing[k]; !here {
		h.sign(k, Sign{})
	}
}

// sign gives the last sign. The caller holds mu.
func (h *Hub) sign(k endKey, s Sign) {
	for ch := range h.ends.waiters[k] {
		ch <- s
	}
	delete(h.ends.waiters, k)
}
