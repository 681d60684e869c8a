// Package store is the interface of routing's rows. It never holds prose: a conversation's
// persona and environment are known by a keyed digest only.
package store

import (
	"context"
	"time"

	"humanwork.internal/services/routing/internal/directory"
)

// Store keeps organizations, placements and conversations. Organizations are found only once
// provisioned and conversations only once bound, except where said. Errors: errs.NotFound with
// ORGANIZATION_NOT_FOUND or CONVERSATION_NOT_FOUND, errs.Unavailable with DATABASE_UNAVAILABLE.
type Store interface {
	Reader
	// AddOrganization records the organization and its placement on the cell at epoch 1 in one
	// transaction, or returns what is recorded.
	AddOrganization(ctx context.Context, id, cell string) (directory.Organization, directory.Placement, error)
	// MarkProvisioned records that the authorities of a recorded organization are provisioned.
	MarkProvisioned(ctx context.Context, id string) error
	// Intent returns a conversation whether bound or not.
	Intent(ctx context.Context, organization, conversation string) (directory.Intent, error)
	// Establish runs fn while no other Establish of the organization runs, in any process. Callers
	// wait in order until ctx ends. The lock goes with the database connection: see Held.
	Establish(ctx context.Context, organization string, fn func(ctx context.Context, tx Establishment) error) error
}

// Reader answers who an organization and a conversation are and where they live.
type Reader interface {
	Organization(ctx context.Context, id string) (directory.Organization, error)
	Placement(ctx context.Context, organization string) (directory.Placement, error)
	Conversation(ctx context.Context, organization, conversation string) (directory.Conversation, directory.Placement, error)
	// Conversations returns up to limit bound conversations after the cursor, oldest first.
	Conversations(ctx context.Context, organization string, after Cursor, limit int) ([]directory.Conversation, error)
}

// Cursor is a position in the order of (create time, id); the zero Cursor is before all.
type Cursor struct {
	CreateTime time.Time // microseconds
	ID         string
}

// Establishment is what an establishment may change. Every call runs on the connection that holds
// the lock, so that none succeeds after the lock is lost: it answers errs.Unavailable with
// ESTABLISHMENT_LOST.
type Establishment interface {
	Intent(ctx context.Context, organization, conversation string) (directory.Intent, error)
	// Record commits an intent and returns it with its create time.
	Record(ctx context.Context, intent directory.Intent) (directory.Intent, error)
	// Withdraw removes an intent that was never bound.
	Withdraw(ctx context.Context, conversation string) error
	// Pending returns the organization's conversations that are not bound, oldest first.
	Pending(ctx context.Context) ([]directory.Intent, error)
	// Free returns those of the sessions that no conversation is bound to, in the same order.
	Free(ctx context.Context, sessions []string) ([]string, error)
	// Held asks the database whether the lock is still held.
	Held(ctx context.Context) error
	// Bind commits the session of a recorded conversation. Binding the same session again changes
	// nothing; errs.Internal with SESSION_ALREADY_BOUND if either side is bound otherwise.
	Bind(ctx context.Context, conversation, session string) (directory.Conversation, error)
}
