package agentfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// tolerated are the faults that an SDK leaves behind, whose repair loses nothing: it counts
// directories' links in its own way, forgets the inode of a removed directory, and knows none of
// the rows of this package. Any other fault means that the file is not what its maker had.
var tolerated = []string{FaultTime, FaultID, FaultIDRange, FaultVersion, FaultInodeEntry, FaultOrphan, FaultSymlinkSize,
	FaultTargetSymlink, FaultChunkInode, FaultChunkType, FaultChunkBeyond, FaultChunkShort, FaultXattrInode, FaultDigestInode,
	FaultHoldInode, FaultLinks, FaultProject, FaultProjectDirectory, FaultUsage}

// Adopt makes an AgentFS 0.4 file that nobody has open this package's: one that an SDK made, a
// Snapshot, or an Export that an SDK may have changed since. It becomes another database: a new
// generation and writer, above every id there is, a new version of every content, no digests. The
// ledger goes on, with a "restore" by "agentfs", a record for each tool call that has none and for
// each repair; nothing of it is pending. ErrNotExist, ErrForeign, ErrSchema or ErrDamaged (also if
// Check finds what no SDK leaves): the file is as it was, as after any other error and after a
// crash, since it is a copy that is changed and then takes its place.
func Adopt(ctx context.Context, path string) error {
	return fail("adopt the AgentFS", "", adopt(ctx, path))
}

func adopt(ctx context.Context, path string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := inspectFile(Location{Path: path}); err != nil {
		return err
	}
	// What it says is not in the file. An SDK leaves an empty one.
	if log, err := os.Lstat(path + "-wal"); err == nil && log.Size() > 0 {
		return fmt.Errorf("%w: a write-ahead log is beside it", ErrDamaged)
	}
	copied := path + partial
	if err := removePartial(copied); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, removePartial(copied)) }()
	if err := copyFile(ctx, path, copied); err != nil {
		return err
	}
	if err := changeCopy(copied, inspectAdopted, func(t *tx) error { return t.adopt(ctx) }); err != nil {
		return err
	}
	// The directory's own sync is the last step: until then either file is whole.
	if err := errors.Join(ctx.Err(), syncFile(copied)); err != nil {
		return err
	}
	if err := os.Rename(copied, path); err != nil {
		return fmt.Errorf("replace the file: %w", err)
	}
	return syncFile(filepath.Dir(path))
}

// inspectAdopted checks that the database is an AgentFS of this version, ours or an SDK's, and
// returns its chunk size. What an SDK makes when it needs it may be missing.
func inspectAdopted(c *conn) (int64, error) {
	if err := inspectPages(c); err != nil {
		return 0, err
	}
	model, err := newModel()
	if err != nil {
		return 0, err
	}
	// Anything that runs by itself could do what it likes once rows are changed.
	odd, err := c.row(`SELECT CAST(type AS BLOB), CAST(name AS BLOB) FROM sqlite_master
		WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%' LIMIT 1`)
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if odd != nil {
		return 0, fmt.Errorf("%w: it has the %s %q", ErrForeign, odd.text(0), odd.text(1))
	}
	missing, err := missingTables(c, slices.Concat(tables, extensionTables))
	if err != nil {
		return 0, err
	}
	lacks := func(name string) bool { return slices.Contains(missing, name) }
	for _, name := range []string{"fs_config", "fs_inode", "fs_dentry", "fs_data", "fs_symlink"} {
		if lacks(name) {
			return 0, fmt.Errorf("%w: it has no table %s", ErrForeign, name)
		}
	}
	extended := !lacks("hw_meta")
	for _, name := range slices.Concat(tables, extensionTables) {
		if lacks(name) {
			if extended {
				return 0, fmt.Errorf("%w: it has no table %s", ErrDamaged, name)
			}
			continue
		}
		if !extended && strings.HasPrefix(name, "hw_") {
			return 0, fmt.Errorf("%w: it has a table %s, but no hw_meta", ErrDamaged, name)
		}
		columns, err := columnsOf(c, name)
		if err != nil {
			return 0, err
		}
		want := model[name]
		if !extended {
			want = slices.DeleteFunc(slices.Clone(want), func(c string) bool { return strings.HasPrefix(c, "hw_") })
		}
		if !slices.Equal(columns, want) {
			return 0, fmt.Errorf("%w: table %s has the columns %s, want %s", ErrSchema, name,
				strings.Join(columns, ", "), strings.Join(want, ", "))
		}
	}
	return inspectConfig(c, extended, lacks("fs_overlay_config"))
}

// inspectPages looks at every page.
func inspectPages(c *conn) error {
	verdict, err := c.row("PRAGMA integrity_check(1)")
	if err != nil {
		return fmt.Errorf("check the pages: %w", err)
	}
	if v := verdict.text(0); v != "ok" {
		return fmt.Errorf("%w: %s", ErrDamaged, v)
	}
	return nil
}

func inspectConfig(c *conn, extended, whole bool) (int64, error) {
	config := map[string]string{}
	query := `SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM fs_config`
	if extended {
		query += ` UNION ALL SELECT CAST('hw_' || key AS BLOB), CAST(value AS BLOB) FROM hw_meta`
	}
	if err := c.each(query, func(r row) error {
		config[r.text(0)] = r.text(1)
		return nil
	}); err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if v := config["schema_version"]; v != SchemaVersion {
		return 0, fmt.Errorf("%w: version %q, want %q", ErrSchema, v, SchemaVersion)
	}
	if v := config["hw_format"]; extended && v != format {
		return 0, fmt.Errorf("%w: format %q, want %q", ErrSchema, v, format)
	}
	chunk, err := strconv.ParseInt(config["chunk_size"], 10, 64)
	if err != nil || chunk <= 0 || chunk > maxChunk {
		return 0, fmt.Errorf("%w: its chunk size is not a number from 1 to %d", ErrDamaged, maxChunk)
	}
	unique, err := c.row(`SELECT count(*) FROM pragma_index_list('fs_dentry') l WHERE l."unique" = 1 AND l.partial = 0
		AND (SELECT group_concat(i.name) FROM pragma_index_info(l.name) i) = 'parent_ino,name'`)
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if unique.int(0) == 0 {
		return 0, fmt.Errorf("%w: names need not be unique", ErrSchema)
	}
	if whole {
		return chunk, nil
	}
	overlay, err := c.row(`SELECT 1 FROM fs_overlay_config UNION ALL SELECT 1 FROM fs_whiteout LIMIT 1`)
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if overlay != nil {
		return 0, fmt.Errorf("%w: it is the delta of an overlay, not a whole file system", ErrForeign)
	}
	return chunk, nil
}

// newModel returns the columns of every table as this package makes them.
func newModel() (map[string][]string, error) {
	c, err := dial(Location{Path: "/model"}, "memory") // no file
	if err != nil {
		return nil, err
	}
	model := map[string][]string{}
	err = func() error {
		for _, statement := range slices.Concat(specified, extension) {
			if _, err := c.exec(statement); err != nil {
				return fmt.Errorf("make the schema to compare with: %w", err)
			}
		}
		for _, name := range slices.Concat(tables, extensionTables) {
			if model[name], err = columnsOf(c, name); err != nil {
				return err
			}
		}
		return nil
	}()
	return model, errors.Join(err, c.close())
}

// columnsOf describes a table's columns: name, type, NOT NULL, place in the primary key, and what
// is generated.
func columnsOf(c *conn, table string) ([]string, error) {
	var columns []string
	err := c.each(`SELECT CAST(name AS BLOB), CAST(type AS BLOB), "notnull", pk, hidden FROM pragma_table_xinfo(?)`,
		func(r row) error {
			columns = append(columns, fmt.Sprintf("%s %s %d%d%d", r.text(0), strings.ToUpper(r.text(1)), r.int(2), r.int(3), r.int(4)))
			return nil
		}, table)
	if err != nil {
		return nil, fmt.Errorf("inspect %s: %w", table, err)
	}
	return columns, nil
}

// adopt changes the database in the transaction.
func (t *tx) adopt(ctx context.Context) error {
	for _, step := range []func() error{
		t.addSchema, t.dropLeftovers, t.newRange, t.newVersions, t.flushWriter, t.recount,
		func() error { return t.refuseFaults(ctx) },
		func() error { return (&repairer{tx: t}).run(ctx) },
		t.recordAdoption,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// addSchema adds what is missing.
func (t *tx) addSchema() error {
	have := map[string]bool{}
	if err := t.each(`SELECT CAST(name AS BLOB) FROM sqlite_master`, func(r row) error {
		have[r.text(0)] = true
		return nil
	}); err != nil {
		return fmt.Errorf("inspect: %w", err)
	}
	extended := have["hw_meta"]
	statements := slices.Clone(specified)
	if !extended {
		statements = append(statements, extension...)
	}
	for _, statement := range statements {
		// CREATE TABLE name, CREATE INDEX name or ALTER TABLE name.
		if words := strings.FieldsFunc(statement, func(r rune) bool { return r == ' ' || r == '(' }); words[0] == "CREATE" && have[words[2]] {
			continue
		}
		if _, err := t.exec(statement); err != nil {
			return fmt.Errorf("add to the schema: %w", err)
		}
	}
	if extended {
		return nil
	}
	_, err := t.exec(`INSERT INTO hw_meta (key, value) VALUES ('format', ?), ('generation', ''), ('writer', '0'), ('announced', '0')`, format)
	return err
}

// dropLeftovers removes what has no name, and rows of inodes that an SDK removed.
func (t *tx) dropLeftovers() error {
	// An SDK that removes a directory of ours finds links left and keeps the inode.
	if err := t.dropOrphans(`SELECT ino FROM hw_orphan UNION SELECT i.ino FROM fs_inode i WHERE i.ino <> 1
		AND (i.nlink <= 0 OR (i.mode & 61440) = 16384)
		AND NOT EXISTS (SELECT 1 FROM fs_dentry d WHERE d.ino = i.ino)
		AND NOT EXISTS (SELECT 1 FROM fs_dentry d WHERE d.parent_ino = i.ino)`); err != nil {
		return err
	}
	for _, statement := range []string{
		`DELETE FROM fs_data WHERE ino IN (SELECT ino FROM fs_data EXCEPT SELECT ino FROM fs_inode)`,
		`DELETE FROM fs_symlink WHERE ino NOT IN (SELECT ino FROM fs_inode)`,
		`DELETE FROM hw_xattr WHERE ino NOT IN (SELECT ino FROM fs_inode)`,
		`DELETE FROM hw_hold WHERE ino NOT IN (SELECT ino FROM fs_inode)`,
		`DELETE FROM hw_project WHERE project <> 0 AND project NOT IN (SELECT ino FROM fs_inode WHERE (mode & 61440) = 16384)`,
		`DELETE FROM hw_digest`, // of versions that are no more
		`DELETE FROM hw_change`, // whoever replicated the old database begins anew
	} {
		if _, err := t.exec(statement); err != nil {
			return fmt.Errorf("drop what an SDK left: %w", err)
		}
	}
	return nil
}

// newRange makes every id there is one of a writer, and takes a writer above all.
func (t *tx) newRange() error {
	generation, err := newGeneration()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(findings, func(f finding) bool { return f.kind == FaultIDRange })
	var ranges []fault
	if err := t.each(findings[i].query, func(r row) error {
		ranges = append(ranges, fault{got: r.int(2), want: r.int(3)})
		return nil
	}); err != nil {
		return fmt.Errorf("find the ranges of ids: %w", err)
	}
	for _, r := range ranges {
		if _, err := t.exec(`INSERT INTO hw_writer (writer, next_id, ledger_hash) VALUES (?, ?, x'')
			ON CONFLICT (writer) DO UPDATE SET next_id = excluded.next_id`, r.want, r.got+1); err != nil {
			return fmt.Errorf("note a range of ids: %w", err)
		}
	}
	r, err := t.row(`SELECT coalesce(max(writer), 0) + 1 FROM hw_writer`)
	if err != nil {
		return fmt.Errorf("read writers: %w", err)
	}
	next := r.int(0)
	if next > maxWriter {
		return fmt.Errorf("%w: no range of ids is left", ErrDamaged)
	}
	for _, s := range []struct {
		query string
		args  []any
	}{
		{`INSERT INTO hw_writer (writer, next_id, ledger_hash) VALUES (?, ?, x'')`, []any{next, next << 32}},
		{`UPDATE hw_meta SET value = CAST(? AS TEXT) WHERE key = 'writer'`, []any{next}},
		{`UPDATE hw_meta SET value = ? WHERE key = 'generation'`, []any{generation}},
	} {
		if _, err := t.exec(s.query, s.args...); err != nil {
			return fmt.Errorf("take a range of ids: %w", err)
		}
	}
	return nil
}

// newVersions gives every content a version that was never used.
func (t *tx) newVersions() error {
	r, err := t.row(`SELECT count(*) FROM fs_inode`)
	if err != nil {
		return fmt.Errorf("count inodes: %w", err)
	}
	first, err := t.ids(r.int(0))
	if err != nil {
		return err
	}
	if _, err := t.exec(`UPDATE fs_inode SET hw_version = ? + n.n FROM (SELECT ino, row_number() OVER (ORDER BY ino) - 1 AS n
		FROM fs_inode) n WHERE n.ino = fs_inode.ino`, first); err != nil {
		return fmt.Errorf("give new versions: %w", err)
	}
	return nil
}

// refuseFaults refuses what Adopt does not repair.
func (t *tx) refuseFaults(ctx context.Context) error {
	var report Report
	if err := t.verifyLedger(ctx, &report); err != nil {
		return err
	}
	if len(report.Faults) > 0 {
		return fmt.Errorf("%w: %s: %s", ErrDamaged, report.Faults[0].Kind, report.Faults[0].Message)
	}
	if err := t.findFaults(ctx); err != nil {
		return err
	}
	var refused *fault
	if err := t.each(`SELECT CAST(kind AS BLOB), ino, entry, got, want FROM check_fault ORDER BY id`, func(r row) error {
		if kind := r.text(0); refused == nil && !slices.Contains(tolerated, kind) {
			refused = &fault{kind: kind, ino: Ino(r.int(1)), entry: r.int(2), got: r.int(3), want: r.int(4)}
		}
		return nil
	}); err != nil {
		return fmt.Errorf("read the faults: %w", err)
	}
	if refused != nil {
		return fmt.Errorf("%w: %s: %s", ErrDamaged, refused.kind, refused.message())
	}
	return t.dropFaults()
}

// recordAdoption continues the ledger.
func (t *tx) recordAdoption() error {
	type call struct {
		id   int64
		name string
	}
	var calls []call
	if err := t.each(`SELECT id, CAST(name AS BLOB) FROM tool_calls WHERE id NOT IN (SELECT tool_call FROM hw_ledger
		WHERE tool_call IS NOT NULL) ORDER BY started_at, id`, func(r row) error {
		calls = append(calls, call{r.int(0), strings.ReplaceAll(strings.ToValidUTF8(r.text(1), "\uFFFD"), "\x00", "\uFFFD")})
		return nil
	}); err != nil {
		return fmt.Errorf("find tool calls: %w", err)
	}
	for _, c := range calls {
		if err := t.record(Record{Actor: repairActor, Action: ActionTool, Target: c.name, ToolCall: c.id}); err != nil {
			return fmt.Errorf("record a tool call: %w", err)
		}
	}
	if err := t.record(Record{Actor: repairActor, Action: ActionRestore, Ino: Root, Path: "/"}); err != nil {
		return fmt.Errorf("record the adoption: %w", err)
	}
	_, err := t.exec(`UPDATE hw_meta SET value = CAST((SELECT max(position) FROM hw_ledger) AS TEXT) WHERE key = 'announced'`)
	return err
}
