package agentfs

import (
	"context"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// MaxRecords is the most that one call reads from the ledger.
const MaxRecords = 1000

// Query selects a part of the ledger.
type Query struct {
	// Project: only what happened in this quota directory; 0: in the whole database.
	Project Ino
	// Path: only records whose path or target is this one or below it; empty or "/": all. Tool calls
	// have none.
	Path string
	// After: only records with a larger position.
	After int64
	// Limit: 1 to MaxRecords.
	Limit int
}

// ledgerColumns are what scanRecord reads. Texts are cast because the driver answers a time for a
// text that looks like a date.
const ledgerColumns = `l.position, l.writer, l.sequence, l.time, CAST(l.actor AS BLOB), CAST(l.action AS BLOB),
	l.project, l.ino, l.mode, CAST(l.path AS BLOB), CAST(l.target AS BLOB), l.version, l.size, l.tool_call, l.hash`

func scanRecord(r row) Record {
	return Record{
		Position: r.int(0), Writer: r.int(1), Sequence: r.int(2), Time: time.Unix(0, r.int(3)),
		Actor: r.text(4), Action: r.text(5), Project: Ino(r.int(6)), Ino: Ino(r.int(7)), Mode: uint32(r.int(8)),
		Path: r.text(9), Target: r.text(10), Version: r.int(11), Size: r.int(12), ToolCall: r.int(13),
		Hash: append([]byte(nil), r.bytes(14)...),
	}
}

// condition is the WHERE clause of a query and its arguments; what it selects is found by position,
// so that a page costs the same wherever it is. Only a path is compared record by record.
func (q Query) condition() (string, []any, error) {
	if q.Limit < 1 || q.Limit > MaxRecords || q.After < 0 || q.Project < 0 {
		return "", nil, syscall.EINVAL
	}
	where, args := "l.position > ?", []any{q.After}
	if q.Project != 0 {
		where, args = "l.project = ? AND l.position > ?", []any{q.Project, q.After}
	}
	path := strings.TrimRight(q.Path, "/")
	if path == "" {
		return where, args, nil
	}
	// Bound as text: it must be one that can be there.
	if path[0] != '/' || !utf8.ValidString(path) || strings.ContainsRune(path, 0) {
		return "", nil, syscall.EINVAL
	}
	// All below p lies between "p/" and "p0", '0' being the character after '/'.
	for _, column := range []string{"l.path", "l.target"} {
		if column == "l.path" {
			where += " AND ("
		} else {
			where += " OR "
		}
		where += column + " = ? OR (" + column + " > ? AND " + column + " < ?)"
		args = append(args, path, path+"/", path+"0")
	}
	return where + ")", args, nil
}

// Timeline returns records of the ledger by position. EINVAL for a query out of its bounds.
func (f *FS) Timeline(ctx context.Context, q Query) ([]Record, error) {
	where, args, err := q.condition()
	if err != nil {
		return nil, fail("timeline", q.Path, err)
	}
	var records []Record
	err = f.read(ctx, func(t *tx) error {
		records, err = t.records(where, q.Limit, args...)
		return err
	})
	return records, fail("timeline", q.Path, err)
}

func (t *tx) records(where string, limit int, args ...any) ([]Record, error) {
	var records []Record
	err := t.each(`SELECT `+ledgerColumns+` FROM hw_ledger l WHERE `+where+` ORDER BY l.position LIMIT ?`, func(r row) error {
		records = append(records, scanRecord(r))
		return nil
	}, append(args, limit)...)
	return records, err
}

// Pending returns the first records that Announced was not told of, at most limit (1 to
// MaxRecords), by position.
func (f *FS) Pending(ctx context.Context, limit int) ([]Record, error) {
	if limit < 1 || limit > MaxRecords {
		return nil, fail("read what is pending", "", syscall.EINVAL)
	}
	var records []Record
	err := f.read(ctx, func(t *tx) (err error) {
		records, err = t.records(`l.position > (SELECT CAST(value AS INTEGER) FROM hw_meta WHERE key = 'announced')`, limit)
		return err
	})
	return records, fail("read what is pending", "", err)
}

// Announced says that others were told of every record up to this position; a smaller one than
// before changes nothing. A power loss may forget it: they are then told again.
func (f *FS) Announced(ctx context.Context, position int64) error {
	err := f.updateLater(ctx, func(t *tx) error {
		// Positions to come must not count as told.
		_, err := t.exec(`UPDATE hw_meta SET value = CAST(max(CAST(value AS INTEGER),
			min(?, (SELECT coalesce(max(position), 0) FROM hw_ledger))) AS TEXT) WHERE key = 'announced'`, position)
		return err
	})
	return fail("note what was announced", "", err)
}
