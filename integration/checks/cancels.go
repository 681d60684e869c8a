package checks

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

const (
	cancelStep = 20 * time.Millisecond
	cancelSpan = 560 * time.Millisecond // the profiles below last about half a second
)

// profile is a kind of turn to cancel.
type profile struct {
	name    string
	prepare func(prompt, token string)
}

// Cancels sends a cancel at every 20 ms of a turn that thinks, streams, runs a tool and ends, and
// wants the conversation to work after each.
func Cancels(t harness.T) string {
	w := start(t, 6*time.Minute, harness.Options{})
	profiles := []profile{
		{"streaming", func(prompt, token string) {
			w.answer(prompt, scriptedmodel.Reply{Text: strings.Repeat("word ", 15) + token, Between: token})
			// Thinking for 100 ms, then a word each 20 ms.
			time.AfterFunc(100*time.Millisecond, func() { w.trickle(token, 20) })
		}},
		{"tool", func(prompt, token string) { w.answerWithTool(prompt, "sleep 0.25", "done "+token) }},
	}
	var mu sync.Mutex
	states, turns := map[string]int{}, 0
	var lanes sync.WaitGroup
	for _, p := range profiles {
		conv, _ := w.conversation("cancel-" + p.name)
		w.says(conv, "SAY:warm", "warm")
		lanes.Go(func() {
			for at := time.Duration(0); at <= cancelSpan && w.ctx.Err() == nil; at += cancelStep {
				state, err := w.cancelAt(conv, p, at)
				if err != nil {
					t.Errorf("%s, cancelled after %v: %v", p.name, at, err)
				}
				mu.Lock()
				states[p.name+" "+state]++
				turns++
				mu.Unlock()
			}
		})
	}
	lanes.Wait()
	return fmt.Sprintf("%d turns cancelled, one at every %v of thinking, streaming, tool and end: %s", turns, cancelStep, counts(states))
}

// cancelAt cancels a turn after some time and says what became of it and of the next.
func (w *world) cancelAt(conv harness.Conversation, p profile, at time.Duration) (string, error) {
	token := fmt.Sprintf("%s-%d-%s", p.name, at.Milliseconds(), unique())
	p.prepare("do "+token, token)
	turn, _, err := w.Client.Submit(w.ctx, conv, "", harness.TextTurn("do "+token))
	if err != nil {
		return "", err
	}
	pause := time.NewTimer(at)
	<-pause.C
	if _, err := w.Client.Cancel(w.ctx, conv, turn.TurnID); err != nil {
		return "", err
	}
	if turn, err = w.Client.Wait(w.ctx, conv, turn.TurnID); err != nil {
		return "", err
	}
	state := turn.State
	switch {
	case turn.State == "CANCELLED" && len(turn.Replies) == 0:
	case turn.State == "REPLIED" && len(turn.Replies) == 1 && strings.Contains(turn.Replies[0].Text, token):
	case turn.State == "FAILED" && turn.Reason() != "" && len(turn.Replies) == 0:
		state += " " + turn.Reason()
	default:
		return state, fmt.Errorf("%s, want CANCELLED, its own reply, or a failure with a reason", describe(turn))
	}
	// A cancel can leave Hermes broken, which only the next prompt shows: that one may fail, to be sent
	// again, once.
	next := "next-" + token
	w.answer(next, scriptedmodel.Text("say "+next))
	for again := range 2 {
		turn, _, err := w.Client.Submit(w.ctx, conv, "", harness.TextTurn(next))
		if err == nil {
			turn, err = w.Client.Wait(w.ctx, conv, turn.TurnID)
		}
		switch {
		case err != nil:
			return state, err
		case turn.State == "REPLIED" && len(turn.Replies) == 1 && saidOrContinued(turn.Replies[0].Text, "say "+next):
			return state, nil
		case again == 0 && turn.State == "FAILED" && turn.Error.Retryable && len(turn.Replies) == 0:
			state += ", then FAILED " + turn.Reason() + " and retried"
		default:
			return state, fmt.Errorf("ended %s, and the next turn: %s, want REPLIED with %q", state, describe(turn), next)
		}
	}
	return state, nil
}

// trickle lets answers pass a gate one after another, then opens it.
func (w *world) trickle(gate string, steps int) {
	g, beat := w.Model.Gate(gate), time.NewTicker(20*time.Millisecond)
	defer beat.Stop()
	for range steps {
		g.Step()
		select {
		case <-beat.C:
		case <-w.ctx.Done():
		}
	}
	g.Release()
}
