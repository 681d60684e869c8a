package checks

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// foreignDatabases are scripts that make of a whole AgentFS something else, by the reason agentfs must refuse it with.
var foreignDatabases = map[string]struct{ reason, script string }{
	"an older schema": {"AGENTFS_SCHEMA_UNSUPPORTED", `db.execute("UPDATE fs_config SET value = '0.2' WHERE key = 'schema_version'")`},
	"a newer schema":  {"AGENTFS_SCHEMA_UNSUPPORTED", `db.execute("UPDATE fs_config SET value = '0.5' WHERE key = 'schema_version'")`},
	"another format":  {"AGENTFS_SCHEMA_UNSUPPORTED", `db.execute("UPDATE hw_meta SET value = '99' WHERE key = 'format'")`},
	"a foreign database": {"AGENTFS_FOREIGN", `[db.execute("DROP TABLE " + n) for n, in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'").fetchall()]
db.execute("CREATE TABLE notes (text TEXT)")`},
	"no database":          {"AGENTFS_FOREIGN", `db.close(); open(sys.argv[1], "wb").write(b"These are not the files you are looking for.\n" * 1000)`},
	"a truncated database": {"AGENTFS_DAMAGED", `db.close(); raw = open(sys.argv[1], "rb").read(); open(sys.argv[1], "wb").write(raw[:len(raw) // 8192 * 4096])`},
	"overwritten pages":    {"AGENTFS_DAMAGED", `db.close(); f = open(sys.argv[1], "r+b"); f.seek(4096); f.write(b"\xa5" * 3 * 4096)`},
}

const makeForeign = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], isolation_level=None)\n%s\ndb.close()\n"

// RefusedDatabases gives agentfs databases that are not its own, at its start and to restore: each is refused with its reason and not a byte changes.
func RefusedDatabases(t harness.T) string {
	w := start(t, 3*time.Minute, harness.Options{})
	conv, _ := w.conversation("kept")
	w.put(w.Client, conv, "workspace/kept.txt", "kept")
	copied, err := w.Export(w.ctx, w.org)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := w.Process(harness.AgentFS).Stop(30 * time.Second); err != nil {
		t.Fatalf("stop agentfs: %v", err)
	}
	file := w.AgentFSFile(w.org)
	own, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("read the database of a stopped agentfs: %v", err)
	}
	if info, err := os.Stat(file + "-wal"); err == nil && info.Size() > 0 {
		t.Errorf("an orderly stop left a write-ahead log of %d bytes", info.Size())
	}
	for name, c := range foreignDatabases {
		w.refusesAtStart(conv, name, c.reason, c.script, own)
	}
	if err := os.WriteFile(file, own, 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	w.Launch(harness.AgentFS)
	w.reads(conv, "workspace/kept.txt", "kept")
	for name, c := range foreignDatabases {
		if err := w.refusesToRestore(name, c.reason, c.script, copied); err != nil {
			t.Errorf("restore %s: %v", name, err)
		}
		w.reads(conv, "workspace/kept.txt", "kept")
	}
	return fmt.Sprintf("%d kinds of foreign, older and damaged databases refused with their reasons at the first use and by restore, not a byte changed (%s)",
		len(foreignDatabases), strings.Join(slices.Sorted(maps.Keys(foreignDatabases)), ", "))
}

func (w *world) reads(conv harness.Conversation, path, want string) {
	w.t.Helper()
	got, err := harness.Durably(w.ctx, func() (harness.Answer, error) { return w.Client.GetFile(w.ctx, conv, path, nil) })
	if err != nil || string(got.Body) != want {
		w.t.Errorf("%s = %.60q (%v), want %q", path, got.Body, err, want)
	}
}

// refusesAtStart starts agentfs on a database and stops it again.
func (w *world) refusesAtStart(conv harness.Conversation, name, reason, script string, own []byte) {
	w.t.Helper()
	file := w.AgentFSFile(w.org)
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Remove(file + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			w.t.Fatalf("%v", err)
		}
	}
	if err := os.WriteFile(file, own, 0o600); err != nil {
		w.t.Fatalf("%v", err)
	}
	if err := w.Python(w.ctx, fmt.Sprintf(makeForeign, script), nil, nil, file); err != nil {
		w.t.Fatalf("make %s: %v", name, err)
	}
	before := w.state(file)
	w.Launch(harness.AgentFS)
	for what, do := range map[string]func() error{
		"read": func() error { _, err := w.Client.GetFile(w.ctx, conv, "workspace/kept.txt", nil); return err },
		"write": func() error {
			_, _, err := w.Client.PutFile(w.ctx, conv, "workspace/new", nil, strings.NewReader("x"), 1)
			return err
		},
		"list": func() error { _, _, err := w.Client.Files(w.ctx, conv, ""); return err },
	} {
		_, err := harness.Durably(w.ctx, func() (bool, error) { return true, do() })
		var api *harness.APIError
		if !errors.As(err, &api) || api.Reason() != reason || api.Status != http.StatusConflict {
			w.t.Errorf("%s in %s = %v, want 409 %s", what, name, err, reason)
		}
	}
	if err := w.Process(harness.AgentFS).Stop(30 * time.Second); err != nil {
		w.t.Errorf("stop agentfs with %s: %v", name, err)
	}
	if after := w.state(file); after != before {
		w.t.Errorf("%s was changed: %s, before %s", name, after, before)
	}
}

// state is the digest of a database and what lies beside it.
func (w *world) state(file string) string {
	w.t.Helper()
	entries, err := os.ReadDir(filepath.Dir(file))
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	var all []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(file)) {
			continue
		}
		sum, err := harness.FileDigest(filepath.Join(filepath.Dir(file), e.Name()))
		if err != nil {
			w.t.Fatalf("%v", err)
		}
		all = append(all, e.Name()+" "+sum[:16])
	}
	return strings.Join(all, ", ")
}

// refusesToRestore sends a database that must not be taken.
func (w *world) refusesToRestore(name, reason, script, whole string) error {
	w.t.Helper()
	raw, err := os.ReadFile(whole)
	if err != nil {
		return err
	}
	changed := filepath.Join(w.Dir, "foreign.db")
	if err := os.WriteFile(changed, raw, 0o600); err != nil {
		return err
	}
	defer os.RemoveAll(changed)
	if err := w.Python(w.ctx, fmt.Sprintf(makeForeign, script), nil, nil, changed); err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	err = w.Restore(w.ctx, w.org, changed)
	switch {
	case err == nil:
		return fmt.Errorf("it was taken, want %s", reason)
	case harness.ReasonOf(err) != reason:
		return fmt.Errorf("%w, want %s", err, reason)
	}
	return nil
}
