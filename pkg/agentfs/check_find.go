package agentfs

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// fault is a row of the temporary table check_fault: what was found and is not repaired yet. What
// entry, got and want are depends on the kind.
type fault struct {
	kind             string
	ino              Ino
	entry, got, want int64
}

// finding is how a kind of fault is found: a query for ino, entry, got and want, or code.
type finding struct {
	kind    string
	query   string
	code    func(*tx) error
	message string // of ino, entry, got, want
}

// findings are in the order of their repair. Every query is one pass with look-ups by key, so that
// a million files take seconds. {chunk} is the chunk size.
//
// check_dir has every name of every directory, check_tree the directories that the root leads to,
// each with the name, parent and quota directory that it was reached by first.
var findings []finding

// Filled here because the findings' code refers to functions that refer to them.
func init() {
	findings = []finding{
		{kind: FaultRoot, message: "the root directory is missing or no directory",
			query: `SELECT 1, 0, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM fs_inode WHERE ino = 1 AND (mode & 61440) = 16384)`},
		{kind: FaultMode, message: "inode %[1]d: mode %[3]o has no known type",
			query: `SELECT ino, 0, mode, 0 FROM fs_inode WHERE ino <> 1 AND ((mode & 61440) NOT IN
				(4096, 8192, 16384, 24576, 32768, 40960, 49152) OR mode NOT BETWEEN 0 AND 65535)`},
		{kind: FaultTime, message: "inode %[1]d: nanoseconds are not below a second",
			query: `SELECT ino, 0, 0, 0 FROM fs_inode WHERE atime_nsec NOT BETWEEN 0 AND 999999999
				OR mtime_nsec NOT BETWEEN 0 AND 999999999 OR ctime_nsec NOT BETWEEN 0 AND 999999999`},
		// One fault a range of ids, not an id. Before those that need new ids.
		{kind: FaultIDRange, message: "id %[3]d is not below the next id of writer %[4]d",
			query: `SELECT 0, 0, max(u.id), u.id >> 32 FROM (SELECT ino AS id FROM fs_inode WHERE ino <> 1
					UNION ALL SELECT id FROM fs_dentry UNION ALL SELECT id FROM tool_calls
					UNION ALL SELECT hw_version FROM fs_inode WHERE hw_version <> 0) u
				LEFT JOIN hw_writer w ON w.writer = u.id >> 32
				WHERE u.id BETWEEN 1 AND 9007199254740991 AND (w.writer IS NULL OR u.id >= w.next_id) GROUP BY u.id >> 32`},
		{kind: FaultID, message: "id %[3]d is not between 1 and 2^53 (inode %[1]d)",
			query: `SELECT ino, 0, ino, 1 FROM fs_inode WHERE ino NOT BETWEEN 1 AND 9007199254740991
				UNION ALL SELECT ino, id, id, 2 FROM fs_dentry WHERE id NOT BETWEEN 1 AND 9007199254740991
				UNION ALL SELECT 0, id, id, 3 FROM tool_calls WHERE id NOT BETWEEN 1 AND 9007199254740991
				UNION ALL SELECT ino, 0, hw_version, 4 FROM fs_inode WHERE hw_version NOT BETWEEN 0 AND 9007199254740991`},
		{kind: FaultVersion, message: "inode %[1]d: its content has no version",
			query: `SELECT ino, 0, hw_version, 0 FROM fs_inode WHERE (mode & 61440) = 32768 AND hw_version = 0`},
		{kind: FaultEntryInode, message: "entry %[2]d of directory %[3]d leads to inode %[1]d, which does not exist",
			query: `SELECT d.ino, d.id, d.parent_ino, 0 FROM fs_dentry d LEFT JOIN fs_inode i ON i.ino = d.ino WHERE i.ino IS NULL`},
		{kind: FaultEntryParent, message: "entry %[2]d, of inode %[1]d, is below inode %[3]d, which is no directory",
			query: `SELECT d.ino, d.id, d.parent_ino, 0 FROM fs_dentry d JOIN fs_inode i ON i.ino = d.ino
				LEFT JOIN fs_inode p ON p.ino = d.parent_ino WHERE p.ino IS NULL OR (p.mode & 61440) <> 16384`},
		{kind: FaultEntryName, message: "the name of entry %[2]d of directory %[3]d, of inode %[1]d, is invalid", code: (*tx).findNames},
		{kind: FaultDirectoryNames, message: "directory %[1]d has another name, entry %[2]d of directory %[3]d",
			query: `SELECT d.ino, d.id, d.parent, 0 FROM check_tree t JOIN check_dir d ON d.ino = t.ino WHERE d.id <> t.entry`},
		{kind: FaultInodeEntry, message: "inode %[1]d has no name and is not open",
			query: `SELECT i.ino, 0, 0, 0 FROM fs_inode i WHERE i.ino <> 1
				AND NOT EXISTS (SELECT 1 FROM fs_dentry d WHERE d.ino = i.ino)
				AND NOT EXISTS (SELECT 1 FROM hw_orphan o WHERE o.ino = i.ino)`},
		{kind: FaultDirectoryCycle, message: "directory %[1]d is below itself", code: (*tx).findCycles},
		{kind: FaultOrphan, message: "inode %[1]d is noted as open without a name, but has one or does not exist",
			query: `SELECT o.ino, 0, 0, 0 FROM hw_orphan o WHERE NOT EXISTS (SELECT 1 FROM fs_inode i WHERE i.ino = o.ino)
				OR EXISTS (SELECT 1 FROM fs_dentry d WHERE d.ino = o.ino)`},
		{kind: FaultSize, message: "inode %[1]d: size %[3]d is negative",
			query: `SELECT i.ino, 0, i.size, 0 FROM fs_inode i WHERE i.size < 0`},
		{kind: FaultSymlinkTarget, message: "symbolic link %[1]d has no valid target", code: (*tx).findTargets},
		{kind: FaultSymlinkSize, message: "symbolic link %[1]d: size %[3]d, want %[4]d",
			query: `SELECT i.ino, 0, i.size, length(CAST(s.target AS BLOB)) FROM fs_symlink s JOIN fs_inode i ON i.ino = s.ino
				WHERE (i.mode & 61440) = 40960 AND i.size >= 0 AND i.size <> length(CAST(s.target AS BLOB))`},
		{kind: FaultTargetSymlink, message: "a target is stored for inode %[1]d, which is no symbolic link",
			query: `SELECT s.ino, 0, 0, 0 FROM fs_symlink s LEFT JOIN fs_inode i ON i.ino = s.ino
				WHERE i.ino IS NULL OR (i.mode & 61440) <> 40960`},
		{kind: FaultChunkInode, message: "content is stored for inode %[1]d, which is no regular file",
			query: `SELECT f.ino, 0, 0, 0 FROM (SELECT DISTINCT ino FROM fs_data) f LEFT JOIN fs_inode i ON i.ino = f.ino
				WHERE i.ino IS NULL OR (i.mode & 61440) <> 32768`},
		{kind: FaultChunkIndex, message: "inode %[1]d: chunk %[2]d has a negative index", query: chunkFault("chunk_index < 0")},
		{kind: FaultChunkType, message: "inode %[1]d: chunk %[2]d is no blob",
			query: chunkFault("chunk_index >= 0 AND typeof(data) <> 'blob'")},
		{kind: FaultChunkLong, message: "inode %[1]d: chunk %[2]d has %[3]d bytes, want %[4]d",
			query: chunkFault("chunk_index >= 0 AND typeof(data) = 'blob' AND have > {chunk}")},
		{kind: FaultChunkBeyond, message: "inode %[1]d: chunk %[2]d has %[3]d bytes, want %[4]d: the rest is beyond the size",
			query: chunkFault("chunk_index >= 0 AND typeof(data) = 'blob' AND have <= {chunk} AND have > want")},
		{kind: FaultChunkShort, message: "inode %[1]d: chunk %[2]d has %[3]d bytes, want %[4]d",
			query: chunkFault("chunk_index >= 0 AND typeof(data) = 'blob' AND have < want")},
		{kind: FaultXattrInode, message: "attributes are stored for inode %[1]d, which does not exist", query: withoutInode("hw_xattr")},
		{kind: FaultDigestInode, message: "a digest is stored for inode %[1]d, which does not exist", query: withoutInode("hw_digest")},
		{kind: FaultHoldInode, message: "inode %[1]d is held, but does not exist", query: withoutInode("hw_hold")},
		{kind: FaultProjectDirectory, message: "inode %[1]d has a quota, but is no directory",
			query: `SELECT p.project, 0, 0, 0 FROM hw_project p LEFT JOIN fs_inode i ON i.ino = p.project
				WHERE p.project <> 0 AND (i.ino IS NULL OR (i.mode & 61440) <> 16384)`},
		{kind: FaultLinks, message: "inode %[1]d: %[3]d links, want %[4]d",
			query: `SELECT ino, 0, nlink, links FROM (SELECT i.ino, i.nlink, ` + linksOf("i") + ` AS links FROM fs_inode i
				WHERE (i.mode & 61440) <> 16384 OR i.ino IN (SELECT ino FROM check_tree)
				OR i.ino IN (SELECT ino FROM hw_orphan)) WHERE nlink <> links`},
		{kind: FaultProject, message: "inode %[1]d counts in the quota of %[3]d, want %[4]d",
			query: `SELECT ino, 0, hw_project, want FROM (SELECT i.ino, i.hw_project, ` + projectOf("i") + ` AS want FROM fs_inode i)
				WHERE hw_project <> want`},
		{kind: FaultUsage, message: "the quota of %[1]d counts %[3]d bytes, want %[4]d, or its number of files is wrong",
			query: `SELECT u.project, u.files, coalesce(p.bytes, 0), u.bytes FROM (` + usageOf + `) u
				LEFT JOIN hw_project p ON p.project = u.project
				WHERE (u.project = 0 OR p.project IS NOT NULL) AND (p.project IS NULL OR p.bytes <> u.bytes OR p.files <> u.files)`},
	}
}

// chunkFault finds chunks of regular files: have is their length, want how long they must be.
func chunkFault(condition string) string {
	return `SELECT ino, chunk_index, have, want FROM (
		SELECT f.ino, f.chunk_index, f.data, length(f.data) AS have,
			max(0, min({chunk}, i.size - CAST(f.chunk_index AS REAL) * {chunk})) AS want
		FROM fs_data f CROSS JOIN fs_inode i ON i.ino = f.ino WHERE (i.mode & 61440) = 32768) WHERE ` + condition
}

func withoutInode(table string) string {
	return `SELECT x.ino, 0, 0, 0 FROM (SELECT DISTINCT ino FROM ` + table + `) x
		LEFT JOIN fs_inode i ON i.ino = x.ino WHERE i.ino IS NULL`
}

// linksOf is how many links an inode must have: 2 and one a subdirectory for a directory, one a name
// for others.
func linksOf(i string) string {
	return `CASE WHEN ` + i + `.ino IN (SELECT ino FROM hw_orphan) THEN 0
		WHEN (` + i + `.mode & 61440) = 16384 THEN 2 + (SELECT count(*) FROM check_tree t WHERE t.parent = ` + i + `.ino)
		ELSE (SELECT count(*) FROM fs_dentry d WHERE d.ino = ` + i + `.ino) END`
}

// projectOf is the quota directory that an inode must count in: that of its directory. A file that
// an SDK gave names in two of them stays in its own, if it is one. What is open without a name, or
// not reached, stays where it is.
func projectOf(i string) string {
	return `CASE WHEN (` + i + `.mode & 61440) = 16384
			THEN coalesce((SELECT t.project FROM check_tree t WHERE t.ino = ` + i + `.ino), ` + i + `.hw_project)
		WHEN EXISTS (SELECT 1 FROM fs_dentry d CROSS JOIN check_tree t ON t.ino = d.parent_ino
			WHERE d.ino = ` + i + `.ino AND t.project = ` + i + `.hw_project) THEN ` + i + `.hw_project
		ELSE coalesce((SELECT min(t.project) FROM fs_dentry d CROSS JOIN check_tree t ON t.ino = d.parent_ino
			WHERE d.ino = ` + i + `.ino), ` + i + `.hw_project) END`
}

// usageOf is the use of every quota.
const usageOf = `SELECT 0 AS project, coalesce(sum(CASE WHEN (mode & 61440) IN (32768, 40960) THEN max(size, 0) ELSE 0 END), 0) AS bytes,
		count(*) AS files FROM fs_inode
	UNION ALL SELECT hw_project, sum(CASE WHEN (mode & 61440) IN (32768, 40960) THEN max(size, 0) ELSE 0 END), count(*)
		FROM fs_inode WHERE hw_project <> 0 GROUP BY hw_project`

// findFaults fills check_fault. The temporary tables last until dropFaults.
func (t *tx) findFaults(ctx context.Context) error {
	if err := t.walkTree(); err != nil {
		return fmt.Errorf("walk the directories: %w", err)
	}
	if _, err := t.exec(`CREATE TEMP TABLE check_fault (id INTEGER PRIMARY KEY, kind TEXT, ino INTEGER, entry INTEGER,
		got INTEGER, want INTEGER)`); err != nil {
		return fmt.Errorf("note faults: %w", err)
	}
	for _, f := range findings {
		if err := ctx.Err(); err != nil {
			return err
		}
		var n int64
		var err error
		if f.code != nil {
			err = f.code(t)
		} else {
			n, err = t.exec(`INSERT INTO check_fault (kind, ino, entry, got, want) SELECT '` + f.kind + `', * FROM (` + t.withChunk(f.query) + `)`)
		}
		if err != nil {
			return fmt.Errorf("look for %s: %w", f.kind, err)
		}
		if f.kind == FaultRoot && n > 0 {
			break // all else would follow from it
		}
	}
	return nil
}

func (t *tx) withChunk(query string) string {
	return strings.ReplaceAll(query, "{chunk}", strconv.FormatInt(t.fs.chunk, 10))
}

func (t *tx) addFault(f fault) error {
	_, err := t.exec(`INSERT INTO check_fault (kind, ino, entry, got, want) VALUES (?, ?, ?, ?, ?)`,
		f.kind, f.ino, f.entry, f.got, f.want)
	return err
}

// eachFault calls fn for the first ones with a larger id, a page of one more than a report has.
func (t *tx) eachFault(after int64, fn func(id int64, f fault) error) error {
	err := t.each(`SELECT id, CAST(kind AS BLOB), ino, entry, got, want FROM check_fault WHERE id > ? ORDER BY id LIMIT ?`,
		func(r row) error {
			return fn(r.int(0), fault{kind: r.text(1), ino: Ino(r.int(2)), entry: r.int(3), got: r.int(4), want: r.int(5)})
		}, after, maxFaults+1)
	if err != nil {
		return fmt.Errorf("read the faults: %w", err)
	}
	return nil
}

func (t *tx) dropFaults() error {
	for _, table := range []string{"check_fault", "check_dir", "check_tree"} {
		if _, err := t.exec(`DROP TABLE IF EXISTS temp.` + table); err != nil {
			return fmt.Errorf("drop what was found: %w", err)
		}
	}
	return nil
}

func (f fault) message() string {
	for _, known := range findings {
		if known.kind == f.kind {
			// Every message refers to what it needs; the last verb's argument is always used up.
			return fmt.Sprintf(known.message+"%[5]s", int64(f.ino), f.entry, f.got, f.want, "")
		}
	}
	return f.kind
}

// walkTree fills check_dir and check_tree, level by level: the shortest way to a directory is the one
// that counts, and a cycle ends.
func (t *tx) walkTree() error {
	for _, statement := range []string{
		`CREATE TEMP TABLE check_dir (id INTEGER PRIMARY KEY, ino INTEGER, parent INTEGER)`,
		`INSERT INTO check_dir SELECT d.id, d.ino, d.parent_ino FROM fs_inode i CROSS JOIN fs_dentry d ON d.ino = i.ino
			CROSS JOIN fs_inode p ON p.ino = d.parent_ino
			WHERE (i.mode & 61440) = 16384 AND (p.mode & 61440) = 16384`,
		`CREATE INDEX temp.check_dir_parent ON check_dir (parent)`,
		`CREATE INDEX temp.check_dir_ino ON check_dir (ino)`,
		`CREATE TEMP TABLE check_tree (ino INTEGER PRIMARY KEY, entry INTEGER, parent INTEGER, project INTEGER, depth INTEGER)`,
		`CREATE INDEX temp.check_tree_depth ON check_tree (depth)`,
		`INSERT INTO check_tree SELECT ino, 0, 0, 0, 0 FROM fs_inode WHERE ino = 1 AND (mode & 61440) = 16384`,
	} {
		if _, err := t.exec(statement); err != nil {
			return err
		}
	}
	for depth := 0; ; depth++ {
		n, err := t.exec(`INSERT OR IGNORE INTO check_tree SELECT d.ino, d.id, d.parent, coalesce(p.project, t.project), t.depth + 1
			FROM check_tree t CROSS JOIN check_dir d ON d.parent = t.ino LEFT JOIN hw_project p ON p.project = d.ino
			WHERE t.depth = ? ORDER BY d.id`, depth)
		if err != nil {
			return err
		}
		if n == 0 {
			break
		}
	}
	_, err := t.exec(`CREATE INDEX temp.check_tree_parent ON check_tree (parent)`)
	return err
}

// findNames looks at every name in SQL, and in Go at those that may be no UTF-8.
func (t *tx) findNames() error {
	if _, err := t.exec(`INSERT INTO check_fault (kind, ino, entry, got, want)
		SELECT '` + FaultEntryName + `', ino, id, parent_ino, 0 FROM fs_dentry WHERE typeof(name) <> 'text'
			OR name IN ('', '.', '..') OR instr(name, '/') > 0 OR length(CAST(name AS BLOB)) > ` + strconv.Itoa(MaxName) + `
			OR instr(CAST(name AS BLOB), x'00') > 0`); err != nil {
		return err
	}
	var wrong []fault
	if err := t.each(`SELECT ino, id, parent_ino, CAST(name AS BLOB) FROM fs_dentry WHERE name GLOB '*[^ -~]*'
		AND id NOT IN (SELECT entry FROM check_fault WHERE kind = '`+FaultEntryName+`')`, func(r row) error {
		if !utf8.Valid(r.bytes(3)) {
			wrong = append(wrong, fault{kind: FaultEntryName, ino: Ino(r.int(0)), entry: r.int(1), got: r.int(2)})
		}
		return nil
	}); err != nil {
		return err
	}
	return t.addFaults(wrong)
}

func (t *tx) addFaults(faults []fault) error {
	for _, f := range faults {
		if err := t.addFault(f); err != nil {
			return err
		}
	}
	return nil
}

// findTargets finds symbolic links without a target, or with one that could not be read.
func (t *tx) findTargets() error {
	var wrong []fault
	if err := t.each(`SELECT i.ino, CAST(s.target AS BLOB) FROM fs_inode i LEFT JOIN fs_symlink s ON s.ino = i.ino
		WHERE (i.mode & 61440) = 40960`, func(r row) error {
		target := r.bytes(1)
		if len(target) == 0 || len(target) > MaxTarget || bytes.IndexByte(target, 0) >= 0 || !utf8.Valid(target) {
			wrong = append(wrong, fault{kind: FaultSymlinkTarget, ino: Ino(r.int(0))})
		}
		return nil
	}); err != nil {
		return err
	}
	return t.addFaults(wrong)
}

// findCycles finds one directory of each circle that the root does not lead to. Directories below
// one come back with it.
func (t *tx) findCycles() error {
	type name struct{ entry, parent int64 }
	lost := map[int64]name{}
	if err := t.each(`SELECT ino, id, parent FROM check_dir WHERE ino NOT IN (SELECT ino FROM check_tree) ORDER BY id DESC`,
		func(r row) error {
			lost[r.int(0)] = name{r.int(1), r.int(2)} // the oldest name of several
			return nil
		}); err != nil {
		return err
	}
	var wrong []fault
	walked := map[int64]int64{} // by which start
	for start := range lost {
		at := start
		for {
			n, more := lost[at]
			if _, seen := walked[at]; seen || !more {
				if more && walked[at] == start {
					wrong = append(wrong, smallest(at, func(ino int64) int64 { return lost[ino].parent }))
				}
				break
			}
			walked[at] = start
			at = n.parent
		}
	}
	for i := range wrong {
		n := lost[int64(wrong[i].ino)]
		wrong[i].entry, wrong[i].got = n.entry, n.parent
	}
	slices.SortFunc(wrong, func(a, b fault) int { return int(a.entry - b.entry) })
	return t.addFaults(wrong)
}

// smallest goes once around the circle that ino is on.
func smallest(ino int64, parent func(int64) int64) fault {
	least := ino
	for at := parent(ino); at != ino; at = parent(at) {
		least = min(least, at)
	}
	return fault{kind: FaultDirectoryCycle, ino: Ino(least)}
}
