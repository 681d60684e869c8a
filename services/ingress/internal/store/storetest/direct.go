package storetest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

func testDirect(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	direct := &store.Direct{Instance: me, Place: at(7)}
	a, err := f.Accept(t.Context(), f.submission("t1", "k"), direct)
	if err != nil || a.Claimed == nil || a.Sequence != 1 || a.Claimed.Sequence != 2 || a.Claimed.Run.Watermark != 7 || a.Claimed.Run.Attempt != 1 || len(a.Claimed.Run.Blocks) != 3 {
		t.Fatalf("Accept = %+v, %v, want a claimed turn", a, err)
	}
	if got, err := f.Turn(t.Context(), f.c, "t1"); err != nil || got.State != turn.Running {
		t.Errorf("Turn = %+v, %v, want running", got, err)
	}
	// Behind a running turn it only waits; the same key finds the first.
	if a, err = f.Accept(t.Context(), f.submission("t2", ""), direct); err != nil || a.Claimed != nil || a.Claimable {
		t.Errorf("second Accept = %+v, %v, want a waiting turn", a, err)
	}
	if a, err = f.Accept(t.Context(), f.submission("t1", "k"), direct); err != nil || !a.Replayed || a.Claimed != nil {
		t.Errorf("repeated Accept = %+v, %v, want a replay", a, err)
	}
	// What fails about the claim does not touch the acceptance.
	f.c.ID = "c2"
	failing := &store.Direct{Instance: me, Place: func(context.Context) (store.Placed, error) { return store.Placed{}, errors.New("no watermark") }}
	if a, err = f.Accept(t.Context(), f.submission("t3", ""), failing); err != nil || a.Claimed != nil || !a.Claimable {
		t.Errorf("Accept without a watermark = %+v, %v, want a claimable turn", a, err)
	}
	f.c.ID = "c3"
	if a, err = f.Accept(t.Context(), f.submission("t4", ""), &store.Direct{Instance: me + 1000, Place: at(7)}); err != nil || a.Claimed != nil || !a.Claimable {
		t.Errorf("Accept by an instance taken over = %+v, %v, want a claimable turn", a, err)
	}
}

// A watermark that was read before the conversation's last turn had ended is not committed: that
// turn's reply would be taken for the next one's.
func testDirectWatermark(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	before := f.claim(t, me).Run
	// It ends, at watermark 100, after the next acceptance has read its first watermark.
	var calls atomic.Int32
	ended := make(chan error, 1)
	place := func(context.Context) (store.Placed, error) {
		if calls.Add(1) == 1 {
			_, err := f.End(t.Context(), replied(before, me, 12))
			ended <- err
			return store.Placed{SessionID: "s1", Epoch: 1, Watermark: 99}, nil
		}
		return store.Placed{SessionID: "s1", Epoch: 1, Watermark: 101}, nil
	}
	a, err := f.Accept(t.Context(), f.submission("t2", ""), &store.Direct{Instance: me, Place: place})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	// Which of the two had the lock first is open.
	if a.Claimed == nil {
		a.Claimed = &store.Claimed{}
		if *a.Claimed, err = f.Claim(t.Context(), f.c, me, at(101)); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.Claimed.Run.Watermark; got != 101 {
		t.Errorf("watermark = %d, want the second, 101", got)
	}
	if _, err := f.End(t.Context(), replied(a.Claimed.Run, me, 110)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		id        string
		first     int64
		withdrawn bool // the turn before was, and tells nothing
		calls     int32
	}{{"t3", 99, false, 2}, {"t4", 100, false, 1}, {"t5", 100, true, 2}} {
		if c.withdrawn {
			f.accept(t, "w")
			if _, err := f.Cancel(t.Context(), f.c, "w"); err != nil {
				t.Fatal(err)
			}
		}
		calls.Store(0)
		a, err := f.Accept(t.Context(), f.submission(c.id, ""), &store.Direct{Instance: me, Place: func(context.Context) (store.Placed, error) {
			return store.Placed{SessionID: "s1", Epoch: 1, Watermark: c.first + int64(calls.Add(1)) - 1}, nil
		}})
		if err != nil || a.Claimed == nil {
			t.Fatalf("%s: Accept = %+v, %v, want a claimed turn", c.id, a, err)
		}
		if got, want := a.Claimed.Run.Watermark, c.first+int64(c.calls)-1; calls.Load() != c.calls || got != want {
			t.Errorf("%s: watermark %d after %d calls, want %d after %d", c.id, got, calls.Load(), want, c.calls)
		}
		if _, err := f.End(t.Context(), replied(a.Claimed.Run, me, 200+a.Turn.Position)); err != nil {
			t.Fatal(err)
		}
	}
}
