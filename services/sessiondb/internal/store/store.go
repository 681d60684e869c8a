// Package store is what sessiondb needs of an organization's SessionDB: Hermes's state.db, read
// beside the Hermes processes that write it.
package store

import (
	"context"
	"errors"

	"humanwork.internal/services/sessiondb/internal/transcript"
)

// The errors of a Store. Each wraps or is joined with what the database said.
var (
	// ErrNotProvisioned means that the organization has no directory on this cell.
	ErrNotProvisioned = errors.New("organization is not provisioned on this cell")
	// ErrBusy means that the file stayed locked by other processes; try again.
	ErrBusy = errors.New("session database is busy")
	// ErrDamaged means that the file is or was Hermes's but cannot be trusted. It is not changed.
	ErrDamaged = errors.New("session database is damaged")
	// ErrForeign means that the file is no SQLite database, or one that Hermes did not make. It is
	// not changed.
	ErrForeign = errors.New("not a Hermes session database")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("session store is closed")
)

// Snapshot is a consistent reading of one session. Rows are user and assistant rows, in no
// promised order.
type Snapshot struct {
	Rows     []transcript.Row
	Rewrites []transcript.Rewrite
	// Watermark is the largest message id ever given in the whole database.
	Watermark int64
	// Whole tells that Rows are the session's whole history with the deleted ones, not a window.
	Whole bool
	// UpTo is the last id of a window that can be judged: the session goes on behind it. It is 0 if
	// nothing was left out.
	UpTo int64
}

// Store reads SessionDBs. An organization whose Hermes never ran reads as empty. Implementations
// are safe for concurrent use, wait a bounded time for locks, and read nothing while not called.
// Every method fails with one of the errors above or with the context's error.
type Store interface {
	// Provision creates the organization's directory. Idempotent.
	Provision(ctx context.Context, org string) error
	// MessageWatermark returns the largest message id ever given; deletions never lower it.
	MessageWatermark(ctx context.Context, org string) (int64, error)
	// SessionWatermark returns the largest rowid of the sessions.
	SessionWatermark(ctx context.Context, org string) (int64, error)
	// UnboundSessions returns ids of empty root sessions made by ACP above a session watermark,
	// oldest first.
	UnboundSessions(ctx context.Context, org string, after int64) ([]string, error)
	// Above returns the session's rows above the watermark. It returns the whole history if a
	// rewrite touched the session at or after the watermark.
	Above(ctx context.Context, org, session string, watermark int64) (Snapshot, error)
	// Window returns the session's next limit rows after an id (rows of tools count, though they
	// are left out) with enough rows on both sides to judge them, or the whole history if the
	// session was ever rewritten. With limit 0 it returns the row of that id and those before it.
	Window(ctx context.Context, org, session string, after int64, limit int) (Snapshot, error)
	// Close releases every file. Calls in flight end first.
	Close() error
}
