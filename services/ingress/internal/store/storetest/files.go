package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"humanwork.internal/services/ingress/internal/inline"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// withFiles makes a turn of a text, a block that names a file, and one whose data is in another.
func (f *fixture) withFiles(id, key string) store.Submission {
	sub := f.submission(id, key)
	blocks := append(sub.Messages[0].Blocks, sub.Messages[1].Blocks[0])
	blocks[1].File = &turn.File{URI: "file:///workspace/" + id, Name: "the " + id, Size: 1 << 40}
	blocks[2].File = &turn.File{URI: "file:///artifacts/inbound/1/a%20b", Name: "a b", MimeType: "image/png", SHA256: bytes.Repeat([]byte{7}, 32)}
	blocks[2].Data = &turn.Data{URI: blocks[2].File.URI, Cut: inline.Cut{Offset: 5, Escaped: true}}
	sub.Messages = []turn.Message{{InboundID: id + "-0", Blocks: blocks}}
	return sub
}

func sameFiles(t *testing.T, what string, got, want []turn.Block) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s has %d blocks, want %d", what, len(got), len(want))
	}
	for i := range want {
		if !reflect.DeepEqual(got[i].File, want[i].File) || !reflect.DeepEqual(got[i].Data, want[i].Data) {
			t.Errorf("%s: block %d has %+v, %+v, want %+v, %+v", what, i, got[i].File, got[i].Data, want[i].File, want[i].Data)
		}
	}
}

func testFiles(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	sub := f.withFiles("t1", "")
	want := sub.Messages[0].Blocks
	a, err := f.Accept(t.Context(), sub, nil)
	if err != nil {
		t.Fatalf("Accept: %v", err)
	}
	sameFiles(t, "Accept", a.Turn.Messages[0].Blocks, want)
	got, err := f.Turn(t.Context(), f.c, "t1")
	if err != nil {
		t.Fatalf("Turn: %v", err)
	}
	sameFiles(t, "Turn", got.Messages[0].Blocks, want)
	refused, err := f.Claim(t.Context(), f.c, me, "another", at(7))
	if !errors.Is(err, store.ErrFilesFirst) || refused.Run.TurnID != "t1" {
		t.Fatalf("Claim of a turn whose files are not ready = %+v, %v, want %v", refused, err, store.ErrFilesFirst)
	}
	sameFiles(t, "the refused Claim", refused.Run.Blocks, want)
	if got, err := f.Turn(t.Context(), f.c, "t1"); err != nil || got.State != turn.Accepted {
		t.Fatalf("Turn = %+v, %v, want it to wait", got, err)
	}
	claimed, err := f.Claim(t.Context(), f.c, me, "t1", at(7))
	if err != nil {
		t.Fatalf("Claim: %v", err)
	}
	r := claimed.Run
	sameFiles(t, "Claim", r.Blocks, want)
	blocks, err := f.Blocks(t.Context(), f.c, "t1")
	if err != nil {
		t.Fatalf("Blocks: %v", err)
	}
	sameFiles(t, "Blocks", blocks, want)
	if _, err := f.End(t.Context(), replied(r, me, 12)); err != nil {
		t.Fatalf("End: %v", err)
	}
	// What was said of files outlives the bytes of the blocks.
	if got, err = f.Turn(t.Context(), f.c, "t1"); err != nil {
		t.Fatalf("Turn: %v", err)
	}
	sameFiles(t, "the ended turn", got.Messages[0].Blocks, want)
}

func testReplay(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	sub := f.submission("t1", "key")
	replay := func(sub store.Submission) (store.Acceptance, bool, error) {
		t.Helper()
		a, found, err := f.Replay(t.Context(), sub)
		if n, _ := f.LastSequence(t.Context(), f.c); n > 2 {
			t.Errorf("%d events: Replay changed something", n)
		}
		return a, found, err
	}
	if a, found, err := replay(sub); found || err != nil {
		t.Errorf("Replay before the turn = %+v, %v, %v", a, found, err)
	}
	if _, err := f.Accept(t.Context(), sub, nil); err != nil {
		t.Fatal(err)
	}
	f.claim(t, me)
	again := sub
	again.TurnID, again.MaxWaiting = "t2", 0
	if a, found, err := replay(again); !found || err != nil || !a.Replayed || a.Turn.ID != "t1" || a.Turn.State != turn.Running || len(a.Turn.Messages) != 2 {
		t.Errorf("Replay = %+v, %v, %v, want the running turn", a, found, err)
	}
	again.BodySHA256[0]++
	_, _, err := replay(again)
	want(t, err, store.ErrKeyReused)
	again.IdempotencyKey = "other"
	_, _, err = replay(again)
	want(t, err, store.ErrQueueFull)
	again.MaxWaiting, again.RejectBusy = 1, true
	_, _, err = replay(again)
	want(t, err, store.ErrBusy)
	again.RejectBusy, again.IdempotencyKey = false, ""
	if _, found, err := replay(again); found || err != nil {
		t.Errorf("Replay of a new turn = %v, %v", found, err)
	}
}

// changes makes one change at each position.
func changes(positions ...int64) (out []turn.FileChange) {
	for _, p := range positions {
		out = append(out, turn.FileChange{Position: p, URI: fmt.Sprint("file:///workspace/", p), Change: "written", Version: fmt.Sprint("7-", p)})
	}
	return out
}

func testAppendFiles(t *testing.T, f *fixture) {
	appendAll := func(generation string, c []turn.FileChange, first int64, want int) {
		t.Helper()
		events, err := f.AppendFiles(t.Context(), f.c, generation, c)
		if err != nil || len(events) != want {
			t.Fatalf("AppendFiles = %+v, %v, want %d events", events, err, want)
		}
		for i, e := range events {
			change := c[len(c)-want+i]
			change.Position = 0
			if e.Sequence != first+int64(i) || e.Type != turn.EventFile || e.TurnID != "" || *e.File != change || e.Created.IsZero() {
				t.Errorf("event %d = %+v (%+v), want sequence %d of %+v", i, e, e.File, first+int64(i), change)
			}
		}
		stored, err := f.Events(t.Context(), f.c, first-1, 100)
		if err != nil || len(stored) < want {
			t.Fatalf("Events = %+v, %v", stored, err)
		}
		for i := range events {
			if !reflect.DeepEqual(stored[i], events[i]) {
				t.Errorf("stored event = %+v, want %+v", stored[i], events[i])
			}
		}
	}
	appendAll("g1", changes(3, 5, 5), 1, 3) // the conversation has no turn yet
	if a := f.accept(t, "t1"); a.Sequence != 4 || a.Turn.Position != 1 {
		t.Errorf("Accept after file changes = %+v", a)
	}
	appendAll("g1", changes(3, 5, 5), 4, 0)
	appendAll("g1", changes(5, 6, 7), 5, 2)
	appendAll("g2", changes(1), 7, 1) // positions of another database
	appendAll("g1", changes(7, 9), 8, 1)
	moved := []turn.FileChange{{Position: 10, URI: "file:///workspace/b", Change: "renamed", Previous: "file:///workspace/a", Version: "1-2"}, {Position: 11, URI: "file:///workspace/b", Change: "removed"}}
	appendAll("g1", moved, 9, 2)
	if _, err := f.AppendFiles(t.Context(), f.c, "g1", changes(20, 19)); err == nil {
		t.Error("AppendFiles took positions that fall")
	}
	all, err := f.Events(t.Context(), f.c, 0, 100)
	if err != nil || len(all) != 10 || all[3].Type != turn.EventAccepted || all[3].TurnID != "t1" || all[3].File != nil {
		t.Errorf("Events = %+v, %v", all, err)
	}
}

// Calls that repeat each other at once, as after a lost answer, append each change once.
func testAppendFilesRace(t *testing.T, f *fixture) {
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range int64(10) {
				if _, err := f.AppendFiles(t.Context(), f.c, "g", changes(1+n, 2+n)); err != nil {
					t.Errorf("AppendFiles: %v", err)
				}
				if _, err := f.Accept(t.Context(), f.submission(fmt.Sprint("t", i, "-", n), ""), nil); err != nil {
					t.Errorf("Accept: %v", err)
				}
			}
		})
	}
	wg.Wait()
	events, err := f.Events(t.Context(), f.c, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	var uris []string
	for i, e := range events {
		if e.Sequence != int64(i+1) {
			t.Fatalf("event %d has sequence %d", i, e.Sequence)
		}
		if e.File != nil {
			uris = append(uris, e.File.URI)
		}
	}
	var want []string
	for _, c := range changes(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11) {
		want = append(want, c.URI)
	}
	if !slices.Equal(uris, want) || len(events) != 80+len(want) {
		t.Errorf("%d events with the changes %q, want %d and %q", len(events), uris, 80+len(want), want)
	}
}

func testFileNotice(t *testing.T, f *fixture) {
	l := &listener{make(chan struct{}), make(chan store.Notice, 100)}
	done := make(chan error, 1)
	ctx := t.Context()
	go func() { done <- f.Listen(ctx, l) }()
	<-l.connected
	if _, err := f.AppendFiles(t.Context(), f.c, "g", changes(1, 2)); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-l.notices:
		if want := (store.Notice{Conversation: f.c, Sequence: 2}); got != want {
			t.Errorf("notice = %+v, want %+v", got, want)
		}
	case err := <-done:
		t.Fatalf("Listen: %v", err)
	case <-time.After(10 * time.Second):
		t.Fatal("no notice of file changes")
	}
}

func testAttachments(t *testing.T, f *fixture) {
	me, _ := f.instance(t)
	list := func(after turn.Place, below int64, limit int) (got []string, last turn.Place) {
		t.Helper()
		found, err := f.Attachments(t.Context(), f.c, after, below, limit)
		if err != nil {
			t.Fatalf("Attachments: %v", err)
		}
		for _, a := range found {
			if a.Created.IsZero() {
				t.Errorf("attachment %+v has no time", a)
			}
			got, last = append(got, fmt.Sprint(a.Place.Watermark, " ", a.File.Name)), a.Place
		}
		return got, last
	}
	same := func(what string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s = %q, want %q", what, got, want)
		}
	}
	for _, id := range []string{"t1", "t2", "t3", "t4", "t5"} {
		sub := f.withFiles(id, "")
		if id == "t3" {
			sub = f.submission(id, "")
		}
		if _, err := f.Accept(t.Context(), sub, nil); err != nil {
			t.Fatal(err)
		}
	}
	for i, watermark := range []int64{7, 7, 9, 12} {
		claimed, err := f.Claim(t.Context(), f.c, me, fmt.Sprint("t", i+1), at(watermark))
		if err != nil {
			t.Fatal(err)
		}
		if i == 3 {
			break // t4 runs, t5 waits
		}
		if _, err := f.End(t.Context(), replied(claimed.Run, me)); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := list(turn.Place{}, math.MaxInt64, 100)
	same("all", got, "7 the t1", "7 a b", "7 the t2", "7 a b", "12 the t4", "12 a b")
	got, _ = list(turn.Place{}, 12, 100)
	same("below 12", got, "7 the t1", "7 a b", "7 the t2", "7 a b")
	got, _ = list(turn.Place{}, 7, 100)
	same("below 7", got)
	got, _ = list(turn.Place{Watermark: 8}, math.MaxInt64, 100)
	same("after message 8", got, "12 the t4", "12 a b")
	var paged []string
	for after := (turn.Place{}); ; {
		page, last := list(after, math.MaxInt64, 1)
		if len(page) == 0 {
			break
		}
		paged, after = append(paged, page...), last
	}
	same("in pages of one", paged, "7 the t1", "7 a b", "7 the t2", "7 a b", "12 the t4", "12 a b")
	other := f.c
	other.ID = "c2"
	if found, err := f.Attachments(t.Context(), other, turn.Place{}, math.MaxInt64, 10); err != nil || len(found) != 0 {
		t.Errorf("Attachments of another conversation = %+v, %v", found, err)
	}
	if out, err := f.Cancel(t.Context(), f.c, "t5"); err != nil || out.Turn.Messages[0].Blocks[1].File == nil {
		t.Errorf("Cancel = %+v, %v, want the turn's files", out, err)
	}
}
