package agentfs

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// makeFile runs statements in a new SQLite file.
func makeFile(t *testing.T, statements ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "made.db")
	c, err := dial(Location{Path: path}, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range statements {
		if _, err := c.exec(s); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
	}
	if err := c.close(); err != nil {
		t.Fatal(err)
	}
	return path
}

// bySDK is what the Python SDK 0.6.4 makes: no tables of overlays, links of a directory are its
// names, a removed symbolic link leaves its target.
func bySDK(more ...string) []string {
	var statements []string
	for _, s := range specified {
		if !strings.Contains(s, "fs_whiteout") && !strings.Contains(s, "fs_origin") && !strings.Contains(s, "fs_overlay") {
			statements = append(statements, s)
		}
	}
	return slices.Concat(statements, []string{
		`INSERT INTO fs_config VALUES ('chunk_size', '4096'), ('schema_version', '0.4')`,
		`INSERT INTO fs_inode (ino, mode, nlink, size, atime, mtime, ctime) VALUES (1, 16877, 1, 0, 1, 1, 1), (2, 16877, 1, 0, 1, 1, 1),
			(3, 33188, 1, 5, 1, 1, 1), (4, 33188, 2, 5000, 1, 1, 1)`,
		`INSERT INTO fs_dentry (name, parent_ino, ino) VALUES ('d', 1, 2), ('it''s.txt', 2, 3), ('2024-01-05', 2, 4), ('hard', 1, 4)`,
		`INSERT INTO fs_data VALUES (3, 0, x'68656c6c6f'), (4, 0, zeroblob(4096)), (4, 1, zeroblob(904))`,
		`INSERT INTO fs_symlink VALUES (9, 'gone')`,
		`INSERT INTO tool_calls (name, parameters, started_at, status) VALUES ('2024-01-05', '{"q": 1}', 5, 'success'), ('b', NULL, 4, 'pending')`,
		`INSERT INTO kv_store (key, value) VALUES ('k', '{}')`,
	}, more)
}

func TestAdoptWhatAnSDKMade(t *testing.T) {
	ctx := context.Background()
	path := makeFile(t, bySDK(`PRAGMA user_version = 3`)...)
	if _, err := Open(ctx, Options{Location: Location{Path: path}}); !errors.Is(err, ErrSchema) && !errors.Is(err, ErrDamaged) {
		t.Fatalf("Open before: %v, want ErrSchema", err)
	}
	if err := Adopt(ctx, path); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	alone(t, path)
	r := openRaw(t, path)
	if faults := r.check(false).Faults; len(faults) != 0 {
		t.Errorf("faults: %+v", faults)
	}
	if got, want := r.paths(), []string{"/d", "/d/it's.txt"}; !slices.Contains(got, want[0]) || !slices.Contains(got, want[1]) || len(got) != 4 {
		t.Errorf("paths: %q", got)
	}
	if got := r.content("/d/it's.txt"); string(got) != "hello" {
		t.Errorf("content: %q", got)
	}
	for query, want := range map[string]int64{
		`SELECT nlink FROM fs_inode WHERE ino = 1`:                             3,
		`SELECT nlink FROM fs_inode WHERE ino = 4`:                             2,
		`SELECT bytes FROM hw_project WHERE project = 0`:                       5005,
		`SELECT files FROM hw_project WHERE project = 0`:                       4,
		`SELECT count(DISTINCT hw_version) FROM fs_inode WHERE hw_version > 0`: 4,
		`SELECT count(*) FROM fs_symlink`:                                      0,
		`SELECT count(*) FROM kv_store`:                                        1,
		`SELECT next_id FROM hw_writer WHERE writer = 0`:                       5,
		`SELECT CAST(value AS INTEGER) FROM hw_meta WHERE key = 'writer'`:      1,
		`SELECT count(*) FROM hw_ledger WHERE action = 'repair'`:               0,
	} {
		if got := r.number(query); got != want {
			t.Errorf("%s: %d, want %d", query, got, want)
		}
	}
	calls, err := r.fs.ToolCalls(ctx, Query{Limit: 10})
	if err != nil || len(calls) != 2 || calls[0].Name != "b" || calls[1].Name != "2024-01-05" {
		t.Errorf("tool calls: %+v, %v", calls, err)
	}
	if pending, err := r.fs.Pending(ctx, 10); err != nil || len(pending) != 0 {
		t.Errorf("pending: %+v, %v", pending, err)
	}
	records, err := r.fs.Timeline(ctx, Query{Limit: 10})
	if err != nil || len(records) != 3 || records[2].Action != ActionRestore {
		t.Errorf("ledger: %+v, %v", records, err)
	}
}

func TestAdoptASnapshotMakesAnotherDatabase(t *testing.T) {
	ctx := context.Background()
	r := newRaw(t)
	r.sql(`INSERT INTO hw_digest VALUES ({/empty}, 1, x'00')`, `INSERT INTO hw_hold VALUES ('turn', {/empty}, 1)`)
	path := snapshot(t, r.fs)
	for round := int64(2); round < 4; round++ {
		if err := Adopt(ctx, path); err != nil {
			t.Fatalf("Adopt: %v", err)
		}
		a := openRaw(t, path)
		if a.fs.Generation() == r.fs.Generation() {
			t.Error("the generation is the old one")
		}
		if faults := a.check(false).Faults; len(faults) != 0 {
			t.Errorf("faults: %+v", faults)
		}
		for query, want := range map[string]int64{
			`SELECT CAST(value AS INTEGER) FROM hw_meta WHERE key = 'writer'`: round,
			`SELECT min(hw_version) >> 32 FROM fs_inode`:                      round,
			`SELECT count(*) FROM hw_digest`:                                  0,
			`SELECT count(*) FROM hw_hold`:                                    1,
			`SELECT count(*) FROM hw_orphan`:                                  0,
			`SELECT count(*) FROM fs_inode`:                                   9,
			`SELECT count(*) FROM hw_ledger`:                                  9 + round - 1,
		} {
			if got := a.number(query); got != want {
				t.Errorf("round %d: %s: %d, want %d", round, query, got, want)
			}
		}
		if err := a.fs.Close(); err != nil {
			t.Fatal(err)
		}
		alone(t, path)
	}
}

func TestAdoptWhatAnSDKChanged(t *testing.T) {
	ctx := context.Background()
	r := newRaw(t)
	from := snapshot(t, r.fs)
	path := filepath.Join(t.TempDir(), "e.db")
	if err := Export(ctx, from, path); err != nil {
		t.Fatal(err)
	}
	e := openRaw(t, path)
	e.inos = r.inos
	e.sql(
		// rm -r /d/sub: an SDK knows neither xattrs nor holds nor digests.
		`INSERT INTO hw_xattr VALUES ({/d/sub/deep/it's é.txt}, x'61', x'62')`,
		`DELETE FROM fs_dentry WHERE ino IN ({/d/sub}, {/d/sub/deep}, {/d/sub/deep/it's é.txt})`,
		`DELETE FROM fs_inode WHERE ino IN ({/d/sub/deep}, {/d/sub/deep/it's é.txt})`,
		`DELETE FROM fs_data WHERE ino = {/d/sub/deep/it's é.txt}`,
		// /d/sub stays as an inode, as of a directory whose links it did not count.
		`INSERT INTO fs_inode (mode, nlink, size, atime, mtime, ctime) VALUES (33188, 1, 3, 1, 1, 1)`,
		`INSERT INTO fs_dentry (name, parent_ino, ino) SELECT 'new', {/d}, max(ino) FROM fs_inode`,
		`INSERT INTO fs_data SELECT max(ino), 0, x'6e6577' FROM fs_inode`,
		`UPDATE fs_data SET data = zeroblob(8) WHERE ino = {/d/file} AND chunk_index = 0`,
		`DELETE FROM fs_data WHERE ino = {/d/file} AND chunk_index > 0`,
		`UPDATE fs_inode SET size = 8 WHERE ino = {/d/file}`,
	)
	if err := e.fs.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Adopt(ctx, path); err != nil {
		t.Fatalf("Adopt: %v", err)
	}
	a := openRaw(t, path)
	if faults := a.check(false).Faults; len(faults) != 0 {
		t.Errorf("faults: %+v", faults)
	}
	if got := a.content("/d/new"); string(got) != "new" {
		t.Errorf("new: %q", got)
	}
	if got := a.content("/d/file"); !bytes.Equal(got, make([]byte, 8)) {
		t.Errorf("file: %q", got)
	}
	a.inos = r.inos
	if got, want := a.number(`SELECT files FROM hw_project WHERE project <> 0`), int64(4); got != want {
		t.Errorf("the project counts %d files, want %d", got, want)
	}
	if got := a.number(`SELECT count(*) FROM hw_ledger WHERE action = 'repair'`); got != 0 {
		t.Errorf("%d repairs", got)
	}
}

type refused struct {
	path string
	want error
}

// foreign makes files that nobody may take.
func foreign(t *testing.T) map[string]refused {
	t.Helper()
	valid := makeFile(t, bySDK()...)
	content, err := os.ReadFile(valid)
	if err != nil {
		t.Fatal(err)
	}
	write := func(b []byte) string {
		path := filepath.Join(t.TempDir(), "written.db")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	torn := bytes.Clone(content)
	for i := 4096 * 3; i < 4096*6; i++ {
		torn[i] ^= 0x55
	}
	return map[string]refused{
		"text":        {write([]byte("hello")), ErrForeign},
		"random":      {write(bytes.Repeat([]byte("SQLite format 3\x00xyzzy"), 500)), nil},
		"cut":         {write(content[:len(content)/2]), ErrDamaged},
		"overwritten": {write(torn), ErrDamaged},
		"other":       {makeFile(t, `CREATE TABLE t (a)`), ErrForeign},
	}
}

func TestAdoptRefusesAndChangesNothing(t *testing.T) {
	ctx := context.Background()
	cases := foreign(t)
	for name, c := range map[string]struct {
		more string
		want error
	}{
		"old version":      {`UPDATE fs_config SET value = '0.2' WHERE key = 'schema_version'`, ErrSchema},
		"no version":       {`DELETE FROM fs_config WHERE key = 'schema_version'`, ErrSchema},
		"chunk size":       {`UPDATE fs_config SET value = '0' WHERE key = 'chunk_size'`, ErrDamaged},
		"another column":   {`ALTER TABLE fs_inode ADD COLUMN birth INTEGER`, ErrSchema},
		"trigger":          {`CREATE TRIGGER x AFTER UPDATE ON fs_inode BEGIN DELETE FROM fs_data; END`, ErrForeign},
		"view":             {`CREATE VIEW hw_x AS SELECT 1`, ErrForeign},
		"virtual table":    {`CREATE VIRTUAL TABLE f USING fts5(a)`, ErrForeign},
		"part of ours":     {`CREATE TABLE hw_hold (a)`, ErrDamaged},
		"an overlay":       {`CREATE TABLE fs_whiteout (path TEXT PRIMARY KEY, parent_path TEXT NOT NULL DEFAULT '', created_at INTEGER NOT NULL)`, nil},
		"cycle":            {`UPDATE fs_dentry SET parent_ino = 2 WHERE ino = 2`, ErrDamaged},
		"entry to nothing": {`DELETE FROM fs_inode WHERE ino = 3`, ErrDamaged},
		"name":             {`UPDATE fs_dentry SET name = 'a/b' WHERE ino = 3`, ErrDamaged},
		"negative size":    {`UPDATE fs_inode SET size = -5 WHERE ino = 3`, ErrDamaged},
		"no root":          {`DELETE FROM fs_inode WHERE ino = 1`, ErrDamaged},
	} {
		if name == "an overlay" {
			cases[name] = refused{makeFile(t, bySDK(c.more, `CREATE TABLE fs_overlay_config (key TEXT PRIMARY KEY, value TEXT NOT NULL)`,
				`INSERT INTO fs_overlay_config VALUES ('base_path', '/')`)...), ErrForeign}
			continue
		}
		cases[name] = refused{makeFile(t, bySDK(c.more)...), c.want}
	}
	r := newRaw(t)
	r.sql(`UPDATE hw_ledger SET path = '/forged' WHERE position = 4`)
	cases["forged ledger"] = refused{snapshot(t, r.fs), ErrDamaged}
	r = newRaw(t)
	r.sql(`UPDATE hw_meta SET value = '2' WHERE key = 'format'`)
	cases["another format"] = refused{snapshot(t, r.fs), ErrSchema}
	cases["missing"] = refused{filepath.Join(t.TempDir(), "none"), ErrNotExist}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var before [32]byte
			if !errors.Is(c.want, ErrNotExist) {
				before = digestOf(t, c.path)
			}
			err := Adopt(ctx, c.path)
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Fatalf("Adopt: %v, want %v", err, c.want)
			}
			if errors.Is(c.want, ErrNotExist) {
				return
			}
			if digestOf(t, c.path) != before {
				t.Error("the file was changed")
			}
			alone(t, c.path)
		})
	}
}

func TestAdoptNeedsTheWholeFile(t *testing.T) {
	path := makeFile(t, bySDK()...)
	if err := os.WriteFile(path+"-wal", []byte("log"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Adopt(context.Background(), path); !errors.Is(err, ErrDamaged) {
		t.Errorf("with a log: %v, want ErrDamaged", err)
	}
}
