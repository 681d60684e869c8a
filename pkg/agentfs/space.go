package agentfs

import (
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// reserve is what stays free on the disk for removals, which have to be written too before they free
// anything, and for folding in the log.
const reserve = 4 << 20

// logBytes is how large the write-ahead log may be when the disk is nearly full.
const logBytes = 1 << 20

// short says whether the disk has no room to grow: the database must be able to take in the whole log
// and still remove something. A file system that does not answer has room; SQLite will say if not.
func (f *FS) short() (short bool, log int64) {
	if f.location.remote() {
		return false, 0
	}
	if info, err := os.Stat(f.location.Path + "-wal"); err == nil {
		log = info.Size()
	}
	var s unix.Statfs_t
	if err := unix.Statfs(f.location.Path, &s); err != nil {
		return false, log
	}
	return int64(s.Bavail)*s.Bsize < log+reserve, log
}

// makeRoom folds in the log when the disk is nearly full.
func (f *FS) makeRoom(c *conn) {
	if short, log := f.short(); short && log > logBytes {
		// If somebody reads, or it fails, the check of the transaction says so.
		_, _ = c.row("PRAGMA wal_checkpoint(TRUNCATE)")
	}
}

// freePages is how many pages must be left free in the database for it to count as not grown.
const freePages = 32

// growable refuses a transaction that stores more than it frees when the disk has no room, unless
// what it stored went into pages that others had freed.
func (t *tx) growable() error {
	if short, _ := t.fs.short(); !short {
		return nil
	}
	r, err := t.row("PRAGMA freelist_count")
	if err != nil {
		return fmt.Errorf("count free pages: %w", err)
	}
	if r.int(0) < freePages {
		return syscall.ENOSPC
	}
	return nil
}
