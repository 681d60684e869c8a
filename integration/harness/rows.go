package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
)

// Row is one row of Hermes's messages table.
type Row struct {
	ID         int64   `json:"id"`
	SessionID  string  `json:"session_id"`
	Role       string  `json:"role"`
	Content    string  `json:"content"`
	APIContent *string `json:"api_content"`
	Finish     *string `json:"finish_reason"`
	Active     int     `json:"active"`
	Compacted  int     `json:"compacted"`
}

// Sent is the text Hermes keeps as what it was sent: api_content, else content.
func (r Row) Sent() string {
	if r.APIContent != nil {
		return *r.APIContent
	}
	return r.Content
}

// Python's own SQLite reads the file that Hermes's Python writes, with none of this project's code.
const readRows = `import json, sqlite3, sys
db = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True)
db.row_factory = sqlite3.Row
rows = db.execute("SELECT id, session_id, role, content, api_content, finish_reason, active, compacted FROM messages ORDER BY id")
json.dump([{**dict(r), "content": r["content"] or ""} for r in rows], sys.stdout)
`

// Rows reads an organization's messages with the Python of the Hermes installation.
func (s *System) Rows(ctx context.Context, organization string) ([]Row, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(s.opts.Venv, "bin", "python"), "-c", readRows, filepath.Join(s.SessionDir(organization), "state.db"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("read state.db with Python: %w\n%s", err, stderr.String())
	}
	var rows []Row
	if err := json.Unmarshal(out, &rows); err != nil {
		return nil, fmt.Errorf("read state.db with Python: %w", err)
	}
	return rows, nil
}
