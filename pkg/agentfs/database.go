package agentfs

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
)

// Options say which database and with which limits.
type Options struct {
	Location Location
	// Whole is the quota of the whole database, Project that of each directory that has its own.
	Whole, Project Limits
	// Committed is called after each commit that added to the ledger; it must not block. May be nil.
	Committed func()
}

// FS is one open database. All methods are safe for concurrent use. A process opens a file once at
// a time: what is open without a name is known to the FS that has it open.
type FS struct {
	location          Location
	whole, perProject Limits
	committed         func()
	generation        string
	chunk             int64

	writer, reader *seat

	// handles counts the open Files of each inode, orphans are inodes without a name that have
	// some. Both change only within the writer's turn, except that Close counts down.
	mu      sync.Mutex
	handles map[Ino]int
	orphans map[Ino]bool
}

// Create makes a database with the nodes in one transaction, or opens one that exists and leaves it
// unchanged. Its other errors are those of Open.
func Create(ctx context.Context, o Options, by Caller, nodes []Node) (*FS, error) {
	f, err := Open(ctx, o)
	if !errors.Is(err, ErrNotExist) {
		return f, err
	}
	if err := provision(o.Location, by, nodes); err != nil {
		return nil, fail("create the AgentFS", "", err)
	}
	return Open(ctx, o)
}

// Open opens a database, after checking that it is one of this package: ErrNotExist, ErrSchema,
// ErrForeign or ErrDamaged if not, ErrBusy if another process has it locked; the file is not
// changed then. What a crash left open without a name is freed first.
func Open(ctx context.Context, o Options) (*FS, error) {
	f := &FS{location: o.Location, whole: o.Whole, perProject: o.Project, committed: o.Committed,
		handles: map[Ino]int{}, orphans: map[Ino]bool{}, writer: newSeat(o.Location), reader: newSeat(o.Location)}
	if err := f.open(ctx); err != nil {
		return nil, fail("open the AgentFS", "", errors.Join(err, f.writer.disconnect(), f.reader.disconnect()))
	}
	return f, nil
}

func (f *FS) open(ctx context.Context) error {
	if err := inspectFile(f.location); err != nil {
		return err
	}
	// Read only, so that a file that is refused stays exactly as it was.
	c, err := dial(f.location, "ro")
	if err != nil {
		return err
	}
	facts, err := inspect(c, f.location)
	if err = errors.Join(err, c.close()); err != nil {
		return err
	}
	f.chunk, f.generation = facts.chunk, facts.generation
	w, err := f.writer.connect()
	if err != nil {
		return err
	}
	if err := tune(w, f.location); err != nil {
		return err
	}
	if _, err := f.reader.connect(); err != nil {
		return err
	}
	return f.reapAll(ctx)
}

// tune sets what a connection that writes needs.
func tune(c *conn, l Location) error {
	if l.remote() {
		return nil
	}
	for _, pragma := range []string{"journal_mode = WAL", "wal_autocheckpoint = " + strconv.Itoa(checkpointPages)} {
		if _, err := c.row("PRAGMA " + pragma); err != nil {
			return fmt.Errorf("set %s: %w", pragma, err)
		}
	}
	return nil
}

// Close waits for running operations and leaves one self-contained file: the write-ahead log is
// folded in. Files that are still open are of no use afterwards.
func (f *FS) Close() error {
	select {
	case <-f.writer.closed:
		return ErrClosed
	default:
	}
	// The turns are not given back.
	f.reader.turn <- struct{}{}
	close(f.reader.closed)
	f.writer.turn <- struct{}{}
	close(f.writer.closed)
	err := errors.Join(f.reader.disconnect(), f.writer.disconnect())
	if !f.location.remote() {
		err = errors.Join(err, foldLog(f.location))
	}
	return fail("close the AgentFS", "", err)
}

// Generation names this database: a restored one has another.
func (f *FS) Generation() string { return f.generation }

// provision makes the schema and the nodes in one transaction, so that a crash leaves nothing of
// either.
func provision(l Location, by Caller, nodes []Node) error {
	s := newSeat(l)
	c, err := dial(l, "rwc")
	if err != nil {
		return err
	}
	s.conn = c
	if !l.remote() {
		if _, err := c.exec("PRAGMA page_size = " + strconv.Itoa(pageSize)); err != nil {
			return errors.Join(fmt.Errorf("set the page size: %w", err), s.disconnect())
		}
	}
	f := &FS{location: l, chunk: chunkSize}
	err = s.transaction("BEGIN IMMEDIATE", func() error {
		t := newTx(c, f)
		for _, statements := range [][]string{specified, extension} {
			for _, statement := range statements {
				if _, err := c.exec(statement); err != nil {
					return fmt.Errorf("create the schema: %w", err)
				}
			}
		}
		if err := t.begin(); err != nil {
			return fmt.Errorf("create the schema: %w", err)
		}
		if err := t.plant(by, nodes); err != nil {
			return err
		}
		return t.flush()
	})
	if err = errors.Join(err, s.disconnect()); err != nil || l.remote() {
		return err
	}
	// The file is new: its name must be as durable as its content.
	dir, err := os.Open(filepath.Dir(l.Path))
	if err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("sync the directory: %w", err)
	}
	return nil
}

// begin fills the tables of a new database.
func (t *tx) begin() error {
	generation, err := newGeneration()
	if err != nil {
		return err
	}
	sec, nsec := t.now.Unix(), t.now.Nanosecond()
	for _, s := range []struct {
		query string
		args  []any
	}{
		{`INSERT INTO fs_config (key, value) VALUES ('chunk_size', ?), ('schema_version', ?)`,
			[]any{strconv.FormatInt(t.fs.chunk, 10), SchemaVersion}},
		{`INSERT INTO fs_inode (ino, mode, nlink, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec)
			VALUES (1, ?, 2, ?, ?, ?, ?, ?, ?)`, []any{TypeDir | 0o755, sec, sec, sec, nsec, nsec, nsec}},
		{`INSERT INTO hw_meta (key, value) VALUES ('format', ?), ('generation', ?), ('writer', '1'), ('announced', '0')`,
			[]any{format, generation}},
		{`INSERT INTO hw_writer (writer, next_id, ledger_hash) VALUES (1, ?, ?)`, []any{int64(1) << 32, []byte{}}},
		{`INSERT INTO hw_project (project, bytes, files) VALUES (0, 0, 1)`, nil},
	} {
		if _, err := t.exec(s.query, s.args...); err != nil {
			return err
		}
	}
	return nil
}

// newGeneration returns 32 random hexadecimal digits.
func newGeneration() (string, error) {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		return "", fmt.Errorf("make a generation: %w", err)
	}
	return hex.EncodeToString(b), nil
}
