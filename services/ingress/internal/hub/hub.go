// Package hub carries what happens in conversations to the readers of this process: durable events
// in the order of their sequences, live updates between them, and the end of turns. It reads the
// event log only for conversations somebody reads, and only when told that there is something new.
package hub

import (
	"context"
	"sync"

	"humanwork.internal/services/ingress/internal/turn"
)

// Log is the durable event log.
type Log interface {
	Events(ctx context.Context, c turn.Conversation, after int64, limit int) ([]turn.Event, error)
	LastSequence(ctx context.Context, c turn.Conversation) (int64, error)
}

// Watch follows the running turn of a conversation that runs elsewhere, until it ends or ctx does.
// It returns at once if none does.
type Watch func(ctx context.Context, c turn.Conversation, emit func(turnID string, u turn.Update))

// Item is one durable event or one live update.
type Item struct {
	Event  *turn.Event
	TurnID string // of Update
	Update *turn.Update
}

// page is how many events one read of the log returns at most.
const page = 500

// Hub is ready once New returns; its readers of the log end with the context given to New.
type Hub struct {
	ctx   context.Context
	log   Log
	watch Watch
	queue int
	fault func(error)

	work   sync.WaitGroup
	mu     sync.Mutex
	closed bool
	topics map[turn.Conversation]*topic
	ends   ends
}

// topic is a conversation with at least one subscriber. Its fields are guarded by Hub.mu.
type topic struct {
	subs map[*Subscription]struct{}
	// last is the sequence all subscribers have been given, or have to read for themselves; valid
	// once known. Until then wanted remembers what was missed.
	known   bool
	last    int64
	wanted  int64
	reading bool

	cancelWatch context.CancelFunc // of the watch that runs; nil: none
	watchAgain  bool
}

// Subscription is one reader.
type Subscription struct {
	items    chan Item
	overflow bool // guarded by Hub.mu; set before items is closed
}

// Items is closed when the reader was too slow (see Hub.Overflowed) or has unsubscribed.
func (s *Subscription) Items() <-chan Item { return s.items }

// New makes a hub whose subscribers each have a queue of the given length. fault is told about
// reads of the log that failed; Resync repeats them.
func New(ctx context.Context, log Log, watch Watch, queue int, fault func(error)) *Hub {
	return &Hub{ctx: ctx, log: log, watch: watch, queue: queue, fault: fault,
		topics: make(map[turn.Conversation]*topic), ends: ends{make(map[endKey]map[chan Sign]struct{}), make(map[endKey][]turn.Locator)}}
}

// Wait returns when all the hub started has ended, after its context has.
func (h *Hub) Wait() {
	h.mu.Lock()
	h.closed = true
	h.mu.Unlock()
	h.work.Wait()
}

// start runs f unless the hub is closing. The caller holds mu.
func (h *Hub) start(f func()) {
	if !h.closed {
		h.work.Go(f)
	}
}

// Subscribe adds a reader. From when it returns, every event is in the reader's items or can be
// read from the log: the reader reads the log up to its end, then the items, leaving out sequences
// it has.
func (h *Hub) Subscribe(ctx context.Context, c turn.Conversation) (*Subscription, func(), error) {
	s := &Subscription{items: make(chan Item, h.queue)}
	h.mu.Lock()
	t := h.topics[c]
	if t == nil {
		t = &topic{subs: make(map[*Subscription]struct{})}
		h.topics[c] = t
	}
	t.subs[s] = struct{}{}
	known := t.known
	h.mu.Unlock()
	leave := func() { h.leave(c, t, s) }
	if !known {
		last, err := h.log.LastSequence(ctx, c)
		if err != nil {
			leave()
			return nil, nil, err
		}
		h.mu.Lock()
		if !t.known {
			t.known, t.last = true, last
			h.read(c, t)
		}
		h.mu.Unlock()
	}
	h.Watch(c)
	return s, leave, nil
}

func (h *Hub) leave(c turn.Conversation, t *topic, s *Subscription) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(t, s)
	if len(t.subs) == 0 && h.topics[c] == t {
		delete(h.topics, c)
		if t.cancelWatch != nil {
			t.cancelWatch()
		}
	}
}

// drop ends a subscription once. The caller holds mu.
func (h *Hub) drop(t *topic, s *Subscription) {
	if _, ok := t.subs[s]; ok {
		delete(t.subs, s)
		close(s.items)
	}
}

// Overflowed reports whether the subscription ended because its reader was too slow.
func (h *Hub) Overflowed(s *Subscription) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return s.overflow
}

// Publish gives readers events that this process has just committed, in order.
func (h *Hub) Publish(c turn.Conversation, events ...turn.Event) {
	if len(events) == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range events {
		if e.Type == turn.EventEnded {
			h.noticed(endKey{c, e.TurnID})
		}
	}
	t := h.topics[c]
	if t == nil {
		return
	}
	if t.known && !t.reading && events[0].Sequence == t.last+1 {
		h.give(t, events)
		return
	}
	// Another process's event lies between, or is being read: the log has the order.
	h.want(c, t, events[len(events)-1].Sequence)
}

// Notified tells the hub that an event was committed somewhere.
func (h *Hub) Notified(c turn.Conversation, sequence int64, turnID string, ended bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ended {
		h.noticed(endKey{c, turnID})
	}
	if t := h.topics[c]; t != nil {
		h.want(c, t, sequence)
	}
}

// Resync makes up for notices that may have been missed: everything anybody reads is read again.
func (h *Hub) Resync() {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.ends.waiters {
		h.sign(k, Sign{})
	}
	for c, t := range h.topics {
		if t.known {
			h.want(c, t, t.last+1)
		}
	}
}

// Live gives readers an update of the running turn.
func (h *Hub) Live(c turn.Conversation, turnID string, u turn.Update) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if t := h.topics[c]; t != nil {
		h.push(t, Item{TurnID: turnID, Update: &u})
	}
}

// want reads the log up to the sequence unless that is known. The caller holds mu.
func (h *Hub) want(c turn.Conversation, t *topic, sequence int64) {
	t.wanted = max(t.wanted, sequence)
	if t.known {
		h.read(c, t)
	}
}

// read starts the topic's reader if it has something to do. The caller holds mu.
func (h *Hub) read(c turn.Conversation, t *topic) {
	if t.reading || t.wanted <= t.last {
		return
	}
	t.reading = true
	h.start(func() {
		for {
			h.mu.Lock()
			after, goal := t.last, t.wanted
			h.mu.Unlock()
			events, err := h.log.Events(h.ctx, c, after, page)
			h.mu.Lock()
			h.give(t, events)
			// A goal set while the log was read may be younger than what was read.
			done := err == nil && len(events) < page && t.wanted == goal
			if err != nil || done {
				t.reading = false
			}
			if done {
				t.wanted = t.last // what was not there was a guess of Resync's
			}
			h.mu.Unlock()
			if err != nil && h.ctx.Err() == nil {
				h.fault(err)
			}
			if err != nil || done {
				return
			}
		}
	})
}

// give sends events on. The caller holds mu.
func (h *Hub) give(t *topic, events []turn.Event) {
	for i := range events {
		t.last = events[i].Sequence
		h.push(t, Item{Event: &events[i]})
	}
}

func (h *Hub) push(t *topic, it Item) {
	for s := range t.subs {
		select {
		case s.items <- it:
		default:
			s.overflow = true
			h.drop(t, s)
		}
	}
}

// Watch follows the conversation's running turn for its readers, if it has any.
func (h *Hub) Watch(c turn.Conversation) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.topics[c]
	if t == nil {
		return
	}
	if t.cancelWatch != nil {
		t.watchAgain = true
		return
	}
	ctx, cancel := context.WithCancel(h.ctx)
	t.cancelWatch = cancel
	h.start(func() {
		defer cancel()
		for {
			h.watch(ctx, c, func(turnID string, u turn.Update) { h.Live(c, turnID, u) })
			h.mu.Lock()
			if !t.watchAgain || ctx.Err() != nil {
				t.cancelWatch = nil
				h.mu.Unlock()
				return
			}
			t.watchAgain = false
			h.mu.Unlock()
		}
	})
}
