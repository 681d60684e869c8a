package agentfs

import (
	"fmt"
	"syscall"
)

// MaxSize is the largest size of a file, and of a sparse one whose holes an export has to fill.
const MaxSize = 1 << 42

// Content lies in chunks. One that is missing is a hole and reads as zeros. Only the last one may be
// short: it then ends at the size. What an SDK stored against these rules is read by them all the
// same: short chunks are padded with zeros, what lies beyond the size is cut.

// putChunks stores p, which begins at a chunk, one statement for any number of chunks. The parameter
// itself is in substr: a column that held it would be copied whole for each row.
const putChunks = `INSERT INTO fs_data (ino, chunk_index, data)
	WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < ?1)
	SELECT ?2, ?3 + n.i, substr(?5, n.i * ?4 + 1, ?4) FROM n WHERE true
	ON CONFLICT (ino, chunk_index) DO UPDATE SET data = excluded.data`

const putChunk = `INSERT INTO fs_data (ino, chunk_index, data) VALUES (?, ?, ?)
	ON CONFLICT (ino, chunk_index) DO UPDATE SET data = excluded.data`

func (t *tx) putChunks(ino Ino, first int64, p []byte) error {
	size := t.fs.chunk
	count := (int64(len(p)) + size - 1) / size
	var err error
	switch count {
	case 0:
	case 1:
		_, err = t.exec(putChunk, ino, first, p)
	default:
		_, err = t.exec(putChunks, count-1, ino, first, size, p)
	}
	if err != nil {
		return fmt.Errorf("write content: %w", err)
	}
	return nil
}

// fill stores the content of a file that was just made.
func (t *tx) fill(a Attr, p []byte) error {
	if len(p) == 0 {
		return nil
	}
	// A statement holds its blob twice more; windows keep that small.
	const window = 4 << 20
	step := max(window/t.fs.chunk, 1) * t.fs.chunk
	for at := int64(0); at < int64(len(p)); at += step {
		if err := t.putChunks(a.Ino, at/t.fs.chunk, p[at:min(at+step, int64(len(p)))]); err != nil {
			return err
		}
	}
	t.change(change{kind: changeData, ino: a.Ino, last: (int64(len(p)) - 1) / t.fs.chunk, version: a.Version})
	return nil
}

// chunk returns the content of a chunk up to the size, padded to the length n.
func (t *tx) chunk(a Attr, index, n int64) ([]byte, error) {
	p := make([]byte, n)
	r, err := t.row(`SELECT data FROM fs_data WHERE ino = ? AND chunk_index = ?`, a.Ino, index)
	if err != nil {
		return nil, fmt.Errorf("read content: %w", err)
	}
	if r != nil {
		copy(p, clip(r.bytes(0), a.Size-index*t.fs.chunk))
	}
	return p, nil
}

// clip cuts p to at most n bytes; a negative n leaves none.
func clip(p []byte, n int64) []byte { return p[:min(int64(len(p)), max(n, 0))] }

// writeAt stores p at an offset and changes the attributes.
func (t *tx) writeAt(a *Attr, p []byte, off int64) error {
	if len(p) == 0 {
		return nil
	}
	if off > MaxSize-int64(len(p)) {
		return syscall.EFBIG
	}
	size, end := t.fs.chunk, off+int64(len(p))
	grown := max(a.Size, end)
	first, last := off/size, (end-1)/size
	if err := t.padLast(*a, first, grown); err != nil {
		return err
	}
	// What is around p in its first and last chunk stays.
	head, stop := off-first*size, min((last+1)*size, grown)
	data := p
	if head > 0 || stop > end {
		data = make([]byte, stop-first*size)
		if head > 0 {
			old, err := t.chunk(*a, first, min(size, int64(len(data))))
			if err != nil {
				return err
			}
			copy(data, old)
		}
		if stop > end && (last != first || head == 0) {
			old, err := t.chunk(*a, last, stop-last*size)
			if err != nil {
				return err
			}
			copy(data[(last-first)*size:], old)
		}
		copy(data[head:], p)
	}
	if err := t.putChunks(a.Ino, first, data); err != nil {
		return err
	}
	return t.rewrote(a, first, last, grown)
}

// padLast makes the chunk that was the last one whole when the file grows past it; those from next
// on are written anyway.
func (t *tx) padLast(a Attr, next, grown int64) error {
	if grown <= a.Size || a.Size == 0 {
		return nil
	}
	last := (a.Size - 1) / t.fs.chunk
	want := min(t.fs.chunk, grown-last*t.fs.chunk)
	if last >= next || want == a.Size-last*t.fs.chunk {
		return nil
	}
	r, err := t.row(`SELECT 1 FROM fs_data WHERE ino = ? AND chunk_index = ?`, a.Ino, last)
	if err != nil {
		return fmt.Errorf("read content: %w", err)
	}
	if r == nil {
		return nil // a hole
	}
	p, err := t.chunk(a, last, want)
	if err != nil {
		return err
	}
	return t.putChunks(a.Ino, last, p)
}

// rewrote gives the content its new size and version, after chunks from first to last changed.
func (t *tx) rewrote(a *Attr, first, last, size int64) error {
	version, err := t.ids(1)
	if err != nil {
		return err
	}
	if size > a.Size && a.Size > 0 {
		first = min(first, (a.Size-1)/t.fs.chunk)
	}
	t.use(a.Project, size-a.Size, 0)
	t.change(change{kind: changeInode, ino: a.Ino})
	t.change(change{kind: changeData, ino: a.Ino, first: first, last: last, base: a.Version, version: version})
	a.Size, a.Version, a.Mtime, a.Ctime = size, version, t.now, t.now
	sec, nsec := t.now.Unix(), t.now.Nanosecond()
	if _, err := t.exec(`UPDATE fs_inode SET size = ?, hw_version = ?, mtime = ?, mtime_nsec = ?, ctime = ?, ctime_nsec = ?
		WHERE ino = ?`, size, version, sec, nsec, sec, nsec, a.Ino); err != nil {
		return fmt.Errorf("write inode: %w", err)
	}
	return nil
}

// truncate sets the size.
func (t *tx) truncate(a *Attr, size int64) error {
	switch {
	case size < 0:
		return syscall.EINVAL
	case size > MaxSize:
		return syscall.EFBIG
	}
	chunk := t.fs.chunk
	from, to := min(size, a.Size)/chunk, max(size, a.Size)/chunk
	if size > a.Size {
		if err := t.padLast(*a, to+1, size); err != nil {
			return err
		}
	}
	if size < a.Size {
		if err := t.cut(*a, size); err != nil {
			return err
		}
	}
	return t.rewrote(a, from, to, size)
}

// cut frees the content from the offset on.
func (t *tx) cut(a Attr, size int64) error {
	last, rest := size/t.fs.chunk, size%t.fs.chunk
	if rest > 0 {
		r, err := t.row(`SELECT substr(data, 1, ?) FROM fs_data WHERE ino = ? AND chunk_index = ?`, rest, a.Ino, last)
		if err != nil {
			return fmt.Errorf("read content: %w", err)
		}
		if r != nil {
			p := make([]byte, rest)
			copy(p, r.bytes(0))
			if err := t.putChunks(a.Ino, last, p); err != nil {
				return err
			}
		}
		last++
	}
	if _, err := t.exec(`DELETE FROM fs_data WHERE ino = ? AND chunk_index >= ?`, a.Ino, last); err != nil {
		return fmt.Errorf("free content: %w", err)
	}
	return nil
}

// zero makes a range within the size read as zeros and frees what it can of it.
func (t *tx) zero(a *Attr, off, end int64) error {
	chunk := t.fs.chunk
	if end = min(end, a.Size); off >= end {
		return nil
	}
	whole, after := (off+chunk-1)/chunk, end/chunk
	if end == a.Size {
		after = (end + chunk - 1) / chunk
	}
	for _, part := range edges(off, end, whole, after, chunk) {
		r, err := t.row(`SELECT 1 FROM fs_data WHERE ino = ? AND chunk_index = ?`, a.Ino, part.index)
		if err != nil {
			return fmt.Errorf("read content: %w", err)
		}
		if r == nil {
			continue
		}
		p, err := t.chunk(*a, part.index, min(chunk, a.Size-part.index*chunk))
		if err != nil {
			return err
		}
		clear(p[part.from:min(part.to, int64(len(p)))])
		if err := t.putChunks(a.Ino, part.index, p); err != nil {
			return err
		}
	}
	if whole < after {
		if _, err := t.exec(`DELETE FROM fs_data WHERE ino = ? AND chunk_index >= ? AND chunk_index < ?`, a.Ino, whole, after); err != nil {
			return fmt.Errorf("free content: %w", err)
		}
	}
	return t.rewrote(a, off/chunk, (end-1)/chunk, a.Size)
}

type edge struct{ index, from, to int64 }

// edges are the parts of a range in chunks that it does not cover: chunks whole to after are covered.
func edges(off, end, whole, after, chunk int64) []edge {
	if whole > after { // all within one chunk
		return []edge{{off / chunk, off % chunk, end - off/chunk*chunk}}
	}
	var parts []edge
	if off%chunk > 0 {
		parts = append(parts, edge{off / chunk, off % chunk, chunk})
	}
	if end > after*chunk {
		parts = append(parts, edge{after, 0, end - after*chunk})
	}
	return parts
}

// readAt fills p from an offset, from one snapshot, and returns the inode with it.
func (t *tx) readAt(ino Ino, p []byte, off int64) (n int, a Attr, err error) {
	chunk := t.fs.chunk
	found := false
	err = t.each(`SELECT `+attrColumn+`, d.chunk_index, d.data FROM fs_inode i
		LEFT JOIN fs_data d ON d.ino = i.ino AND d.chunk_index BETWEEN ? AND ? WHERE i.ino = ?`, func(r row) error {
		if !found {
			found, a = true, scanAttr(r)
			n = len(clip(p, a.Size-off))
			clear(p[:n])
		}
		if r.null(1) {
			return nil
		}
		// Of the chunk at its offset only what is in the window counts.
		at, data := r.int(1)*chunk, clip(r.bytes(2), chunk)
		if at < off {
			data, at = data[min(off-at, int64(len(data))):], off
		}
		if at-off < int64(n) {
			copy(p[at-off:n], data)
		}
		return nil
	}, off/chunk, (off+int64(len(p))-1)/chunk, ino)
	if err != nil {
		return 0, a, fmt.Errorf("read content: %w", err)
	}
	if !found {
		return 0, a, syscall.ENOENT
	}
	return n, a, nil
}
