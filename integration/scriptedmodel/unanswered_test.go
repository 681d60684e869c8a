package scriptedmodel

import (
	"context"
	"fmt"
	"strings"
	"testing"
)

// The shapes are those Hermes makes: a prompt without an answer and the next one in one message.
func TestUnansweredPromptsAreTakenOff(t *testing.T) {
	m, base := start(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		if resp, err := post(ctx, t, base, turnBody(true, user(t, "HANG"))); err == nil {
			resp.Body.Close()
		}
	}()
	if err := m.Gate(DefaultGate).Arrived(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	// The old connection is still open, as it is after a cancel.
	if got := ask(t, base, turnBody(true, user(t, "HANG\n\nFAIL:500"))); got.status != 500 {
		t.Errorf("second prompt: %+v, want 500", got)
	}
	cancel()
	if got := ask(t, base, turnBody(true, user(t, "HANG\n\nFAIL:500"))); got.status != 500 {
		t.Errorf("second prompt again: %+v, want 500", got)
	}
	m.Down()
	merged := "HANG\n\nFAIL:500\n\nin the outage"
	ask(t, base, turnBody(true, user(t, merged)))
	m.Up()
	merged += "\n\nSAY:at last"
	if got := ask(t, base, turnBody(true, user(t, merged))); got.text != "at last" {
		t.Errorf("last prompt: %+v, want its directive obeyed", got)
	}
	rs := m.Requests()
	if last := rs[len(rs)-1]; last.UserText != merged || last.Prompt != "SAY:at last" {
		t.Errorf("user text %q, prompt %q", last.UserText, last.Prompt)
	}
}

func TestAnsweredPromptsStay(t *testing.T) {
	m, base := start(t, Config{})
	ask(t, base, turnBody(true, user(t, "first")))
	ask(t, base, turnBody(true, user(t, "FAIL:500")))
	for _, body := range []string{
		turnBody(true, user(t, "first\n\nsecond")),
		turnBody(true, user(t, "other"), user(t, "FAIL:500\n\nsecond")), // another history
		turnBody(true, user(t, "FAIL:500 second")),
	} {
		ask(t, base, body)
		rs := m.Requests()
		if last := rs[len(rs)-1]; last.Prompt != last.UserText {
			t.Errorf("prompt = %q, want all of %q", last.Prompt, last.UserText)
		}
	}
}

func TestUnansweredIsBounded(t *testing.T) {
	m := New(Config{})
	for i := range 3 * maxUnanswered {
		m.noteRefused(parse(t, turnBody(true, user(t, fmt.Sprint(i)))))
	}
	if n := len(m.unanswered.entries); n != maxUnanswered {
		t.Errorf("kept %d, want %d", n, maxUnanswered)
	}
}

func TestGatesAreBounded(t *testing.T) {
	m, base := start(t, Config{})
	for i := range maxGates {
		m.Gate(fmt.Sprint(i))
	}
	if got := ask(t, base, turnBody(false, user(t, "HANG:more"))); got.status != 503 || !strings.Contains(got.text, "gates") {
		t.Errorf("answer = %+v, want 503", got)
	}
}
