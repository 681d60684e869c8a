package holder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
)

func TestAttemptRunsAtMostOnce(t *testing.T) {
	f := withFakes(t, fast())
	a := attempt("conv", "t1")
	first := f.begin(t, a, "wait-cancel")
	first.Close() // the turn outlives its stream
	second, err := f.Prompt(a, "session-1", text("wait-cancel"))
	if err != nil {
		t.Fatal(err)
	}
	third, err := f.Attach(a)
	if err != nil || third == nil {
		t.Fatalf("Attach = %v, %v", third, err)
	}
	if err := f.Cancel(a); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*Subscription{second, third} {
		if r, _ := follow(t, s); r.StopReason != "cancelled" {
			t.Errorf("result = %+v", r)
		}
	}
	// The result is kept until it is acknowledged.
	for range 2 {
		if r, _ := f.turnOf(t, a, "session-1", text("again")); r.StopReason != "cancelled" {
			t.Errorf("kept result = %+v", r)
		}
	}
	for range 2 {
		if err := f.Acknowledge(a, false); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := f.Prompt(a, "session-1", text("again")); !errors.Is(err, ReasonTurnSettled) {
		t.Errorf("Prompt after the acknowledgement = %v, want %s", err, ReasonTurnSettled)
	}
	if n := strings.Count(f.cell.sent("conv"), "session/prompt"); n != 1 {
		t.Errorf("%d prompts were written, want 1", n)
	}
}

func TestAttachToAnUnknownAttemptSettlesIt(t *testing.T) {
	f := withFakes(t, fast())
	a := attempt("conv", "t1")
	if s, err := f.Attach(a); s != nil || err != nil {
		t.Fatalf("Attach = %v, %v, want gone", s, err)
	}
	if _, err := f.Prompt(a, "session-1", text("late")); !errors.Is(err, ReasonTurnSettled) {
		t.Errorf("a late Prompt = %v, want %s", err, ReasonTurnSettled)
	}
	if _, err := f.Watch(a); !errors.Is(err, errs.NotFound) {
		t.Errorf("Watch = %v, want %v", err, errs.NotFound)
	}
	if err := f.Cancel(a); err != nil {
		t.Errorf("Cancel = %v", err)
	}
	if s, err := f.Attach(a); s != nil || err != nil {
		t.Errorf("Attach after a cancel = %v, %v, want gone still", s, err)
	}
	a.Number = 2
	if r, _ := f.turnOf(t, a, "session-1", text("x")); r.End != EndAnswered {
		t.Errorf("the next attempt = %+v", r)
	}
}

func TestRefusals(t *testing.T) {
	f := withFakes(t, fast())
	a := attempt("conv", "t1")
	a.Epoch = 2
	s := f.begin(t, a, "wait-cancel")

	other := a
	other.Turn = "t2"
	if _, err := f.Prompt(other, "session-1", text("x")); !errors.Is(err, ReasonConversationBusy) {
		t.Errorf("a second turn = %v, want %s", err, ReasonConversationBusy)
	}
	if _, err := f.Establish(t.Context(), "org", "conv", 2); !errors.Is(err, ReasonConversationBusy) {
		t.Errorf("Establish = %v, want %s", err, ReasonConversationBusy)
	}
	if _, err := f.AttachNative(t.Context(), "org", "conv", 2); !errors.Is(err, ReasonConversationBusy) {
		t.Errorf("AttachNative = %v, want %s", err, ReasonConversationBusy)
	}
	if err := f.Acknowledge(a, true); !errors.Is(err, ReasonTurnRunning) {
		t.Errorf("Acknowledge = %v, want %s", err, ReasonTurnRunning)
	}
	moved := a
	moved.Conversation = "other"
	if _, err := f.Attach(moved); !errors.Is(err, ReasonAttemptMismatch) {
		t.Errorf("Attach by another conversation = %v, want %s", err, ReasonAttemptMismatch)
	}
	old := a
	old.Epoch = 1
	_, attach := f.Attach(old)
	_, prompt := f.Prompt(old, "session-1", text("x"))
	_, watch := f.Watch(old)
	_, establish := f.Establish(t.Context(), "org", "conv", 1)
	_, establishment := f.Establishment(t.Context(), "org", "conv", 1)
	_, native := f.AttachNative(t.Context(), "org", "conv", 1)
	for call, err := range map[string]error{"Attach": attach, "Prompt": prompt, "Watch": watch, "Establish": establish,
		"Establishment": establishment, "AttachNative": native, "Cancel": f.Cancel(old), "Acknowledge": f.Acknowledge(old, false)} {
		if !errors.Is(err, ReasonPlacementMoved) {
			t.Errorf("%s with an old epoch = %v, want %s", call, err, ReasonPlacementMoved)
		}
	}
	if err := f.Cancel(a); err != nil {
		t.Fatal(err)
	}
	follow(t, s)
}

func TestNextTurnLetsEarlierResultsGo(t *testing.T) {
	f := withFakes(t, fast())
	f.turnOf(t, attempt("conv", "t1"), "session-1", text("x"))
	if err := f.Cancel(attempt("conv", "never")); err != nil {
		t.Fatal(err)
	}
	f.turnOf(t, attempt("conv", "t2"), "session-1", text("x"))
	f.mu.Lock()
	kept := len(f.turns)
	f.mu.Unlock()
	if kept != 1 {
		t.Errorf("%d results are kept, want the last one", kept)
	}
	for _, turn := range []string{"t1", "never"} {
		if _, err := f.Prompt(attempt("conv", turn), "session-1", text("x")); !errors.Is(err, ReasonTurnSettled) {
			t.Errorf("Prompt of %s = %v, want %s", turn, err, ReasonTurnSettled)
		}
	}
}

func TestSettledKeepsTheNewest(t *testing.T) {
	var s settled
	for i := range settledKept + 10 {
		s.add(turnKey{turn: fmt.Sprint(i)})
		s.add(turnKey{turn: fmt.Sprint(i)})
	}
	if len(s.keys) != settledKept || len(s.order) != settledKept {
		t.Errorf("keeps %d keys, want %d", len(s.keys), settledKept)
	}
	for i, want := range map[int]bool{9: false, 10: true, settledKept + 9: true} {
		if got := s.has(turnKey{turn: fmt.Sprint(i)}); got != want {
			t.Errorf("has(%d) = %t, want %t", i, got, want)
		}
	}
}

func TestAcknowledgeEndsAWedgedChild(t *testing.T) {
	f := withFakes(t, fast())
	a := attempt("conv", "t1")
	f.turnOf(t, a, "session-1", text("x"))
	child := f.cell.lastChild()
	if err := f.Acknowledge(a, true); err != nil {
		t.Fatal(err)
	}
	select {
	case <-child.done:
	default:
		t.Error("Acknowledge returned before the child was gone")
	}
	if r, _ := f.turnOf(t, attempt("conv", "t2"), "session-1", text("x")); r.End != EndAnswered || r.Timings.ColdAdmission == 0 {
		t.Errorf("the next turn = %+v, want one on a new child", r)
	}
}

func TestRoomForChildren(t *testing.T) {
	cfg := fast()
	cfg.MaxChildren = 2
	f := withFakes(t, cfg)
	f.turnOf(t, attempt("a", "a1"), "session-1", text("x"))
	f.turnOf(t, attempt("b", "b1"), "session-1", text("x"))
	f.turnOf(t, attempt("a", "a2"), "session-1", text("x")) // b is the least recently used now
	f.turnOf(t, attempt("c", "c1"), "session-1", text("x"))
	if got := f.watcher.reports(); len(got) != 1 || got[0].Conversation != "b" {
		t.Errorf("children ended = %+v, want b's", got)
	}
	// With every child in use the next turn waits for one to be idle.
	running := []*Subscription{f.begin(t, attempt("a", "a3"), "wait-cancel"), f.begin(t, attempt("c", "c2"), "wait-cancel")}
	waiting, err := f.Prompt(attempt("b", "b2"), "session-1", text("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Cancel(attempt("c", "c2")); err != nil {
		t.Fatal(err)
	}
	follow(t, running[1])
	if r, _ := follow(t, waiting); r.End != EndAnswered {
		t.Errorf("the waiting turn = %+v", r)
	}
	if err := f.Cancel(attempt("a", "a3")); err != nil {
		t.Fatal(err)
	}
	if r, _ := follow(t, running[0]); r.StopReason != "cancelled" {
		t.Errorf("the running turn = %+v, want it undisturbed", r)
	}
}

func TestEstablishment(t *testing.T) {
	f := withFakes(t, fast())
	if _, err := f.Establishment(t.Context(), "org", "conv", 1); !errors.Is(err, errs.NotFound) {
		t.Fatalf("Establishment of nothing = %v, want %v", err, errs.NotFound)
	}
	var calls sync.WaitGroup
	for range 8 {
		calls.Go(func() {
			if id, err := f.Establish(t.Context(), "org", "conv", 1); err != nil || id != "session-1" {
				t.Errorf("Establish = %q, %v", id, err)
			}
		})
	}
	calls.Wait()
	if n := strings.Count(f.cell.sent("conv"), "session/new"); n != 1 {
		t.Errorf("session/new was sent %d times, want once", n)
	}
	if id, err := f.Establishment(t.Context(), "org", "conv", 1); err != nil || id != "session-1" {
		t.Errorf("Establishment = %q, %v", id, err)
	}
	// An establishment answers for its child's life only.
	f.endChild(t, attempt("conv", "t1"))
	if _, err := f.Establishment(t.Context(), "org", "conv", 1); !errors.Is(err, errs.NotFound) {
		t.Errorf("Establishment after the child's end = %v, want %v", err, errs.NotFound)
	}
	// A child that a prompt started knows of no establishment, and must not outlive this answer.
	f.turnOf(t, attempt("conv", "t2"), "session-1", text("x"))
	child := f.cell.lastChild()
	if _, err := f.Establishment(t.Context(), "org", "conv", 1); !errors.Is(err, errs.NotFound) {
		t.Errorf("Establishment with a prompted child = %v, want %v", err, errs.NotFound)
	}
	select {
	case <-child.done:
	default:
		t.Error("NOT_FOUND was answered while a child lived")
	}
}

// endChild runs a turn and acknowledges it with its child's end.
func (f *fixture) endChild(t *testing.T, a Attempt) {
	t.Helper()
	f.turnOf(t, a, "session-1", text("x"))
	if err := f.Acknowledge(a, true); err != nil {
		t.Fatal(err)
	}
}

func TestFailedEstablishmentLeavesNoChild(t *testing.T) {
	for _, mode := range []string{"exit-at-start", "exit-at-initialize", "exit-at-session", "error-at-session"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			f := withFakes(t, fast())
			f.setMode("conv", mode)
			if id, err := f.Establish(t.Context(), "org", "conv", 1); err == nil {
				t.Fatalf("Establish = %q, want an error", id)
			}
			if _, err := f.Establishment(t.Context(), "org", "conv", 1); !errors.Is(err, errs.NotFound) {
				t.Errorf("Establishment = %v, want %v", err, errs.NotFound)
			}
			select {
			case <-f.cell.lastChild().done:
			default:
				t.Error("a child outlived its failed establishment")
			}
			f.setMode("conv", "")
			if id, err := f.Establish(t.Context(), "org", "conv", 1); err != nil || id != "session-1" {
				t.Errorf("the next Establish = %q, %v", id, err)
			}
		})
	}
}

func TestStopDrainsThenEndsEverything(t *testing.T) {
	cfg := fast()
	cfg.DrainTimeout = 300 * time.Millisecond
	f := withFakes(t, cfg)
	f.setMode("stubborn", "ignore-eof")
	f.turnOf(t, attempt("stubborn", "t0"), "session-1", text("x"))
	hanging := f.begin(t, attempt("a", "t1"), "hang")
	stopped := make(chan error, 1)
	go func() { stopped <- f.stop() }()
	f.until(func() bool { return f.phase == phaseDraining })
	if _, err := f.Prompt(attempt("b", "t2"), "session-1", text("x")); !errors.Is(err, ReasonSupervisorStopping) {
		t.Errorf("Prompt while stopping = %v, want %s", err, ReasonSupervisorStopping)
	}
	if r, _ := follow(t, hanging); r.End != EndChildExited || r.Reason != "SUPERVISOR_STOPPING" {
		t.Errorf("turn = %+v, want SUPERVISOR_STOPPING", r)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Run = %v", err)
	}
	if n := len(f.watcher.reports()); n != 2 {
		t.Errorf("%d children ended, want 2", n)
	}
}

func TestCallsBeforeRunAreRefused(t *testing.T) {
	h := New(fast(), &execCell{t: t}, homesFunc(nil), &watcher{t: t})
	_, prompt := h.Prompt(attempt("c", "t"), "s", text("x"))
	_, attach := h.Attach(attempt("c", "t"))
	_, establishment := h.Establishment(context.Background(), "org", "c", 1)
	for call, err := range map[string]error{"Prompt": prompt, "Attach": attach, "Establishment": establishment} {
		if !errors.Is(err, errs.Unavailable) {
			t.Errorf("%s = %v, want %v", call, err, errs.Unavailable)
		}
	}
}

func TestNativeChild(t *testing.T) {
	f := withFakes(t, fast())
	f.turnOf(t, attempt("conv", "t1"), "session-1", text("x"))
	idle := f.cell.lastChild()
	n, err := f.AttachNative(t.Context(), "org", "conv", 1)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-idle.done:
	default:
		t.Error("the idle child lives beside the native client's")
	}
	if _, err := f.Prompt(attempt("conv", "t2"), "session-1", text("x")); !errors.Is(err, ReasonConversationBusy) {
		t.Errorf("Prompt beside a native client = %v, want %s", err, ReasonConversationBusy)
	}
	if _, err := fmt.Fprintln(n.Relay(), `{"jsonrpc":"2.0","id":7,"method":"initialize"}`); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1000)
	k, err := n.Relay().Read(buf)
	if err != nil || !strings.Contains(string(buf[:k]), `"id":7`) {
		t.Errorf("the child answered %q, %v", buf[:k], err)
	}
	n.Close()
	if r, _ := f.turnOf(t, attempt("conv", "t3"), "session-1", text("x")); r.End != EndAnswered {
		t.Errorf("the next turn = %+v", r)
	}
}
