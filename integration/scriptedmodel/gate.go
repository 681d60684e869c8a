package scriptedmodel

import (
	"context"
	"sync"
)

// Gate holds scripted answers until a test lets them go. Nothing about it depends on time.
type Gate struct {
	mu      sync.Mutex
	arrived int
	permits int
	open    bool
	changed chan struct{} // closed and replaced at every change
}

func newGate() *Gate { return &Gate{changed: make(chan struct{})} }

// Arrived waits until at least n answers have come to the gate in all, those that passed included.
func (g *Gate) Arrived(ctx context.Context, n int) error {
	return g.until(ctx, func() bool { return g.arrived >= n })
}

// Step lets one answer pass: one that waits, or else the next that comes.
func (g *Gate) Step() {
	g.change(func() { g.permits++ })
}

// Release opens the gate for all that wait and all that come later.
func (g *Gate) Release() {
	g.change(func() { g.open = true })
}

// Shut closes the gate again after Release and takes back unused steps.
func (g *Gate) Shut() {
	g.change(func() { g.open, g.permits = false, 0 })
}

func (g *Gate) pass(ctx context.Context) error {
	g.change(func() { g.arrived++ })
	return g.until(ctx, func() bool {
		if g.open {
			return true
		}
		if g.permits > 0 {
			g.permits--
			return true
		}
		return false
	})
}

func (g *Gate) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
	close(g.changed)
	g.changed = make(chan struct{})
}

func (g *Gate) until(ctx context.Context, ok func() bool) error {
	for {
		g.mu.Lock()
		done, changed := ok(), g.changed
		g.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
