package queue

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

const first, second = int32(1), int32(2) // the instance before and after its lock was lost

var conversation = turn.Conversation{Organization: "acme", ID: "c1"}

// world is a store with one turn and a cell that knows what it was asked for. Its hooks run before
// a call answers.
type world struct {
	Store
	mu       sync.Mutex
	run      turn.Run
	state    turn.State
	calls    []string
	onEnd    func(store.Ending)
	onClaim  func() error
	fails    []error // answers of the first Prompts
	onPrompt func()
	running  chan struct{} // Prompt answers when it is closed; nil: at once
	blocks   []turn.Block  // of the turn; nil: a text
	files    *files
}

func (w *world) did(call string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls = append(w.calls, call)
}

func (w *world) Claim(ctx context.Context, _ turn.Conversation, instance int32, ready string, place func(context.Context) (store.Placed, error)) (store.Claimed, error) {
	w.mu.Lock()
	unready := w.state == turn.Accepted && w.blocks != nil && ready != w.run.TurnID
	w.mu.Unlock()
	if unready {
		return store.Claimed{Run: turn.Run{Conversation: conversation, TurnID: w.run.TurnID, Blocks: w.blocks}}, store.ErrFilesFirst
	}
	if _, err := place(ctx); err != nil {
		return store.Claimed{}, err
	}
	w.mu.Lock()
	if w.state != turn.Accepted {
		w.mu.Unlock()
		return store.Claimed{}, store.ErrNothingToClaim
	}
	w.state, w.run.Owner = turn.Running, instance
	w.run.Attempt++
	run, hook := w.run, w.onClaim
	w.onClaim = nil
	w.mu.Unlock()
	if hook != nil {
		if err := hook(); err != nil {
			return store.Claimed{Run: turn.Run{Conversation: conversation, TurnID: run.TurnID}}, err
		}
	}
	return store.Claimed{Run: run}, nil
}

func (w *world) End(_ context.Context, e store.Ending) (store.Ended, error) {
	w.mu.Lock()
	owned, hook := w.state == turn.Running && w.run.Owner == e.Instance, w.onEnd
	w.onEnd = nil
	if owned {
		w.state = e.Decision.State
	}
	w.mu.Unlock()
	if hook != nil {
		hook(e)
	}
	if !owned {
		return store.Ended{}, store.ErrNotOwner
	}
	return store.Ended{}, nil
}

func (w *world) Running(context.Context, turn.Conversation) (turn.Run, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != turn.Running {
		return turn.Run{}, store.ErrNotFound
	}
	return w.run, nil
}

func (w *world) Blocks(context.Context, turn.Conversation, string) ([]turn.Block, error) {
	if w.blocks != nil {
		return w.blocks, nil
	}
	return []turn.Block{{Type: "text", Raw: []byte(`{"type":"text","text":"hello"}`)}}, nil
}

// owner is what a takeover commits.
func (w *world) owner(instance int32) turn.Run {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.run.Owner = instance
	return w.run
}

func (w *world) Locate(context.Context, turn.Conversation) (Place, error) {
	return Place{Epoch: 1}, nil
}
func (w *world) Forget(turn.Conversation)                         {}
func (w *world) Reachable(Place) bool                             { return true }
func (w *world) Reached(context.Context, Place) error             { return nil }
func (w *world) Publish(turn.Conversation, ...turn.Event)         {}
func (w *world) Live(turn.Conversation, string, turn.Update)      {}
func (w *world) Ending(turn.Conversation, string, []turn.Locator) {}
func (w *world) Ended(turn.Conversation, string, *turn.End)       {}

var replied = Result{Seen: outcome.Seen{End: outcome.Answered, StopReason: "end_turn"}}

func (w *world) Prompt(ctx context.Context, _ Place, r turn.Run, _ func(turn.Update)) (Result, error) {
	w.did("prompt " + r.TurnID)
	if w.onPrompt != nil {
		w.onPrompt()
	}
	if len(w.fails) > 0 {
		err := w.fails[0]
		w.fails = w.fails[1:]
		return Result{}, err
	}
	if w.running != nil {
		select {
		case <-w.running:
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
	return replied, nil
}

func (w *world) Attach(_ context.Context, _ Place, r turn.Run, _ func(turn.Update)) (Result, error) {
	w.did("attach " + r.TurnID)
	return replied, nil
}

var errStarting, errBroken = errors.New("the supervisor has not opened its cell"), errors.New("the stream broke")

func judge(err error) Verdict {
	if errors.Is(err, errStarting) {
		return NotStarted
	}
	return TryAgain
}

// cell is the world as an Agent.
type cell struct{ *world }

func (cell) Cancel(context.Context, Place, turn.Run) error { return nil }

func (w *world) Acknowledge(_ context.Context, _ Place, r turn.Run, _ bool) error {
	w.did("acknowledge " + r.TurnID)
	return nil
}

func (w *world) Watermark(context.Context, Place, turn.Conversation) (int64, error) { return 1, nil }
func (w *world) Outcome(context.Context, Place, turn.Run, string, bool) (outcome.Rows, error) {
	return outcome.Rows{User: 2, Users: []int64{2}, Replies: []outcome.Row{{ID: 3, FinishReason: "stop"}}, End: 3}, nil
}

// play drives a queue in a bubble until nothing moves any more.
func (w *world) play(t *testing.T, script func(q *Queue), want turn.State, calls ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		q := New(ctx, Config{Store: w, Directory: w, Agent: cell{w}, Sessions: w, Readers: w, Files: w.files, ClaimDeadline: time.Second,
			Judge: judge, Suspect: func() {}, Disowned: func() {},
			Fault: func(string, turn.Conversation, string, error) {}})
		q.Own(first)
		script(q)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if f := w.files; f != nil && f.released != f.wantReleased {
			t.Errorf("files were released %d times, want %d", f.released, f.wantReleased)
		}
		if w.state != want || !slices.Equal(w.calls, calls) {
			t.Errorf("turn is %s after %q, want %s after %q", w.state, w.calls, want, calls)
		}
		q.mu.Lock()
		if len(q.lanes) != 0 {
			t.Errorf("%d lanes are left", len(q.lanes))
		}
		q.mu.Unlock()
		cancel()
		q.Wait()
	})
}

func accepted() *world {
	return &world{state: turn.Accepted, run: turn.Run{Conversation: conversation, TurnID: "t1", SessionID: "s", Epoch: 1}}
}

// The end runs as the new instance while the takeover of the old one commits, and learns that the
// turn is not its own when the turn already is.
func TestAdoptedWhileItsLaneLeaves(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.onEnd = func(store.Ending) { q.Adopt(w.owner(second)) }
		w.running = make(chan struct{})
		q.Kick(conversation)
		synctest.Wait()
		q.Own(second)
		close(w.running)
	}, turn.Replied, "prompt t1", "attach t1", "acknowledge t1")
}

// A lane that is still there ends the turn as the new instance, and nobody settles it again.
func TestAdoptedWhileItRuns(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.running = make(chan struct{})
		q.Kick(conversation)
		synctest.Wait()
		q.Own(second)
		q.Adopt(w.owner(second))
		close(w.running)
	}, turn.Replied, "prompt t1", "acknowledge t1")
}

// A claim whose answer was lost is prompted once it is found.
func TestLostClaim(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.onClaim = func() error { return store.ErrUnavailable }
		q.Kick(conversation)
		synctest.Wait()
		q.Back()
	}, turn.Replied, "prompt t1", "acknowledge t1")
}

// So is one that was committed for the instance this process was before, when it is taken over.
func TestLostClaimOfTheOldInstance(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.onClaim = func() error { return store.ErrUnavailable }
		q.Kick(conversation)
		synctest.Wait()
		q.Own(second)
		synctest.Wait()
		q.Adopt(w.owner(second))
	}, turn.Replied, "prompt t1", "acknowledge t1")
}

// A doubt about another turn is no reason to prompt the one that runs: it was prompted, by the lane
// that has just left it, and a supervisor that was started anew would run it a second time.
func TestDoubtAboutAnother(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.running = make(chan struct{})
		q.Kick(conversation)
		synctest.Wait()
		q.Doubt(conversation, "t2")
		q.Own(second)
		// Taken over between the end that failed and the claim that follows it.
		w.onEnd = func(store.Ending) { w.owner(second) }
		close(w.running)
		synctest.Wait()
		q.Adopt(w.owner(second))
	}, turn.Replied, "prompt t1", "attach t1", "acknowledge t1")
}

// A turn that was claimed with its acceptance is prompted although a doubt about another made the
// lane look, and found it, before it was handed over.
func TestDoubtBeforeHandOver(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.state, w.run.Owner, w.run.Attempt = turn.Running, first, 1
		q.Doubt(conversation, "t0")
		synctest.Wait()
		run := w.run
		q.Accepted(store.Acceptance{Turn: turn.Turn{Conversation: conversation, ID: "t1"}, Claimed: &store.Claimed{Run: run}, Claimable: true})
	}, turn.Replied, "prompt t1", "acknowledge t1")
}

// A supervisor that has not opened its cell yet begins nothing: the turn waits for it. After any
// other failure of a prompt nothing is prompted again.
func TestPromptRefusedForNow(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.fails = []error{errStarting, errStarting, errBroken}
		q.Kick(conversation)
		time.Sleep(time.Minute) // the pauses between attempts
	}, turn.Replied, "prompt t1", "prompt t1", "prompt t1", "attach t1", "acknowledge t1")
}

// Nor is a turn prompted that another instance took over, and may have ended, meanwhile.
func TestPromptRefusedThenTakenOver(t *testing.T) {
	w := accepted()
	w.play(t, func(q *Queue) {
		w.fails = []error{errStarting}
		w.onPrompt = func() { w.owner(second) }
		q.Kick(conversation)
		time.Sleep(time.Minute)
	}, turn.Running, "prompt t1", "attach t1")
}

func TestCommand(t *testing.T) {
	for text, want := range map[string]bool{
		"/help": true, " /RESET\n": true, "//queue x": true, "/model\u00a0x": true, "\x1c/version": true,
		"/": false, "/etc/hosts is wrong": false, "/helpme": false, "help": false, "": false, "see /help": false,
	} {
		if got := isCommand(text); got != want {
			t.Errorf("isCommand(%q) = %v, want %v", text, got, want)
		}
	}
}
