// Package wake has the two ways goroutines of ingress wait for something outside: a signal that
// wakes all who wait, and growing pauses between attempts that fail.
package wake

import (
	"context"
	"sync"
	"time"
)

// Signal wakes everybody who took its channel before it fired. The zero Signal is ready.
type Signal struct {
	mu sync.Mutex
	ch chan struct{}
}

// C returns a channel that is closed by the next Fire. Take it before trying what may have to
// wait: a Fire in between is not lost then.
func (s *Signal) C() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch == nil {
		s.ch = make(chan struct{})
	}
	return s.ch
}

// Fire wakes them.
func (s *Signal) Fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ch != nil {
		close(s.ch)
		s.ch = nil
	}
}

// Backoff is the pause between attempts: none before the first repetition, then doubling from
// firstPause to lastPause. The zero Backoff is ready.
type Backoff struct{ next time.Duration }

const (
	firstPause = 20 * time.Millisecond
	lastPause  = 3 * time.Second
)

// Pause waits; its error is the context's.
func (b *Backoff) Pause(ctx context.Context) error {
	d := b.next
	b.next = min(max(2*d, firstPause), lastPause)
	if d == 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reset makes the next pause the first again.
func (b *Backoff) Reset() { b.next = 0 }
