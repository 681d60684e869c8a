package checks

import (
	"fmt"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

// Compaction lets Hermes compact a session in the middle of turns that work, of turns that fail, and
// in an outage, and wants no old reply delivered again.
func Compaction(t harness.T) string {
	w := start(t, 6*time.Minute, harness.Options{ContextLength: 70_000})
	conv, session := w.conversation("compacted")
	const failing = "this-one-fails"
	w.Model.On(func(r scriptedmodel.Request) bool {
		return r.Kind == scriptedmodel.KindTurn && strings.Contains(r.UserText[max(0, len(r.UserText)-100):], failing)
	}, scriptedmodel.Fail(500))
	seen, replies, failed := map[int64]string{}, 0, 0
	prompt := func(i int, ending string) harness.Turn {
		token := fmt.Sprintf("big-%d-%s", i, unique())
		turn := w.turn(conv, token+" "+strings.Repeat("sixteen bytes... ", 16_000/17)+ending)
		for _, r := range turn.Replies {
			if other, ok := seen[r.Locator.MessageID]; ok {
				t.Errorf("turn %d: locator %d was delivered before, as %s", i, r.Locator.MessageID, other)
			}
			seen[r.Locator.MessageID] = token
			if !strings.Contains(r.Text, token) {
				t.Errorf("turn %d: the reply is another's: %.100q", i, r.Text)
			}
		}
		if turn.State == "REPLIED" && len(turn.Replies) == 1 {
			replies++
		}
		return turn
	}
	n := 0
	good := func(times int) {
		for range times {
			n++
			if turn := prompt(n, "."); turn.State != "REPLIED" || len(turn.Replies) != 1 {
				t.Errorf("turn %d: %s, want one reply", n, describe(turn))
			}
		}
	}
	good(9)
	// Failing turns until Hermes compacts in one of them.
	for before := w.compacted(session); w.compacted(session) == before && !t.Failed(); {
		if n++; failed > 8 {
			t.Fatalf("Hermes compacted in none of %d failing turns", failed)
		}
		if turn := prompt(n, failing); turn.State != "FAILED" || len(turn.Replies) > 0 {
			t.Errorf("turn %d fails while Hermes compacts: %s, want FAILED without a reply", n, describe(turn))
		}
		failed++
	}
	first := w.compacted(session)
	good(10) // compacts again, in a turn that works
	second := w.compacted(session)
	if second == first {
		t.Errorf("Hermes did not compact in 10 more turns")
	}
	w.Model.Down()
	n++
	if turn := prompt(n, "."); turn.State != "FAILED" || len(turn.Replies) > 0 {
		t.Errorf("turn in an outage: %s, want FAILED without a reply", describe(turn))
	}
	failed++
	w.Model.Up()
	good(2)
	w.everyReplyIsShown(conv, seen)
	return fmt.Sprintf("%d turns with %d rows compacted in a failing turn and %d in later ones: %d replies once each, %d failures without one; every old locator resolves",
		n, first, second-first, replies, failed)
}

func (w *world) compacted(session string) int {
	w.t.Helper()
	rows, err := w.Rows(w.ctx, w.org)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	n := 0
	for _, r := range rows {
		if r.SessionID == session && r.Compacted == 1 {
			n++
		}
	}
	return n
}

// everyReplyIsShown wants each delivered locator in the transcript once, with its own text.
func (w *world) everyReplyIsShown(conv harness.Conversation, delivered map[int64]string) {
	w.t.Helper()
	shown := map[int64]int{}
	texts := map[string]int{}
	for _, m := range w.transcript(conv) {
		if m.Role != "assistant" {
			continue
		}
		shown[m.Locator.MessageID]++
		for _, token := range delivered {
			if strings.Contains(m.Text, token+" ") {
				texts[token]++
			}
		}
	}
	for id, token := range delivered {
		if shown[id] != 1 || texts[token] != 1 {
			w.t.Errorf("reply %s (locator %d) is in the transcript %d times by its locator and %d times by its text, want 1", token, id, shown[id], texts[token])
		}
	}
}
