// Package authority says which conversations exist, as routing knows them. Whether the caller may
// speak for an organization at all was decided before, by the call's principal.
package authority

import (
	"context"
	"errors"
	"fmt"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// Conversation names a conversation.
type Conversation struct{ Organization, ID string }

// Directory knows organizations and conversations. Both answer errs.NotFound for what does not
// exist, and for a conversation whose session is not bound yet.
type Directory interface {
	Organization(ctx context.Context, organization string) error
	Conversation(ctx context.Context, c Conversation) error
}

// Authority asks a Directory and remembers what it found: a conversation is bound to its session
// for ever.
type Authority struct {
	directory Directory
	known     *lru[Conversation]
}

// New remembers at most size conversations.
func New(d Directory, size int) *Authority {
	return &Authority{directory: d, known: newLRU[Conversation](size)}
}

// Conversation returns errs.NotFound with CONVERSATION_NOT_FOUND unless c exists and is bound.
func (a *Authority) Conversation(ctx context.Context, c Conversation) error {
	if a.known.has(c) {
		return nil
	}
	err := a.directory.Conversation(ctx, c)
	switch {
	case errors.Is(err, errs.NotFound):
		// Organization or conversation, foreign or never made: ids cannot be probed.
		return errs.Wrap(err, errs.NotFound, fault.ConversationNotFound, "no such conversation")
	case err != nil:
		return fmt.Errorf("ask for the conversation: %w", err)
	}
	a.known.add(c)
	return nil
}

// Organization returns errs.NotFound unless the organization exists. It always asks.
func (a *Authority) Organization(ctx context.Context, organization string) error {
	if err := a.directory.Organization(ctx, organization); err != nil {
		return fmt.Errorf("ask for the organization: %w", err)
	}
	return nil
}
