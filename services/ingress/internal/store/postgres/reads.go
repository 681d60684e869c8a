package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// turnReader reads turns with their replies and blocks in one pipeline.
type turnReader struct {
	order   []string
	byID    map[string]*turn.Turn
	session map[string]string
}

func (r *turnReader) queue(b *pgx.Batch, c turn.Conversation, ids []string) {
	r.byID, r.session = make(map[string]*turn.Turn), make(map[string]string)
	b.Queue(`SELECT turn_id, position, state, cancel_requested, coalesce(session_id, ''), error_reason, coalesce(error_message, ''),
			coalesce(error_retryable, false), accept_to_attach_ms, cold_admission_ms, first_model_request_ms, model_tool_loop_ms,
			persist_deliver_ms, create_time, end_time
		FROM ingress.turn WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = ANY ($3) ORDER BY position`,
		c.Organization, c.ID, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			t := turn.Turn{Conversation: c}
			var session, message string
			var reason *string
			var retryable bool
			var ended *time.Time
			if err := rows.Scan(&t.ID, &t.Position, &t.State, &t.CancelRequested, &session, &reason, &message, &retryable,
				&t.Timings.AcceptToAttach, &t.Timings.ColdAdmission, &t.Timings.FirstModelRequest, &t.Timings.ModelToolLoop,
				&t.Timings.PersistDeliver, &t.Created, &ended); err != nil {
				return err
			}
			if reason != nil {
				t.Error = &turn.Error{Reason: *reason, Message: message, Retryable: retryable}
			}
			if ended != nil {
				t.Ended = *ended
			}
			r.order, r.byID[t.ID], r.session[t.ID] = append(r.order, t.ID), &t, session
		}
		return rows.Err()
	})
	b.Queue(`SELECT turn_id, message_id FROM ingress.delivery
		WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = ANY ($3) ORDER BY turn_id, ordinal`,
		c.Organization, c.ID, ids).Query(func(rows pgx.Rows) error {
		var id string
		var message int64
		_, err := pgx.ForEachRow(rows, []any{&id, &message}, func() error {
			if t := r.byID[id]; t != nil {
				t.Replies = append(t.Replies, turn.Locator{SessionID: r.session[id], MessageID: message})
			}
			return nil
		})
		return err
	})
	b.Queue(`SELECT turn_id, message_index, inbound_id, type, sha256, size, `+fileOf+` FROM ingress.block b
		WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = ANY ($3) ORDER BY turn_id, message_index, block_index`,
		c.Organization, c.ID, ids).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var id, inbound string
			var index int
			var block turn.Block
			var file fileRow
			if err := rows.Scan(file.after(&id, &index, &inbound, &block.Type, &block.SHA256, &block.Size)...); err != nil {
				return err
			}
			file.to(&block)
			t := r.byID[id]
			if t == nil {
				continue
			}
			if index == len(t.Messages) {
				t.Messages = append(t.Messages, turn.Message{InboundID: inbound})
			}
			m := &t.Messages[len(t.Messages)-1]
			m.Blocks = append(m.Blocks, block)
		}
		return rows.Err()
	})
}

func (r *turnReader) turns() []turn.Turn {
	out := make([]turn.Turn, len(r.order))
	for i, id := range r.order {
		out[i] = *r.byID[id]
	}
	return out
}

func (s *Store) read(ctx context.Context, c turn.Conversation, ids []string) ([]turn.Turn, error) {
	var r turnReader
	b := &pgx.Batch{}
	r.queue(b, c, ids)
	// One implicit transaction, but not one snapshot: a turn that ends between the statements
	// shows its replies early at worst, and they are only shown with an ended state.
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, translate("read turns", err)
	}
	return r.turns(), nil
}

// Turn implements store.Reads.
func (s *Store) Turn(ctx context.Context, c turn.Conversation, turnID string) (turn.Turn, error) {
	turns, err := s.read(ctx, c, []string{turnID})
	if err != nil {
		return turn.Turn{}, err
	}
	if len(turns) == 0 {
		return turn.Turn{}, fmt.Errorf("read turn: %w", store.ErrNotFound)
	}
	return turns[0], nil
}

// Turns implements store.Reads.
func (s *Store) Turns(ctx context.Context, c turn.Conversation, after int64, limit int) ([]turn.Turn, error) {
	rows, err := s.pool.Query(ctx, `SELECT turn_id FROM ingress.turn
		WHERE organization_id = $1 AND conversation_id = $2 AND position > $3 ORDER BY position LIMIT $4`, c.Organization, c.ID, after, limit)
	if err != nil {
		return nil, translate("list turns", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, translate("list turns", err)
	}
	return s.read(ctx, c, ids)
}

// Events implements store.Reads.
func (s *Store) Events(ctx context.Context, c turn.Conversation, after int64, limit int) ([]turn.Event, error) {
	var last int64
	var out []turn.Event
	b := &pgx.Batch{}
	// The counter is read after the events: an event committed between the two statements must not
	// make a known sequence look unknown.
	b.Queue(`SELECT e.seq, e.type, coalesce(e.turn_id, ''), e.message_id, e.create_time, coalesce(t.state, ''), coalesce(t.session_id, ''),
			t.error_reason, coalesce(t.error_message, ''), coalesce(t.error_retryable, false),
			coalesce(e.file_uri, ''), coalesce(e.file_change, ''), coalesce(e.file_previous_uri, ''), coalesce(e.file_version, '')
		FROM ingress.event e LEFT JOIN ingress.turn t USING (organization_id, conversation_id, turn_id)
		WHERE e.organization_id = $1 AND e.conversation_id = $2 AND e.seq > $3 ORDER BY e.seq LIMIT $4`,
		c.Organization, c.ID, after, limit).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var e turn.Event
			var message *int64
			var state turn.State
			var session, text string
			var reason *string
			var retryable bool
			var file turn.FileChange
			if err := rows.Scan(&e.Sequence, &e.Type, &e.TurnID, &message, &e.Created, &state, &session, &reason, &text, &retryable,
				&file.URI, &file.Change, &file.Previous, &file.Version); err != nil {
				return err
			}
			if e.Type == turn.EventFile {
				e.File = &file
			}
			if message != nil {
				e.Locator = &turn.Locator{SessionID: session, MessageID: *message}
			}
			if e.Type == turn.EventEnded {
				e.State = state
				if reason != nil {
					e.Error = &turn.Error{Reason: *reason, Message: text, Retryable: retryable}
				}
			}
			out = append(out, e)
		}
		return rows.Err()
	})
	queueLast(b, c, &last)
	if err := s.pool.SendBatch(ctx, b).Close(); err != nil {
		return nil, translate("read events", err)
	}
	if after > last {
		return nil, fmt.Errorf("read events: %w", store.ErrUnknownSequence)
	}
	return out, nil
}

func queueLast(b *pgx.Batch, c turn.Conversation, last *int64) {
	b.Queue(`SELECT coalesce((SELECT event_seq FROM ingress.conversation WHERE organization_id = $1 AND conversation_id = $2), 0)`,
		c.Organization, c.ID).QueryRow(func(row pgx.Row) error { return row.Scan(last) })
}

// LastSequence implements store.Reads.
func (s *Store) LastSequence(ctx context.Context, c turn.Conversation) (int64, error) {
	var last int64
	b := &pgx.Batch{}
	queueLast(b, c, &last)
	return last, translate("read last sequence", s.pool.SendBatch(ctx, b).Close())
}

const runColumns = `organization_id, conversation_id, turn_id, attempt, epoch, session_id, watermark, cancel_requested, owner`

func scanRun(row pgx.CollectableRow) (r turn.Run, err error) {
	return r, row.Scan(&r.Conversation.Organization, &r.Conversation.ID, &r.TurnID, &r.Attempt, &r.Epoch, &r.SessionID, &r.Watermark, &r.CancelRequested, &r.Owner)
}

// Running implements store.Reads.
func (s *Store) Running(ctx context.Context, c turn.Conversation) (turn.Run, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+runColumns+` FROM ingress.turn
		WHERE organization_id = $1 AND conversation_id = $2 AND state = 'RUNNING'`, c.Organization, c.ID)
	if err != nil {
		return turn.Run{}, translate("read running turn", err)
	}
	runs, err := pgx.CollectRows(rows, scanRun)
	switch {
	case err != nil:
		return turn.Run{}, translate("read running turn", err)
	case len(runs) == 0:
		return turn.Run{}, fmt.Errorf("read running turn: %w", store.ErrNotFound)
	}
	return runs[0], nil
}

// Unaccepted implements store.Reads.
func (s *Store) Unaccepted(ctx context.Context, c turn.Conversation, userRows []int64) ([]int64, error) {
	rows, err := s.pool.Query(ctx, `SELECT DISTINCT u.id FROM unnest($3::bigint[]) AS u (id)
		JOIN ingress.turn t ON t.organization_id = $1 AND t.conversation_id = $2 AND t.watermark < u.id
		WHERE (t.state = 'RUNNING' OR u.id <= t.end_watermark) AND NOT u.id = ANY (coalesce(t.user_message_ids, '{}'))`,
		c.Organization, c.ID, userRows)
	if err != nil {
		return nil, translate("look for unaccepted rows", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	return ids, translate("look for unaccepted rows", err)
}

// Blocks implements store.Reads.
func (s *Store) Blocks(ctx context.Context, c turn.Conversation, turnID string) ([]turn.Block, error) {
	rows, err := s.pool.Query(ctx, `SELECT type, sha256, size, raw, `+fileOf+` FROM ingress.block b
		WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 ORDER BY message_index, block_index`, c.Organization, c.ID, turnID)
	if err != nil {
		return nil, translate("read blocks", err)
	}
	blocks, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (b turn.Block, err error) {
		var file fileRow
		err = row.Scan(file.after(&b.Type, &b.SHA256, &b.Size, &b.Raw)...)
		file.to(&b)
		return b, err
	})
	return blocks, translate("read blocks", err)
}
