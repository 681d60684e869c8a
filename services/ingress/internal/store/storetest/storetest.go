// Package storetest is what holds of every store of turns. It runs against a real database.
package storetest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// Store is all of a store.
type Store interface {
	store.Turns
	store.Reads
	store.Instances
	Listen(ctx context.Context, l store.Listener) error
	Announce(ctx context.Context, c turn.Conversation, turnID string) error
}

// Run runs the suite; open returns a store over an empty database.
func Run(t *testing.T, open func(t *testing.T) Store) {
	for name, test := range map[string]func(*testing.T, *fixture){
		"Accept":           testAccept,
		"Direct":           testDirect,
		"Limits":           testLimits,
		"Keys":             testKeys,
		"Claim":            testClaim,
		"ClaimRefused":     testClaimRefused,
		"ClaimRace":        testClaimRace,
		"End":              testEnd,
		"EndOnce":          testEndOnce,
		"AlreadyDelivered": testAlreadyDelivered,
		"Cancel":           testCancel,
		"Events":           testEvents,
		"Unaccepted":       testUnaccepted,
		"TakeOver":         testTakeOver,
		"TakeOverOfClaim":  testTakeOverOfClaim,
		"Listen":           testListen,
		"Pages":            testPages,
		"Files":            testFiles,
		"Replay":           testReplay,
		"AppendFiles":      testAppendFiles,
		"AppendFilesRace":  testAppendFilesRace,
		"FileNotice":       testFileNotice,
		"Attachments":      testAttachments,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, &fixture{Store: open(t), c: turn.Conversation{Organization: "acme", ID: "c1"}})
		})
	}
}

type fixture struct {
	Store
	c turn.Conversation
}

// submission makes a turn of two messages.
func (f *fixture) submission(id, key string) store.Submission {
	block := func(text string) turn.Block {
		raw := []byte(`{"type":"text","text":"` + text + `"}`)
		sum := sha256.Sum256(raw)
		return turn.Block{Type: "text", SHA256: sum[:], Size: int64(len(raw)), Raw: raw}
	}
	return store.Submission{Conversation: f.c, TurnID: id, IdempotencyKey: key, BodySHA256: sha256.Sum256([]byte(id)), MaxWaiting: 100,
		Messages: []turn.Message{{InboundID: id + "-0", Blocks: []turn.Block{block("a"), block("b")}}, {InboundID: id + "-1", Blocks: []turn.Block{block(id)}}}}
}

func (f *fixture) accept(t *testing.T, id string) store.Acceptance {
	t.Helper()
	a, err := f.Accept(t.Context(), f.submission(id, ""), nil)
	if err != nil {
		t.Fatalf("Accept: %v", err)
	}
	return a
}

// instance registers an instance until the returned function, or the test, ends.
func (f *fixture) instance(t *testing.T) (int32, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ids, done := make(chan int32, 1), make(chan error, 1)
	var held sync.WaitGroup
	held.Go(func() { done <- f.Hold(ctx, func(id int32) { ids <- id }) })
	stop := func() { cancel(); held.Wait() }
	t.Cleanup(stop)
	select {
	case id := <-ids:
		return id, stop
	case err := <-done:
		t.Fatalf("Hold: %v", err)
		return 0, nil
	}
}

func at(watermark int64) func(context.Context) (store.Placed, error) {
	return func(context.Context) (store.Placed, error) {
		return store.Placed{SessionID: "s1", Epoch: 3, Watermark: watermark}, nil
	}
}

func (f *fixture) claim(t *testing.T, instance int32) store.Claimed {
	t.Helper()
	claimed, err := f.Claim(t.Context(), f.c, instance, "", at(7))
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	return claimed
}

func replied(r turn.Run, instance int32, ids ...int64) store.Ending {
	e := store.Ending{Run: r, Instance: instance, Rows: outcome.Rows{User: 10, Users: []int64{10}, End: 100}, Decision: outcome.Decision{State: turn.Replied, Replies: ids}}
	if len(ids) == 0 {
		e.Decision = outcome.Decision{State: turn.Failed, Error: &turn.Error{Reason: "WHY", Message: "because", Retryable: true}}
	}
	return e
}

func want(t *testing.T, err, target error) {
	t.Helper()
	if !errors.Is(err, target) {
		t.Errorf("error = %v, want %v", err, target)
	}
}

func testAccept(t *testing.T, f *fixture) {
	for i := range int64(3) {
		a := f.accept(t, fmt.Sprint("t", i))
		if a.Turn.Position != i+1 || a.Sequence != i+1 || !a.Claimable || a.Replayed || a.Turn.State != turn.Accepted || a.Turn.Created.IsZero() {
			t.Errorf("Accept = %+v", a)
		}
	}
	got, err := f.Turn(t.Context(), f.c, "t1")
	if err != nil {
		t.Fatal(err)
	}
	sub := f.submission("t1", "")
	if len(got.Messages) != 2 || len(got.Messages[0].Blocks) != 2 || got.Messages[1].InboundID != "t1-1" ||
		string(got.Messages[1].Blocks[0].SHA256) != string(sub.Messages[1].Blocks[0].SHA256) || got.Messages[0].Blocks[0].Raw != nil {
		t.Errorf("Turn's messages = %+v", got.Messages)
	}
	blocks, err := f.Blocks(t.Context(), f.c, "t1")
	if err != nil || len(blocks) != 3 || string(blocks[2].Raw) != string(sub.Messages[1].Blocks[0].Raw) {
		t.Errorf("Blocks = %+v, %v", blocks, err)
	}
	_, err = f.Turn(t.Context(), f.c, "nothing")
	want(t, err, store.ErrNotFound)
}

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

func testLimits(t *testing.T, f *fixture) {
	sub := func(id string) store.Submission {
		s := f.submission(id, "key-"+id)
		s.MaxWaiting = 2
		return s
	}
	for _, id := range []string{"t1", "t2"} {
		if _, err := f.Accept(t.Context(), sub(id), nil); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.Accept(t.Context(), sub("t3"), nil)
	want(t, err, store.ErrQueueFull)
	if a, err := f.Accept(t.Context(), sub("t1"), nil); err != nil || !a.Replayed {
		t.Errorf("replay beyond the limit = %+v, %v", a, err)
	}
	busy := sub("t4")
	busy.RejectBusy = true
	_, err = f.Accept(t.Context(), busy, nil)
	want(t, err, store.ErrBusy)
	// A claim makes room; a refused key was not kept.
	me, _ := f.instance(t)
	f.claim(t, me)
	if a, err := f.Accept(t.Context(), sub("t3"), nil); err != nil || a.Replayed || a.Claimable {
		t.Errorf("Accept after a claim = %+v, %v", a, err)
	}
	if seq, err := f.LastSequence(t.Context(), f.c); err != nil || seq != 4 {
		t.Errorf("LastSequence = %d, %v, want 4: refusals leave no event", seq, err)
	}
}

func testKeys(t *testing.T, f *fixture) {
	first, err := f.Accept(t.Context(), f.submission("t1", "k"), nil)
	if err != nil || first.Replayed {
		t.Fatalf("Accept = %+v, %v", first, err)
	}
	again := f.submission("t1", "k")
	again.TurnID = "t2"
	if a, err := f.Accept(t.Context(), again, nil); err != nil || !a.Replayed || a.Turn.ID != "t1" || len(a.Turn.Messages) != 2 {
		t.Errorf("replay = %+v, %v", a, err)
	}
	_, err = f.Accept(t.Context(), f.submission("t3", "k"), nil)
	want(t, err, store.ErrKeyReused)
	f.c.ID = "c2"
	if a, err := f.Accept(t.Context(), f.submission("t1", "k"), nil); err != nil || a.Replayed {
		t.Errorf("the key in another conversation = %+v, %v", a, err)
	}
}

func testClaim(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	_, err := f.Claim(t.Context(), f.c, me, "", at(7))
	want(t, err, store.ErrNothingToClaim)
	f.accept(t, "t1")
	f.accept(t, "t2")
	if got, err := f.Claimable(t.Context(), turn.Conversation{}, 10); err != nil || !slices.Equal(got, []turn.Conversation{f.c}) {
		t.Errorf("Claimable = %v, %v", got, err)
	}
	claimed := f.claim(t, me)
	r := claimed.Run
	if r.TurnID != "t1" || r.Attempt != 1 || r.SessionID != "s1" || r.Epoch != 3 || r.Watermark != 7 || r.Owner != me || len(r.Blocks) != 3 || claimed.Sequence != 3 {
		t.Errorf("Claim = %+v", claimed)
	}
	got, err := f.Running(t.Context(), f.c)
	r.Blocks = nil
	if err != nil || got.TurnID != r.TurnID || got.Watermark != 7 || got.Owner != me {
		t.Errorf("Running = %+v, %v, want %+v", got, err, r)
	}
	_, err = f.Claim(t.Context(), f.c, me, "", at(7))
	want(t, err, store.ErrNothingToClaim)
	if got, err := f.Claimable(t.Context(), turn.Conversation{}, 10); err != nil || len(got) != 0 {
		t.Errorf("Claimable while a turn runs = %v, %v", got, err)
	}
}

func testClaimRefused(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	no := errors.New("no watermark")
	_, err := f.Claim(t.Context(), f.c, me, "", func(context.Context) (store.Placed, error) { return store.Placed{}, no })
	want(t, err, no)
	_, err = f.Claim(t.Context(), f.c, me+1000, "", at(7))
	want(t, err, store.ErrNotOwner)
	if got := f.claim(t, me); got.Run.Attempt != 1 || got.Sequence != 2 {
		t.Errorf("Claim after refusals = %+v, want the first attempt and event 2", got)
	}
}

func testClaimRace(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	for i := range 3 {
		f.accept(t, fmt.Sprint("t", i))
	}
	var mu sync.Mutex
	var got []string
	inside := make(chan struct{})
	var wg sync.WaitGroup
	barrier := make(chan struct{})
	for range 5 {
		wg.Go(func() {
			<-barrier
			claimed, err := f.Claim(t.Context(), f.c, me, "", func(ctx context.Context) (store.Placed, error) {
				// Nothing tells that the others wait for the lock; without it they would meet here.
				select {
				case inside <- struct{}{}:
					t.Error("two claims of one conversation at once")
				case <-inside:
				case <-time.After(200 * time.Millisecond):
				}
				return at(7)(ctx)
			})
			if err == nil {
				mu.Lock()
				got = append(got, claimed.Run.TurnID)
				mu.Unlock()
			} else {
				want(t, err, store.ErrNothingToClaim)
			}
		})
	}
	close(barrier)
	wg.Wait()
	if !slices.Equal(got, []string{"t0"}) {
		t.Errorf("claimed %v, want t0 once", got)
	}
}

func testEnd(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	f.accept(t, "t2")
	e := replied(f.claim(t, me).Run, me, 12, 14)
	ms := 1.5
	e.Timings.ModelToolLoop = &ms
	ended, err := f.End(t.Context(), e)
	if err != nil || !ended.Waiting || len(ended.Events) != 3 {
		t.Fatalf("End = %+v, %v", ended, err)
	}
	logged, err := f.Events(t.Context(), f.c, 3, 10)
	if err != nil || len(logged) != 3 {
		t.Fatalf("Events = %+v, %v", logged, err)
	}
	for i := range logged {
		a, b := logged[i], ended.Events[i]
		if a.Sequence != b.Sequence || a.Type != b.Type || a.TurnID != b.TurnID || a.State != b.State || *a.Locator != *b.Locator || !a.Created.Equal(b.Created) {
			t.Errorf("event %d is told as %+v and logged as %+v", i, b, a)
		}
	}
	got, err := f.Turn(t.Context(), f.c, "t1")
	if err != nil || got.State != turn.Replied || !slices.Equal(got.Replies, []turn.Locator{{SessionID: "s1", MessageID: 12}, {SessionID: "s1", MessageID: 14}}) ||
		got.Ended.IsZero() || got.Timings.ModelToolLoop == nil || *got.Timings.ModelToolLoop != 1.5 || got.Timings.ColdAdmission != nil {
		t.Errorf("Turn = %+v, %v", got, err)
	}
	if blocks, err := f.Blocks(t.Context(), f.c, "t1"); err != nil || blocks[0].Raw != nil || len(blocks[0].SHA256) != 32 {
		t.Errorf("Blocks after the end = %+v, %v, want digests only", blocks, err)
	}
	failing := replied(f.claim(t, me).Run, me)
	failing.Decision.KeepBlocks = true
	if ended, err = f.End(t.Context(), failing); err != nil || ended.Waiting {
		t.Errorf("End = %+v, %v", ended, err)
	}
	if got, err = f.Turn(t.Context(), f.c, "t2"); err != nil || got.Error == nil || *got.Error != *failing.Decision.Error {
		t.Errorf("Turn = %+v, %v", got, err)
	}
	if blocks, err := f.Blocks(t.Context(), f.c, "t2"); err != nil || blocks[0].Raw == nil {
		t.Errorf("Blocks = %+v, %v, want them kept", blocks, err)
	}
	logged, err = f.Events(t.Context(), f.c, ended.Events[0].Sequence-1, 10)
	if err != nil || len(logged) != 1 || logged[0].Error == nil || logged[0].Error.Reason != "WHY" || logged[0].Locator != nil {
		t.Errorf("Events = %+v, %v", logged, err)
	}
}

func testEndOnce(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	r := f.claim(t, me).Run
	other := replied(r, me+1000, 12)
	_, err := f.End(t.Context(), other)
	want(t, err, store.ErrNotOwner)
	stale := replied(r, me, 12)
	stale.Run.Attempt = 9
	_, err = f.End(t.Context(), stale)
	want(t, err, store.ErrNotOwner)
	var wg sync.WaitGroup
	ends := make(chan error, 5)
	for range 5 {
		wg.Go(func() { _, err := f.End(t.Context(), replied(r, me, 12)); ends <- err })
	}
	wg.Wait()
	close(ends)
	done := 0
	for err := range ends {
		if err == nil {
			done++
		} else {
			want(t, err, store.ErrNotOwner)
		}
	}
	if seq, err := f.LastSequence(t.Context(), f.c); done != 1 || seq != 4 || err != nil {
		t.Errorf("the turn ended %d times, last event %d, %v", done, seq, err)
	}
}

func testAlreadyDelivered(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	f.accept(t, "t2")
	if _, err := f.End(t.Context(), replied(f.claim(t, me).Run, me, 12)); err != nil {
		t.Fatal(err)
	}
	r := f.claim(t, me).Run
	_, err := f.End(t.Context(), replied(r, me, 12, 13))
	want(t, err, store.ErrAlreadyDelivered)
	if got, err := f.Turn(t.Context(), f.c, "t2"); err != nil || got.State != turn.Running || len(got.Replies) != 0 {
		t.Errorf("Turn = %+v, %v, want it unchanged", got, err)
	}
	if _, err := f.End(t.Context(), replied(r, me)); err != nil {
		t.Errorf("End without replies: %v", err)
	}
}

func testCancel(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	f.accept(t, "t2")
	r := f.claim(t, me).Run
	out, err := f.Cancel(t.Context(), f.c, "t2")
	if err != nil || out.Run != nil || out.Turn.State != turn.Cancelled || len(out.Events) != 1 || out.Events[0].Sequence != 4 {
		t.Errorf("Cancel of a waiting turn = %+v, %v", out, err)
	}
	if blocks, err := f.Blocks(t.Context(), f.c, "t2"); err != nil || blocks[0].Raw != nil {
		t.Errorf("Blocks = %+v, %v, want them deleted", blocks, err)
	}
	for range 2 {
		out, err = f.Cancel(t.Context(), f.c, "t1")
		if err != nil || out.Run == nil || out.Run.Attempt != r.Attempt || !out.Run.CancelRequested || out.Turn.State != turn.Running || len(out.Events) != 0 {
			t.Errorf("Cancel of a running turn = %+v, %v", out, err)
		}
	}
	if ended, err := f.End(t.Context(), replied(r, me, 12)); err != nil || ended.Waiting {
		t.Errorf("End = %+v, %v, want nothing waiting", ended, err)
	}
	if out, err = f.Cancel(t.Context(), f.c, "t1"); err != nil || out.Run != nil || out.Turn.State != turn.Replied || len(out.Events) != 0 {
		t.Errorf("Cancel of an ended turn = %+v, %v", out, err)
	}
	_, err = f.Cancel(t.Context(), f.c, "nothing")
	want(t, err, store.ErrNotFound)
}

func testEvents(t *testing.T, f *fixture) {
	if got, err := f.Events(t.Context(), f.c, 0, 10); err != nil || len(got) != 0 {
		t.Errorf("Events of a new conversation = %v, %v", got, err)
	}
	_, err := f.Events(t.Context(), f.c, 1, 10)
	want(t, err, store.ErrUnknownSequence)
	for i := range 5 {
		f.accept(t, fmt.Sprint("t", i))
	}
	got, err := f.Events(t.Context(), f.c, 1, 3)
	if err != nil || len(got) != 3 || got[0].Sequence != 2 || got[2].Sequence != 4 || got[0].Type != turn.EventAccepted || got[0].TurnID != "t1" {
		t.Errorf("Events = %+v, %v", got, err)
	}
	_, err = f.Events(t.Context(), f.c, 6, 3)
	want(t, err, store.ErrUnknownSequence)
}

func testUnaccepted(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	f.accept(t, "t1")
	f.accept(t, "t2")
	e := replied(f.claim(t, me).Run, me, 12) // watermark 7, own row 10, end 100
	if _, err := f.End(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	rows := []int64{7, 10, 50, 100, 101, 500}
	if got, err := f.Unaccepted(t.Context(), f.c, rows); err != nil || !sameSet(got, []int64{50, 100}) {
		t.Errorf("Unaccepted = %v, %v", got, err)
	}
	if _, err := f.Claim(t.Context(), f.c, me, "", at(100)); err != nil {
		t.Fatal(err)
	}
	if got, err := f.Unaccepted(t.Context(), f.c, rows); err != nil || !sameSet(got, []int64{50, 100, 101, 500}) {
		t.Errorf("Unaccepted while a turn runs = %v, %v", got, err)
	}
}

func sameSet(a, b []int64) bool {
	slices.Sort(a)
	return slices.Equal(a, b)
}

func testTakeOver(t *testing.T, f *fixture) {
	dead, kill := f.instance(t)
	me, _ := f.instance(t)
	if ids, err := f.Peers(t.Context()); err != nil || !slices.Equal(ids, []int32{dead, me}) {
		t.Errorf("Peers = %v, %v", ids, err)
	}
	f.accept(t, "t1")
	r := f.claim(t, dead).Run
	free := make(chan error, 1)
	go func() { free <- f.AwaitDeath(t.Context(), dead) }()
	select {
	case err := <-free:
		t.Fatalf("AwaitDeath of a living instance returned %v", err)
	default:
	}
	kill()
	if err := <-free; err != nil {
		t.Fatalf("AwaitDeath: %v", err)
	}
	runs, err := f.TakeOver(t.Context(), dead, me)
	if err != nil || len(runs) != 1 || runs[0].TurnID != r.TurnID || runs[0].Owner != me || runs[0].Attempt != r.Attempt || runs[0].Watermark != r.Watermark {
		t.Errorf("TakeOver = %+v, %v", runs, err)
	}
	if runs, err = f.TakeOver(t.Context(), dead, me); err != nil || len(runs) != 0 {
		t.Errorf("second TakeOver = %+v, %v", runs, err)
	}
	_, err = f.End(t.Context(), replied(r, dead, 12))
	want(t, err, store.ErrNotOwner)
	if _, err = f.End(t.Context(), replied(r, me, 12)); err != nil {
		t.Errorf("End by the new owner: %v", err)
	}
	f.accept(t, "t2")
	_, err = f.Claim(t.Context(), f.c, dead, "", at(7))
	want(t, err, store.ErrNotOwner)
}

// A claim and the takeover of its owner exclude each other: the claim is taken over, or fails.
func testTakeOverOfClaim(t *testing.T, f *fixture) {
	for i := range 10 {
		dead, kill := f.instance(t)
		me, _ := f.instance(t)
		f.c.ID = fmt.Sprint("c", i)
		f.accept(t, "t1")
		kill()
		var claimErr error
		var runs []turn.Run
		var wg sync.WaitGroup
		wg.Go(func() { _, claimErr = f.Claim(t.Context(), f.c, dead, "", at(7)) })
		wg.Go(func() {
			var err error
			if runs, err = f.TakeOver(t.Context(), dead, me); err != nil {
				t.Errorf("TakeOver: %v", err)
			}
		})
		wg.Wait()
		if (claimErr == nil) != (len(runs) == 1) {
			t.Errorf("the claim gave %v and the takeover %v", claimErr, runs)
		}
		if claimErr != nil {
			want(t, claimErr, store.ErrNotOwner)
		}
	}
}

// listener passes what it hears on.
type listener struct {
	connected chan struct{}
	notices   chan store.Notice
}

func (l *listener) Connected(context.Context) error { close(l.connected); return nil }
func (l *listener) Notified(n store.Notice)         { l.notices <- n }

func testListen(t *testing.T, f *fixture) {
	l := &listener{make(chan struct{}), make(chan store.Notice, 100)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- f.Listen(ctx, l) }()
	<-l.connected
	me, _ := f.instance(t)
	f.accept(t, "t1")
	r := f.claim(t, me).Run
	if err := f.Announce(t.Context(), f.c, "t1"); err != nil {
		t.Fatal(err)
	}
	if _, err := f.End(t.Context(), replied(r, me, 12)); err != nil {
		t.Fatal(err)
	}
	for _, w := range []store.Notice{
		{Instance: me},
		{Conversation: f.c, TurnID: "t1", Sequence: 1},
		{Conversation: f.c, TurnID: "t1", Sequence: 2},
		{Conversation: f.c, TurnID: "t1", Live: true},
		{Conversation: f.c, TurnID: "t1", Sequence: 4, Ended: true},
	} {
		if got := <-l.notices; got != w {
			t.Errorf("notice = %+v, want %+v", got, w)
		}
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Listen = %v, want its context's end", err)
	}
}

func testPages(t *testing.T, f *fixture) {
	for i := range 5 {
		f.accept(t, fmt.Sprint("t", i))
		f.c.ID = fmt.Sprint("c", i+2)
	}
	var got []turn.Conversation
	for after := (turn.Conversation{}); ; after = got[len(got)-1] {
		page, err := f.Claimable(t.Context(), after, 2)
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		got = append(got, page...)
	}
	if len(got) != 5 || !slices.IsSortedFunc(got, func(a, b turn.Conversation) int { return int(a.ID[1]) - int(b.ID[1]) }) {
		t.Errorf("Claimable in pages = %v", got)
	}
	f.c.ID = "c1"
	for i := range 3 {
		f.accept(t, fmt.Sprint("u", i))
	}
	turns, err := f.Turns(t.Context(), f.c, 1, 2)
	if err != nil || len(turns) != 2 || turns[0].ID != "u0" || turns[1].ID != "u1" || len(turns[1].Messages) != 2 {
		t.Errorf("Turns = %+v, %v", turns, err)
	}
}
