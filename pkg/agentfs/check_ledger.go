package agentfs

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// verifyLedger follows every writer's chain. Records of a writer come in their order, among those
// of others.
func (t *tx) verifyLedger(ctx context.Context, report *Report) error {
	type head struct {
		sequence int64
		hash     []byte
		broken   bool
	}
	heads := map[int64]*head{}
	broken := func(writer, sequence int64, what string) {
		if h := heads[writer]; !h.broken {
			h.broken = true
			report.add(Fault{Kind: FaultLedger, Message: fmt.Sprintf("writer %d, sequence %d: %s", writer, sequence, what)})
		}
	}
	err := t.packed(ctx, func(record Record) {
		report.LedgerRecords++
		h := heads[record.Writer]
		if h == nil {
			h = &head{hash: []byte{}}
			heads[record.Writer] = h
		}
		switch want := h.sequence + 1; {
		case record.Sequence > want:
			broken(record.Writer, want, fmt.Sprintf("the record is missing, %d follows", record.Sequence))
		case record.Sequence < want:
			broken(record.Writer, record.Sequence, "the record is out of order")
		case string(record.digest(h.hash)) != string(record.Hash):
			broken(record.Writer, record.Sequence, "the hash is not that of the record and the one before")
		}
		h.sequence, h.hash = record.Sequence, record.Hash
	})
	if err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	err = t.each(`SELECT writer, ledger_sequence, ledger_hash FROM hw_writer ORDER BY writer`, func(r row) error {
		h := heads[r.int(0)]
		if h == nil {
			h = &head{hash: []byte{}}
			heads[r.int(0)] = h
		}
		if h.sequence != r.int(1) || string(h.hash) != string(r.bytes(2)) {
			broken(r.int(0), r.int(1), fmt.Sprintf("the head is not the last record, which is %d", h.sequence))
		}
		// What is left in heads has no row.
		h.sequence = -1
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the writers: %w", err)
	}
	for writer, h := range heads {
		if h.sequence >= 0 {
			broken(writer, h.sequence, "the writer has no row")
		}
	}
	return nil
}

// packed calls fn for every record, by position. The driver's calls cost more than a record's hash:
// a row of this query has up to 256 records in one blob, each as numbers, lengths and texts.
func (t *tx) packed(ctx context.Context, fn func(Record)) error {
	return t.each(`SELECT CAST(group_concat(record, '') AS BLOB) FROM (SELECT position >> 8 AS page,
			printf('%d %d %d %d %d %d %d %d %d %d %d %d %d ', writer, sequence, time, project, ino, mode, version, size,
				coalesce(tool_call, 0), length(CAST(actor AS BLOB)), length(CAST(action AS BLOB)), length(CAST(path AS BLOB)),
				coalesce(length(CAST(target AS BLOB)), 0))
			|| printf('%d ', length(CAST(hash AS BLOB))) || actor || action || path || coalesce(target, '') || hex(hash) AS record
		FROM hw_ledger ORDER BY position) GROUP BY page ORDER BY page`, func(r row) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		for p := r.bytes(0); len(p) > 0; {
			record, rest, err := unpack(p)
			if err != nil {
				return err
			}
			fn(record)
			p = rest
		}
		return nil
	})
}

func unpack(p []byte) (Record, []byte, error) {
	var n [14]int64
	for i := range n {
		end := bytes.IndexByte(p, ' ')
		if end < 0 {
			return Record{}, nil, errors.New("a record has too few numbers")
		}
		var err error
		if n[i], err = strconv.ParseInt(string(p[:end]), 10, 64); err != nil {
			return Record{}, nil, fmt.Errorf("a record's number: %w", err)
		}
		p = p[end+1:]
	}
	text := func(length int64) string {
		if length < 0 || length > int64(len(p)) {
			length = int64(len(p))
		}
		s := string(p[:length])
		p = p[length:]
		return s
	}
	record := Record{
		Writer: n[0], Sequence: n[1], Time: time.Unix(0, n[2]), Project: Ino(n[3]), Ino: Ino(n[4]), Mode: uint32(n[5]),
		Version: n[6], Size: n[7], ToolCall: n[8],
		Actor: text(n[9]), Action: text(n[10]), Path: text(n[11]), Target: text(n[12]),
	}
	hash, err := hex.DecodeString(text(2 * n[13]))
	if err != nil {
		return Record{}, nil, fmt.Errorf("a record's hash: %w", err)
	}
	record.Hash = hash
	return record, p, nil
}
