package holder

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
)

// fast makes every wait of a misbehaving child short.
func fast() Config {
	cfg := testConfig()
	cfg.ExitGrace = 200 * time.Millisecond
	return cfg
}

// Whatever a child does ends at most its own turn: the next one of the conversation works.
func TestMisbehaviourEndsAtMostThatTurn(t *testing.T) {
	const allowOnce = `{"outcome":{"optionId":"y","outcome":"selected"}}`
	const cancelled = `{"outcome":{"outcome":"cancelled"}}`
	answered := Result{End: EndAnswered, StopReason: "end_turn", TextStreamed: true}
	exited := func(reason string, streamed bool) Result {
		return Result{End: EndChildExited, Reason: reason, TextStreamed: streamed, ChildEnded: true}
	}
	failed := Result{End: EndError, Reason: "PROMPT_ERROR", ChildEnded: true}
	for _, tc := range []struct {
		prompt string
		want   Result
		text   string
	}{
		{"exit", exited("CHILD_EXITED", true), "started"},
		{"answer-and-exit text", answered, "text"},
		{"garbage text", answered, "text"},
		{"utf8 text", answered, "text"},
		{"huge text", exited("LINE_TOO_LONG", false), ""},
		{"stderr text", answered, "text"},
		{"close-stdout", exited("CHILD_EXITED", false), ""},
		{"twice text", answered, "text"},
		{"error", failed, ""},
		{"bad-answer", failed, ""},
		{"refuse", Result{End: EndAnswered, StopReason: "refusal", Reason: "SESSION_UNKNOWN"}, ""},
		{"stray text", answered, "text"},
		{"tool text", answered, "text"},
		{"unknown-request", answered, `{"code":-32601,"message":"method not found"}`},
		{`permission [{"kind":"reject_once","optionId":"n"},{"kind":"allow_always","optionId":"a"},{"kind":"allow_once","optionId":"y"}]`, answered, allowOnce},
		{`permission [{"kind":"allow_always","optionId":"allow_once","name":"allow_once"},{"kind":"reject_once","optionId":"n"}]`, answered, cancelled},
		{`permission []`, answered, cancelled},
		{`permission {"kind":"allow_once"}`, answered, cancelled},
		{`permission [{"kind":7,"optionId":{}}]`, answered, cancelled},
		{`permission null`, answered, cancelled},
	} {
		name, _, _ := strings.Cut(tc.prompt, "[")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := withFakes(t, fast())
			r, got := f.turnOf(t, attempt("conv", "t1"), "session-1", text(tc.prompt))
			r.Timings, r.Message = Timings{}, ""
			if r != tc.want || got != tc.text {
				t.Errorf("turn = %+v with %q, want %+v with %q", r, got, tc.want, tc.text)
			}
			if name == "answer-and-exit text" {
				<-f.cell.lastChild().done // a prompt in that moment would be lost with the child
			}
			r, got = f.turnOf(t, attempt("conv", "t2"), "session-1", text("next"))
			if r.End != EndAnswered || got != "next" {
				t.Errorf("the next turn = %+v with %q", r, got)
			}
		})
	}
}

func TestDroppedInputIsCounted(t *testing.T) {
	f := withFakes(t, fast())
	for i, p := range []string{"garbage text", "utf8 text", "stray text", "twice text"} {
		f.turnOf(t, attempt("conv", fmt.Sprint(i)), "session-1", text(p))
	}
	f.turnOf(t, attempt("conv", "last"), "session-1", text("next"))
	if err := f.stop(); err != nil {
		t.Fatal(err)
	}
	got := f.watcher.reports()[0].Dropped
	if got.BadLines != 7 || got.StrayUpdates != 1 || got.StrayAnswers != 1 {
		t.Errorf("counters = %+v, want 7 bad lines, 1 stray update, 1 stray answer", got)
	}
}

func TestChildThatCannotStart(t *testing.T) {
	for _, mode := range []string{"exit-at-start", "exit-at-initialize", "silent-at-initialize"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			cfg := fast()
			if mode == "silent-at-initialize" {
				cfg.AdmissionTimeout = 500 * time.Millisecond
			}
			f := withFakes(t, cfg)
			f.setMode("conv", mode)
			r, _ := f.turnOf(t, attempt("conv", "t1"), "session-1", text("x"))
			if r.End != EndNotDispatched || r.Reason != "HERMES_UNAVAILABLE" || r.Timings.ColdAdmission == 0 {
				t.Errorf("turn = %+v, want NOT_DISPATCHED with HERMES_UNAVAILABLE", r)
			}
			if strings.Contains(f.cell.sent("conv"), "session/prompt") {
				t.Error("the prompt was written to a child that did not initialize")
			}
			f.setMode("conv", "")
			if r, got := f.turnOf(t, attempt("conv", "t2"), "session-1", text("next")); r.End != EndAnswered || got != "next" {
				t.Errorf("the next turn = %+v with %q", r, got)
			}
		})
	}
}

func TestMachineThatCannotStart(t *testing.T) {
	f := withFakes(t, fast())
	f.cell.fail = errs.New(errs.Precondition, ReasonHermesUnavailable, "namespaces are off; switch them on")
	r, _ := f.turnOf(t, attempt("conv", "t1"), "session-1", text("x"))
	if r.End != EndNotDispatched || r.Reason != "HERMES_UNAVAILABLE" || !strings.Contains(r.Message, "switch them on") {
		t.Errorf("turn = %+v, want the remedy", r)
	}
	if r, _ := f.turnOf(t, attempt("conv", "t2"), "session-1", text("x")); r.End != EndAnswered {
		t.Errorf("the next turn = %+v", r)
	}
}

// begin starts a turn that says "started" and returns when it did.
func (f *fixture) begin(t *testing.T, a Attempt, prompt string) *Subscription {
	t.Helper()
	s, err := f.Prompt(a, "session-1", text(prompt))
	if err != nil {
		t.Fatal(err)
	}
	if d, ok, err := s.Next(t.Context()); !ok || err != nil || d.Update.Text != "started" {
		t.Fatalf("first update = %+v, %t, %v", d, ok, err)
	}
	return s
}

func TestCancel(t *testing.T) {
	for _, tc := range []struct {
		prompt string
		want   Result
		text   string
	}{
		{"wait-cancel", Result{End: EndAnswered, StopReason: "cancelled"}, ""},
		{"hang", Result{End: EndChildExited, Reason: "CANCEL_TIMEOUT", ChildEnded: true}, ""},
		{`cancelled-permission [{"kind":"allow_once","optionId":"y"}]`, Result{End: EndAnswered, StopReason: "end_turn"}, `{"outcome":{"outcome":"cancelled"}}`},
	} {
		t.Run(tc.prompt, func(t *testing.T) {
			t.Parallel()
			cfg := fast()
			cfg.CancelTimeout = 300 * time.Millisecond
			f := withFakes(t, cfg)
			s := f.begin(t, attempt("conv", "t1"), tc.prompt)
			for range 2 {
				if err := f.Cancel(attempt("conv", "t1")); err != nil {
					t.Fatal(err)
				}
			}
			r, got := follow(t, s)
			r.Timings, r.Message = Timings{}, ""
			tc.want.CancelSent, tc.want.TextStreamed = true, true
			if r != tc.want || got != tc.text {
				t.Errorf("turn = %+v with %q, want %+v with %q", r, got, tc.want, tc.text)
			}
			if n := strings.Count(f.cell.sent("conv"), "session/cancel"); n != 1 {
				t.Errorf("session/cancel was sent %d times, want once", n)
			}
			if r, _ := f.turnOf(t, attempt("conv", "t2"), "session-1", text("next")); r.End != EndAnswered || r.CancelSent {
				t.Errorf("the next turn = %+v", r)
			}
		})
	}
}

// Hermes drops a cancel that reaches it before it has begun the prompt.
func TestCancelIsRepeatedOnTheFirstSignOfWork(t *testing.T) {
	f := withFakes(t, fast())
	s, err := f.Prompt(attempt("conv", "t1"), "session-1", text("forget-cancel"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.untilSent("conv", "session/prompt"); err != nil {
		t.Fatal(err)
	}
	if err := f.Cancel(attempt("conv", "t1")); err != nil {
		t.Fatal(err)
	}
	if r, _ := follow(t, s); r.End != EndAnswered || r.StopReason != "cancelled" {
		t.Errorf("turn = %+v, want cancelled", r)
	}
}

func TestCancelBeforeThePromptAndDuringAdmission(t *testing.T) {
	f := withFakes(t, fast())
	if err := f.Cancel(attempt("conv", "early")); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		r, _ := f.turnOf(t, attempt("conv", "early"), "session-1", text("x"))
		if r.End != EndNotDispatched || !r.CancelSent {
			t.Errorf("turn = %+v, want NOT_DISPATCHED", r)
		}
	}
	f.setMode("conv", "silent-at-initialize")
	s, err := f.Prompt(attempt("conv", "cold"), "session-1", text("x"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.untilSent("conv", "initialize"); err != nil {
		t.Fatal(err)
	}
	if err := f.Cancel(attempt("conv", "cold")); err != nil {
		t.Fatal(err)
	}
	if r, _ := follow(t, s); r.End != EndNotDispatched || !r.CancelSent {
		t.Errorf("turn = %+v, want NOT_DISPATCHED", r)
	}
	if strings.Contains(f.cell.sent("conv"), "session/prompt") {
		t.Error("a cancelled prompt was written")
	}
}

func TestWatchdogEndsASilentTurn(t *testing.T) {
	cfg := fast()
	cfg.WatchdogTimeout = 300 * time.Millisecond
	f := withFakes(t, cfg)
	r, _ := f.turnOf(t, attempt("conv", "t1"), "session-1", text("hang"))
	if r.End != EndChildExited || r.Reason != "WATCHDOG" || r.CancelSent {
		t.Errorf("turn = %+v, want WATCHDOG", r)
	}
	if r.Timings.ModelToolLoop < cfg.WatchdogTimeout {
		t.Errorf("ended after %s, want at least %s", r.Timings.ModelToolLoop, cfg.WatchdogTimeout)
	}
}

func TestMachineDeathEndsItsTurnsAndTheNextOnesWork(t *testing.T) {
	f := withFakes(t, fast())
	var running []*Subscription
	for _, c := range []string{"a", "b"} {
		running = append(running, f.begin(t, attempt(c, "t1-"+c), "hang"))
	}
	f.cell.mu.Lock()
	m := f.cell.machines[0]
	f.cell.mu.Unlock()
	if err := m.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, s := range running {
		if r, _ := follow(t, s); r.End != EndChildExited || r.Reason != "CHILD_EXITED" {
			t.Errorf("turn = %+v, want CHILD_EXITED", r)
		}
	}
	for _, c := range []string{"a", "b"} {
		if r, got := f.turnOf(t, attempt(c, "t2-"+c), "session-1", text("next")); r.End != EndAnswered || got != "next" {
			t.Errorf("the next turn = %+v with %q", r, got)
		}
	}
	if n := f.cell.machineCount(); n != 2 {
		t.Errorf("%d machines were started, want 2", n)
	}
}

func TestIdleChildThatDiesIsReplaced(t *testing.T) {
	f := withFakes(t, fast())
	f.turnOf(t, attempt("conv", "t1"), "session-1", text("x"))
	child := f.cell.lastChild()
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	<-child.done
	r, got := f.turnOf(t, attempt("conv", "t2"), "session-1", text("next"))
	if r.End != EndAnswered || got != "next" {
		t.Errorf("turn = %+v with %q", r, got)
	}
}

func TestSlowSubscriberLosesUpdatesAndHoldsNothingBack(t *testing.T) {
	f := withFakes(t, fast())
	s, err := f.Prompt(attempt("conv", "t1"), "session-1", text("flood"))
	if err != nil {
		t.Fatal(err)
	}
	fastOne, err := f.Watch(attempt("conv", "t1"))
	if err != nil {
		t.Fatal(err)
	}
	if r, _ := follow(t, fastOne); r.End != EndAnswered {
		t.Errorf("turn = %+v", r)
	}
	// Nobody has read s until now.
	var kept, dropped int64
	for {
		d, ok, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		dropped += d.Dropped
		if d.Update != nil {
			kept++
		}
	}
	if kept != feedUpdates || kept+dropped != 5000 {
		t.Errorf("kept %d and dropped %d, want %d and the rest of 5000", kept, dropped, feedUpdates)
	}
}

func TestBlocksThatCannotGoIntoALineAreRefused(t *testing.T) {
	f := withFakes(t, fast())
	for _, b := range []string{"", "[]", "{", `{"a":1}{"b":2}`, "{\n}", "{\"a\":\"\xff\"}", `{"a":1},{"b":2}`} {
		if _, err := f.Prompt(attempt("conv", "t1"), "session-1", [][]byte{[]byte(b)}); !errors.Is(err, errs.Invalid) {
			t.Errorf("Prompt with block %q = %v, want %v", b, err, errs.Invalid)
		}
	}
	cfg := fast()
	cfg.ACP.MaxPromptLine = 1000
	f = withFakes(t, cfg)
	r, _ := f.turnOf(t, attempt("conv", "t1"), "session-1", text(strings.Repeat("x", 1000)))
	if r.End != EndNotDispatched || r.Reason != "LINE_TOO_LONG" {
		t.Errorf("turn = %+v, want NOT_DISPATCHED with LINE_TOO_LONG", r)
	}
}

// What a child started may still write rows when the child itself is dead.
func TestResultWaitsForTheChildsWholeNamespace(t *testing.T) {
	for _, prompt := range []string{"exit", "error", "hang"} {
		t.Run(prompt, func(t *testing.T) {
			cfg := fast()
			cfg.WatchdogTimeout = 300 * time.Millisecond
			f := withFakes(t, cfg)
			f.cell.lingers = make(chan struct{})
			s, err := f.Prompt(attempt("conv", "t1"), "session-1", text(prompt))
			if err != nil {
				t.Fatal(err)
			}
			if err := f.untilSent("conv", "session/prompt"); err != nil {
				t.Fatal(err)
			}
			child := f.cell.lastChild()
			for syscall.Kill(child.cmd.Process.Pid, 0) == nil { // reaped by its own Wait
				time.Sleep(time.Millisecond)
			}
			early := time.NewTimer(200 * time.Millisecond)
			defer early.Stop()
			select {
			case <-s.turn.done:
				t.Errorf("the turn ended with %+v before the namespace was gone", s.Result())
			case <-early.C:
			}
			close(f.cell.lingers)
			if r, _ := follow(t, s); !r.ChildEnded {
				t.Errorf("turn = %+v, want its child ended", r)
			}
		})
	}
}
