package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

const methodSubmit = "SubmitTurn"

// acceptSQL is the whole acceptance: one statement, one round trip, one commit. The update of the
// conversation is its lock and its limits; if they refuse, no row follows. A key that exists makes
// the statement fail as a whole.
const acceptSQL = `
WITH c AS (
    INSERT INTO ingress.conversation AS c (organization_id, conversation_id, last_position, event_seq, waiting)
    VALUES ($1, $2, 1, 1, 1)
    ON CONFLICT (organization_id, conversation_id) DO UPDATE
    SET last_position = c.last_position + 1, event_seq = c.event_seq + 1, waiting = c.waiting + 1
    WHERE c.waiting < $4 AND NOT ($5 AND (c.waiting > 0 OR c.running))
    RETURNING last_position, event_seq, running, waiting
), t AS (
    INSERT INTO ingress.turn (organization_id, conversation_id, turn_id, position, state, create_time)
    SELECT $1, $2, $3, last_position, 'ACCEPTED', now() FROM c
), b AS (
    INSERT INTO ingress.block (organization_id, conversation_id, turn_id, message_index, block_index, inbound_id, type, sha256, size, raw,
        uri, name, mime_type, file_size, file_sha256, data_uri, data_offset, data_escaped)
    SELECT $1, $2, $3, u.* FROM c, unnest($6::smallint[], $7::smallint[], $8::text[], $9::text[], $10::bytea[], $11::bigint[], $12::bytea[],
        $17::text[], $18::text[], $19::text[], $20::bigint[], $21::bytea[], $22::text[], $23::bigint[], $24::boolean[]) AS u
), k AS (
    INSERT INTO ingress.idempotency (organization_id, conversation_id, method, key, body_sha256, turn_id)
    SELECT $1, $2, $13, $14, $15, $3 FROM c WHERE $14 <> ''
), e AS (
    INSERT INTO ingress.event (organization_id, conversation_id, seq, type, turn_id, create_time)
    SELECT $1, $2, event_seq, 'turn.accepted', $3, now() FROM c
)
SELECT last_position, event_seq, NOT running, NOT running AND waiting = 1, now(), pg_notify('ingress', $16 || event_seq)::text FROM c`

// Accept implements store.Turns.
func (s *Store) Accept(ctx context.Context, sub store.Submission, direct *store.Direct) (store.Acceptance, error) {
	var a store.Acceptance
	var err error
	if direct == nil {
		a, _, err = acceptance(sub, s.pool.QueryRow(ctx, acceptSQL, acceptArgs(sub)...))
	} else {
		a, err = s.acceptDirect(ctx, sub, direct)
	}
	switch {
	case err == nil:
		return a, nil
	case errors.Is(err, pgx.ErrNoRows), violates(err, "idempotency_pkey"):
		return s.replay(ctx, sub)
	}
	return store.Acceptance{}, translate("accept turn", err)
}

// acceptDirect accepts and claims in two round trips and one commit, with place between them.
func (s *Store) acceptDirect(ctx context.Context, sub store.Submission, direct *store.Direct) (store.Acceptance, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return store.Acceptance{}, err
	}
	defer conn.Release()
	defer rollback(ctx, conn.Conn())
	var a store.Acceptance
	var first bool
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	b.Queue(acceptSQL, acceptArgs(sub)...).QueryRow(func(row pgx.Row) (err error) {
		a, first, err = acceptance(sub, row)
		return err
	})
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return store.Acceptance{}, err
	}
	b = &pgx.Batch{}
	if first {
		if placed, err := direct.Place(ctx); err == nil {
			run := turn.Run{Conversation: sub.Conversation, TurnID: sub.TurnID}
			for _, m := range sub.Messages {
				run.Blocks = append(run.Blocks, m.Blocks...)
			}
			a.Claimed = &store.Claimed{Run: run}
			queueClaim(b, a.Claimed, direct.Instance, placed)
		}
	}
	b.Queue("COMMIT")
	err = conn.SendBatch(ctx, b).Close()
	if err != nil && errors.Is(translate("", err), store.ErrNotOwner) {
		// Taken over meanwhile: the turn is accepted by another transaction, and waits.
		rollback(ctx, conn.Conn())
		a, _, err = acceptance(sub, conn.QueryRow(ctx, acceptSQL, acceptArgs(sub)...))
	}
	return a, err
}

func acceptArgs(sub store.Submission) []any {
	var messages, blocks []int16
	var inbound, types []string
	var digests, raws [][]byte
	var sizes []int64
	var files fileColumns
	for i, m := range sub.Messages {
		for j, b := range m.Blocks {
			files.add(b)
			messages, blocks = append(messages, int16(i)), append(blocks, int16(j))
			inbound, types = append(inbound, m.InboundID), append(types, b.Type)
			digests, raws, sizes = append(digests, b.SHA256), append(raws, b.Raw), append(sizes, b.Size)
		}
	}
	c := sub.Conversation
	return []any{c.Organization, c.ID, sub.TurnID, sub.MaxWaiting, sub.RejectBusy,
		messages, blocks, inbound, types, digests, sizes, raws,
		methodSubmit, sub.IdempotencyKey, sub.BodySHA256[:], noticeOf(c, sub.TurnID, false),
		files.uri, files.name, files.mime, files.size, files.sha256, files.dataURI, files.offset, files.escaped}
}

// acceptance reads acceptSQL's row; first: nothing else of the conversation waits or runs.
func acceptance(sub store.Submission, row pgx.Row) (a store.Acceptance, first bool, err error) {
	a.Turn = turn.Turn{Conversation: sub.Conversation, ID: sub.TurnID, State: turn.Accepted, Messages: withoutRaw(sub.Messages)}
	var ignored string
	err = row.Scan(&a.Turn.Position, &a.Sequence, &a.Claimable, &first, &a.Turn.Created, &ignored)
	return a, first, err
}

// Replay implements store.Turns.
func (s *Store) Replay(ctx context.Context, sub store.Submission) (store.Acceptance, bool, error) {
	c := sub.Conversation
	a, found, err := s.byKey(ctx, sub)
	if found || err != nil {
		return a, found, err
	}
	var waiting int
	var running bool
	err = s.pool.QueryRow(ctx, `SELECT waiting, running FROM ingress.conversation WHERE organization_id = $1 AND conversation_id = $2`,
		c.Organization, c.ID).Scan(&waiting, &running)
	switch {
	case err != nil && !errors.Is(err, pgx.ErrNoRows):
		return store.Acceptance{}, false, translate("read conversation", err)
	case waiting >= sub.MaxWaiting || sub.RejectBusy && (waiting > 0 || running):
		return store.Acceptance{}, false, refused(sub)
	}
	return store.Acceptance{}, false, nil
}

// replay answers a submission that was not stored: by the turn of its key, or by the limit it met.
func (s *Store) replay(ctx context.Context, sub store.Submission) (store.Acceptance, error) {
	a, found, err := s.byKey(ctx, sub)
	if !found && err == nil {
		err = refused(sub)
	}
	return a, err
}

func refused(sub store.Submission) error {
	if sub.RejectBusy {
		return fmt.Errorf("accept turn: %w", store.ErrBusy)
	}
	return fmt.Errorf("accept turn: %w", store.ErrQueueFull)
}

// byKey returns the turn that was accepted with the submission's key.
func (s *Store) byKey(ctx context.Context, sub store.Submission) (a store.Acceptance, found bool, err error) {
	c := sub.Conversation
	var digest []byte
	var id string
	err = s.pool.QueryRow(ctx, `SELECT body_sha256, turn_id FROM ingress.idempotency
		WHERE organization_id = $1 AND conversation_id = $2 AND method = $3 AND key = $4`,
		c.Organization, c.ID, methodSubmit, sub.IdempotencyKey).Scan(&digest, &id)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return store.Acceptance{}, false, nil
	case err != nil:
		return store.Acceptance{}, false, translate("look for idempotency key", err)
	case string(digest) != string(sub.BodySHA256[:]):
		return store.Acceptance{}, false, fmt.Errorf("accept turn: %w", store.ErrKeyReused)
	}
	t, err := s.Turn(ctx, c, id)
	if err != nil {
		return store.Acceptance{}, false, err
	}
	return store.Acceptance{Turn: t, Replayed: true}, true, nil
}

func withoutRaw(ms []turn.Message) []turn.Message {
	out := make([]turn.Message, len(ms))
	for i, m := range ms {
		out[i] = turn.Message{InboundID: m.InboundID, Blocks: make([]turn.Block, len(m.Blocks))}
		for j, b := range m.Blocks {
			b.Raw = nil
			out[i].Blocks[j] = b
		}
	}
	return out
}
