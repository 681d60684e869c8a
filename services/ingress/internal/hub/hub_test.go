package hub

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"humanwork.internal/services/ingress/internal/turn"
)

var conversation = turn.Conversation{Organization: "acme", ID: "c1"}

// log is a durable log in memory that counts how often it is read.
type log struct {
	mu    sync.Mutex
	last  int64
	reads int
	err   error
	// during runs inside a read, after what it returns is fixed.
	during func()
}

func (l *log) add(n int64) (out []turn.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.last++
		out = append(out, turn.Event{Sequence: l.last, Type: turn.EventAccepted, TurnID: "t"})
	}
	return out
}

func (l *log) Events(_ context.Context, _ turn.Conversation, after int64, limit int) ([]turn.Event, error) {
	l.mu.Lock()
	l.reads++
	var out []turn.Event
	for s := after + 1; s <= l.last && len(out) < limit; s++ {
		out = append(out, turn.Event{Sequence: s, Type: turn.EventAccepted, TurnID: "t"})
	}
	during, err := l.during, l.err
	l.during = nil
	l.mu.Unlock()
	if during != nil {
		during()
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (l *log) LastSequence(context.Context, turn.Conversation) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, during := l.last, l.during
	l.during = nil
	if during != nil {
		l.mu.Unlock()
		during()
		l.mu.Lock()
	}
	return last, l.err
}

// play runs a script in a bubble over a hub with queues of 10.
func play(t *testing.T, l *log, watch Watch, script func(h *Hub)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		if watch == nil {
			watch = func(context.Context, turn.Conversation, func(string, turn.Update)) {}
		}
		h := New(ctx, l, watch, 10, func(error) {})
		script(h)
		cancel()
		h.Wait()
	})
}

func subscribe(t *testing.T, h *Hub) (*Subscription, func()) {
	t.Helper()
	s, leave, err := h.Subscribe(t.Context(), conversation)
	if err != nil {
		t.Fatal(err)
	}
	return s, leave
}

// sequences takes what is in the queue once nothing moves.
func sequences(s *Subscription) (out []int64) {
	synctest.Wait()
	for {
		select {
		case it, ok := <-s.Items():
			if !ok {
				return append(out, -1)
			}
			if it.Event != nil {
				out = append(out, it.Event.Sequence)
			} else {
				out = append(out, 0)
			}
		default:
			return out
		}
	}
}

func wantSequences(t *testing.T, s *Subscription, want ...int64) {
	t.Helper()
	got := sequences(s)
	if len(got) != len(want) {
		t.Errorf("got %v, want %v", got, want)
		return
	}
	for i := range got {
		if got[i] != want[i] {
			t.Errorf("got %v, want %v", got, want)
			return
		}
	}
}

// What this process commits is passed on without reading the log; its own notices change nothing.
func TestPublish(t *testing.T) {
	l := &log{}
	l.add(3)
	play(t, l, nil, func(h *Hub) {
		s, leave := subscribe(t, h)
		defer leave()
		h.Publish(conversation, l.add(2)...)
		h.Notified(conversation, 5, "t", false)
		h.Live(conversation, "t", turn.Update{Text: "x"})
		wantSequences(t, s, 4, 5, 0)
		if l.reads != 0 {
			t.Errorf("the log was read %d times", l.reads)
		}
	})
}

// Another process's event lies between: the log's order counts, and each event comes once.
func TestOrderOfTwoProcesses(t *testing.T) {
	l := &log{}
	play(t, l, nil, func(h *Hub) {
		s, leave := subscribe(t, h)
		defer leave()
		l.add(1) // elsewhere
		h.Publish(conversation, l.add(1)...)
		h.Notified(conversation, 1, "t", false)
		h.Notified(conversation, 2, "t", false)
		wantSequences(t, s, 1, 2)
		h.Publish(conversation, l.add(1)...)
		wantSequences(t, s, 3)
	})
}

// An event committed while the log is read, after what the read returns, is not lost.
func TestNoticeDuringRead(t *testing.T) {
	l := &log{}
	play(t, l, nil, func(h *Hub) {
		s, leave := subscribe(t, h)
		defer leave()
		l.add(1)
		l.during = func() { l.add(1); h.Notified(conversation, 2, "t", false) }
		h.Notified(conversation, 1, "t", false)
		wantSequences(t, s, 1, 2)
	})
}

// An event committed while a first reader learns the last sequence reaches it.
func TestNoticeDuringSubscribe(t *testing.T) {
	l := &log{}
	play(t, l, nil, func(h *Hub) {
		l.during = func() { h.Publish(conversation, l.add(1)...) }
		s, leave := subscribe(t, h)
		defer leave()
		wantSequences(t, s, 1)
	})
}

// After a loss of notices everything is read again; a read that fails is repeated then.
func TestResync(t *testing.T) {
	l := &log{}
	play(t, l, nil, func(h *Hub) {
		s, leave := subscribe(t, h)
		defer leave()
		ended, forget := h.AwaitEnd(conversation, "t")
		defer forget()
		l.add(2)
		l.err = errors.New("gone")
		h.Notified(conversation, 1, "t", false)
		wantSequences(t, s)
		l.err = nil
		h.Resync()
		wantSequences(t, s, 1, 2)
		<-ended // may have ended meanwhile
		h.Resync()
		wantSequences(t, s)
		h.Notified(conversation, l.add(1)[0].Sequence, "t", false)
		wantSequences(t, s, 3)
	})
}

// A slow reader is let go with what it has, and the others go on.
func TestOverflow(t *testing.T) {
	l := &log{}
	play(t, l, nil, func(h *Hub) {
		slow, leave := subscribe(t, h)
		defer leave()
		fast, leaveToo := subscribe(t, h)
		defer leaveToo()
		for i := range int64(11) {
			h.Publish(conversation, l.add(1)...)
			wantSequences(t, fast, i+1)
		}
		wantSequences(t, slow, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1)
		if !h.Overflowed(slow) || h.Overflowed(fast) {
			t.Errorf("overflowed: slow %v, fast %v", h.Overflowed(slow), h.Overflowed(fast))
		}
	})
}

func TestAwaitEnd(t *testing.T) {
	play(t, &log{}, nil, func(h *Hub) {
		one, forgetOne := h.AwaitEnd(conversation, "t")
		defer forgetOne()
		other, forgetOther := h.AwaitEnd(conversation, "u")
		h.Notified(conversation, 1, "t", false)
		h.Publish(conversation, turn.Event{Sequence: 2, Type: turn.EventEnded, TurnID: "t"})
		<-one
		select {
		case <-other:
			t.Error("another turn's end woke a reader")
		default:
		}
		forgetOther()
		if len(h.ends.waiters) != 0 {
			t.Errorf("%d turns are still awaited", len(h.ends.waiters))
		}
	})
}

// While this process commits an end, notices of it wake nobody: what it committed follows, or that
// it failed.
func TestEndCommittedHere(t *testing.T) {
	replies := []turn.Locator{{SessionID: "s", MessageID: 7}}
	for name, end := range map[string]*turn.End{"committed": {State: turn.Replied, Replies: replies}, "failed": nil} {
		t.Run(name, func(t *testing.T) {
			play(t, &log{}, nil, func(h *Hub) {
				early, forgetEarly := h.AwaitEnd(conversation, "t")
				defer forgetEarly()
				h.Ending(conversation, "t", replies)
				h.Notified(conversation, 1, "t", true)
				late, forgetLate := h.AwaitEnd(conversation, "t")
				defer forgetLate()
				h.Ended(conversation, "t", end)
				h.Notified(conversation, 1, "t", true)
				for who, signs := range map[string]<-chan Sign{"early": early, "late": late} {
					if got := <-signs; !slices.Equal(got.Coming, replies) || got.End != nil {
						t.Errorf("%s waiter got %+v, want what is coming", who, got)
					}
					if got := <-signs; got.Coming != nil || got.End != end {
						t.Errorf("%s waiter got %+v, want the end %+v", who, got, end)
					}
				}
				third, forget := h.AwaitEnd(conversation, "t")
				h.Notified(conversation, 1, "t", true)
				if got := <-third; got.Coming != nil || got.End != nil {
					t.Errorf("got %+v after the commit, want a sign to read", got)
				}
				forget()
				if n := len(h.ends.waiters) + len(h.ends.committing); n != 0 {
					t.Errorf("%d turns are still remembered", n)
				}
			})
		})
	}
}

// One watch serves all readers of a conversation, and ends with the last of them.
func TestWatch(t *testing.T) {
	var mu sync.Mutex
	watches, running := 0, 0
	watch := func(ctx context.Context, _ turn.Conversation, emit func(string, turn.Update)) {
		mu.Lock()
		watches++
		running++
		mu.Unlock()
		emit("t", turn.Update{Text: "x"})
		<-ctx.Done()
		mu.Lock()
		running--
		mu.Unlock()
	}
	play(t, &log{}, watch, func(h *Hub) {
		one, leaveOne := subscribe(t, h)
		wantSequences(t, one, 0)
		two, leaveTwo := subscribe(t, h)
		wantSequences(t, two)
		if watches != 1 || running != 1 {
			t.Errorf("%d watches, %d running, want 1", watches, running)
		}
		leaveOne()
		synctest.Wait()
		if running != 1 {
			t.Error("the watch ended before its last reader left")
		}
		leaveTwo()
		synctest.Wait()
		if running != 0 || len(h.topics) != 0 {
			t.Errorf("%d watches and %d topics are left", running, len(h.topics))
		}
		h.Watch(conversation) // nobody reads
		synctest.Wait()
		if watches != 1 {
			t.Error("a conversation nobody reads is watched")
		}
	})
}
