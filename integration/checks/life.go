package checks

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// Shutdown ends every service with SIGTERM in the middle of turns and wants nothing left, and nothing
// lost when they start again.
func Shutdown(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Replicas: 2})
	conv, _ := w.conversation("stopped")
	other, _ := w.conversation("other")
	w.says(other, "SAY:warm", "warm")
	running := w.submit(conv, "HANG:shutdown")
	waiting := w.submit(conv, "SAY:after the restart")
	w.arrived("shutdown", 1)
	stream, err := w.Client.Events(w.ctx, conv, 0)
	if err != nil {
		t.Fatalf("attach: %v", err)
	}
	defer stream.Close()
	began := time.Now()
	w.StopAll()
	took := time.Since(began).Round(10 * time.Millisecond)
	for _, name := range w.Names() {
		w.Launch(name)
	}
	w.AwaitReady(w.ctx)
	got := w.wait(conv, running.TurnID)
	if got.State != "FAILED" || got.Reason() != "INTERRUPTED" || len(got.Replies) > 0 {
		t.Errorf("the turn that ran at the stop: %s, want FAILED INTERRUPTED", describe(got))
	}
	if got := w.wait(conv, waiting.TurnID); got.State != "REPLIED" || !strings.Contains(got.Replies[0].Text, "after the restart") {
		t.Errorf("the turn that waited at the stop: %s, want REPLIED", describe(got))
	}
	w.Model.Gate("shutdown").Release()
	w.says(other, "SAY:still here", "still here")
	w.Stop()
	return fmt.Sprintf("SIGTERM with a running turn, an open event stream and 2 children: exit 0, no process, mount, socket or listener left after %v; "+
		"the waiting turn ran after the restart", took)
}

// WrongHermes starts supervisors without Hermes and with another version of it.
func WrongHermes(t harness.T) string {
	var said []string
	for name, version := range map[string]string{"no Hermes": "", "another version": "0.18.2"} {
		s := harness.Start(t, harness.Options{Venv: harness.OtherVenv(t, version), NotReady: true})
		org := "o-" + unique()
		create := func() error { return s.Client.CreateOrganization(t.Context(), org) }
		if _, err := harness.Durably(t.Context(), func() (bool, error) { return true, create() }); err != nil {
			t.Errorf("%s: create organization: %v", name, err)
		}
		status, text := s.Readiness(t.Context(), harness.Supervisor)
		if status != 503 || !strings.Contains(text, "hermes-agent") || !strings.Contains(text, "install") {
			t.Errorf("%s: readiness = %d %q, want 503 with what to do", name, status, text)
		}
		_, err := s.Client.CreateConversation(t.Context(), harness.Conversation{Organization: org, ID: "c"})
		var api *harness.APIError
		if !errors.As(err, &api) || api.Reason() != "HERMES_UNAVAILABLE" {
			t.Errorf("%s: create conversation = %v, want HERMES_UNAVAILABLE", name, err)
		}
		said = append(said, fmt.Sprintf("%s: %q", name, strings.TrimSpace(text)))
		s.Stop()
	}
	return strings.Join(said, "; ")
}

// HermesLost takes Hermes away from a system that works, and puts it back.
func HermesLost(t harness.T) string {
	venv := harness.MovableVenv(t)
	w := start(t, 4*time.Minute, harness.Options{Venv: venv.Path})
	conv, _ := w.conversation("lost")
	w.says(conv, "SAY:before", "before")
	venv.Away()
	for _, pid := range w.Below(harness.MachineProcess, w.org, "") {
		kill(pid)
	}
	if err := w.Process(harness.Supervisor).AwaitLine(w.ctx, "A machine ended"); err != nil {
		t.Fatalf("%v", err)
	}
	turn := w.submit(conv, "SAY:without Hermes")
	if got := w.wait(conv, turn.TurnID); got.State != "FAILED" || got.Reason() != "HERMES_UNAVAILABLE" || !got.Error.Retryable {
		t.Errorf("a turn without Hermes: %s, want FAILED HERMES_UNAVAILABLE, retryable", describe(got))
	}
	venv.Back()
	w.says(conv, "SAY:with Hermes again", "with Hermes again")
	return "Hermes removed while running: the turn FAILED HERMES_UNAVAILABLE and says what to do; back, the conversation goes on"
}

// PostgresGone cuts the database in several phases and gives it back.
func PostgresGone(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Replicas: 2})
	conv, _ := w.conversation("pg")
	w.says(conv, "SAY:warm", "warm")
	running := w.submit(conv, "SLOW:pg|one two three")
	waiting := w.submit(conv, "SAY:waited")
	w.arrived("pg", 1)
	w.Database.Cut()
	_, _, err := w.Client.Submit(w.ctx, conv, "pg-gone", harness.TextTurn("SAY:later"))
	var api *harness.APIError
	if !errors.As(err, &api) || api.Status != 503 || api.Reason() == "" {
		t.Errorf("submit without a database = %v, want 503 with a reason", err)
	}
	reason := harness.ReasonOf(err)
	// The child answers while nobody can record it.
	w.Model.Gate("pg").Release()
	pause := time.NewTimer(1500 * time.Millisecond)
	<-pause.C
	w.Database.Restore()
	for name, id := range map[string]string{"one two three": running.TurnID, "waited": waiting.TurnID} {
		if got := w.wait(conv, id); got.State != "REPLIED" || got.Replies[0].Text != name {
			t.Errorf("%q: %s, want REPLIED", name, describe(got))
		}
	}
	later, err := harness.Durably(w.ctx, func() (harness.Turn, error) {
		turn, _, err := w.Client.Submit(w.ctx, conv, "pg-gone", harness.TextTurn("SAY:later"))
		return turn, err
	})
	if err != nil {
		t.Fatalf("submit with the database back: %v", err)
	}
	if got := w.wait(conv, later.TurnID); got.State != "REPLIED" {
		t.Errorf("after the database came back: %s, want REPLIED", describe(got))
	}
	w.AwaitReady(w.ctx)
	return fmt.Sprintf("Postgres away in a running turn: submit 503 %s, the turn's reply recorded when it came back, the waiting turn ran, the same key accepted", reason)
}
