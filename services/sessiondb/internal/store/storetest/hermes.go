// Package storetest is the contract of a store.Store as tests, with a writer that changes a
// state.db by the statements Hermes itself uses and recordings of databases the real one wrote.
package storetest

import (
	"bytes"
	"context"
	"database/sql"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	_ "github.com/tursodatabase/go-libsql" // the writer's driver

	"humanwork.internal/services/sessiondb/internal/transcript"
)

//go:embed testdata
var testdata embed.FS

// Session is the id of the recordings' one session.
const Session = "11111111-2222-4333-8444-555555555555"

// Statements returns the statements by which hermes-agent 0.19.0 creates a state.db.
func Statements(t testing.TB) []string {
	t.Helper()
	raw, err := testdata.ReadFile("testdata/schema.sql")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(raw), "\n--\n")[1:]
}

// line is one row of a recording.
type line struct {
	Table string         `json:"table"`
	Row   map[string]any `json:"row"`
}

// Recordings names what was recorded from the real Hermes, with our triggers on the file:
//
//   - turns: text, a cut-off and a broken answer, a tool, /queue, /steer, an image, cancels in a
//     stream and in a tool call, a restart, /model, session/load, /reset in a fresh child;
//   - compaction: an attached file, a compaction in a turn that succeeds and in one that fails,
//     with a todo list that Hermes adds to what it keeps;
//   - compact_command: compactions, /compact in fresh children, session/load between them.
//
// Long texts were shortened, the same way wherever they occur.
func recording(t testing.TB, name string) []line {
	t.Helper()
	raw, err := testdata.ReadFile("testdata/" + name + ".jsonl")
	if err != nil {
		t.Fatal(err)
	}
	var lines []line
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	for dec.More() {
		var l line
		if err := dec.Decode(&l); err != nil {
			t.Fatalf("recording %s: %v", name, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// Recorded returns a recording's rows and rewrites, for tests of the pure rules.
func Recorded(t testing.TB, name string) ([]transcript.Row, []transcript.Rewrite) {
	t.Helper()
	var rows []transcript.Row
	var rewrites []transcript.Rewrite
	for _, l := range recording(t, name) {
		text := func(key string) string { s, _ := l.Row[key].(string); return s }
		number := func(key string) int64 {
			n, _ := l.Row[key].(json.Number)
			f, _ := n.Float64()
			return int64(f)
		}
		switch l.Table {
		case "messages", "humanwork_deleted_messages":
			rows = append(rows, transcript.Row{
				ID: number("id"), SessionID: text("session_id"), Role: text("role"), Content: text("content"),
				APIContent: text("api_content"), ToolCalls: text("tool_calls"), FinishReason: text("finish_reason"),
				Timestamp: float64(number("timestamp")), Active: number("active") != 0, Compacted: number("compacted") != 0,
				DeletedAt: number("humanwork_boundary"),
			})
		case "humanwork_rewrites":
			rewrites = append(rewrites, transcript.Rewrite{Boundary: number("boundary"), BatchEnd: number("batch_end")})
		}
	}
	return rows, rewrites
}

// Hermes writes a state.db as the real one does.
type Hermes struct {
	t  testing.TB
	db *sql.DB
	c  *sql.Conn
}

// Path returns where the organization's file lies in a cell.
func Path(cellDir, org string) string { return filepath.Join(cellDir, "sessions", org, "state.db") }

// Start opens the file at path, which it creates with Hermes's tables if it is new.
func Start(t testing.TB, path string) *Hermes {
	t.Helper()
	h := Attach(t, path)
	for _, s := range Statements(t) {
		s = strings.Replace(s, "CREATE TABLE ", "CREATE TABLE IF NOT EXISTS ", 1)
		s = strings.Replace(s, "CREATE INDEX ", "CREATE INDEX IF NOT EXISTS ", 1)
		s = strings.Replace(s, "CREATE TRIGGER ", "CREATE TRIGGER IF NOT EXISTS ", 1)
		s = strings.Replace(s, "CREATE VIRTUAL TABLE ", "CREATE VIRTUAL TABLE IF NOT EXISTS ", 1)
		s = strings.ReplaceAll(s, "IF NOT EXISTS IF NOT EXISTS", "IF NOT EXISTS")
		h.Exec(s)
	}
	return h
}

// Attach opens the file at path and creates nothing in it.
func Attach(t testing.TB, path string) *Hermes {
	t.Helper()
	db, err := sql.Open("libsql", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	c, err := db.Conn(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	h := &Hermes{t: t, db: db, c: c}
	// First, as the driver closes in the background: a handle just closed may still hold the file.
	h.query("PRAGMA busy_timeout = 5000")
	h.query("PRAGMA journal_mode = WAL")
	h.query("PRAGMA foreign_keys = ON")
	return h
}

func (h *Hermes) query(q string) {
	h.t.Helper()
	rows, err := h.c.QueryContext(context.Background(), q)
	if err != nil {
		h.t.Fatalf("%s: %v", q, err)
	}
	defer rows.Close()
	for rows.Next() { // only drained
	}
}

// Exec runs one statement.
func (h *Hermes) Exec(q string, args ...any) {
	h.t.Helper()
	if _, err := h.c.ExecContext(context.Background(), q, args...); err != nil {
		h.t.Fatalf("%.80s: %v", q, err)
	}
}

// Int runs a query for one number.
func (h *Hermes) Int(q string, args ...any) int64 {
	h.t.Helper()
	var n int64
	if err := h.c.QueryRowContext(context.Background(), q, args...).Scan(&n); err != nil {
		h.t.Fatalf("%.80s: %v", q, err)
	}
	return n
}

// Stop closes the file.
func (h *Hermes) Stop() {
	h.t.Helper()
	if err := h.c.Close(); err != nil {
		h.t.Fatal(err)
	}
	if err := h.db.Close(); err != nil {
		h.t.Fatal(err)
	}
}

// Restore writes a recording into the file, beside which our tables must stand already.
func (h *Hermes) Restore(name string) {
	h.t.Helper()
	for _, l := range recording(h.t, name) {
		if l.Table == "sqlite_sequence" {
			h.Exec("UPDATE sqlite_sequence SET seq = CAST(? AS INTEGER) WHERE name = 'messages'", l.Row["seq"].(json.Number).String())
			continue
		}
		names := slices.Sorted(maps.Keys(l.Row))
		marks, values := make([]string, len(names)), make([]any, len(names))
		for i, name := range names {
			switch v := l.Row[name].(type) {
			case json.Number:
				marks[i], values[i] = "CAST(? AS NUMERIC)", v.String()
			case string:
				marks[i], values[i] = "CAST(? AS TEXT)", []byte(v) // a string would be cut at NUL
			}
		}
		h.Exec(fmt.Sprintf("INSERT INTO %s(%s) VALUES (%s)", l.Table, strings.Join(names, ","), strings.Join(marks, ",")), values...)
	}
}

// Message is what Hermes stores of one message.
type Message struct {
	Role, Content, APIContent, ToolCalls, Finish string
}

// User and Reply are the messages of a plain turn.
func User(text string) Message { return Message{Role: "user", Content: text} }

// Reply is a complete assistant message.
func Reply(text string) Message { return Message{Role: "assistant", Content: text, Finish: "stop"} }

// NewSession makes a session as session/new does.
func (h *Hermes) NewSession(id, source string, parent any) {
	h.t.Helper()
	h.Exec("INSERT INTO sessions (id, source, parent_session_id, started_at) VALUES (?, ?, ?, 1.5)", id, source, parent)
}

func (h *Hermes) insert(session string, m Message) {
	h.t.Helper()
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return []byte(s)
	}
	h.Exec(`INSERT INTO messages (session_id, role, content, api_content, tool_calls, finish_reason, timestamp)
		VALUES (?, ?, CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), CAST(? AS TEXT), 1700000000.25)`,
		session, m.Role, []byte(m.Content), null(m.APIContent), null(m.ToolCalls), null(m.Finish))
}

func (h *Hermes) transaction(f func()) {
	h.t.Helper()
	h.Exec("BEGIN IMMEDIATE")
	f()
	h.Exec("COMMIT")
}

// Append is SessionDB.append_message, for each message.
func (h *Hermes) Append(session string, messages ...Message) {
	h.t.Helper()
	for _, m := range messages {
		h.transaction(func() {
			h.insert(session, m)
			h.Exec("UPDATE sessions SET message_count = message_count + 1 WHERE id = ?", session)
		})
	}
}

// Replace is SessionDB.replace_messages: /reset, /compact, /model, session/load.
func (h *Hermes) Replace(session string, activeOnly bool, messages ...Message) {
	h.t.Helper()
	where := ""
	if activeOnly {
		where = " AND active = 1"
	}
	h.transaction(func() {
		h.Exec("DELETE FROM messages WHERE session_id = ?"+where, session)
		h.Exec("UPDATE sessions SET message_count = 0, tool_call_count = 0 WHERE id = ?", session)
		for _, m := range messages {
			h.insert(session, m)
		}
		h.Exec("UPDATE sessions SET message_count = ?, tool_call_count = ? WHERE id = ?", len(messages), 0, session)
	})
}

// Compact is SessionDB.archive_and_compact.
func (h *Hermes) Compact(session string, messages ...Message) {
	h.t.Helper()
	h.transaction(func() {
		h.Exec("UPDATE messages SET active = 0, compacted = 1 WHERE session_id = ? AND active = 1", session)
		for _, m := range messages {
			h.insert(session, m)
		}
		h.Exec("UPDATE sessions SET message_count = ?, tool_call_count = ? WHERE id = ?", len(messages), 0, session)
	})
}
