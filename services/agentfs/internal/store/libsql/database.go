package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"

	// The driver registers itself as "libsql".
	_ "github.com/tursodatabase/go-libsql"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/tree"
)

// busyMilliseconds bounds how long a statement waits for another process's lock.
const busyMilliseconds = 2000

const sqliteMagic = "SQLite format 3\x00"

// database is one organization's file with one pinned connection, used by one caller at a time.
type database struct {
	path string
	turn chan struct{}

	// The rest belongs to whoever has the turn.
	pool        *sql.DB
	conn        *sql.Conn
	provisioned bool
	chunkSize   int64
}

func newDatabase(path string) *database {
	return &database{path: path, turn: make(chan struct{}, 1)}
}

func (d *database) enter(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (d *database) leave() { <-d.turn }

// close leaves one self-contained file: the driver lets go of a connection some time after Close,
// so the write-ahead log is folded in while the connection still answers.
func (d *database) close() error {
	if d.pool == nil {
		return nil
	}
	var err error
	if d.provisioned {
		_, err = d.text(context.Background(), "PRAGMA journal_mode = DELETE")
	}
	return errors.Join(err, d.disconnect())
}

func (d *database) disconnect() error {
	err := errors.Join(d.conn.Close(), d.pool.Close())
	d.pool, d.conn, d.provisioned = nil, nil, false
	return err
}

// connect opens the file with SQLite's mode "ro", "rw" or "rwc".
func (d *database) connect(ctx context.Context, mode string) error {
	u := url.URL{Scheme: "file", Path: d.path, RawQuery: "mode=" + mode}
	pool, err := sql.Open("libsql", u.String())
	if err != nil {
		return fmt.Errorf("open AgentFS: %w", err)
	}
	conn, err := pool.Conn(ctx)
	if err != nil {
		return errors.Join(fmt.Errorf("connect to AgentFS: %w", err), pool.Close())
	}
	d.pool, d.conn = pool, conn
	if _, err := d.text(ctx, "PRAGMA busy_timeout = "+strconv.Itoa(busyMilliseconds)); err != nil {
		return errors.Join(fmt.Errorf("bound waiting: %w", err), d.disconnect())
	}
	return nil
}

// ensure opens the file if it is not open, after checking that it is an AgentFS of this version.
// With create a missing or empty file is opened too, not provisioned: that is what a crash within
// provisioning leaves.
func (d *database) ensure(ctx context.Context, create bool) error {
	if d.pool == nil {
		if err := d.open(ctx, create); err != nil {
			return err
		}
	}
	if !d.provisioned && !create {
		return errs.New(errs.NotFound, tree.ReasonNotProvisioned, "the organization has no AgentFS")
	}
	return nil
}

func (d *database) open(ctx context.Context, create bool) error {
	empty, err := d.checkFile()
	if err != nil {
		return err
	}
	found := false
	if !empty {
		// Read only, so that a file that is refused stays exactly as it was.
		if err := d.connect(ctx, "ro"); err != nil {
			return err
		}
		found, err = d.inspect(ctx)
		if err = errors.Join(err, d.disconnect()); err != nil {
			return err
		}
	}
	mode := "rw"
	if !found {
		if !create {
			return nil
		}
		mode = "rwc"
	}
	if err := d.connect(ctx, mode); err != nil {
		return err
	}
	if _, err := d.text(ctx, "PRAGMA journal_mode = WAL"); err != nil {
		return errors.Join(fmt.Errorf("set journal mode: %w", err), d.disconnect())
	}
	// This file is the authority: a commit that was answered survives a power loss.
	if _, err := d.conn.ExecContext(ctx, "PRAGMA synchronous = FULL"); err != nil {
		return errors.Join(fmt.Errorf("set synchronous: %w", err), d.disconnect())
	}
	d.provisioned = found
	return nil
}

// checkFile refuses what SQLite should not even open. A missing file is empty.
func (d *database) checkFile() (empty bool, err error) {
	info, err := os.Lstat(d.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("look at AgentFS file: %w", err)
	case !info.Mode().IsRegular():
		return false, foreign("is not a regular file")
	case info.Size() == 0:
		return true, nil
	}
	f, err := os.Open(d.path)
	if err != nil {
		return false, fmt.Errorf("look at AgentFS file: %w", err)
	}
	head := make([]byte, len(sqliteMagic))
	n, err := f.ReadAt(head, 0)
	f.Close()
	if err != nil && !errors.Is(err, io.EOF) { // a file of fewer bytes ends early
		return false, fmt.Errorf("read AgentFS header: %w", err)
	}
	if string(head[:n]) != sqliteMagic {
		return false, foreign("is not an SQLite database")
	}
	return false, nil
}

func foreign(what string) error {
	return errs.New(errs.Precondition, tree.ReasonForeign, "the organization's AgentFS file %s", what)
}

func damaged(what string) error {
	return errs.New(errs.Precondition, tree.ReasonDamaged, "the organization's AgentFS is damaged: %s", what)
}

// inspect tells an AgentFS, whose chunk size it sets, from a database without content.
func (d *database) inspect(ctx context.Context) (found bool, err error) {
	objects, err := d.integer(ctx, "SELECT count(*) FROM sqlite_master")
	if err != nil {
		return false, fmt.Errorf("inspect AgentFS: %w", err)
	}
	if objects == 0 {
		return false, nil
	}
	has := func(table string) (bool, error) {
		n, err := d.integer(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", table)
		return n == 1, err
	}
	if ok, err := has("fs_config"); err != nil {
		return false, fmt.Errorf("inspect AgentFS: %w", err)
	} else if !ok {
		return false, foreign("has no AgentFS tables")
	}
	version, err := d.text(ctx, "SELECT CAST(value AS BLOB) FROM fs_config WHERE key = 'schema_version'")
	if err != nil {
		return false, fmt.Errorf("read schema version: %w", err)
	}
	if version != schemaVersion {
		return false, errs.New(errs.Precondition, tree.ReasonSchemaUnsupported,
			"the organization's AgentFS has schema version %q, want %q", version, schemaVersion)
	}
	for _, t := range tables {
		if ok, err := has(t); err != nil {
			return false, fmt.Errorf("inspect AgentFS: %w", err)
		} else if !ok {
			return false, damaged("it has no table " + t)
		}
	}
	chunk, err := d.text(ctx, "SELECT CAST(value AS BLOB) FROM fs_config WHERE key = 'chunk_size'")
	if err != nil {
		return false, fmt.Errorf("read chunk size: %w", err)
	}
	size, err := strconv.ParseInt(chunk, 10, 32)
	if err != nil || size <= 0 {
		return false, damaged("its chunk size is not a positive number")
	}
	mode, err := d.integer(ctx, "SELECT mode FROM fs_inode WHERE ino = ?", tree.RootInode)
	if errors.Is(err, sql.ErrNoRows) || err == nil && mode&tree.TypeMask != tree.TypeDir {
		return false, damaged("it has no root directory")
	} else if err != nil {
		return false, fmt.Errorf("read root inode: %w", err)
	}
	verdict, err := d.text(ctx, "PRAGMA quick_check(1)")
	if err != nil {
		return false, fmt.Errorf("check AgentFS: %w", err)
	}
	if verdict != "ok" {
		return false, damaged("quick_check failed")
	}
	d.chunkSize = size
	return true, nil
}

// provision writes schema and nodes in one transaction, so that a crash leaves nothing of either.
func (d *database) provision(ctx context.Context, nodes []tree.Node) error {
	err := d.transaction(ctx, "BEGIN IMMEDIATE", func() error {
		for _, statement := range schema {
			if _, err := d.conn.ExecContext(ctx, statement); err != nil {
				return fmt.Errorf("create schema: %w", err)
			}
		}
		d.chunkSize = defaultChunkSize
		return d.writeNodes(ctx, nodes)
	})
	if err != nil {
		return fmt.Errorf("provision AgentFS: %w", err)
	}
	// The file is new: its name must be as durable as its content.
	dir, err := os.Open(filepath.Dir(d.path))
	if err != nil {
		return fmt.Errorf("sync AgentFS directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync AgentFS directory: %w", err)
	}
	d.provisioned = true
	return nil
}

// transaction runs fn between begin and COMMIT, or ROLLBACK if it fails.
func (d *database) transaction(ctx context.Context, begin string, fn func() error) error {
	if _, err := d.conn.ExecContext(ctx, begin); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	err := fn()
	if err == nil {
		if _, err = d.conn.ExecContext(ctx, "COMMIT"); err == nil {
			return nil
		}
		err = fmt.Errorf("commit: %w", err)
	}
	if _, rerr := d.conn.ExecContext(ctx, "ROLLBACK"); rerr != nil {
		// What state the connection is in is unknown: the next caller opens another.
		return errors.Join(err, d.disconnect())
	}
	return err
}

// integer and text return the first column of the first row, or sql.ErrNoRows. Text must be
// selected as a blob where it may look like a date: the driver would return a time.
func (d *database) integer(ctx context.Context, query string, args ...any) (int64, error) {
	var n int64
	err := d.conn.QueryRowContext(ctx, query, args...).Scan(&n)
	return n, err
}

func (d *database) text(ctx context.Context, query string, args ...any) (string, error) {
	var b []byte
	err := d.conn.QueryRowContext(ctx, query, args...).Scan(&b)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return string(b), err
}
