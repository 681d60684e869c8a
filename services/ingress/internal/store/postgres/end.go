package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// endSQL is the whole end. The first update says whether this instance still owns this attempt;
// if not, nothing else has a row to work on.
const endSQL = `
WITH t AS (
    UPDATE ingress.turn SET state = $6, owner = NULL, user_message_ids = $7, end_watermark = $8,
        error_reason = $9, error_message = $10, error_retryable = $11, accept_to_attach_ms = $12, cold_admission_ms = $13,
        first_model_request_ms = $14, model_tool_loop_ms = $15, persist_deliver_ms = $16, end_time = clock_timestamp()
    WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 AND state = 'RUNNING' AND owner = $4 AND attempt = $5
    RETURNING session_id, end_time
), d AS (
    INSERT INTO ingress.delivery (organization_id, session_id, message_id, conversation_id, turn_id, ordinal)
    SELECT $1, t.session_id, u.id, $2, $3, u.n FROM t, unnest($17::bigint[]) WITH ORDINALITY AS u (id, n)
), b AS (
    UPDATE ingress.block SET raw = NULL FROM t
    WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 AND NOT $18
), c AS (
    UPDATE ingress.conversation SET event_seq = event_seq + cardinality($19::text[]), running = false
    FROM t WHERE organization_id = $1 AND conversation_id = $2
    RETURNING event_seq, waiting
), e AS (
    INSERT INTO ingress.event (organization_id, conversation_id, seq, type, turn_id, message_id, create_time)
    SELECT $1, $2, c.event_seq - cardinality($19::text[]) + u.n, u.type, $3, u.id, t.end_time
    FROM c, t, unnest($19::text[], $20::bigint[]) WITH ORDINALITY AS u (type, id, n)
)
SELECT c.event_seq, c.waiting > 0, t.end_time, pg_notify('ingress', $21 || c.event_seq)::text FROM c, t`

// End implements store.Turns.
func (s *Store) End(ctx context.Context, e store.Ending) (store.Ended, error) {
	c, d := e.Run.Conversation, e.Decision
	var types []string
	var ids []*int64
	for _, id := range d.Replies {
		types, ids = append(types, turn.EventDelivered), append(ids, &id)
	}
	var last *int64
	if len(ids) > 0 {
		last = ids[len(ids)-1]
	}
	types, ids = append(types, turn.EventEnded), append(ids, last)
	var reason, message *string
	var retryable *bool
	if d.Error != nil {
		reason, message, retryable = &d.Error.Reason, &d.Error.Message, &d.Error.Retryable
	}
	replies, users := d.Replies, e.Rows.Users
	if replies == nil {
		replies = []int64{}
	}
	if users == nil {
		users = []int64{}
	}
	var ended store.Ended
	err := s.transaction(ctx, func(b *pgx.Batch) {
		b.Queue(lockSQL, c.Organization, c.ID)
		b.Queue(endSQL, c.Organization, c.ID, e.Run.TurnID, e.Instance, e.Run.Attempt,
			d.State, users, e.Rows.End, reason, message, retryable,
			e.Timings.AcceptToAttach, e.Timings.ColdAdmission, e.Timings.FirstModelRequest, e.Timings.ModelToolLoop, e.Timings.PersistDeliver,
			replies, d.KeepBlocks, types, ids, noticeOf(c, e.Run.TurnID, true)).QueryRow(func(row pgx.Row) error {
			final := turn.Event{State: d.State, Error: d.Error}
			var ignored string
			if err := row.Scan(&final.Sequence, &ended.Waiting, &final.Created, &ignored); err != nil {
				return err
			}
			ended.Time = final.Created
			ended.Events = eventsOf(e, final)
			return nil
		})
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return store.Ended{}, fmt.Errorf("end turn: %w", store.ErrNotOwner)
	}
	return ended, translate("end turn", err)
}

// eventsOf lists what endSQL appended, of which final is the last.
func eventsOf(e store.Ending, final turn.Event) []turn.Event {
	final.Type, final.TurnID = turn.EventEnded, e.Run.TurnID
	n := int64(len(e.Decision.Replies))
	var out []turn.Event
	for i, id := range e.Decision.Replies {
		final.Locator = &turn.Locator{SessionID: e.Run.SessionID, MessageID: id}
		out = append(out, turn.Event{Sequence: final.Sequence - n + int64(i), Type: turn.EventDelivered, TurnID: e.Run.TurnID,
			Locator: final.Locator, Created: final.Created})
	}
	return append(out, final)
}

const withdrawSQL = `
WITH t AS (
    UPDATE ingress.turn SET state = 'CANCELLED', cancel_requested = true, end_time = clock_timestamp()
    WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 AND state = 'ACCEPTED'
    RETURNING end_time
), b AS (
    UPDATE ingress.block SET raw = NULL FROM t WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3
), c AS (
    UPDATE ingress.conversation SET event_seq = event_seq + 1, waiting = waiting - 1
    FROM t WHERE organization_id = $1 AND conversation_id = $2
    RETURNING event_seq
), e AS (
    INSERT INTO ingress.event (organization_id, conversation_id, seq, type, turn_id, create_time)
    SELECT $1, $2, c.event_seq, 'turn.ended', $3, t.end_time FROM c, t
)
SELECT c.event_seq, t.end_time, pg_notify('ingress', $4 || c.event_seq)::text FROM c, t`

const wishSQL = `
UPDATE ingress.turn SET cancel_requested = true
WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 AND state = 'RUNNING'
RETURNING ` + runColumns

// Cancel implements store.Turns.
func (s *Store) Cancel(ctx context.Context, c turn.Conversation, turnID string) (store.CancelOutcome, error) {
	var out store.CancelOutcome
	var read turnReader
	err := s.transaction(ctx, func(b *pgx.Batch) {
		b.Queue(lockSQL, c.Organization, c.ID)
		b.Queue(withdrawSQL, c.Organization, c.ID, turnID, noticeOf(c, turnID, true)).Query(func(rows pgx.Rows) error {
			ev := turn.Event{Type: turn.EventEnded, TurnID: turnID, State: turn.Cancelled}
			var ignored string
			_, err := pgx.ForEachRow(rows, []any{&ev.Sequence, &ev.Created, &ignored}, func() error {
				out.Events = append(out.Events, ev)
				return nil
			})
			return err
		})
		b.Queue(wishSQL, c.Organization, c.ID, turnID).Query(func(rows pgx.Rows) error {
			runs, err := pgx.CollectRows(rows, scanRun)
			if len(runs) > 0 {
				out.Run = &runs[0]
			}
			return err
		})
		read.queue(b, c, []string{turnID})
	})
	if err != nil {
		return store.CancelOutcome{}, translate("cancel turn", err)
	}
	turns := read.turns()
	if len(turns) == 0 {
		return store.CancelOutcome{}, fmt.Errorf("cancel turn: %w", store.ErrNotFound)
	}
	out.Turn = turns[0]
	return out, nil
}
