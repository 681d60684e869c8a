package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// The payloads of channel "ingress": a letter and fields that hold no space.
//
//	e <organization> <conversation> <turn> <1 if the turn ended> <sequence>
//	l <organization> <conversation> <turn>
//	i <instance>
func noticeOf(c turn.Conversation, turnID string, ended bool) string {
	flag := "0"
	if ended {
		flag = "1"
	}
	return fmt.Sprintf("e %s %s %s %s ", c.Organization, c.ID, turnID, flag) // the statement adds the sequence
}

func parseNotice(payload string) (n store.Notice, ok bool) {
	f := strings.Split(payload, " ")
	switch {
	case f[0] == "e" && len(f) == 6:
		seq, err := strconv.ParseInt(f[5], 10, 64)
		return store.Notice{Conversation: turn.Conversation{Organization: f[1], ID: f[2]}, TurnID: f[3], Ended: f[4] == "1", Sequence: seq}, err == nil
	case f[0] == "l" && len(f) == 4:
		return store.Notice{Conversation: turn.Conversation{Organization: f[1], ID: f[2]}, TurnID: f[3], Live: true}, true
	case f[0] == "i" && len(f) == 2:
		id, err := strconv.ParseInt(f[1], 10, 32)
		return store.Notice{Instance: int32(id)}, err == nil
	}
	return store.Notice{}, false
}

// Listen tells l about notices on a connection of its own until that breaks or ctx ends.
func (s *Store) Listen(ctx context.Context, l store.Listener) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	if _, err := conn.Exec(ctx, "LISTEN ingress"); err != nil {
		return translate("listen", err)
	}
	if err := l.Connected(ctx); err != nil {
		return err
	}
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return translate("wait for notices", err)
		}
		// Whoever may notify may write anything; what is not ours wakes nobody.
		if notice, ok := parseNotice(n.Payload); ok {
			l.Notified(notice)
		}
	}
}

// Announce tells all instances that a turn streams. It writes nothing.
func (s *Store) Announce(ctx context.Context, c turn.Conversation, turnID string) error {
	_, err := s.pool.Exec(ctx, "SELECT pg_notify('ingress', $1)", fmt.Sprintf("l %s %s %s", c.Organization, c.ID, turnID))
	return translate("announce turn", err)
}

// lockClass is the first half of every instance lock's key.
const lockClass = 0x68776967

// Hold implements store.Instances.
func (s *Store) Hold(ctx context.Context, held func(int32)) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	// The lock is held before the row can be seen: a peer that sees the row and gets the lock
	// knows that the instance is dead.
	var id int32
	if err := conn.QueryRow(ctx, `SELECT nextval(pg_get_serial_sequence('ingress.instance', 'instance_id'))::integer`).Scan(&id); err != nil {
		return translate("register instance", err)
	}
	if _, err := conn.Exec(ctx, "SELECT pg_advisory_lock($1, $2)", int32(lockClass), id); err != nil {
		return translate("lock instance", err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `INSERT INTO ingress.instance (instance_id) OVERRIDING SYSTEM VALUE VALUES ($1)`, id); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "SELECT pg_notify('ingress', $1)", fmt.Sprintf("i %d", id))
		return err
	})
	if err != nil {
		return translate("register instance", err)
	}
	held(id)
	// Nothing is listened for: this returns when the connection breaks.
	for {
		if _, err := conn.WaitForNotification(ctx); err != nil {
			return translate("hold instance lock", err)
		}
	}
}

// Peers implements store.Instances.
func (s *Store) Peers(ctx context.Context) ([]int32, error) {
	rows, err := s.pool.Query(ctx, "SELECT instance_id FROM ingress.instance ORDER BY instance_id")
	if err != nil {
		return nil, translate("list instances", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int32])
	return ids, translate("list instances", err)
}

// AwaitDeath implements store.Instances.
func (s *Store) AwaitDeath(ctx context.Context, instance int32) error {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn)
	_, err = conn.Exec(ctx, "SELECT pg_advisory_lock($1, $2)", int32(lockClass), instance)
	return translate("wait for instance", err)
}

// TakeOver implements store.Instances. The dead instance's row is locked first: a claim it may
// still be committing holds a key share of it, and comes either before or not at all.
func (s *Store) TakeOver(ctx context.Context, dead, instance int32) ([]turn.Run, error) {
	var runs []turn.Run
	err := s.transaction(ctx, func(b *pgx.Batch) {
		b.Queue(`SELECT 1 FROM ingress.instance WHERE instance_id = $1 FOR UPDATE`, dead)
		b.Queue(`UPDATE ingress.turn SET owner = $2 WHERE owner = $1 AND state = 'RUNNING' RETURNING `+runColumns, dead, instance).
			Query(func(rows pgx.Rows) (err error) {
				runs, err = pgx.CollectRows(rows, scanRun)
				return err
			})
		b.Queue(`DELETE FROM ingress.instance WHERE instance_id = $1`, dead)
	})
	if err != nil {
		return nil, translate("take over turns", err)
	}
	return runs, nil
}
