package agentfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// partial is added to the name of a file that is being made.
const partial = ".partial"

// Snapshot makes a consistent copy of the database while others write: what was committed when it
// began. The file is one SQLite database without a log, complete and durable when it gets its name,
// which must be free (os.ErrExist). ErrRemote for a remote database.
func (f *FS) Snapshot(ctx context.Context, to string) error {
	if f.location.remote() {
		return fail("snapshot", "", ErrRemote)
	}
	err := build(ctx, to, func(path string) error {
		c, err := dial(f.location, "ro")
		if err != nil {
			return err
		}
		_, err = c.exec("VACUUM INTO ?", path)
		return errors.Join(err, c.close())
	})
	return fail("snapshot", "", err)
}

// build lets fill make a file and gives it its name, which must be free, when it is durable.
func build(ctx context.Context, to string, fill func(path string) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	if _, err := os.Lstat(to); err == nil {
		return fmt.Errorf("%s: %w", filepath.Base(to), os.ErrExist)
	}
	path := to + partial
	if err := removePartial(path); err != nil { // of a process that was killed
		return err
	}
	defer func() { err = errors.Join(err, removePartial(path)) }()
	if err := fill(path); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := syncFile(path); err != nil {
		return err
	}
	// Unlike a rename, a link never replaces what somebody else put there.
	if err := os.Link(path, to); err != nil {
		return fmt.Errorf("name the copy: %w", err)
	}
	return syncFile(filepath.Dir(to))
}

func removePartial(path string) error {
	var errs []error
	for _, suffix := range []string{"", "-journal", "-wal", "-shm"} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("remove what is incomplete: %w", err))
		}
	}
	return errors.Join(errs...)
}

// syncFile makes a file, or the names in a directory, durable.
func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("sync: %w", err)
	}
	return nil
}

// copyFile copies a database file that is not open.
func copyFile(ctx context.Context, from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	for {
		// In parts, to look at the context; the kernel copies them itself.
		n, err := io.CopyN(out, in, 64<<20)
		if err == nil {
			err = ctx.Err()
		}
		if errors.Is(err, io.EOF) && n >= 0 {
			break
		}
		if err != nil {
			return errors.Join(fmt.Errorf("copy: %w", err), out.Close())
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("copy: %w", err)
	}
	return nil
}

// changeCopy runs fn in one transaction of a copy that nobody else has open, and leaves one file
// without a log. Whatever fails, the copy is of no use then. Nothing is durable: the caller syncs.
func changeCopy(path string, inspect func(*conn) (chunk int64, err error), fn func(*tx) error) error {
	l := Location{Path: path}
	s := newSeat(l)
	c, err := s.connect()
	if err != nil {
		return err
	}
	err = func() error {
		for _, pragma := range []string{"journal_mode = DELETE", "synchronous = OFF", "secure_delete = ON"} {
			if _, err := c.row("PRAGMA " + pragma); err != nil {
				return fmt.Errorf("set %s: %w", pragma, err)
			}
		}
		if err := wide(c, l); err != nil {
			return err
		}
		chunk, err := inspect(c)
		if err != nil {
			return err
		}
		return s.transaction("BEGIN IMMEDIATE", func() error {
			t := newTx(c, &FS{location: l, chunk: chunk})
			if err := fn(t); err != nil {
				return err
			}
			return t.flush()
		})
	}()
	return errors.Join(err, s.disconnect())
}

// Export makes a copy of a snapshot that every AgentFS SDK opens: no holes, no short chunks in the
// middle, no inodes without a name, directories with one link a name as the SDKs count them, NULL
// for what a tool call has not. The tables of this package stay in it, so that Adopt keeps the
// ledger. To must be free (os.ErrExist); ErrNotExist, ErrSchema, ErrForeign or ErrDamaged for what
// is no snapshot.
func Export(ctx context.Context, snapshot, to string) error {
	err := build(ctx, to, func(path string) error {
		l := Location{Path: snapshot}
		if err := inspectFile(l); err != nil {
			return err
		}
		if err := copyFile(ctx, snapshot, path); err != nil {
			return err
		}
		return changeCopy(path, func(c *conn) (int64, error) {
			facts, err := inspect(c, Location{Path: path})
			return facts.chunk, err
		}, func(t *tx) error { return t.plain(ctx) })
	})
	return fail("export", "", err)
}

// plain turns the database into what an SDK without our rules reads rightly.
func (t *tx) plain(ctx context.Context) error {
	if err := t.dropOrphans(`SELECT ino FROM hw_orphan`); err != nil {
		return err
	}
	for _, statement := range []string{
		// The SDKs read the chunks there are, whatever the size says.
		`DELETE FROM fs_data WHERE chunk_index < 0 OR chunk_index * {chunk} >= coalesce((SELECT i.size FROM fs_inode i
			WHERE i.ino = fs_data.ino AND (i.mode & 61440) = 32768), 0)`,
		`UPDATE fs_data SET data = substr(CAST(data || zeroblob({chunk}) AS BLOB), 1, w.want) FROM (` +
			chunkFault("have <> want") + `) w WHERE w.ino = fs_data.ino AND w.chunk_index = fs_data.chunk_index`,
		`UPDATE tool_calls SET parameters = nullif(parameters, ''), result = nullif(result, ''), error = nullif(error, '')
			WHERE '' IN (parameters, result, error)`,
	} {
		if err := ctx.Err(); err != nil {
			return err
		}
		if _, err := t.exec(t.withChunk(statement)); err != nil {
			return fmt.Errorf("make content plain: %w", err)
		}
	}
	if err := t.fillHoles(ctx); err != nil {
		return err
	}
	if err := t.recount(); err != nil {
		return err
	}
	// An SDK frees a directory when its links, one a name, come to 0.
	_, err := t.exec(`UPDATE fs_inode SET nlink = 1 WHERE (mode & 61440) = 16384`)
	return err
}

// dropOrphans removes the inodes that the query selects with all that is keyed by them.
func (t *tx) dropOrphans(query string) error {
	if _, err := t.exec(`CREATE TEMP TABLE dropped AS ` + query); err != nil {
		return fmt.Errorf("find inodes without a name: %w", err)
	}
	for _, table := range []string{"fs_data", "fs_symlink", "hw_xattr", "hw_digest", "hw_hold", "hw_orphan", "fs_inode"} {
		if _, err := t.exec(`DELETE FROM ` + table + ` WHERE ino IN (SELECT ino FROM temp.dropped)`); err != nil {
			return fmt.Errorf("remove inodes without a name: %w", err)
		}
	}
	if _, err := t.exec(`DROP TABLE temp.dropped`); err != nil {
		return fmt.Errorf("remove inodes without a name: %w", err)
	}
	return nil
}

// fillHoles stores zeros for every chunk that is missing.
func (t *tx) fillHoles(ctx context.Context) error {
	type sparse struct{ ino, size int64 }
	for after := int64(0); ; {
		var page []sparse
		if err := t.each(t.withChunk(`SELECT i.ino, i.size FROM fs_inode i WHERE i.ino > ? AND (i.mode & 61440) = 32768 AND i.size > 0
			AND (SELECT count(*) FROM fs_data f WHERE f.ino = i.ino) < (i.size + {chunk} - 1) / {chunk}
			ORDER BY i.ino LIMIT 1000`), func(r row) error {
			page = append(page, sparse{r.int(0), r.int(1)})
			return nil
		}, after); err != nil {
			return fmt.Errorf("find holes: %w", err)
		}
		if len(page) == 0 {
			return nil
		}
		for _, s := range page {
			if err := ctx.Err(); err != nil {
				return err
			}
			if _, err := t.exec(t.withChunk(`INSERT OR IGNORE INTO fs_data (ino, chunk_index, data)
				WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE (i + 1) * {chunk} < ?1)
				SELECT ?2, i, zeroblob(min({chunk}, ?1 - i * {chunk})) FROM n`), s.size, s.ino); err != nil {
				return fmt.Errorf("fill holes: %w", err)
			}
		}
		after = page[len(page)-1].ino
	}
}
