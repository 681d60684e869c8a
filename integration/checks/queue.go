package checks

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"humanwork.internal/integration/harness"
)

const quickSends = 20

// Queue shows the order of turns, idempotent submission and cancels.
func Queue(t harness.T) string {
	w := start(t, 3*time.Minute, harness.Options{Replicas: 2})
	conv, _ := w.conversation("queue")
	w.fifo(conv)
	w.idempotency(conv)
	w.cancelRunning(conv)
	w.cancelWaiting(conv)
	w.busyPolicy(conv)
	return fmt.Sprintf("%d quick sends over two ingress replicas answered in the order accepted; replay answered with Idempotency-Replayed; "+
		"changed body 409; running and waiting turns cancelled; REJECT while busy", quickSends)
}

// fifo sends turns at once while the first is held, to two ingress replicas in turn.
func (w *world) fifo(conv harness.Conversation) {
	w.t.Helper()
	held := w.submit(conv, "HANG:fifo")
	w.arrived("fifo", 1)
	var ids []string
	for i := range quickSends {
		turn, _, err := w.Client.At(i%2).Submit(w.ctx, conv, fmt.Sprintf("fifo-%d", i), harness.TextTurn(fmt.Sprintf("SAY:number %02d", i)))
		if err != nil {
			w.t.Fatalf("quick send %d: %v", i, err)
		}
		if turn.State != "ACCEPTED" {
			w.t.Errorf("quick send %d: state %s while another turn runs, want ACCEPTED", i, turn.State)
		}
		ids = append(ids, turn.TurnID)
	}
	w.Model.Gate("fifo").Release()
	last := w.wait(conv, held.TurnID)
	for i, id := range ids {
		turn := w.wait(conv, id)
		if want := fmt.Sprintf("number %02d", i); turn.State != "REPLIED" || len(turn.Replies) != 1 || turn.Replies[0].Text != want {
			w.t.Errorf("quick send %d: %s, want REPLIED with %q", i, describe(turn), want)
			continue
		}
		if len(last.Replies) == 1 && turn.Replies[0].Locator.MessageID <= last.Replies[0].Locator.MessageID {
			w.t.Errorf("quick send %d: reply %d is not after %d, the one before", i, turn.Replies[0].Locator.MessageID, last.Replies[0].Locator.MessageID)
		}
		last = turn
	}
	listed, err := w.Client.Turns(w.ctx, conv)
	if err != nil {
		w.t.Fatalf("list turns: %v", err)
	}
	for i, id := range append([]string{held.TurnID}, ids...) {
		if i >= len(listed) || listed[i].TurnID != id {
			w.t.Errorf("listed turn %d is not the one accepted then", i)
			break
		}
	}
}

// idempotency repeats a submission in many ways, also from many callers at once.
func (w *world) idempotency(conv harness.Conversation) {
	w.t.Helper()
	const key = "the-same-key"
	var mu sync.Mutex
	ids, fresh := map[string]bool{}, 0
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			turn, answer, err := w.Client.At(i%2).Submit(w.ctx, conv, key, harness.TextTurn("SAY:once"))
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				w.t.Errorf("submit with a key: %v", err)
				return
			}
			ids[turn.TurnID] = true
			if answer.Header.Get("Idempotency-Replayed") != "true" {
				fresh++
			}
		})
	}
	callers.Wait()
	if len(ids) != 1 || fresh != 1 {
		w.t.Errorf("8 submissions with one key made %d turns, %d not marked as replayed; want 1 and 1", len(ids), fresh)
	}
	for id := range ids {
		w.wait(conv, id)
		again, answer, err := w.Client.Submit(w.ctx, conv, key, harness.TextTurn("SAY:once"))
		if err != nil || again.TurnID != id || again.State != "REPLIED" || answer.Header.Get("Idempotency-Replayed") != "true" {
			w.t.Errorf("replay after the end = %s %s (%v), want the same turn, REPLIED and marked", again.TurnID, again.State, err)
		}
	}
	_, answer, err := w.Client.Submit(w.ctx, conv, key, harness.TextTurn("SAY:something else"))
	if answer.Status != http.StatusConflict || harness.ReasonOf(err) != "IDEMPOTENCY_KEY_REUSED" {
		w.t.Errorf("the key with another body = %d %v, want 409 IDEMPOTENCY_KEY_REUSED", answer.Status, err)
	}
}

func (w *world) cancelRunning(conv harness.Conversation) {
	w.t.Helper()
	turn := w.submit(conv, "HANG:cancel-running")
	w.arrived("cancel-running", 1)
	begin := time.Now()
	if _, err := w.Client.Cancel(w.ctx, conv, turn.TurnID); err != nil {
		w.t.Fatalf("cancel a running turn: %v", err)
	}
	got := w.wait(conv, turn.TurnID)
	if got.State != "CANCELLED" || len(got.Replies) > 0 {
		w.t.Errorf("cancelled turn: %s, want CANCELLED without a reply", describe(got))
	}
	w.t.Logf("a running turn was cancelled in %v", time.Since(begin).Round(time.Millisecond))
	again, err := w.Client.Cancel(w.ctx, conv, turn.TurnID)
	if err != nil || again.State != "CANCELLED" {
		w.t.Errorf("cancel again = %s %v, want CANCELLED", again.State, err)
	}
	w.says(conv, "SAY:after the cancel", "after the cancel")
}

func (w *world) cancelWaiting(conv harness.Conversation) {
	w.t.Helper()
	running := w.submit(conv, "HANG:cancel-waiting")
	w.arrived("cancel-waiting", 1)
	waiting := w.submit(conv, "SAY:never said")
	next := w.submit(conv, "SAY:still said")
	got, err := w.Client.Cancel(w.ctx, conv, waiting.TurnID)
	if err != nil || got.State != "CANCELLED" {
		w.t.Errorf("cancel a waiting turn = %s %v, want CANCELLED at once", got.State, err)
	}
	if now, err := w.Client.Turn(w.ctx, conv, running.TurnID, 0); err != nil || now.State != "RUNNING" {
		w.t.Errorf("the running turn is %s (%v), want RUNNING", now.State, err)
	}
	w.Model.Gate("cancel-waiting").Release()
	if got := w.wait(conv, running.TurnID); got.State != "REPLIED" {
		w.t.Errorf("the running turn: %s, want REPLIED", describe(got))
	}
	if got := w.wait(conv, next.TurnID); got.State != "REPLIED" || got.Replies[0].Text != "still said" {
		w.t.Errorf("the turn after the cancelled one: %s, want REPLIED", describe(got))
	}
	for _, m := range w.transcript(conv) {
		if strings.Contains(m.Text, "never said") {
			w.t.Errorf("the cancelled turn is in the transcript: %q", m.Text)
		}
	}
}

func (w *world) busyPolicy(conv harness.Conversation) {
	w.t.Helper()
	running := w.submit(conv, "HANG:busy")
	w.arrived("busy", 1)
	reject := harness.TextTurn("SAY:no").(map[string]any)
	reject["busyPolicy"] = "REJECT"
	_, _, err := w.Client.Submit(w.ctx, conv, "", reject)
	if harness.ReasonOf(err) != "CONVERSATION_BUSY" {
		w.t.Errorf("REJECT while busy = %v, want CONVERSATION_BUSY", err)
	}
	w.Model.Gate("busy").Release()
	w.wait(conv, running.TurnID)
	turn, _, err := w.Client.Submit(w.ctx, conv, "", reject)
	if err != nil {
		w.t.Fatalf("REJECT while idle: %v", err)
	}
	w.wait(conv, turn.TurnID)
}
