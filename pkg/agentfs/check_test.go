package agentfs

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// raw is a database whose rows tests write themselves.
type raw struct {
	t    *testing.T
	fs   *FS
	path string
	inos map[string]Ino
}

// newRaw makes a small tree with each kind of inode. The numbers of inodes are in inos by path.
func newRaw(t *testing.T) *raw {
	t.Helper()
	r := &raw{t: t, path: filepath.Join(t.TempDir(), "a.db"), inos: map[string]Ino{"/": Root}}
	var err error
	if r.fs, err = Create(context.Background(), Options{Location: Location{Path: r.path}}, Caller{Actor: "test"}, nil); err != nil {
		t.Fatalf("Create: %v", err)
	}
	t.Cleanup(func() { r.fs.Close() })
	r.sql(`UPDATE fs_config SET value = '4096' WHERE key = 'chunk_size'`)
	r.fs.chunk = 4096 // as if it had been opened so
	r.update(func(x *tx) error {
		r.add(x, "/d", TypeDir|0o755, 0)
		if _, err := x.exec(`INSERT INTO hw_project (project) VALUES (?)`, r.inos["/d"]); err != nil {
			return err
		}
		r.add(x, "/d/file", TypeFile|0o644, 10000, "a", "b", "c")
		r.link(x, "/d/file", "/d/hard")
		r.add(x, "/d/sub", TypeDir|0o755, 0)
		r.add(x, "/d/sub/deep", TypeDir|0o755, 0)
		r.add(x, "/d/sub/deep/it's é.txt", TypeFile|0o600, 5, "x")
		r.add(x, "/d/sparse", TypeFile|0o600, 4*4096, "s", "", "s", "")
		r.add(x, "/empty", TypeFile|0o600, 0)
		r.add(x, "/sym", TypeSymlink|0o777, 6)
		if _, err := x.exec(`INSERT INTO fs_symlink (ino, target) VALUES (?, 'd/file')`, r.inos["/sym"]); err != nil {
			return err
		}
		r.add(x, "/open", TypeFile|0o600, 1, "o")
		if _, err := x.exec(`DELETE FROM fs_dentry WHERE ino = ?`, r.inos["/open"]); err != nil {
			return err
		}
		if _, err := x.exec(`INSERT INTO hw_orphan (ino) VALUES (?)`, r.inos["/open"]); err != nil {
			return err
		}
		return x.recount()
	})
	return r
}

func (r *raw) update(fn func(*tx) error) {
	r.t.Helper()
	if err := r.fs.update(context.Background(), fn); err != nil {
		r.t.Fatalf("update: %v", err)
	}
}

// add makes an inode and its name. Each chunk is that letter over and over, "" a hole; the last is
// as long as the size wants.
func (r *raw) add(x *tx, path string, mode uint32, size int64, chunks ...string) {
	r.t.Helper()
	id, err := x.ids(3)
	if err != nil {
		r.t.Fatal(err)
	}
	r.inos[path] = Ino(id)
	if _, err := x.exec(`INSERT INTO fs_inode (ino, mode, size, atime, mtime, ctime, hw_version) VALUES (?, ?, ?, 1, 2, 3, ?)`,
		id, mode, size, id+1); err != nil {
		r.t.Fatal(err)
	}
	for i, c := range chunks {
		if c == "" {
			continue
		}
		data := strings.Repeat(c, int(min(4096, size-int64(i)*4096)))
		if _, err := x.exec(`INSERT INTO fs_data (ino, chunk_index, data) VALUES (?, ?, ?)`, id, i, []byte(data)); err != nil {
			r.t.Fatal(err)
		}
	}
	r.name(x, path, Ino(id), id+2)
	if err := x.record(Record{Actor: "test", Action: ActionCreate, Path: path, Ino: Ino(id), Mode: mode, Size: size, Version: id + 1}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *raw) link(x *tx, old, path string) {
	r.t.Helper()
	id, err := x.ids(1)
	if err != nil {
		r.t.Fatal(err)
	}
	r.name(x, path, r.inos[old], id)
}

func (r *raw) name(x *tx, path string, ino Ino, id int64) {
	r.t.Helper()
	if _, err := x.exec(`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES (?, ?, ?, ?)`,
		id, filepath.Base(path), r.inos[filepath.Dir(path)], ino); err != nil {
		r.t.Fatal(err)
	}
}

// sql runs statements in one transaction; {/path} stands for an inode's number.
func (r *raw) sql(statements ...string) {
	r.t.Helper()
	var pairs []string
	for path, ino := range r.inos {
		pairs = append(pairs, "{"+path+"}", fmt.Sprint(int64(ino)))
	}
	replacer := strings.NewReplacer(pairs...)
	r.update(func(x *tx) error {
		for _, s := range statements {
			if _, err := x.exec(replacer.Replace(s)); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		return nil
	})
}

func (r *raw) check(repair bool) Report {
	r.t.Helper()
	report, err := r.fs.Check(context.Background(), repair)
	if err != nil {
		r.t.Fatalf("Check(%v): %v", repair, err)
	}
	return report
}

// paths are all names, by a walk over the tables.
func (r *raw) paths() []string {
	r.t.Helper()
	var paths []string
	err := r.fs.view(context.Background(), func(x *tx) error {
		var inos []Ino
		if err := x.each(`SELECT ino FROM fs_dentry`, func(n row) error {
			inos = append(inos, Ino(n.int(0)))
			return nil
		}); err != nil {
			return err
		}
		for _, ino := range inos {
			p, err := x.trace(ino)
			if err != nil {
				return err
			}
			paths = append(paths, p)
		}
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
	slices.Sort(paths)
	return paths
}

func (r *raw) number(query string) int64 {
	r.t.Helper()
	var n int64
	if err := r.fs.view(context.Background(), func(x *tx) error {
		v, err := x.row(query)
		if v != nil {
			n = v.int(0)
		}
		return err
	}); err != nil {
		r.t.Fatal(err)
	}
	return n
}

// recountNow lets a test plant one fault without those of the counters that follow from it.
const recountNow = "recount"

var planted = []struct {
	kind string
	name string
	sql  []string
	// faults is how many the plant makes; 0 means 1.
	faults int
	// gone is what the repair removes, made what it adds.
	gone, made string
}{
	{kind: FaultRoot, sql: []string{`UPDATE fs_inode SET mode = 33188 WHERE ino = 1`}},
	{kind: FaultMode, sql: []string{`UPDATE fs_inode SET mode = 420 WHERE ino = {/empty}`}},
	{kind: FaultTime, sql: []string{`UPDATE fs_inode SET mtime_nsec = 1000000000 WHERE ino = {/empty}`}},
	{kind: FaultID, name: "inode", sql: []string{`UPDATE fs_inode SET ino = -5 WHERE ino = {/empty}`,
		`UPDATE fs_dentry SET ino = -5 WHERE ino = {/empty}`}},
	{kind: FaultID, name: "entry", sql: []string{`UPDATE fs_dentry SET id = 9007199254740992 WHERE ino = {/empty}`}},
	{kind: FaultID, name: "version", sql: []string{`UPDATE fs_inode SET hw_version = -1 WHERE ino = {/empty}`}},
	{kind: FaultID, name: "tool call", sql: []string{`INSERT INTO tool_calls (id, name, started_at) VALUES (-1, 'x', 1)`}},
	{kind: FaultIDRange, name: "next id", sql: []string{`UPDATE hw_writer SET next_id = 4294967296`}},
	{kind: FaultIDRange, name: "no writer", sql: []string{`UPDATE fs_dentry SET id = 77 WHERE ino = {/empty}`}},
	{kind: FaultVersion, sql: []string{`UPDATE fs_inode SET hw_version = 0 WHERE ino = {/empty}`}},
	{kind: FaultEntryInode, sql: []string{`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES
		(4294967296, '2024-01-05', {/d}, 4294967295)`}},
	{kind: FaultEntryParent, name: "missing", sql: []string{`UPDATE fs_dentry SET parent_ino = 4294967290 WHERE ino = {/empty}`},
		gone: "/empty", made: "/lost+found/{/empty}"},
	{kind: FaultEntryParent, name: "file", sql: []string{`UPDATE fs_dentry SET parent_ino = {/d/file} WHERE ino = {/empty}`},
		gone: "/empty", made: "/lost+found/{/empty}"},
	{kind: FaultEntryName, name: "empty", sql: []string{`UPDATE fs_dentry SET name = '' WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "dots", sql: []string{`UPDATE fs_dentry SET name = '..' WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "slash", sql: []string{`UPDATE fs_dentry SET name = 'a/b' WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "NUL", sql: []string{`UPDATE fs_dentry SET name = CAST(x'610062' AS TEXT) WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "not UTF-8", sql: []string{`UPDATE fs_dentry SET name = CAST(x'61ff62' AS TEXT) WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "blob", sql: []string{`UPDATE fs_dentry SET name = x'6162' WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultEntryName, name: "long", sql: []string{`UPDATE fs_dentry SET name = printf('%.256c', 'x') WHERE ino = {/empty}`}, gone: "/empty"},
	{kind: FaultDirectoryNames, sql: []string{`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES
		(4294967299, 'again', {/d/sub/deep}, {/d/sub})`}},
	{kind: FaultDirectoryNames, name: "root", sql: []string{`UPDATE hw_writer SET next_id = next_id + 1`,
		`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES ((SELECT next_id FROM hw_writer) - 1, 'root', {/d}, 1)`}},
	{kind: FaultDirectoryCycle, sql: []string{`UPDATE fs_dentry SET parent_ino = {/d/sub/deep} WHERE ino = {/d/sub}`,
		recountNow}, gone: "/d/sub", made: "/lost+found/{/d/sub}/deep/it's é.txt"},
	{kind: FaultInodeEntry, name: "file", sql: []string{`DELETE FROM fs_dentry WHERE ino = {/empty}`, recountNow},
		gone: "/empty", made: "/lost+found/{/empty}"},
	{kind: FaultInodeEntry, name: "directory", sql: []string{`DELETE FROM fs_dentry WHERE ino = {/d/sub}`, recountNow},
		gone: "/d/sub", made: "/lost+found/{/d/sub}/deep/it's é.txt"},
	{kind: FaultOrphan, name: "with a name", sql: []string{`INSERT INTO hw_orphan VALUES ({/empty})`,
		`UPDATE fs_inode SET nlink = 0 WHERE ino = {/empty}`}},
	{kind: FaultOrphan, name: "missing", sql: []string{`INSERT INTO hw_orphan VALUES (4294967290)`}},
	{kind: FaultSize, sql: []string{`UPDATE fs_inode SET size = -1 WHERE ino = {/empty}`}},
	{kind: FaultSymlinkTarget, name: "missing", sql: []string{`DELETE FROM fs_symlink`}, gone: "/sym"},
	{kind: FaultSymlinkTarget, name: "empty", sql: []string{`UPDATE fs_symlink SET target = ''`,
		`UPDATE fs_inode SET size = 0 WHERE ino = {/sym}`, recountNow}, gone: "/sym"},
	{kind: FaultSymlinkSize, sql: []string{`UPDATE fs_inode SET size = 7 WHERE ino = {/sym}`, recountNow}},
	{kind: FaultTargetSymlink, sql: []string{`INSERT INTO fs_symlink VALUES ({/empty}, 'x')`}},
	{kind: FaultChunkInode, name: "missing", sql: []string{`INSERT INTO fs_data VALUES (4294967290, 0, x'00'), (4294967290, 1, x'00')`}},
	{kind: FaultChunkInode, name: "directory", sql: []string{`INSERT INTO fs_data VALUES ({/d}, 0, x'00')`}},
	{kind: FaultChunkIndex, sql: []string{`INSERT INTO fs_data VALUES ({/d/file}, -1, x'00')`}},
	{kind: FaultChunkType, sql: []string{`UPDATE fs_data SET data = 'xxxxx' WHERE ino = {/d/sub/deep/it's é.txt}`}},
	{kind: FaultChunkLong, sql: []string{`UPDATE fs_data SET data = zeroblob(4097) WHERE ino = {/d/sparse} AND chunk_index = 0`}},
	{kind: FaultChunkBeyond, name: "chunk", sql: []string{`INSERT INTO fs_data VALUES ({/d/file}, 3, x'00')`}},
	{kind: FaultChunkBeyond, name: "tail", sql: []string{`UPDATE fs_data SET data = zeroblob(4096) WHERE ino = {/d/file} AND chunk_index = 2`}},
	{kind: FaultChunkShort, name: "middle", sql: []string{`UPDATE fs_data SET data = x'6161' WHERE ino = {/d/file} AND chunk_index = 1`}},
	{kind: FaultChunkShort, name: "last", sql: []string{`UPDATE fs_data SET data = x'6161' WHERE ino = {/d/file} AND chunk_index = 2`}},
	{kind: FaultXattrInode, sql: []string{`INSERT INTO hw_xattr VALUES (4294967290, x'61', x''), (4294967290, x'62', x'')`}},
	{kind: FaultDigestInode, sql: []string{`INSERT INTO hw_digest VALUES (4294967290, 1, x'')`}},
	{kind: FaultHoldInode, sql: []string{`INSERT INTO hw_hold VALUES ('t', 4294967290, 1)`}},
	{kind: FaultProjectDirectory, name: "missing", sql: []string{`INSERT INTO hw_project (project) VALUES (4294967290)`}},
	{kind: FaultProjectDirectory, name: "file", sql: []string{`INSERT INTO hw_project (project) VALUES ({/empty})`}},
	{kind: FaultLinks, name: "file", sql: []string{`UPDATE fs_inode SET nlink = 1 WHERE ino = {/d/file}`}},
	{kind: FaultLinks, name: "directory", sql: []string{`UPDATE fs_inode SET nlink = 1 WHERE ino IN ({/d}, 1)`}, faults: 2},
	{kind: FaultProject, name: "directory", sql: []string{`UPDATE fs_inode SET hw_project = 0 WHERE ino = {/d/sub/deep}`, recountUse}},
	{kind: FaultProject, name: "file", sql: []string{`UPDATE fs_inode SET hw_project = {/d} WHERE ino = {/empty}`, recountUse}},
	{kind: FaultUsage, name: "bytes", sql: []string{`UPDATE hw_project SET bytes = bytes + 1 WHERE project = {/d}`}},
	{kind: FaultUsage, name: "files", sql: []string{`UPDATE hw_project SET files = files - 1 WHERE project = 0`}},
	{kind: FaultUsage, name: "no row", sql: []string{`DELETE FROM hw_project WHERE project = 0`}},
}

const recountUse = `UPDATE hw_project SET bytes = coalesce((SELECT u.bytes FROM (` + usageOf + `) u WHERE u.project = hw_project.project), 0),
	files = coalesce((SELECT u.files FROM (` + usageOf + `) u WHERE u.project = hw_project.project), 0)`

func TestCheckFindsExactlyWhatIsPlantedAndRepairsIt(t *testing.T) {
	kinds := map[string]bool{FaultDatabase: true, FaultLedger: true} // in tests of their own
	for _, p := range planted {
		kinds[p.kind] = true
		t.Run(strings.TrimSuffix(p.kind+" "+p.name, " "), func(t *testing.T) {
			t.Parallel()
			r := newRaw(t)
			if report := r.check(false); len(report.Faults) != 0 || report.Inodes != 10 || report.LedgerRecords != 9 {
				t.Fatalf("before: %+v, want no faults, 10 inodes, 9 records", report)
			}
			for _, statement := range p.sql {
				if statement == recountNow {
					r.update((*tx).recount)
				} else {
					r.sql(statement)
				}
			}
			want := max(1, p.faults)
			for range 2 { // looking changes nothing
				faults := r.check(false).Faults
				if len(faults) != want {
					t.Fatalf("found %+v, want %d faults", faults, want)
				}
				for _, f := range faults {
					if f.Kind != p.kind || f.Repaired || strings.Contains(f.Message, "%") {
						t.Fatalf("found %+v, want %s", f, p.kind)
					}
				}
			}
			records := r.number(`SELECT count(*) FROM hw_ledger WHERE action = 'repair'`)
			faults := r.check(true).Faults
			if len(faults) != want || faults[0].Kind != p.kind || !faults[0].Repaired {
				t.Fatalf("repaired %+v, want %d of %s", faults, want, p.kind)
			}
			if report := r.check(false); len(report.Faults) != 0 {
				t.Fatalf("after the repair: %+v, want none", report.Faults)
			}
			if got := r.number(`SELECT count(*) FROM hw_ledger WHERE action = 'repair' AND target = '` + p.kind + `'`); got != records+int64(want) {
				t.Errorf("the ledger has %d repairs, want %d", got, records+int64(want))
			}
			paths := r.paths()
			if p.gone != "" && slices.Contains(paths, p.gone) {
				t.Errorf("%s is still there: %q", p.gone, paths)
			}
			made := p.made
			for path, ino := range r.inos {
				made = strings.ReplaceAll(made, "{"+path+"}", fmt.Sprint(int64(ino)))
			}
			if made != "" && !slices.Contains(paths, made) {
				t.Errorf("no %s: %q", made, paths)
			}
		})
	}
	for _, f := range findings {
		if !kinds[f.kind] {
			t.Errorf("no test plants %s", f.kind)
		}
	}
}
