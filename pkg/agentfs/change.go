package agentfs

import "strings"

// What a row of hw_change says changed. A row that is not there any more was deleted. Counters
// (nlink, size of a quota) are never replicated: who applies a change recomputes them. Sequence
// orders the changes of this database, and those of one transaction are consecutive.
const (
	// changeInode: the row of fs_inode with this ino, and with it that of fs_symlink. All keyed by
	// an inode goes when it goes. Other columns NULL.
	changeInode = 1
	// changeName: the row of fs_dentry with parent_ino = ino and this name.
	changeName = 2
	// changeData: rows of fs_data of this ino with chunk_index from first to last, which took the
	// content from version base to version. With no first: all rows.
	changeData = 3
	// changeXattr: the row of hw_xattr with this ino and name.
	changeXattr = 4
	// changeToolCall: the row of tool_calls whose id is ino.
	changeToolCall = 5
)

// change is one row of hw_change; only the fields that its kind has are stored.
type change struct {
	kind          int
	ino           Ino
	name          string
	first, last   int64
	base, version int64
}

// change notes a changed row. It is written with the transaction, once for rows noted twice.
func (t *tx) change(c change) {
	if t.noted == nil {
		t.noted, t.ranges = map[change]bool{}, map[Ino]int{}
	}
	if t.noted[c] {
		return
	}
	if c.kind == changeData {
		// One transaction moves the content through one range of versions.
		if i, ok := t.ranges[c.ino]; ok && c.first <= t.changes[i].last+1 && t.changes[i].first <= c.last+1 {
			old := &t.changes[i]
			old.first, old.last, old.version = min(old.first, c.first), max(old.last, c.last), c.version
			return
		}
		t.ranges[c.ino] = len(t.changes)
	}
	t.noted[c] = true
	t.changes = append(t.changes, c)
}

func (t *tx) writeChanges() error {
	for len(t.changes) > 0 {
		batch := t.changes[:min(len(t.changes), 64)]
		t.changes = t.changes[len(batch):]
		args := make([]any, 0, 8*len(batch))
		for _, c := range batch {
			var name, first, last, base, version any
			switch c.kind {
			case changeName, changeXattr:
				name = []byte(c.name)
			case changeData:
				first, last, base, version = c.first, c.last, c.base, c.version
			}
			args = append(args, t.writer.id, c.kind, c.ino, name, first, last, base, version)
		}
		if _, err := t.exec(`INSERT INTO hw_change (writer, kind, ino, name, first, last, base, version) VALUES `+
			strings.TrimSuffix(strings.Repeat("(?, ?, ?, ?, ?, ?, ?, ?), ", len(batch)), ", "), args...); err != nil {
			return err
		}
	}
	return nil
}
