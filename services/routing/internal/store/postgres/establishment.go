package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

// Establish implements store.Store with a Postgres advisory lock of the organization, held by a
// connection of its own for as long as fn runs. It is released by unlocking or, whatever happens
// to this process, by the end of the connection.
func (s *Store) Establish(ctx context.Context, organization string, fn func(context.Context, store.Establishment) error) error {
	p, err := s.open()
	if err != nil {
		return err
	}
	// One connection an organization and process: the callers of one busy organization must not
	// take all connections while they wait.
	leave, err := s.gates.enter(ctx, organization)
	if err != nil {
		return fmt.Errorf("wait for another establishment: %w", err)
	}
	defer leave()
	pooled, err := p.locks.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect for an establishment: %w", translate(err))
	}
	key := lockKey("establish", organization)
	if _, err := pooled.Exec(ctx, "SELECT pg_advisory_lock($1)", key); err != nil {
		// Whether the lock was granted is unknown; without the connection it is not.
		closeConn(ctx, pooled.Hijack())
		return fmt.Errorf("lock the organization's establishments: %w", translate(err))
	}
	if err := fn(ctx, &establishment{conn: pooled.Conn(), organization: organization, key: key}); err != nil {
		closeConn(ctx, pooled.Hijack())
		return err
	}
	var unlocked bool
	if err := pooled.QueryRow(ctx, "SELECT pg_advisory_unlock($1)", key).Scan(&unlocked); err != nil || !unlocked {
		// fn's work is committed, so it stands; only the connection is not fit for reuse.
		closeConn(ctx, pooled.Hijack())
		return nil
	}
	pooled.Release()
	return nil
}

type establishment struct {
	conn         *pgx.Conn
	organization string
	key          int64
}

// lost names the failure of the connection that holds the lock.
func (e *establishment) lost(err error) error {
	err = translate(err)
	if errors.Is(err, directory.ReasonDatabaseUnavailable) {
		return errs.Wrap(err, errs.Unavailable, directory.ReasonEstablishmentLost, "the connection that held the establishment was lost; call again")
	}
	return err
}

// Intent implements store.Establishment.
func (e *establishment) Intent(ctx context.Context, organization, conversation string) (directory.Intent, error) {
	i, err := readIntent(ctx, e.conn, organization, conversation)
	return i, e.lost(err)
}

// Record implements store.Establishment.
func (e *establishment) Record(ctx context.Context, i directory.Intent) (directory.Intent, error) {
	err := e.conn.QueryRow(ctx, `INSERT INTO routing.conversation
		(organization_id, conversation_id, specialist_id, request_digest, session_watermark)
		VALUES ($1, $2, $3, $4, $5) RETURNING create_time`,
		e.organization, i.ID, i.Specialist, i.Digest, i.SessionWatermark).Scan(&i.CreateTime)
	return i, e.lost(err)
}

// Withdraw implements store.Establishment.
func (e *establishment) Withdraw(ctx context.Context, conversation string) error {
	_, err := e.conn.Exec(ctx, `DELETE FROM routing.conversation
		WHERE organization_id = $1 AND conversation_id = $2 AND session_id IS NULL`, e.organization, conversation)
	return e.lost(err)
}

// Pending implements store.Establishment.
func (e *establishment) Pending(ctx context.Context) ([]directory.Intent, error) {
	rows, err := e.conn.Query(ctx, `SELECT `+intentColumns+` FROM routing.conversation
		WHERE organization_id = $1 AND session_id IS NULL ORDER BY create_time, conversation_id`, e.organization)
	if err != nil {
		return nil, e.lost(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (directory.Intent, error) {
		return scanIntent(row, e.organization)
	})
	return list, e.lost(err)
}

// Free implements store.Establishment.
func (e *establishment) Free(ctx context.Context, sessions []string) ([]string, error) {
	rows, err := e.conn.Query(ctx, `SELECT s FROM unnest($2::text[]) WITH ORDINALITY AS u(s, n)
		WHERE NOT EXISTS (SELECT FROM routing.conversation WHERE organization_id = $1 AND session_id = s) ORDER BY n`,
		e.organization, sessions)
	if err != nil {
		return nil, e.lost(err)
	}
	free, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return free, e.lost(err)
}

// Held implements store.Establishment. A connection that answers is the one that took the lock,
// which nothing but its end or an unlock takes away.
func (e *establishment) Held(ctx context.Context) error {
	_, err := e.conn.Exec(ctx, "SELECT 1")
	return e.lost(err)
}

const uniqueViolation = "23505"

// Bind implements store.Establishment.
func (e *establishment) Bind(ctx context.Context, conversation, session string) (directory.Conversation, error) {
	c := directory.Conversation{Organization: e.organization, ID: conversation}
	err := e.conn.QueryRow(ctx, `UPDATE routing.conversation SET session_id = $3
		WHERE organization_id = $1 AND conversation_id = $2 AND (session_id IS NULL OR session_id = $3)
		RETURNING specialist_id, session_id, create_time`, e.organization, conversation, session).
		Scan(&c.Specialist, &c.Session, &c.CreateTime)
	var pg *pgconn.PgError
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, &pg) && pg.Code == uniqueViolation {
		return directory.Conversation{}, errs.Wrap(err, errs.Internal, directory.ReasonSessionBound,
			"conversation %s cannot be bound: it or its session is bound otherwise", conversation)
	}
	return c, e.lost(err)
}

// gates let one caller an organization through at a time, in this process.
type gates struct {
	mu   sync.Mutex
	open map[string]*gate
}

type gate struct {
	turn  chan struct{}
	users int // holder and waiters; the last one removes the gate
}

func (g *gates) enter(ctx context.Context, organization string) (leave func(), err error) {
	g.mu.Lock()
	if g.open == nil {
		g.open = map[string]*gate{}
	}
	one := g.open[organization]
	if one == nil {
		one = &gate{turn: make(chan struct{}, 1)}
		g.open[organization] = one
	}
	one.users++
	g.mu.Unlock()
	done := func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if one.users--; one.users == 0 {
			delete(g.open, organization)
		}
	}
	select {
	case one.turn <- struct{}{}:
		return func() { <-one.turn; done() }, nil
	case <-ctx.Done():
		done()
		return nil, ctx.Err()
	}
}
