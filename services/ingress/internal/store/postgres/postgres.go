// Package postgres keeps ingress's turns in the schema "ingress" of a Postgres database. Every
// change of a conversation is one round trip where it can be: a pipelined batch that begins with
// the conversation's lock, or one statement.
package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"golang.org/x/sys/unix"

	"humanwork.internal/services/ingress/internal/store"
)

// connectTimeout bounds one attempt to reach the server.
const connectTimeout = 5 * time.Second

// Store implements store.Turns, Reads and Instances.
type Store struct {
	pool *pgxpool.Pool
	// single is how connections outside the pool are made: for LISTEN and for instance locks.
	single *pgx.ConnConfig
}

// Open prepares a store over the database at url; connections are made when they are needed.
// maxConns bounds the pool; LISTEN and each instance lock take one more connection.
func Open(url string, maxConns int32) (*Store, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("parse Postgres URL: %w", err)
	}
	cfg.MaxConns = maxConns
	cfg.ConnConfig.ConnectTimeout = connectTimeout
	cfg.ConnConfig.RuntimeParams["application_name"] = "humanwork-ingress"
	cfg.ConnConfig.DialFunc = dialer().DialContext
	single := cfg.ConnConfig.Copy()
	// A dead host must not hold its lock for hours: the server probes too (rule 13).
	for k, v := range map[string]string{"tcp_keepalives_idle": "5", "tcp_keepalives_interval": "2", "tcp_keepalives_count": "3"} {
		single.RuntimeParams[k] = v
	}
	// The pool's own goroutine keeps no connection open and asks nothing.
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	if err != nil {
		return nil, fmt.Errorf("make Postgres pool: %w", err)
	}
	return &Store{pool: pool, single: single}, nil
}

// silence is how long the server's host may be silent before a connection is given up.
const silence = 11 * time.Second

// dialer makes connections that notice a host that is gone without a word. Probes find it on a
// connection that waits, for a notice or for an answer; data that is under way keeps them from being
// sent, and the kernel's own patience with it is a quarter of an hour, for which a lane would wait.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control: func(network, _ string, c syscall.RawConn) error {
			if !strings.HasPrefix(network, "tcp") {
				return nil
			}
			var set error
			err := c.Control(func(fd uintptr) {
				set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
			})
			return errors.Join(err, set)
		},
	}
}

// Close waits for running statements and closes the pool.
func (s *Store) Close() { s.pool.Close() }

func (s *Store) dial(ctx context.Context) (*pgx.Conn, error) {
	conn, err := pgx.ConnectConfig(ctx, s.single.Copy())
	if err != nil {
		return nil, translate("connect", err)
	}
	return conn, nil
}

// closeTimeout bounds the good-bye of a connection.
const closeTimeout = time.Second

// hangUp closes a connection; one that breaks while it closes is closed too.
func hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// translate makes a store error of a driver error, once.
func translate(action string, err error) error {
	if err == nil {
		return nil
	}
	connecting := errors.As(err, new(*pgconn.ConnectError))
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) && !connecting {
		return fmt.Errorf("%s: %w", action, err)
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && !connecting && !serverGone(pg.Code) {
		switch pg.ConstraintName {
		case "turn_owner_fkey":
			return fmt.Errorf("%s: %w", action, store.ErrNotOwner)
		case "delivery_pkey":
			return fmt.Errorf("%s: %w", action, store.ErrAlreadyDelivered)
		}
		return fmt.Errorf("%s: %w", action, err)
	}
	if errors.Is(err, pgx.ErrNoRows) || errors.As(err, new(pgx.ScanArgError)) {
		return fmt.Errorf("%s: %w", action, err)
	}
	// Whatever is not an answer of the server's is a connection that could not be made or broke.
	return fmt.Errorf("%s: %w: %w", action, store.ErrUnavailable, err)
}

// serverGone reports the codes a server that stops, starts or has no room answers with.
func serverGone(code string) bool {
	switch code[:2] {
	case "57", "53", "08": // operator intervention, insufficient resources, connection
		return code != pgQueryCanceled
	}
	return false
}

const pgQueryCanceled = "57014"

func violates(err error, constraint string) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && pg.ConstraintName == constraint
}

// transaction runs the pipeline of queued statements between BEGIN and COMMIT in one round trip,
// each read by its own callback. Nothing is kept if any of them fails.
func (s *Store) transaction(ctx context.Context, queue func(*pgx.Batch)) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	b := &pgx.Batch{}
	b.Queue("BEGIN")
	queue(b)
	b.Queue("COMMIT")
	if err := conn.SendBatch(ctx, b).Close(); err != nil {
		rollback(ctx, conn.Conn())
		return err
	}
	return nil
}

// rollback ends an open transaction. If that fails the pool closes the connection, which ends it
// too.
func rollback(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_, _ = conn.Exec(ctx, "ROLLBACK")
}
