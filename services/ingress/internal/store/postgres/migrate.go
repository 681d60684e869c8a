package postgres

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"

	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/database"
)

//go:embed migrations/*.sql
var migrations embed.FS

// migrationLock is held while the schema changes, so that instances that start together take
// turns.
const migrationLock = "SELECT pg_advisory_lock(hashtextextended('humanwork.ingress.migrate', 0))"

// Migrate brings the schema "ingress" to this version.
func (s *Store) Migrate(ctx context.Context) (err error) {
	conn, err := s.dial(ctx)
	if err != nil {
		return err
	}
	defer hangUp(conn) // frees the lock
	if _, err := conn.Exec(ctx, migrationLock); err != nil {
		return translate("lock migrations", err)
	}
	if _, err := conn.Exec(ctx, "CREATE SCHEMA IF NOT EXISTS ingress"); err != nil {
		return translate("create schema", err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return fmt.Errorf("open migrations: %w", err)
	}
	versions, err := database.NewStore(database.DialectPostgres, "ingress.goose_db_version")
	if err != nil {
		return fmt.Errorf("make migrations store: %w", err)
	}
	db := stdlib.OpenDB(*s.single.Copy())
	defer func() { err = errors.Join(err, db.Close()) }()
	provider, err := goose.NewProvider("", db, files, goose.WithStore(versions))
	if err != nil {
		return fmt.Errorf("make migrations: %w", err)
	}
	if _, err := provider.Up(ctx); err != nil {
		return translate("migrate", err)
	}
	return nil
}
