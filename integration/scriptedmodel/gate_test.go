package scriptedmodel

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestGate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, passed, left := newGate(), 0, errors.New("left")
		ctx, leave := context.WithCancelCause(t.Context())
		var gone []error
		come := func(n int) {
			for range n {
				go func() {
					if err := g.pass(ctx); err != nil {
						gone = append(gone, err)
						return
					}
					passed++
				}()
				synctest.Wait()
			}
		}
		expect := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if passed != want {
				t.Errorf("%s: %d passed, want %d", when, passed, want)
			}
		}
		come(2)
		expect("closed", 0)
		g.Step()
		expect("one step, two waiting", 1)
		g.Step()
		g.Step()
		expect("two steps, one waiting", 2)
		come(2)
		expect("one step saved, two come", 3)
		g.Release()
		expect("released", 4)
		come(2)
		expect("two come to the open gate", 6)
		g.Step()
		g.Shut()
		come(1)
		expect("shut, its unused step taken back", 6)
		if err := g.Arrived(t.Context(), 7); err != nil {
			t.Error(err)
		}
		leave(left)
		synctest.Wait()
		if passed != 6 || len(gone) != 1 || !errors.Is(gone[0], left) {
			t.Errorf("left: %d passed, errors %v; want 6 and the cause", passed, gone)
		}
		if err := g.Arrived(ctx, 8); !errors.Is(err, left) {
			t.Errorf("waiting for one more: %v, want the cause", err)
		}
	})
}
