package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

const lockSQL = `SELECT waiting, running FROM ingress.conversation WHERE organization_id = $1 AND conversation_id = $2 FOR UPDATE`

// headSQL reads the first waiting turn with its blocks; it runs after the lock is held.
const headSQL = `
SELECT t.turn_id, t.attempt, b.type, b.sha256, b.size, b.raw, ` + fileOf + `
FROM (SELECT turn_id, attempt FROM ingress.turn
      WHERE organization_id = $1 AND conversation_id = $2 AND state = 'ACCEPTED' ORDER BY position LIMIT 1) t
JOIN ingress.block b ON b.organization_id = $1 AND b.conversation_id = $2 AND b.turn_id = t.turn_id
ORDER BY b.message_index, b.block_index`

const claimSQL = `
WITH t AS (
    UPDATE ingress.turn SET state = 'RUNNING', session_id = $4, attempt = $5, epoch = $6, watermark = $7, owner = $8, start_time = clock_timestamp()
    WHERE organization_id = $1 AND conversation_id = $2 AND turn_id = $3 AND state = 'ACCEPTED'
    RETURNING start_time
), c AS (
    UPDATE ingress.conversation SET event_seq = event_seq + 1, waiting = waiting - 1, running = true
    FROM t WHERE organization_id = $1 AND conversation_id = $2
    RETURNING event_seq
), e AS (
    INSERT INTO ingress.event (organization_id, conversation_id, seq, type, turn_id, create_time)
    SELECT $1, $2, c.event_seq, 'turn.started', $3, t.start_time FROM c, t
)
SELECT event_seq, pg_notify('ingress', $9 || event_seq)::text FROM c`

// Claim implements store.Turns: two round trips, with place between them.
func (s *Store) Claim(ctx context.Context, c turn.Conversation, instance int32, ready string, place func(context.Context) (store.Placed, error)) (store.Claimed, error) {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return store.Claimed{}, translate("claim turn", err)
	}
	defer conn.Release()
	defer rollback(ctx, conn.Conn())
	run, err := lockHead(ctx, conn.Conn(), c)
	if err != nil {
		return store.Claimed{}, translateClaim(err)
	}
	if run.TurnID != ready && turn.FileURIs(run.Blocks) != nil {
		return store.Claimed{Run: run}, fmt.Errorf("claim turn: %w", store.ErrFilesFirst)
	}
	placed, err := place(ctx)
	if err != nil {
		return store.Claimed{}, err
	}
	claimed := store.Claimed{Run: run}
	b := &pgx.Batch{}
	queueClaim(b, &claimed, instance, placed)
	b.Queue("COMMIT")
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		return store.Claimed{Run: turn.Run{Conversation: c, TurnID: run.TurnID}}, translateClaim(err)
	}
	return claimed, nil
}

// queueClaim makes the accepted turn of claimed RUNNING, in a transaction that holds its
// conversation, and completes claimed.
func queueClaim(b *pgx.Batch, claimed *store.Claimed, instance int32, placed store.Placed) {
	r := &claimed.Run
	r.Attempt++
	r.SessionID, r.Epoch, r.Watermark, r.Owner = placed.SessionID, placed.Epoch, placed.Watermark, instance
	b.Queue(claimSQL, r.Conversation.Organization, r.Conversation.ID, r.TurnID, r.SessionID, r.Attempt, r.Epoch, r.Watermark, instance,
		noticeOf(r.Conversation, r.TurnID, false)).QueryRow(func(row pgx.Row) error {
		var ignored string
		return row.Scan(&claimed.Sequence, &ignored)
	})
}

// lockHead opens a transaction that holds the conversation and returns its first waiting turn.
func lockHead(ctx context.Context, conn *pgx.Conn, c turn.Conversation) (turn.Run, error) {
	run := turn.Run{Conversation: c}
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	var waiting int
	var running bool
	b.Queue(lockSQL, c.Organization, c.ID).QueryRow(func(row pgx.Row) error { return row.Scan(&waiting, &running) })
	b.Queue(headSQL, c.Organization, c.ID).Query(func(rows pgx.Rows) error {
		for rows.Next() {
			var block turn.Block
			var file fileRow
			if err := rows.Scan(file.after(&run.TurnID, &run.Attempt, &block.Type, &block.SHA256, &block.Size, &block.Raw)...); err != nil {
				return err
			}
			file.to(&block)
			run.Blocks = append(run.Blocks, block)
		}
		return rows.Err()
	})
	err := conn.SendBatch(ctx, b).Close()
	if err == nil && (running || waiting == 0) || errors.Is(err, pgx.ErrNoRows) {
		return turn.Run{}, store.ErrNothingToClaim
	}
	return run, err
}

func translateClaim(err error) error {
	if errors.Is(err, store.ErrNothingToClaim) {
		return fmt.Errorf("claim turn: %w", err)
	}
	return translate("claim turn", err)
}

// Claimable implements store.Turns.
func (s *Store) Claimable(ctx context.Context, after turn.Conversation, limit int) ([]turn.Conversation, error) {
	rows, err := s.pool.Query(ctx, `SELECT organization_id, conversation_id FROM ingress.conversation
		WHERE waiting > 0 AND NOT running AND (organization_id, conversation_id) > ($1, $2)
		ORDER BY organization_id, conversation_id LIMIT $3`, after.Organization, after.ID, limit)
	if err != nil {
		return nil, translate("list claimable conversations", err)
	}
	out, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c turn.Conversation, err error) {
		return c, row.Scan(&c.Organization, &c.ID)
	})
	return out, translate("list claimable conversations", err)
}
