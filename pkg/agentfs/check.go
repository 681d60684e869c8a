package agentfs

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// Kinds of faults, stable. Check repairs all but FaultDatabase and FaultLedger.
const (
	// FaultDatabase: a page or an index of the file is damaged.
	FaultDatabase = "DATABASE_DAMAGED"
	// FaultLedger: a record of the ledger is missing or was changed. No repair could tell the truth.
	FaultLedger = "LEDGER_CHAIN_BROKEN"

	FaultRoot             = "ROOT_MISSING"
	FaultMode             = "MODE_INVALID"
	FaultTime             = "TIME_INVALID"
	FaultID               = "ID_INVALID"
	FaultIDRange          = "ID_NOT_ALLOCATED"
	FaultVersion          = "VERSION_MISSING"
	FaultEntryInode       = "ENTRY_WITHOUT_INODE"
	FaultEntryParent      = "ENTRY_BELOW_NO_DIRECTORY"
	FaultEntryName        = "ENTRY_NAME_INVALID"
	FaultDirectoryNames   = "DIRECTORY_HAS_TWO_NAMES"
	FaultDirectoryCycle   = "DIRECTORY_CYCLE"
	FaultInodeEntry       = "INODE_WITHOUT_ENTRY"
	FaultOrphan           = "ORPHAN_RECORD_WRONG"
	FaultSize             = "SIZE_NEGATIVE"
	FaultSymlinkTarget    = "SYMLINK_WITHOUT_TARGET"
	FaultSymlinkSize      = "SYMLINK_SIZE_WRONG"
	FaultTargetSymlink    = "TARGET_WITHOUT_SYMLINK"
	FaultChunkInode       = "CHUNK_WITHOUT_INODE"
	FaultChunkIndex       = "CHUNK_INDEX_NEGATIVE"
	FaultChunkType        = "CHUNK_NOT_BLOB"
	FaultChunkLong        = "CHUNK_TOO_LONG"
	FaultChunkBeyond      = "CHUNK_BEYOND_SIZE"
	FaultChunkShort       = "CHUNK_SHORT"
	FaultXattrInode       = "XATTR_WITHOUT_INODE"
	FaultDigestInode      = "DIGEST_WITHOUT_INODE"
	FaultHoldInode        = "HOLD_WITHOUT_INODE"
	FaultLinks            = "NLINK_WRONG"
	FaultProject          = "PROJECT_WRONG"
	FaultProjectDirectory = "PROJECT_WITHOUT_DIRECTORY"
	FaultUsage            = "USAGE_WRONG"
)

// maxFaults bounds the faults of a report and the records that a repair adds to the ledger.
const maxFaults = 1000

// repairActor does what Check and Adopt do in the ledger.
const repairActor = "agentfs"

// repairRounds bounds how often a repair looks for what it uncovered: a directory that came back
// brings its children's faults with it.
const repairRounds = 8

// Fault is one thing that is wrong.
type Fault struct {
	Kind string
	// Ino is the inode it is about, 0 if none.
	Ino     Ino
	Message string
	// Repaired is set when the repair is durable.
	Repaired bool
}

// Report is what Check found.
type Report struct {
	// Faults are at most 1000; Truncated says that there are more.
	Faults    []Fault
	Truncated bool
	// Inodes, Bytes (their sizes) and LedgerRecords is how much was looked at.
	Inodes, Bytes, LedgerRecords int64
}

func (r *Report) add(f Fault) {
	if len(r.Faults) == maxFaults {
		r.Truncated = true
		return
	}
	r.Faults = append(r.Faults, f)
}

// Check looks for every kind of fault in one snapshot on a connection of its own, so that others
// work on. With repair it then mends all it can in one transaction, while others wait: names that
// led nowhere go, inodes without a name get one in /lost+found, counters are computed anew. Each
// mended thing is in the ledger as a "repair" by "agentfs" whose target is the kind of fault (the
// first 1000, then one record with their number). A damaged file is not repaired at all.
func (f *FS) Check(ctx context.Context, repair bool) (Report, error) {
	report, err := f.check(ctx)
	if err != nil || !repair || len(report.Faults) == 0 {
		return report, fail("check the AgentFS", "", err)
	}
	lasting := Report{Inodes: report.Inodes, Bytes: report.Bytes, LedgerRecords: report.LedgerRecords}
	for _, fault := range report.Faults {
		switch fault.Kind {
		case FaultDatabase:
			return report, nil
		case FaultLedger:
			lasting.add(fault)
		}
	}
	err = f.update(ctx, func(t *tx) error {
		r := &repairer{tx: t}
		if err := r.run(ctx); err != nil {
			return err
		}
		for _, fault := range r.report.Faults {
			lasting.add(fault)
		}
		lasting.Truncated = lasting.Truncated || r.report.Truncated
		return nil
	})
	if err != nil {
		return report, fail("repair the AgentFS", "", err)
	}
	return lasting, nil
}

func (f *FS) check(ctx context.Context) (report Report, err error) {
	if err := ctx.Err(); err != nil {
		return Report{}, err
	}
	s := newSeat(f.location)
	c, err := s.connect()
	if err != nil {
		return Report{}, err
	}
	if err = wide(c, f.location); err == nil {
		err = s.transaction("BEGIN", func() error {
			report, err = newTx(c, f).inspectAll(ctx)
			return err
		})
	}
	return report, errors.Join(err, s.disconnect())
}

// wide gives a connection that goes through the whole database 64 MiB for its pages: with the usual
// 2 MiB, look-ups by key read every page again and again.
func wide(c *conn, l Location) error {
	if l.remote() {
		return nil
	}
	if _, err := c.exec("PRAGMA cache_size = -65536"); err != nil {
		return fmt.Errorf("set the cache size: %w", err)
	}
	return nil
}

// inspectAll is a whole check in the transaction. Of a damaged file it says no more than that.
func (t *tx) inspectAll(ctx context.Context) (Report, error) {
	var report Report
	err := t.each(fmt.Sprintf("PRAGMA integrity_check(%d)", maxFaults), func(r row) error {
		if text := r.text(0); text != "ok" {
			report.add(Fault{Kind: FaultDatabase, Message: text})
		}
		return nil
	})
	if err != nil {
		if err = translate(err); !errors.Is(err, ErrDamaged) {
			return report, fmt.Errorf("check the pages: %w", err)
		}
		report.add(Fault{Kind: FaultDatabase, Message: err.Error()})
	}
	if len(report.Faults) > 0 {
		return report, nil
	}
	if err := t.findFaults(ctx); err != nil {
		return report, err
	}
	if err := t.eachFault(0, func(_ int64, f fault) error {
		report.add(Fault{Kind: f.kind, Ino: f.ino, Message: f.message()})
		return nil
	}); err != nil {
		return report, err
	}
	if err := t.dropFaults(); err != nil {
		return report, err
	}
	if err := t.verifyLedger(ctx, &report); err != nil {
		return report, err
	}
	r, err := t.row(`SELECT count(*), coalesce(sum(size), 0) FROM fs_inode`)
	if err != nil {
		return report, fmt.Errorf("count inodes: %w", err)
	}
	report.Inodes, report.Bytes = r.int(0), r.int(1)
	return report, nil
}

// run repairs until nothing is found.
func (r *repairer) run(ctx context.Context) error {
	for range repairRounds {
		if err := r.findFaults(ctx); err != nil {
			return err
		}
		clean := true
		for after := int64(0); ; {
			var page []fault
			if err := r.eachFault(after, func(id int64, f fault) error {
				after = id
				page = append(page, f)
				return nil
			}); err != nil {
				return err
			}
			if len(page) == 0 {
				break
			}
			clean = false
			for _, f := range page {
				if err := r.mend(f); err != nil {
					return fmt.Errorf("repair %s (%s): %w", f.kind, f.message(), err)
				}
				if err := ctx.Err(); err != nil {
					return err
				}
			}
			// Noting a change looks through those noted before.
			if err := r.flushChanges(); err != nil {
				return err
			}
		}
		if err := r.dropFaults(); err != nil {
			return err
		}
		if clean {
			return r.sum()
		}
		if err := r.recount(); err != nil {
			return err
		}
		// What was allocated here must not look like a fault.
		if err := r.flushWriter(); err != nil {
			return err
		}
	}
	return fmt.Errorf("faults came back in %d rounds: %w", repairRounds, syscall.EIO)
}
