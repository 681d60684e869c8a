package agentfs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// maxWriter keeps every id below 2^53.
const maxWriter = 1<<21 - 1

// tx is one transaction of an FS, for the goroutine that update or view calls.
type tx struct {
	*conn
	fs  *FS
	now time.Time

	// Written at the end of an update.
	writer   writer
	changes  []change
	noted    map[change]bool // what is in changes
	ranges   map[Ino]int     // the last change of each inode's content in changes
	usage    map[Ino]Limits
	recorded bool
}

func newTx(c *conn, f *FS) *tx { return &tx{conn: c, fs: f, now: time.Now()} }

// writer is a row of hw_writer.
type writer struct {
	id, next, sequence int64
	hash               []byte
	dirty              bool
}

// update runs fn in a write transaction that is durable when update returns, with everything that
// fn noted: ids, changes, use of quotas, ledger. If anything fails nothing of it happened. Its
// errors may be errnos; callers give them their public form by fail.
func (f *FS) update(ctx context.Context, fn func(*tx) error) error { return f.write(ctx, "FULL", fn) }

// updateLater is update for what need not survive a power loss before a later update; a killed
// process loses nothing.
func (f *FS) updateLater(ctx context.Context, fn func(*tx) error) error {
	return f.write(ctx, "NORMAL", fn)
}

func (f *FS) write(ctx context.Context, synchronous string, fn func(*tx) error) error {
	s := f.writer
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	c, err := s.connect()
	if err != nil {
		return err
	}
	f.makeRoom(c)
	// Not allowed within a transaction.
	if !f.location.remote() && s.synchronous != synchronous {
		if _, err := c.exec("PRAGMA synchronous = " + synchronous); err != nil {
			return fmt.Errorf("set synchronous: %w", err)
		}
		s.synchronous = synchronous
	}
	t := newTx(c, f)
	err = s.transaction("BEGIN IMMEDIATE", func() error {
		if err := fn(t); err != nil {
			return err
		}
		return t.flush()
	})
	if err == nil && t.recorded && f.committed != nil {
		f.committed()
	}
	return err
}

// view runs fn in a read transaction: one snapshot.
func (f *FS) view(ctx context.Context, fn func(*tx) error) error {
	return f.read(ctx, func(t *tx) error {
		return f.reader.transaction("BEGIN", func() error { return fn(t) })
	})
}

// read runs fn without a transaction: each statement is a snapshot of its own.
func (f *FS) read(ctx context.Context, fn func(*tx) error) error {
	s := f.reader
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.leave()
	c, err := s.connect()
	if err != nil {
		return err
	}
	return fn(newTx(c, f))
}

// seat is one connection and the turn to use it.
type seat struct {
	location Location
	turn     chan struct{}
	closed   chan struct{}

	// The rest belongs to whoever has the turn.
	conn        *conn
	synchronous string
}

func newSeat(l Location) *seat {
	return &seat{location: l, turn: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (s *seat) enter(ctx context.Context) error {
	select {
	case <-s.closed:
		return ErrClosed
	default:
	}
	select {
	case s.turn <- struct{}{}:
		return nil
	case <-s.closed:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *seat) leave() { <-s.turn }

// connect returns the connection, another one if a failed rollback lost it.
func (s *seat) connect() (*conn, error) {
	if s.conn == nil {
		c, err := dial(s.location, "rw")
		if err != nil {
			return nil, err
		}
		s.conn, s.synchronous = c, ""
	}
	return s.conn, nil
}

func (s *seat) disconnect() error {
	if s.conn == nil {
		return nil
	}
	err := s.conn.close()
	s.conn, s.synchronous = nil, ""
	return err
}

// transaction runs fn between begin and COMMIT, or ROLLBACK if it fails.
func (s *seat) transaction(begin string, fn func() error) (err error) {
	if _, err := s.conn.exec(begin); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	if err = fn(); err == nil {
		if _, err = s.conn.exec("COMMIT"); err == nil {
			return nil
		}
		err = fmt.Errorf("commit: %w", err)
	}
	// SQLite itself rolls back when the disk is full, for example.
	if _, rerr := s.conn.exec("ROLLBACK"); rerr != nil && !strings.Contains(rerr.Error(), "no transaction is active") {
		// What state the connection is in is unknown: the next caller opens another.
		return errors.Join(err, s.disconnect())
	}
	return err
}

// flush writes what was noted.
func (t *tx) flush() error {
	if len(t.changes) > 0 || t.recorded {
		if err := t.loadWriter(); err != nil {
			return err
		}
	}
	if err := t.writeChanges(); err != nil {
		return fmt.Errorf("write changes: %w", err)
	}
	if err := t.writeUsage(); err != nil {
		return err
	}
	return t.flushWriter()
}

func (t *tx) flushWriter() error {
	if !t.writer.dirty {
		return nil
	}
	if _, err := t.exec(`UPDATE hw_writer SET next_id = ?, ledger_sequence = ?, ledger_hash = ? WHERE writer = ?`,
		t.writer.next, t.writer.sequence, t.writer.hash, t.writer.id); err != nil {
		return fmt.Errorf("write the writer: %w", err)
	}
	return nil
}

func (t *tx) loadWriter() error {
	if t.writer.id != 0 {
		return nil
	}
	r, err := t.row(`SELECT writer, next_id, ledger_sequence, ledger_hash FROM hw_writer
		WHERE writer = (SELECT CAST(value AS INTEGER) FROM hw_meta WHERE key = 'writer')`)
	if err != nil {
		return fmt.Errorf("read the writer: %w", err)
	}
	if r == nil {
		return fmt.Errorf("%w: it has no writer", ErrDamaged)
	}
	t.writer = writer{id: r.int(0), next: r.int(1), sequence: r.int(2), hash: append([]byte{}, r.bytes(3)...)}
	return nil
}

// ids allocates n consecutive ids and returns the first. Inodes, entries, tool calls and versions
// share them.
func (t *tx) ids(n int64) (int64, error) {
	if err := t.loadWriter(); err != nil {
		return 0, err
	}
	if t.writer.next+n > (t.writer.id+1)<<32 {
		if err := t.nextWriter(); err != nil {
			return 0, err
		}
	}
	first := t.writer.next
	t.writer.next += n
	t.writer.dirty = true
	return first, nil
}

// nextWriter takes another range when the own one is used up; the chain of the ledger begins anew.
func (t *tx) nextWriter() error {
	t.writer.dirty = true
	if err := t.flushWriter(); err != nil {
		return err
	}
	r, err := t.row(`SELECT max(writer) + 1 FROM hw_writer`)
	if err != nil {
		return fmt.Errorf("read writers: %w", err)
	}
	if r.int(0) > maxWriter {
		return syscall.EOVERFLOW
	}
	t.writer = writer{id: r.int(0), next: r.int(0) << 32, hash: []byte{}, dirty: true}
	if _, err := t.exec(`INSERT INTO hw_writer (writer, next_id, ledger_hash) VALUES (?, ?, ?)`,
		t.writer.id, t.writer.next, t.writer.hash); err != nil {
		return fmt.Errorf("add a writer: %w", err)
	}
	if _, err := t.exec(`UPDATE hw_meta SET value = CAST(? AS TEXT) WHERE key = 'writer'`, t.writer.id); err != nil {
		return fmt.Errorf("take a writer: %w", err)
	}
	return nil
}

// use notes that a quota's use grew or, negative, shrank: of the project, if not 0, and of the whole
// database. Row 0 of hw_project counts every inode there is, the root and unlinked ones too.
func (t *tx) use(project Ino, bytes, files int64) {
	if t.usage == nil {
		t.usage = map[Ino]Limits{}
	}
	u := t.usage[project]
	t.usage[project] = Limits{Bytes: u.Bytes + bytes, Files: u.Files + files}
}

// writeUsage adds what was noted and refuses what goes above a limit by this transaction.
func (t *tx) writeUsage() error {
	var whole Limits
	for project, u := range t.usage {
		whole.Bytes += u.Bytes
		whole.Files += u.Files
		if project == 0 || u == (Limits{}) {
			continue
		}
		if err := t.addUsage(project, u, t.fs.perProject); err != nil {
			return err
		}
	}
	if whole == (Limits{}) {
		return nil
	}
	if whole.Bytes > 0 || whole.Files > 0 {
		if err := t.growable(); err != nil {
			return err
		}
	}
	return t.addUsage(0, whole, t.fs.whole)
}

func (t *tx) addUsage(project Ino, u, limit Limits) error {
	r, err := t.row(`UPDATE hw_project SET bytes = bytes + ?, files = files + ? WHERE project = ? RETURNING bytes, files`,
		u.Bytes, u.Files, project)
	if err != nil {
		return fmt.Errorf("count use: %w", err)
	}
	switch {
	case r == nil:
		return nil // the project itself went
	case limit.Bytes > 0 && u.Bytes > 0 && r.int(0) > limit.Bytes,
		limit.Files > 0 && u.Files > 0 && r.int(1) > limit.Files:
		return syscall.EDQUOT
	}
	return nil
}
