package agentfs

import (
	"fmt"
	"strconv"
	"strings"
)

const lostAndFound = "lost+found"

// repairer mends faults in one transaction.
type repairer struct {
	*tx
	report Report
	// lost is /lost+found, 0 until something goes there.
	lost Ino
	// noted counts the records in the ledger, more what is not in it one by one.
	noted, more int
}

// mend repairs one fault and notes it, unless the repair of another one already did. Counters are
// computed anew after all others, by recount.
func (r *repairer) mend(f fault) error {
	before, err := r.trace(f.ino)
	if err != nil {
		return err
	}
	done := true
	switch f.kind {
	case FaultRoot:
		err = r.mendRoot()
	case FaultMode:
		// The permissions stay; what the inode has says what it is.
		err = r.set(f.ino, `mode = (mode & 4095) | CASE WHEN ino IN (SELECT ino FROM fs_symlink) THEN 40960
			WHEN ino IN (SELECT parent_ino FROM fs_dentry) THEN 16384 ELSE 32768 END`)
	case FaultTime:
		err = r.set(f.ino, `atime_nsec = CASE WHEN atime_nsec BETWEEN 0 AND 999999999 THEN atime_nsec ELSE 0 END,
			mtime_nsec = CASE WHEN mtime_nsec BETWEEN 0 AND 999999999 THEN mtime_nsec ELSE 0 END,
			ctime_nsec = CASE WHEN ctime_nsec BETWEEN 0 AND 999999999 THEN ctime_nsec ELSE 0 END`)
	case FaultIDRange:
		err = r.claim(f.want, f.got)
	case FaultID:
		f.ino, err = r.renumber(f)
	case FaultVersion:
		err = r.touch(f.ino, 0, 0)
	case FaultEntryInode, FaultDirectoryNames:
		var name string
		name, done, err = r.dropEntry(f.entry)
		if parent, terr := r.trace(Ino(f.got)); terr == nil && parent != "" {
			before = strings.TrimSuffix(parent, "/") + "/" + name
		}
	case FaultEntryParent, FaultDirectoryCycle:
		done, err = r.moveToLost(f)
	case FaultEntryName:
		done, err = r.renameEntry(f.entry, 0, "invalid-"+strconv.FormatInt(f.entry, 10))
	case FaultInodeEntry:
		err = r.addToLost(f.ino)
	case FaultOrphan:
		_, err = r.exec(`DELETE FROM hw_orphan WHERE ino = ?`, f.ino)
	case FaultSize:
		if err = r.set(f.ino, r.withChunk(`size = CASE (mode & 61440)
			WHEN 32768 THEN coalesce((SELECT d.chunk_index * {chunk} + length(CAST(d.data AS BLOB)) FROM fs_data d
				WHERE d.ino = fs_inode.ino AND d.chunk_index >= 0 ORDER BY d.chunk_index DESC LIMIT 1), 0)
			ELSE 0 END`)); err == nil {
			err = r.touch(f.ino, 0, 0)
		}
	case FaultSymlinkTarget:
		err = r.removeInode(f.ino)
	case FaultSymlinkSize:
		err = r.set(f.ino, `size = ?`, f.want)
	case FaultTargetSymlink:
		_, err = r.exec(`DELETE FROM fs_symlink WHERE ino = ?`, f.ino)
		r.change(change{kind: changeInode, ino: f.ino})
	case FaultChunkInode:
		_, err = r.exec(`DELETE FROM fs_data WHERE ino = ?`, f.ino)
		r.change(change{kind: changeInode, ino: f.ino})
	case FaultChunkIndex, FaultChunkType, FaultChunkLong, FaultChunkBeyond, FaultChunkShort:
		err = r.mendChunk(f)
	case FaultXattrInode:
		_, err = r.exec(`DELETE FROM hw_xattr WHERE ino = ?`, f.ino)
	case FaultDigestInode:
		_, err = r.exec(`DELETE FROM hw_digest WHERE ino = ?`, f.ino)
	case FaultHoldInode:
		_, err = r.exec(`DELETE FROM hw_hold WHERE ino = ?`, f.ino)
	case FaultProjectDirectory:
		_, err = r.exec(`DELETE FROM hw_project WHERE project = ?`, f.ino)
	case FaultLinks, FaultProject, FaultUsage:
	default:
		return fmt.Errorf("no repair is known for %s", f.kind)
	}
	if err != nil || !done {
		return err
	}
	return r.note(f, before)
}

// note reports the repair and adds it to the ledger: where the inode is now, else where it was.
func (r *repairer) note(f fault, before string) error {
	r.report.add(Fault{Kind: f.kind, Ino: f.ino, Message: f.message(), Repaired: true})
	if r.noted == maxFaults {
		r.more++
		return nil
	}
	r.noted++
	record := Record{Actor: repairActor, Action: ActionRepair, Ino: f.ino, Path: before, Target: f.kind}
	attr, err := r.row(`SELECT mode, hw_version, size, hw_project FROM fs_inode WHERE ino = ?`, f.ino)
	if err != nil {
		return err
	}
	if attr != nil {
		record.Mode, record.Version, record.Size, record.Project = uint32(attr.int(0)), attr.int(1), attr.int(2), Ino(attr.int(3))
		now, err := r.trace(f.ino)
		if err != nil {
			return err
		}
		if now != "" {
			record.Path = now
		}
	}
	// Bound as text.
	record.Path = strings.ReplaceAll(strings.ToValidUTF8(record.Path, "\uFFFD"), "\x00", "\uFFFD")
	return r.record(record)
}

// sum ends a repair's records.
func (r *repairer) sum() error {
	if r.more == 0 {
		return nil
	}
	return r.record(Record{Actor: repairActor, Action: ActionRepair, Target: fmt.Sprintf("%d more", r.more)})
}

func (r *repairer) flushChanges() error {
	if len(r.changes) == 0 {
		return nil
	}
	if err := r.loadWriter(); err != nil {
		return err
	}
	return r.writeChanges()
}

// maxDepth ends a walk upwards in a circle.
const maxDepth = 4096

// trace returns the path of the inode's oldest name, empty if none leads to the root.
func (t *tx) trace(ino Ino) (string, error) {
	var names []string
	for at := ino; at != Root; {
		r, err := t.row(`SELECT parent_ino, CAST(name AS BLOB) FROM fs_dentry WHERE ino = ? ORDER BY id LIMIT 1`, at)
		if err != nil {
			return "", fmt.Errorf("find the path of inode %d: %w", ino, err)
		}
		if r == nil || len(names) == maxDepth {
			return "", nil
		}
		names = append(names, r.text(1))
		at = Ino(r.int(0))
	}
	if len(names) == 0 {
		return "/", nil
	}
	var b strings.Builder
	for i := len(names) - 1; i >= 0; i-- {
		b.WriteString("/" + names[i])
	}
	return b.String(), nil
}

func (r *repairer) set(ino Ino, assignments string, args ...any) error {
	r.change(change{kind: changeInode, ino: ino})
	_, err := r.exec(`UPDATE fs_inode SET `+assignments+` WHERE ino = ?`, append(args, ino)...)
	return err
}

// touch gives the content a new version; chunks from first to last changed.
func (r *repairer) touch(ino Ino, first, last int64) error {
	old, err := r.row(`SELECT hw_version FROM fs_inode WHERE ino = ?`, ino)
	if err != nil || old == nil {
		return err
	}
	version, err := r.ids(1)
	if err != nil {
		return err
	}
	r.change(change{kind: changeData, ino: ino, first: first, last: last, base: old.int(0), version: version})
	return r.set(ino, `hw_version = ?`, version)
}

func (r *repairer) mendRoot() error {
	sec, nsec := r.now.Unix(), r.now.Nanosecond()
	r.change(change{kind: changeInode, ino: Root})
	_, err := r.exec(`INSERT INTO fs_inode (ino, mode, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec)
		VALUES (1, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (ino) DO UPDATE SET mode = excluded.mode`,
		TypeDir|0o755, sec, sec, sec, nsec, nsec, nsec)
	return err
}

// claim makes ids up to last used ones of their writer.
func (r *repairer) claim(writer, last int64) error {
	if err := r.loadWriter(); err != nil {
		return err
	}
	if writer == r.writer.id {
		r.writer.next, r.writer.dirty = max(r.writer.next, last+1), true
		return nil
	}
	_, err := r.exec(`INSERT INTO hw_writer (writer, next_id, ledger_hash) VALUES (?, ?, x'')
		ON CONFLICT (writer) DO UPDATE SET next_id = max(next_id, excluded.next_id)`, writer, last+1)
	return err
}

// renumber gives an impossible id another one and returns the inode that it is about.
func (r *repairer) renumber(f fault) (Ino, error) {
	id, err := r.ids(1)
	if err != nil {
		return 0, err
	}
	switch f.want {
	case 2:
		r.change(change{kind: changeInode, ino: f.ino})
		_, err := r.exec(`UPDATE fs_dentry SET id = ? WHERE id = ?`, id, f.entry)
		return f.ino, err
	case 3:
		r.change(change{kind: changeToolCall, ino: Ino(id)})
		_, err := r.exec(`UPDATE tool_calls SET id = ? WHERE id = ?`, id, f.entry)
		return 0, err
	case 4:
		r.change(change{kind: changeInode, ino: f.ino})
		_, err := r.exec(`UPDATE fs_inode SET hw_version = ? WHERE ino = ?`, id, f.ino)
		return f.ino, err
	}
	for _, column := range []string{"fs_inode SET ino", "fs_dentry SET ino", "fs_dentry SET parent_ino", "fs_data SET ino",
		"fs_symlink SET ino", "hw_xattr SET ino", "hw_digest SET ino", "hw_hold SET ino", "hw_orphan SET ino",
		"hw_project SET project", "fs_inode SET hw_project"} {
		_, name, _ := strings.Cut(column, " SET ")
		if _, err := r.exec(`UPDATE OR REPLACE `+column+` = ? WHERE `+name+` = ?`, id, f.ino); err != nil {
			return 0, err
		}
	}
	r.change(change{kind: changeInode, ino: Ino(id)})
	return Ino(id), r.each(`SELECT parent_ino, CAST(name AS BLOB) FROM fs_dentry WHERE ino = ?1 OR parent_ino = ?1`, func(n row) error {
		r.change(change{kind: changeName, ino: Ino(n.int(0)), name: n.text(1)})
		return nil
	}, id)
}

// dropEntry removes a name; false if it is gone already.
func (r *repairer) dropEntry(id int64) (name string, done bool, err error) {
	old, err := r.row(`DELETE FROM fs_dentry WHERE id = ? RETURNING parent_ino, CAST(name AS BLOB)`, id)
	if err != nil || old == nil {
		return "", false, err
	}
	r.change(change{kind: changeName, ino: Ino(old.int(0)), name: old.text(1)})
	return old.text(1), true, nil
}

// renameEntry gives an entry another name that is free, in another directory if one is given.
func (r *repairer) renameEntry(id int64, parent Ino, name string) (bool, error) {
	old, err := r.row(`SELECT parent_ino, CAST(name AS BLOB) FROM fs_dentry WHERE id = ?`, id)
	if err != nil || old == nil {
		return false, err
	}
	r.change(change{kind: changeName, ino: Ino(old.int(0)), name: old.text(1)})
	if parent == 0 {
		parent = Ino(old.int(0))
	}
	if name, err = r.free(parent, name); err != nil {
		return false, err
	}
	r.change(change{kind: changeName, ino: parent, name: name})
	_, err = r.exec(`UPDATE fs_dentry SET parent_ino = ?, name = ? WHERE id = ?`, parent, name, id)
	return true, err
}

// free returns the name, with '~' after it until it is free.
func (r *repairer) free(parent Ino, name string) (string, error) {
	for {
		taken, err := r.row(`SELECT 1 FROM fs_dentry WHERE parent_ino = ? AND name = ?`, parent, name)
		if err != nil || taken == nil {
			return name, err
		}
		name += "~"
	}
}

// moveToLost moves an entry to /lost+found, or removes it if the inode has another name.
func (r *repairer) moveToLost(f fault) (bool, error) {
	others, err := r.row(`SELECT 1 FROM fs_dentry d JOIN check_tree t ON t.ino = d.parent_ino WHERE d.ino = ? AND d.id <> ?`, f.ino, f.entry)
	if err != nil {
		return false, err
	}
	if others != nil {
		_, done, err := r.dropEntry(f.entry)
		return done, err
	}
	lost, err := r.lostAndFound()
	if err != nil {
		return false, err
	}
	return r.renameEntry(f.entry, lost, strconv.FormatInt(int64(f.ino), 10))
}

func (r *repairer) addToLost(ino Ino) error {
	lost, err := r.lostAndFound()
	if err != nil {
		return err
	}
	name, err := r.free(lost, strconv.FormatInt(int64(ino), 10))
	if err != nil {
		return err
	}
	return r.addEntry(lost, name, ino)
}

func (r *repairer) addEntry(parent Ino, name string, ino Ino) error {
	id, err := r.ids(1)
	if err != nil {
		return err
	}
	r.change(change{kind: changeName, ino: parent, name: name})
	_, err = r.exec(`INSERT INTO fs_dentry (id, name, parent_ino, ino) VALUES (?, ?, ?, ?)`, id, name, parent, ino)
	return err
}

// lostAndFound returns the directory, which it makes for the owner only.
func (r *repairer) lostAndFound() (Ino, error) {
	if r.lost != 0 {
		return r.lost, nil
	}
	old, err := r.row(`SELECT i.ino FROM fs_dentry d JOIN fs_inode i ON i.ino = d.ino
		WHERE d.parent_ino = 1 AND d.name = ? AND (i.mode & 61440) = 16384`, lostAndFound)
	if err != nil {
		return 0, err
	}
	if old != nil {
		r.lost = Ino(old.int(0))
		return r.lost, nil
	}
	name, err := r.free(Root, lostAndFound) // something else may have it
	if err != nil {
		return 0, err
	}
	ino, err := r.ids(1)
	if err != nil {
		return 0, err
	}
	sec, nsec := r.now.Unix(), r.now.Nanosecond()
	r.change(change{kind: changeInode, ino: Ino(ino)})
	if _, err := r.exec(`INSERT INTO fs_inode (ino, mode, nlink, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec)
		VALUES (?, ?, 2, ?, ?, ?, ?, ?, ?)`, ino, TypeDir|0o700, sec, sec, sec, nsec, nsec, nsec); err != nil {
		return 0, err
	}
	r.lost = Ino(ino)
	return r.lost, r.addEntry(Root, name, r.lost)
}

// removeInode removes an inode that nothing can be made of, and its names.
func (r *repairer) removeInode(ino Ino) error {
	var names []change
	if err := r.each(`SELECT parent_ino, CAST(name AS BLOB) FROM fs_dentry WHERE ino = ?`, func(n row) error {
		names = append(names, change{kind: changeName, ino: Ino(n.int(0)), name: n.text(1)})
		return nil
	}, ino); err != nil {
		return err
	}
	for _, n := range names {
		r.change(n)
	}
	r.change(change{kind: changeInode, ino: ino})
	for _, table := range []string{"fs_dentry", "fs_symlink", "fs_data", "hw_xattr", "hw_digest", "hw_hold", "hw_orphan", "fs_inode"} {
		if _, err := r.exec(`DELETE FROM `+table+` WHERE ino = ?`, ino); err != nil {
			return err
		}
	}
	return nil
}

func (r *repairer) mendChunk(f fault) error {
	query, args := `UPDATE fs_data SET data = CAST(data || zeroblob(?) AS BLOB) WHERE ino = ? AND chunk_index = ?`,
		[]any{f.want - f.got, f.ino, f.entry}
	switch {
	case f.kind == FaultChunkType:
		query, args = `UPDATE fs_data SET data = CAST(data AS BLOB) WHERE ino = ? AND chunk_index = ?`, args[1:]
	case f.kind == FaultChunkIndex || f.want <= 0:
		query, args = `DELETE FROM fs_data WHERE ino = ? AND chunk_index = ?`, args[1:]
	case f.got > f.want:
		query, args = `UPDATE fs_data SET data = substr(data, 1, ?) WHERE ino = ? AND chunk_index = ?`, []any{f.want, f.ino, f.entry}
	}
	if _, err := r.exec(query, args...); err != nil {
		return err
	}
	return r.touch(f.ino, f.entry, f.entry)
}

// recount computes links, quota directories and the use of quotas anew. They are replicated by
// nobody, so that no change is noted.
func (t *tx) recount() error {
	if err := t.walkTree(); err != nil {
		return fmt.Errorf("walk the directories: %w", err)
	}
	for _, statement := range []string{
		`UPDATE fs_inode SET hw_project = w.want FROM (SELECT i.ino, ` + projectOf("i") + ` AS want FROM fs_inode i) w
			WHERE w.ino = fs_inode.ino AND w.want <> fs_inode.hw_project`,
		`UPDATE fs_inode SET nlink = w.want FROM (SELECT i.ino, ` + linksOf("i") + ` AS want FROM fs_inode i) w
			WHERE w.ino = fs_inode.ino AND w.want <> fs_inode.nlink`,
		`INSERT OR IGNORE INTO hw_project (project) VALUES (0)`,
		`CREATE TEMP TABLE check_usage (project INTEGER PRIMARY KEY, bytes INTEGER, files INTEGER)`,
		`INSERT INTO check_usage ` + usageOf,
		`UPDATE hw_project SET bytes = coalesce((SELECT u.bytes FROM check_usage u WHERE u.project = hw_project.project), 0),
			files = coalesce((SELECT u.files FROM check_usage u WHERE u.project = hw_project.project), 0)`,
		`DROP TABLE temp.check_usage`,
	} {
		if _, err := t.exec(statement); err != nil {
			return fmt.Errorf("count anew: %w", err)
		}
	}
	return t.dropFaults()
}
