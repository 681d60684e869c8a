package agentfs

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Actions of the ledger.
const (
	ActionOpen        = "open"
	ActionCreate      = "create"
	ActionWrite       = "write"
	ActionTruncate    = "truncate"
	ActionReplace     = "replace"
	ActionRemove      = "remove"
	ActionRename      = "rename"
	ActionExchange    = "exchange"
	ActionLink        = "link"
	ActionSymlink     = "symlink"
	ActionMkdir       = "mkdir"
	ActionRmdir       = "rmdir"
	ActionSetAttr     = "setattr"
	ActionSetXattr    = "setxattr"
	ActionRemoveXattr = "removexattr"
	ActionTool        = "tool"
	ActionProvision   = "provision"
	ActionRestore     = "restore"
	ActionRepair      = "repair"
)

// Record is one record of the ledger.
type Record struct {
	// Position orders the records of this database; 0 in one that was not written yet.
	Position int64
	// Writer and Sequence place the record in the chain of its writer, from 1 without a gap.
	Writer, Sequence int64
	Time             time.Time
	Actor, Action    string
	// Project is the quota directory that the path counts in, 0: none.
	Project Ino
	// Ino is the inode acted on, Mode its type and permissions, Version and Size its content's
	// after the action, all 0 if there is none. A provision record makes what Mode says.
	Ino  Ino
	Mode uint32
	// Path is absolute; empty for an inode without a name. Target is the new path of a rename or an
	// exchange, that of a new link, the content of a symbolic link.
	Path, Target  string
	Version, Size int64
	// ToolCall is the id of the row of tool_calls, 0: none.
	ToolCall int64
	Hash     []byte
}

// digest is the SHA-256 over the hash before and the record in canonical form: integers as eight
// bytes big endian, texts preceded by their length; neither position nor hash.
func (r Record) digest(previous []byte) []byte {
	b := make([]byte, 0, 256)
	number := func(n int64) { b = binary.BigEndian.AppendUint64(b, uint64(n)) }
	text := func(s string) {
		number(int64(len(s)))
		b = append(b, s...)
	}
	text(string(previous))
	number(r.Writer)
	number(r.Sequence)
	number(r.Time.UnixNano())
	text(r.Actor)
	text(r.Action)
	number(int64(r.Project))
	number(int64(r.Ino))
	number(int64(r.Mode))
	text(r.Path)
	text(r.Target)
	number(r.Version)
	number(r.Size)
	number(r.ToolCall)
	sum := sha256.Sum256(b)
	return sum[:]
}

// record appends to the ledger. Writer, sequence, time and hash are filled in.
func (t *tx) record(r Record) error {
	if err := t.loadWriter(); err != nil {
		return err
	}
	t.writer.sequence++
	t.writer.dirty = true
	r.Writer, r.Sequence, r.Time = t.writer.id, t.writer.sequence, t.now
	r.Hash = r.digest(t.writer.hash)
	t.writer.hash = r.Hash
	var target, call any
	if r.Target != "" {
		target = r.Target
	}
	if r.ToolCall != 0 {
		call = r.ToolCall
	}
	t.recorded = true
	_, err := t.exec(`INSERT INTO hw_ledger (writer, sequence, time, actor, action, project, ino, mode, path, target,
		version, size, tool_call, hash) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		r.Writer, r.Sequence, r.Time.UnixNano(), r.Actor, r.Action, r.Project, r.Ino, r.Mode, r.Path, target,
		r.Version, r.Size, call, r.Hash)
	return err
}
