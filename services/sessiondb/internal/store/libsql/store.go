// Package libsql reads Hermes's state.db with go-libsql. Readers hold read-only handles, so that
// opening, reading and closing never change a file; the only writes are the record keepers of
// schema.go, made once per file.
//
// The driver's traps decide the shape of the code: text comes back cut at a NUL byte and as a time
// if it looks like one (so it is selected CAST AS BLOB), rows of a PRAGMA need Query, errors are
// text, a context is not looked at during a call (so waits are bounded by busy_timeout), and Close
// returns before the file is let go.
package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	_ "github.com/tursodatabase/go-libsql" // registers the driver

	"humanwork.internal/services/sessiondb/internal/store"
)

// busyTimeout is how long one statement waits for a lock. Readers of a WAL file wait only while
// another process recovers it or closes it last; the record keepers wait for Hermes's writers.
const busyTimeout = 2 * time.Second

// readers is how many calls read one organization at once.
const readers = 2

// smallestFile is one page of the smallest size; SQLite would take less for an empty database.
const smallestFile = 512

var orgPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// Store holds one open file per organization, opened on first use and kept.
type Store struct {
	root string // the cell's sessions directory

	mu     sync.Mutex
	closed bool
	files  map[string]*slot
}

// slot serializes the opening of one organization's file.
type slot struct {
	mu   sync.Mutex
	file *file // nil until opened
}

// New returns a store over <cell>/sessions. It opens nothing.
func New(cellDir string) *Store {
	return &Store{root: filepath.Join(cellDir, "sessions"), files: map[string]*slot{}}
}

var _ store.Store = (*Store)(nil)

// Provision implements store.Store.
func (s *Store) Provision(ctx context.Context, org string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !orgPattern.MatchString(org) {
		return fmt.Errorf("provision session directory: bad organization id: %w", store.ErrNotProvisioned)
	}
	if err := os.MkdirAll(s.root, 0o700); err != nil {
		return fmt.Errorf("create sessions directory: %w", err)
	}
	err := os.Mkdir(filepath.Join(s.root, org), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("create session directory: %w", err)
	}
	return syncDir(s.root)
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open directory to sync: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	return nil
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	slots := s.files
	s.files = map[string]*slot{}
	s.mu.Unlock()
	var errs []error
	for _, sl := range slots {
		sl.mu.Lock()
		if sl.file != nil {
			errs = append(errs, sl.file.close())
			sl.file = nil
		}
		sl.mu.Unlock()
	}
	return errors.Join(errs...)
}

// read runs f on a handle of the organization's file. It does not run f and returns nil when
// Hermes has not made the file yet: every result is then the zero value.
func (s *Store) read(ctx context.Context, org string, f func(context.Context, *sql.Conn) error) error {
	file, err := s.open(ctx, org)
	if err != nil || file == nil {
		return err
	}
	defer file.release()
	conn, err := file.take(ctx)
	if err != nil {
		return err
	}
	defer file.give(conn)
	// A call in flight is not interrupted by the context (the driver cannot), so it is not passed
	// on: database/sql would close the rows in the middle of a scan from another goroutine.
	return classify(f(context.WithoutCancel(ctx), conn))
}

// snapshot runs f inside one read transaction.
func (s *Store) snapshot(ctx context.Context, org string, f func(context.Context, *sql.Conn) error) error {
	return s.read(ctx, org, func(ctx context.Context, c *sql.Conn) error {
		if _, err := c.ExecContext(ctx, "BEGIN"); err != nil {
			return fmt.Errorf("begin read: %w", err)
		}
		err := f(ctx, c)
		if _, end := c.ExecContext(ctx, "ROLLBACK"); end != nil {
			err = errors.Join(err, fmt.Errorf("end read: %w", end))
		}
		return err
	})
}

// open returns the organization's open file with a reference held, or nil if there is none yet.
func (s *Store) open(ctx context.Context, org string) (*file, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if !orgPattern.MatchString(org) {
		return nil, fmt.Errorf("open session database: bad organization id: %w", store.ErrNotProvisioned)
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, store.ErrClosed
	}
	sl := s.files[org]
	if sl == nil {
		sl = &slot{}
		s.files[org] = sl
	}
	s.mu.Unlock()

	sl.mu.Lock()
	defer sl.mu.Unlock()
	path := filepath.Join(s.root, org, "state.db")
	// Lstat: a link here would lead out of the organization's directory.
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		sl.drop()
		if _, err := os.Stat(filepath.Dir(path)); errors.Is(err, fs.ErrNotExist) {
			return nil, store.ErrNotProvisioned
		}
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("stat session database: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("session database is no regular file: %w", store.ErrForeign)
	}
	if sl.file != nil && os.SameFile(sl.file.info, info) {
		sl.file.hold()
		return sl.file, nil
	}
	sl.drop() // the file was replaced: a restore, or a data directory made anew
	f, err := openFile(path, info)
	if err != nil || f == nil {
		return nil, err
	}
	sl.file = f
	f.hold()
	return f, nil
}

func (sl *slot) drop() {
	if sl.file != nil {
		// The file behind it is gone; nothing can be lost by a failing close.
		_ = sl.file.close()
		sl.file = nil
	}
}

// file is an open state.db. Its handles are pinned connections, read-only.
type file struct {
	info os.FileInfo
	db   *sql.DB
	idle chan *sql.Conn

	mu     sync.Mutex
	users  int
	gone   bool
	closer func() error
}

func (f *file) hold() {
	f.mu.Lock()
	f.users++
	f.mu.Unlock()
}

func (f *file) release() {
	f.mu.Lock()
	f.users--
	last := f.gone && f.users == 0
	f.mu.Unlock()
	if last {
		_ = f.closer()
	}
}

// close closes the file now or, if calls are in flight, when the last of them ends.
func (f *file) close() error {
	f.mu.Lock()
	f.gone = true
	last := f.users == 0
	f.mu.Unlock()
	if last {
		return f.closer()
	}
	return nil
}

func (f *file) take(ctx context.Context) (*sql.Conn, error) {
	select {
	case c := <-f.idle:
		return c, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a session database handle: %w", ctx.Err())
	}
}

func (f *file) give(c *sql.Conn) { f.idle <- c }

// openFile checks the file without changing it, makes sure that its record keepers stand, and
// opens the handles. It returns nil if Hermes is still creating the file.
func openFile(path string, info os.FileInfo) (*file, error) {
	// The file is looked at through SQLite only: closing another descriptor of it would drop the
	// locks that this process holds on it.
	switch size := info.Size(); {
	case size == 0:
		return nil, nil // Hermes is about to fill it
	case size < smallestFile:
		return nil, fmt.Errorf("file of %d bytes: %w", size, store.ErrForeign)
	}
	db, err := sql.Open("libsql", dsn(path, "ro"))
	if err != nil {
		return nil, classify(fmt.Errorf("open session database: %w", err))
	}
	f := &file{info: info, db: db, idle: make(chan *sql.Conn, readers)}
	var conns []*sql.Conn
	f.closer = sync.OnceValue(func() error {
		var errs []error
		for _, c := range conns {
			errs = append(errs, c.Close())
		}
		return errors.Join(append(errs, db.Close())...)
	})
	for range readers {
		c, err := connect(db)
		if err != nil {
			return nil, errors.Join(classify(err), f.closer())
		}
		conns = append(conns, c)
	}
	ready, err := prepare(path, conns[0])
	if err != nil || !ready {
		return nil, errors.Join(classify(err), f.closer())
	}
	for _, c := range conns {
		f.idle <- c
	}
	return f, nil
}

// dsn makes a SQLite URI; the mode keeps the driver from creating a file.
func dsn(path, mode string) string {
	return (&url.URL{Scheme: "file", OmitHost: true, Path: path, RawQuery: "mode=" + mode}).String()
}

func connect(db *sql.DB) (*sql.Conn, error) {
	ctx := context.Background()
	c, err := db.Conn(ctx)
	if err != nil {
		return nil, fmt.Errorf("connect to session database: %w", err)
	}
	var set int64
	query := fmt.Sprintf("PRAGMA busy_timeout = %d", busyTimeout.Milliseconds())
	if err := c.QueryRowContext(ctx, query).Scan(&set); err != nil {
		return nil, errors.Join(fmt.Errorf("set busy timeout: %w", err), c.Close())
	}
	return c, nil
}

// classify gives the driver's untyped errors a name. The phrases are SQLite's own result texts.
func classify(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	for _, c := range []struct {
		phrase string
		err    error
	}{
		{"database is locked", store.ErrBusy},
		{"database table is locked", store.ErrBusy},
		{"locking protocol", store.ErrBusy},
		{"file is not a database", store.ErrForeign},
		{"malformed", store.ErrDamaged},
	} {
		if strings.Contains(text, c.phrase) && !errors.Is(err, c.err) {
			return fmt.Errorf("%w: %w", c.err, err)
		}
	}
	return err
}
