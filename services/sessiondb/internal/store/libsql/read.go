package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"humanwork.internal/services/sessiondb/internal/store"
	"humanwork.internal/services/sessiondb/internal/transcript"
)

// around is how many rows on each side of a window are read to judge its rows. A reply that was cut
// off begins at most seven user and assistant rows before its last one, and a run of tool calls
// lies between at worst; one with more than about a hundred of them is shown in its parts.
const around = 128

// near is how many rows back the beginning of most replies is found.
const near = 6

// rowColumns are a transcript.Row's, of messages; %s is its deletion mark.
const rowColumns = `id, CAST(role AS BLOB), CAST(content AS BLOB), CAST(api_content AS BLOB), CAST(tool_calls AS BLOB),
	CAST(finish_reason AS BLOB), CAST(timestamp AS REAL), active, compacted`

const shown = `role IN ('user', 'assistant')`

const (
	// The plus sign keeps the index of the session away: above a watermark there are few rows.
	selectAbove = `SELECT ` + rowColumns + `, 0 FROM messages WHERE +session_id = ? AND id > ? AND ` + shown

	selectSession = `SELECT ` + rowColumns + `, 0 FROM messages WHERE session_id = ? AND ` + shown

	selectDeleted = `SELECT ` + rowColumns + `, humanwork_boundary FROM ` + deletedTable + ` WHERE session_id = ? AND ` + shown

	// The inner queries walk the index of schema.go and read no row.
	selectAfter = `SELECT ` + rowColumns + `, 0 FROM messages WHERE id IN
		(SELECT id FROM messages WHERE session_id = ? AND id > ? ORDER BY id LIMIT ?) AND ` + shown

	selectUpTo = `SELECT ` + rowColumns + `, 0 FROM messages WHERE id IN
		(SELECT id FROM messages WHERE session_id = ? AND id <= ? ORDER BY id DESC LIMIT ?) AND ` + shown

	// selectEnd gives two rows if the session goes on behind a window.
	selectEnd = `SELECT id FROM messages WHERE session_id = ? AND id > ? ORDER BY id LIMIT 2 OFFSET ?`

	selectRewrites = `SELECT boundary, COALESCE(batch_end, 0) FROM ` + rewritesTable + ` WHERE session_id = ?`

	selectWatermark = `SELECT seq FROM sqlite_sequence WHERE name = 'messages'`

	selectSessionWatermark = `SELECT COALESCE(MAX(rowid), 0) FROM sessions`

	selectUnbound = `SELECT CAST(id AS BLOB) FROM sessions s WHERE s.rowid > ? AND source = 'acp' AND parent_session_id IS NULL
		AND NOT EXISTS (SELECT 1 FROM messages m WHERE m.session_id = s.id)
		AND NOT EXISTS (SELECT 1 FROM ` + deletedTable + ` d WHERE d.session_id = s.id) ORDER BY s.rowid`
)

// MessageWatermark implements store.Store.
func (s *Store) MessageWatermark(ctx context.Context, org string) (mark int64, err error) {
	err = s.read(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		mark, err = watermark(ctx, c)
		return err
	})
	return mark, err
}

func watermark(ctx context.Context, c *sql.Conn) (int64, error) {
	var mark int64
	err := c.QueryRowContext(ctx, selectWatermark).Scan(&mark)
	if err != nil && !errors.Is(err, sql.ErrNoRows) { // no row: no message was ever written
		return 0, fmt.Errorf("read watermark: %w", err)
	}
	return mark, nil
}

// SessionWatermark implements store.Store.
func (s *Store) SessionWatermark(ctx context.Context, org string) (mark int64, err error) {
	err = s.read(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		if err := c.QueryRowContext(ctx, selectSessionWatermark).Scan(&mark); err != nil {
			return fmt.Errorf("read session watermark: %w", err)
		}
		return nil
	})
	return mark, err
}

// UnboundSessions implements store.Store.
func (s *Store) UnboundSessions(ctx context.Context, org string, after int64) (ids []string, err error) {
	err = s.read(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		err := each(ctx, c, selectUnbound, func(rows *sql.Rows) error {
			var id []byte
			if err := rows.Scan(&id); err != nil {
				return err
			}
			ids = append(ids, string(id))
			return nil
		}, after)
		if err != nil {
			return fmt.Errorf("find unbound sessions: %w", err)
		}
		return nil
	})
	return ids, err
}

// Above implements store.Store.
func (s *Store) Above(ctx context.Context, org, session string, mark int64) (snap store.Snapshot, err error) {
	err = s.snapshot(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		if err := begin(ctx, c, session, &snap); err != nil {
			return err
		}
		for _, w := range snap.Rewrites {
			// A rewrite that ended below the watermark is an earlier turn's.
			if w.Boundary >= mark || w.BatchEnd == 0 || w.BatchEnd > mark {
				return readWhole(ctx, c, session, &snap)
			}
		}
		snap.Rewrites = nil
		if err := readRows(ctx, c, session, &snap, selectAbove, session, mark); err != nil {
			return err
		}
		for _, r := range snap.Rows {
			if r.Compacted { // archived in this turn, unnoticed
				snap.Rows = nil
				return readWhole(ctx, c, session, &snap)
			}
		}
		return nil
	})
	return snap, err
}

// Window implements store.Store.
func (s *Store) Window(ctx context.Context, org, session string, after int64, limit int) (snap store.Snapshot, err error) {
	err = s.snapshot(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		if err := begin(ctx, c, session, &snap); err != nil {
			return err
		}
		rewritten := len(snap.Rewrites) > 0
		if !rewritten {
			// Archived before the triggers existed.
			err := c.QueryRowContext(ctx, `SELECT EXISTS (SELECT 1 FROM messages WHERE session_id = ? AND active = 0)`, session).Scan(&rewritten)
			if err != nil {
				return fmt.Errorf("look for archived rows: %w", err)
			}
		}
		if rewritten {
			return readWhole(ctx, c, session, &snap)
		}
		if limit == 0 {
			return readBack(ctx, c, session, after, &snap)
		}
		if err := readRows(ctx, c, session, &snap, selectUpTo, session, after, around); err != nil {
			return err
		}
		if snap.UpTo, err = windowEnd(ctx, c, session, after, limit); err != nil {
			return err
		}
		return readRows(ctx, c, session, &snap, selectAfter, session, after, limit+around)
	})
	return snap, err
}

// readBack reads a row and those before it, few at first: nearly every reply was not cut off.
func readBack(ctx context.Context, c *sql.Conn, session string, id int64, snap *store.Snapshot) error {
	for _, rows := range []int{near, around} {
		snap.Rows = nil
		if err := readRows(ctx, c, session, snap, selectUpTo, session, id, rows); err != nil {
			return err
		}
		if transcript.HoldsBeginning(snap.Rows) {
			break
		}
	}
	return nil
}

// windowEnd returns the id of the limit-th row after an id, or 0 if none follows that one.
func windowEnd(ctx context.Context, c *sql.Conn, session string, after int64, limit int) (int64, error) {
	var ids []int64
	err := each(ctx, c, selectEnd, func(rows *sql.Rows) error {
		var id int64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		ids = append(ids, id)
		return nil
	}, session, after, limit-1)
	if err != nil {
		return 0, fmt.Errorf("find the window's end: %w", err)
	}
	if len(ids) < 2 {
		return 0, nil
	}
	return ids[0], nil
}

// begin reads what every snapshot needs. In a read transaction the first statement fixes what the
// later ones see.
func begin(ctx context.Context, c *sql.Conn, session string, snap *store.Snapshot) (err error) {
	if snap.Watermark, err = watermark(ctx, c); err != nil {
		return err
	}
	err = each(ctx, c, selectRewrites, func(rows *sql.Rows) error {
		var w transcript.Rewrite
		if err := rows.Scan(&w.Boundary, &w.BatchEnd); err != nil {
			return err
		}
		snap.Rewrites = append(snap.Rewrites, w)
		return nil
	}, session)
	if err != nil {
		return fmt.Errorf("read rewrites: %w", err)
	}
	return nil
}

// readWhole reads the session's whole history, with what Hermes deleted.
func readWhole(ctx context.Context, c *sql.Conn, session string, snap *store.Snapshot) error {
	snap.Whole = true
	if err := readRows(ctx, c, session, snap, selectSession, session); err != nil {
		return err
	}
	return readRows(ctx, c, session, snap, selectDeleted, session)
}

func readRows(ctx context.Context, c *sql.Conn, session string, snap *store.Snapshot, query string, args ...any) error {
	err := each(ctx, c, query, func(rows *sql.Rows) error {
		r := transcript.Row{SessionID: session}
		var role, content, api, calls, finish []byte
		var active, compacted sql.NullInt64
		var timestamp sql.NullFloat64
		err := rows.Scan(&r.ID, &role, &content, &api, &calls, &finish, &timestamp, &active, &compacted, &r.DeletedAt)
		if err != nil {
			return err
		}
		r.Role, r.Content, r.APIContent = string(role), string(content), string(api)
		r.ToolCalls, r.FinishReason, r.Timestamp = string(calls), string(finish), timestamp.Float64
		// NULL is what rows written before these columns existed hold; Hermes reads it as live.
		r.Active, r.Compacted = !active.Valid || active.Int64 != 0, compacted.Int64 != 0
		snap.Rows = append(snap.Rows, r)
		return nil
	}, args...)
	if err != nil {
		return fmt.Errorf("read messages: %w", err)
	}
	return nil
}
