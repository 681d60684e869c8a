package holder

import (
	"context"
	"sync"

	"humanwork.internal/services/supervisor/internal/acp"
)

// A subscriber that falls this far behind loses updates instead of holding the child back.
const (
	feedUpdates = 1024
	feedBytes   = 4 << 20
)

// Delta is one live update, and how many were lost just before it. The last one of a turn has no
// update if updates were lost at its end.
type Delta struct {
	Update  *acp.Update
	Dropped int64
}

// Subscription follows one turn from the moment it was made.
type Subscription struct {
	turn *turn
	wake chan struct{} // holds one token when there is something new

	mu      sync.Mutex
	queue   []Delta
	bytes   int
	dropped int64
	ended   bool
}

func newSubscription(t *turn) *Subscription {
	return &Subscription{turn: t, wake: make(chan struct{}, 1)}
}

func size(u acp.Update) int {
	n := len(u.Text)
	if u.Tool != nil {
		n += len(u.Tool.ID) + len(u.Tool.Title) + len(u.Tool.Kind) + len(u.Tool.Status)
	}
	return n
}

func (s *Subscription) publish(u acp.Update) {
	s.mu.Lock()
	if n := size(u); len(s.queue) >= feedUpdates || s.bytes+n > feedBytes {
		s.dropped++
	} else {
		s.queue = append(s.queue, Delta{Update: &u, Dropped: s.dropped})
		s.bytes += n
		s.dropped = 0
	}
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription) end() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.signal()
}

func (s *Subscription) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Next waits for the next update. ok is false when the turn has ended and all was given.
func (s *Subscription) Next(ctx context.Context) (d Delta, ok bool, err error) {
	for {
		s.mu.Lock()
		switch {
		case len(s.queue) > 0:
			d = s.queue[0]
			s.queue[0] = Delta{}
			s.queue = s.queue[1:]
			s.bytes -= size(*d.Update)
			s.mu.Unlock()
			return d, true, nil
		case s.ended && s.dropped > 0:
			d.Dropped, s.dropped = s.dropped, 0
			s.mu.Unlock()
			return d, true, nil
		case s.ended:
			s.mu.Unlock()
			return Delta{}, false, nil
		}
		s.mu.Unlock()
		select {
		case <-s.wake:
		case <-ctx.Done():
			return Delta{}, false, ctx.Err()
		}
	}
}

// Result is the turn's, once Next has said that it ended.
func (s *Subscription) Result() Result { return s.turn.result }

// Close stops following.
func (s *Subscription) Close() { s.turn.unsubscribe(s) }
