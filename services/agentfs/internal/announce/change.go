package announce

import (
	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/files"
	"humanwork.internal/services/agentfs/internal/namespace"
)

// Kinds of changes.
const (
	Written = "written"
	Removed = "removed"
	Renamed = "renamed"
)

// Change is what happened to one public file, or, renamed only, to a directory of them.
type Change struct {
	conversation string
	Position     int64
	Kind         string
	Path         fileuri.Path
	Previous     fileuri.Path // Renamed only
	Version      string       // empty when removed
}

// changesOf are the changes that a record of the ledger stands for. What moves between public and
// private directories appears and disappears.
func changesOf(r agentfs.Record) []Change {
	file := r.Mode&agentfs.TypeMask == agentfs.TypeFile
	directory := r.Mode&agentfs.TypeMask == agentfs.TypeDir
	version := files.Version(r.Ino, r.Version)
	at := func(private, kind string) []Change {
		conversation, p, ok := namespace.Public(private)
		if !ok || !file {
			return nil
		}
		c := Change{conversation: conversation, Position: r.Position, Kind: kind, Path: p}
		if kind != Removed {
			c.Version = version
		}
		return []Change{c}
	}
	move := func(from, to string) []Change {
		was, previous, public := namespace.Public(from)
		is, p, still := namespace.Public(to)
		if public && still && was == is && (file || directory) {
			return []Change{{conversation: is, Position: r.Position, Kind: Renamed, Path: p, Previous: previous, Version: version}}
		}
		return append(at(from, Removed), at(to, Written)...)
	}
	switch r.Action {
	case agentfs.ActionCreate, agentfs.ActionWrite, agentfs.ActionTruncate, agentfs.ActionReplace:
		return at(r.Path, Written)
	case agentfs.ActionLink:
		return at(r.Target, Written)
	case agentfs.ActionRemove:
		return at(r.Path, Removed)
	case agentfs.ActionRename:
		return move(r.Path, r.Target)
	case agentfs.ActionExchange:
		return append(move(r.Path, r.Target), move(r.Target, r.Path)...)
	}
	return nil
}
