// Package postgres keeps routing's rows in the schema "routing".
package postgres

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Options configure a Store.
type Options struct {
	URL string
	// MaxConnections bounds the connections of short statements.
	MaxConnections int32
	// MaxEstablishing bounds the connections held by establishments: that many organizations can
	// be establishing at once in this process.
	MaxEstablishing int32
}

// Store is a store.Store. It answers SERVICE_STARTING until Run has opened it.
type Store struct {
	opts    Options
	opened  chan struct{}
	waiting atomic.Pointer[errs.Error] // why it is not open yet
	pools   atomic.Pointer[pools]
	gates   gates
}

// pools are separate so that callers waiting for a lock cannot starve reads, or the holder.
type pools struct{ rows, locks *pgxpool.Pool }

// New returns a store that opens nothing before Run.
func New(opts Options) *Store { return &Store{opts: opts, opened: make(chan struct{})} }

// Opened is closed once Run has opened the store.
func (s *Store) Opened() <-chan struct{} { return s.opened }

// Run is called once. It connects, migrates the schema and serves until ctx ends. It waits for a
// database that cannot be reached as long as that takes.
func (s *Store) Run(ctx context.Context) error {
	rows, err := s.pool(ctx, s.opts.MaxConnections)
	if err != nil {
		return err
	}
	defer rows.Close()
	locks, err := s.pool(ctx, s.opts.MaxEstablishing)
	if err != nil {
		return err
	}
	defer locks.Close()
	if err := s.awaitSchema(ctx, locks); err != nil || ctx.Err() != nil {
		return err
	}
	s.pools.Store(&pools{rows, locks})
	close(s.opened)
	<-ctx.Done()
	s.pools.Store(nil)
	return nil
}

const (
	firstRetry   = 100 * time.Millisecond
	longestRetry = 5 * time.Second
)

// awaitSchema migrates, again and again while the database is away. Any other failure is returned.
func (s *Store) awaitSchema(ctx context.Context, locks *pgxpool.Pool) error {
	for pause := firstRetry; ; pause = min(2*pause, longestRetry) {
		err := migrate(ctx, locks)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return nil // stopped while waiting
		case errs.KindOf(err) != errs.Unavailable:
			return err
		}
		waiting := errs.New(errs.Unavailable, directory.ReasonStarting,
			"routing waits for its Postgres database, which cannot be reached; start it, or correct postgres_url_file")
		s.waiting.Store(waiting)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
	}
}

// Ready says whether Run has opened the store. It asks nothing of the database.
func (s *Store) Ready() error {
	_, err := s.open()
	return err
}

func (s *Store) open() (*pools, error) {
	if p := s.pools.Load(); p != nil {
		return p, nil
	}
	if w := s.waiting.Load(); w != nil {
		return nil, w
	}
	return nil, errs.New(errs.Unavailable, directory.ReasonStarting, "routing has not opened its Postgres database yet")
}

func (s *Store) pool(ctx context.Context, most int32) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(s.opts.URL)
	if err != nil {
		// The parser's error may quote the URL, which holds a password.
		return nil, errors.New("parse the Postgres URL: it is not valid")
	}
	cfg.MaxConns = most
	cfg.MinConns = 0
	cfg.ConnConfig.RuntimeParams["application_name"] = "humanwork-routing"
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open Postgres: %w", err)
	}
	return pool, nil
}

// migrate brings the schema up to date. Replicas that start together wait for each other in a
// blocking lock; goose's own lock polls.
func migrate(ctx context.Context, pool *pgxpool.Pool) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("connect to Postgres: %w", translate(err))
	}
	// Never back to the pool: the lock ends with the connection, however this returns.
	owned := conn.Hijack()
	defer closeConn(ctx, owned)
	if _, err := owned.Exec(ctx, "SELECT pg_advisory_lock($1)", lockKey("migrate", "")); err != nil {
		return fmt.Errorf("lock the schema: %w", translate(err))
	}
	if _, err := owned.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS routing"); err != nil {
		return fmt.Errorf("create the schema: %w", translate(err))
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("read migrations: %w", err)
	}
	db := stdlib.OpenDBFromPool(pool)
	provider, err := goose.NewProvider(goose.DialectPostgres, db, files,
		goose.WithTableName("routing.goose_db_version"), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return errors.Join(fmt.Errorf("prepare migrations: %w", err), db.Close())
	}
	if _, err := provider.Up(ctx); err != nil {
		return errors.Join(fmt.Errorf("migrate the schema: %w", translate(err)), db.Close())
	}
	return db.Close()
}

func closeConn(ctx context.Context, conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	_ = conn.Close(ctx) // the socket is closed either way, and with it the lock
}

// lockKey returns the advisory lock of a purpose and an organization. Two organizations that
// share a key would only wait for each other.
func lockKey(purpose, organization string) int64 {
	sum := sha256.Sum256([]byte("humanwork.routing\x00" + purpose + "\x00" + organization))
	return int64(binary.BigEndian.Uint64(sum[:8]))
}

// translate gives a driver's error its kind. Rows that do not exist are the caller's to name.
func translate(err error) error {
	var known *errs.Error
	switch {
	case err == nil, errors.As(err, &known), errors.Is(err, pgx.ErrNoRows),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code[:2] {
		case "08", "53", "57": // connection, resources, operator intervention
			return errs.Wrap(err, errs.Unavailable, directory.ReasonDatabaseUnavailable, "the database is not available")
		}
		return err
	}
	var scan pgx.ScanArgError
	if errors.As(err, &scan) {
		return err // a row that is not what the code expects: a fault of ours
	}
	// Whatever else is not the server's answer is about reaching it.
	return errs.Wrap(err, errs.Unavailable, directory.ReasonDatabaseUnavailable, "the database cannot be reached")
}
