package checks

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// Outcomes shows how turns end when the model is away, breaks off or answers nonsense, and the ends
// that are no failures.
func Outcomes(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Configure: func(service string, file map[string]any) {
		if service == harness.Supervisor {
			file["watchdog_timeout"] = "15s"
		}
	}})
	failing, _ := w.conversation("failing")
	working, _ := w.conversation("working")
	hanging, _ := w.conversation("hanging")
	hung := w.submit(hanging, "HANG:never")

	// A model that fails for one conversation while another works.
	broken := w.submit(failing, "FAIL:500")
	w.says(working, "SAY:works beside it", "works beside it")
	w.failed(failing, broken.TurnID)

	var reasons []string
	for _, prompt := range []string{"FAIL:400", "GARBAGE"} {
		turn := w.submit(failing, prompt)
		reasons = append(reasons, prompt+" "+w.failed(failing, turn.TurnID).Reason())
	}
	// A stream that breaks is continued by Hermes and is one reply.
	w.says(failing, "HALF", "and this is the rest of it")
	w.says(failing, "LENGTH", "and this is the rest of it")

	// A model that never answers is ended by the watchdog, and the child with it.
	reasons = append(reasons, "hang "+w.failed(hanging, hung.TurnID).Reason())
	w.says(hanging, "SAY:alive again", "alive again")

	// The whole model is away.
	w.Model.Down()
	lost := w.submit(failing, "anyone there?")
	turn := w.failed(failing, lost.TurnID)
	reasons = append(reasons, "outage "+turn.Reason())
	if turn.Reason() != "MODEL_UNAVAILABLE" || turn.Error != nil && !turn.Error.Retryable {
		t.Errorf("a turn in a model outage: %s, want MODEL_UNAVAILABLE, retryable", describe(turn))
	}
	w.Model.Up()
	w.says(working, "SAY:works after it", "works after it")
	w.says(failing, "SAY:and here too", "and here too")

	for _, m := range w.transcript(failing) {
		if m.Role == "assistant" && (strings.Contains(m.Text, "failed after") || strings.Contains(m.Text, "HTTP 4") || strings.Contains(m.Text, "HTTP 5")) {
			t.Errorf("the transcript shows a failure as an answer: %q", m.Text)
		}
	}
	native, silent := w.nativeCommand(working), w.noReply(working)
	return fmt.Sprintf("model outage FAILED %s without assistant text while another conversation worked; %s; broken streams continued into one reply; %s; %s",
		turn.Reason(), strings.Join(reasons, ", "), native, silent)
}

// failed waits for a turn and wants it FAILED with a reason and without a reply.
func (w *world) failed(conv harness.Conversation, id string) harness.Turn {
	w.t.Helper()
	turn := w.wait(conv, id)
	if turn.State != "FAILED" || turn.Reason() == "" || len(turn.Replies) > 0 {
		w.t.Errorf("turn: %s, want FAILED with a reason and no reply", describe(turn))
	}
	return turn
}

func (w *world) nativeCommand(conv harness.Conversation) string {
	w.t.Helper()
	before, asked := len(w.transcript(conv)), w.lastRequest()
	turn := w.turn(conv, "/help")
	if turn.State != "NATIVE_COMMAND" || len(turn.Replies) > 0 {
		w.t.Errorf("/help: %s, want NATIVE_COMMAND", describe(turn))
	}
	if after := len(w.transcript(conv)); after != before || len(w.requests(asked)) > 0 {
		w.t.Errorf("/help added %d messages and %d model requests, want none", after-before, len(w.requests(asked)))
	}
	return "NATIVE_COMMAND seen"
}

func (w *world) noReply(conv harness.Conversation) string {
	w.t.Helper()
	answer, err := w.Client.Raw(w.ctx, http.MethodPost, conv.Path()+"/turns", nil, body([]byte(kinds[2].block)))
	if err == nil {
		err = answer.Err()
	}
	if err != nil {
		w.t.Fatalf("submit audio alone: %v", err)
	}
	var turn harness.Turn
	if err := json.Unmarshal(answer.Body, &turn); err != nil {
		w.t.Fatalf("submit audio alone: %v", err)
	}
	if turn = w.wait(conv, turn.TurnID); turn.State != "NO_REPLY" || len(turn.Replies) > 0 || turn.Reason() == "" {
		w.t.Errorf("audio alone: %s, want NO_REPLY with a reason", describe(turn))
	}
	return "NO_REPLY " + turn.Reason() + " seen"
}
