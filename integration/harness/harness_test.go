package harness_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"humanwork.internal/integration/harness"
)

func TestOneTurnThroughEveryBinary(t *testing.T) {
	if testing.Short() || os.Getenv(harness.HermesVariable) == "" {
		t.Skip("needs the real Hermes; run with make test")
	}
	s := harness.Start(t, harness.Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	conv := harness.Conversation{Organization: "one", ID: "c-1"}
	if err := s.Client.CreateOrganization(ctx, conv.Organization); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Client.CreateConversation(ctx, conv); err != nil {
		t.Fatal(err)
	}
	turn, _, err := s.Client.Submit(ctx, conv, "", harness.TextTurn("hello there"))
	if err != nil {
		t.Fatal(err)
	}
	turn, err = s.Client.Wait(ctx, conv, turn.TurnID)
	if err != nil {
		t.Fatal(err)
	}
	if turn.State != "REPLIED" || len(turn.Replies) != 1 || !strings.Contains(turn.Replies[0].Text, "hello there") {
		t.Fatalf("turn = %+v, want one reply that echoes the text", turn)
	}
	for kind, want := range map[string]int{harness.MachineProcess: 1, harness.ChildProcess: 1, harness.HermesProcess: 1} {
		if got := len(s.Below(kind, conv.Organization, "")); got != want {
			t.Errorf("%d processes of kind %s, want %d", got, kind, want)
		}
	}
	messages, err := s.Client.Transcript(ctx, conv)
	if err != nil || len(messages) != 2 {
		t.Errorf("transcript = %+v, %v; want two messages", messages, err)
	}
	s.Stop()
}
