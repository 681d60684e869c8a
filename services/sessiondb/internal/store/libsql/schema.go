package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"

	"humanwork.internal/services/sessiondb/internal/store"
)

// Hermes deletes and inserts rows anew under new ids (/reset, /compact, /model, session/load) and
// archives them (compaction). Three triggers keep what is needed to find a message again, each
// within Hermes's own transaction:
//
//   - before a delete, the whole row goes to humanwork_deleted_messages with the largest id given
//     so far;
//   - the delete, or the archiving of a row, notes that id as the boundary of a rewrite;
//   - Hermes ends each such transaction by setting the session's message_count to the number of
//     rows it inserted, which tells where the rewrite's rows end. /reset inserts none and sets the
//     count to zero twice; later single messages cannot look like that, as the end is set already.
const (
	deletedTable  = "humanwork_deleted_messages"
	rewritesTable = "humanwork_rewrites"

	// sessionIndex lists each session's ids in order; Hermes's own indexes order by time, so that a
	// page or a reply would cost a walk over the whole session.
	sessionIndex = "humanwork_messages_session"

	keepTrigger    = "humanwork_keep_deleted"
	archiveTrigger = "humanwork_note_archived"
	batchTrigger   = "humanwork_note_batch"
)

const createRewrites = `CREATE TABLE IF NOT EXISTS ` + rewritesTable + `(
  session_id TEXT NOT NULL, boundary INTEGER NOT NULL, batch_end INTEGER,
  PRIMARY KEY(session_id, boundary)) WITHOUT ROWID`

const createIndex = `CREATE INDEX IF NOT EXISTS ` + sessionIndex + ` ON messages(session_id)`

const lastID = `(SELECT seq FROM sqlite_sequence WHERE name='messages')`

const createArchive = `CREATE TRIGGER ` + archiveTrigger + ` AFTER UPDATE OF compacted ON messages
WHEN NEW.compacted <> 0 AND OLD.compacted = 0 BEGIN
  INSERT OR IGNORE INTO ` + rewritesTable + `(session_id, boundary) VALUES (NEW.session_id, COALESCE(` + lastID + `, NEW.id));
END`

const createBatch = `CREATE TRIGGER ` + batchTrigger + ` AFTER UPDATE OF message_count ON sessions
WHEN NEW.message_count > 0 OR OLD.message_count = 0 BEGIN
  UPDATE ` + rewritesTable + ` SET batch_end = boundary + NEW.message_count
  WHERE session_id = NEW.id AND batch_end IS NULL AND boundary + NEW.message_count = ` + lastID + `;
END`

// createKeep follows Hermes's columns: a later version's new ones are kept too, once the file is
// opened again.
func createKeep(columns []string) string {
	names, values := make([]string, len(columns)), make([]string, len(columns))
	for i, c := range columns {
		names[i], values[i] = quote(c), "OLD."+quote(c)
	}
	return `CREATE TRIGGER ` + keepTrigger + ` BEFORE DELETE ON messages BEGIN
  INSERT OR REPLACE INTO ` + deletedTable + `(humanwork_boundary, ` + strings.Join(names, ", ") + `)
  VALUES (COALESCE(` + lastID + `, OLD.id), ` + strings.Join(values, ", ") + `);
  INSERT OR IGNORE INTO ` + rewritesTable + `(session_id, boundary) VALUES (OLD.session_id, COALESCE(` + lastID + `, OLD.id));
END`
}

func quote(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

// needed are the columns that sessiondb reads; a file without them is not of a Hermes it knows.
var needed = map[string][]string{
	"messages": {"id", "session_id", "role", "content", "tool_calls", "timestamp", "finish_reason", "active", "compacted", "api_content"},
	"sessions": {"id", "source", "parent_session_id", "message_count"},
}

// beforeMessages are the tables Hermes makes before messages, each in a transaction of its own: a
// file with no others is one being created.
var beforeMessages = []string{"schema_version", "sessions"}

// schema is what is looked at in a file when it is opened.
type schema struct {
	tables   []string
	columns  map[string][]string // of messages, sessions and the table of deleted rows
	triggers map[string]string   // name to text
	indexed  bool                // sessionIndex stands
}

// prepare checks through a read-only handle that the file is Hermes's and makes our record keepers
// if they are missing or out of date. It reports false while Hermes creates the file.
func prepare(path string, c *sql.Conn) (bool, error) {
	ctx := context.Background()
	s, err := readSchema(ctx, c)
	if err != nil {
		return false, err
	}
	if !slices.Contains(s.tables, "messages") || !slices.Contains(s.tables, "sessions") {
		for _, t := range s.tables {
			if !slices.Contains(beforeMessages, t) {
				return false, fmt.Errorf("file has tables of another program: %w", store.ErrForeign)
			}
		}
		return false, nil
	}
	for table, columns := range needed {
		for _, column := range columns {
			if !slices.Contains(s.columns[table], column) {
				return false, fmt.Errorf("table %s has no column %s: %w", table, column, store.ErrForeign)
			}
		}
	}
	if s.complete() {
		return true, nil
	}
	// Nothing is written to a file that is not sound. This reads the whole of it, once in its life.
	if err := check(ctx, c); err != nil {
		return false, err
	}
	return true, install(ctx, path)
}

func (s schema) complete() bool {
	return slices.Contains(s.tables, rewritesTable) && s.indexed &&
		len(missing(s.columns["messages"], s.columns[deletedTable])) == 0 &&
		s.triggers[keepTrigger] == createKeep(s.columns["messages"]) &&
		s.triggers[archiveTrigger] == createArchive &&
		s.triggers[batchTrigger] == createBatch
}

func missing(want, have []string) []string {
	var absent []string
	for _, c := range want {
		if !slices.Contains(have, c) {
			absent = append(absent, c)
		}
	}
	return absent
}

func readSchema(ctx context.Context, c *sql.Conn) (schema, error) {
	s := schema{columns: map[string][]string{}, triggers: map[string]string{}}
	err := each(ctx, c, `SELECT CAST(type AS BLOB), CAST(name AS BLOB), CAST(COALESCE(sql, '') AS BLOB)
		FROM sqlite_master WHERE type IN ('table', 'trigger', 'index') AND name NOT LIKE 'sqlite%'`, func(rows *sql.Rows) error {
		var kind, name, text []byte
		if err := rows.Scan(&kind, &name, &text); err != nil {
			return err
		}
		switch string(kind) {
		case "table":
			s.tables = append(s.tables, string(name))
		case "trigger":
			s.triggers[string(name)] = string(text)
		case "index":
			s.indexed = s.indexed || string(name) == sessionIndex
		}
		return nil
	})
	if err != nil {
		return s, fmt.Errorf("read schema: %w", err)
	}
	for _, table := range []string{"messages", "sessions", deletedTable} {
		err := each(ctx, c, `SELECT CAST(name AS BLOB) FROM pragma_table_info('`+table+`')`, func(rows *sql.Rows) error {
			var name []byte
			if err := rows.Scan(&name); err != nil {
				return err
			}
			s.columns[table] = append(s.columns[table], string(name))
			return nil
		})
		if err != nil {
			return s, fmt.Errorf("read columns of %s: %w", table, err)
		}
	}
	return s, nil
}

func check(ctx context.Context, c *sql.Conn) error {
	var verdict []byte
	err := c.QueryRowContext(ctx, `SELECT CAST(quick_check AS BLOB) FROM pragma_quick_check(1)`).Scan(&verdict)
	if err != nil {
		return fmt.Errorf("check session database: %w", err)
	}
	if string(verdict) != "ok" {
		return fmt.Errorf("check session database: %s: %w", verdict, store.ErrDamaged)
	}
	return nil
}

// install writes the tables and triggers through a handle of its own, in one transaction. Another
// process may do the same at the same time: what stands by then is left alone.
func install(ctx context.Context, path string) (err error) {
	db, err := sql.Open("libsql", dsn(path, "rw"))
	if err != nil {
		return fmt.Errorf("open session database for writing: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	c, err := connect(db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	if _, err := c.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin installing triggers: %w", err)
	}
	if err := installIn(ctx, c); err != nil {
		_, undo := c.ExecContext(ctx, "ROLLBACK")
		return errors.Join(fmt.Errorf("install triggers: %w", err), undo)
	}
	if _, err := c.ExecContext(ctx, "COMMIT"); err != nil {
		_, undo := c.ExecContext(ctx, "ROLLBACK")
		return errors.Join(fmt.Errorf("commit triggers: %w", err), undo)
	}
	return nil
}

func installIn(ctx context.Context, c *sql.Conn) error {
	s, err := readSchema(ctx, c)
	if err != nil || s.complete() {
		return err
	}
	statements := []string{createRewrites, createIndex}
	if len(s.columns[deletedTable]) == 0 {
		// No column has a type: values are kept in the storage class they had.
		columns := make([]string, 0, len(s.columns["messages"]))
		for _, name := range s.columns["messages"] {
			if name == "id" {
				name = "id INTEGER PRIMARY KEY"
			} else {
				name = quote(name)
			}
			columns = append(columns, name)
		}
		statements = append(statements,
			`CREATE TABLE `+deletedTable+`(humanwork_boundary INTEGER NOT NULL, `+strings.Join(columns, ", ")+`)`,
			`CREATE INDEX `+deletedTable+`_session ON `+deletedTable+`(session_id)`)
	} else {
		for _, name := range missing(s.columns["messages"], s.columns[deletedTable]) {
			statements = append(statements, `ALTER TABLE `+deletedTable+` ADD COLUMN `+quote(name))
		}
	}
	for _, t := range []struct{ name, text string }{
		{keepTrigger, createKeep(s.columns["messages"])},
		{archiveTrigger, createArchive},
		{batchTrigger, createBatch},
	} {
		if s.triggers[t.name] != t.text {
			statements = append(statements, `DROP TRIGGER IF EXISTS `+t.name, t.text)
		}
	}
	for _, statement := range statements {
		if _, err := c.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// each runs the query and calls f for every row.
func each(ctx context.Context, c *sql.Conn, query string, f func(*sql.Rows) error, args ...any) error {
	rows, err := c.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := f(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
