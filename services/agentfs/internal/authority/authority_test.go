package authority

import (
	"context"
	"errors"
	"testing"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

type fakeDirectory struct {
	asked int
	err   error
}

func (f *fakeDirectory) Organization(context.Context, string) error { f.asked++; return f.err }

func (f *fakeDirectory) Conversation(context.Context, Conversation) error { f.asked++; return f.err }

func TestConversationIsAskedForOnce(t *testing.T) {
	d := &fakeDirectory{err: errs.New(errs.NotFound, "ORGANIZATION_NOT_FOUND", "no such organization")}
	a := New(d, 2)
	c := Conversation{"acme", "c1"}
	for range 2 {
		if err := a.Conversation(t.Context(), c); !errors.Is(err, errs.NotFound) || !errors.Is(err, fault.ConversationNotFound) || errs.ReasonOf(err) != fault.ConversationNotFound {
			t.Errorf("unknown conversation: got %v, want CONVERSATION_NOT_FOUND", err)
		}
	}
	if d.asked != 2 {
		t.Errorf("asked %d times, want 2: an absence is not remembered", d.asked)
	}
	d.err = errs.New(errs.Unavailable, "UNAVAILABLE", "down")
	if err := a.Conversation(t.Context(), c); !errors.Is(err, errs.Unavailable) {
		t.Errorf("routing down: got %v, want unavailable", err)
	}
	d.err, d.asked = nil, 0
	for range 3 {
		if err := a.Conversation(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if d.asked != 1 {
		t.Errorf("asked %d times, want once", d.asked)
	}
	// c stays the most recent; the other two push each other out.
	for _, id := range []string{"c2", "c1", "c3", "c1", "c2"} {
		if err := a.Conversation(t.Context(), Conversation{"acme", id}); err != nil {
			t.Fatal(err)
		}
	}
	if d.asked != 4 {
		t.Errorf("asked %d times, want 4: two conversations are remembered", d.asked)
	}
}
