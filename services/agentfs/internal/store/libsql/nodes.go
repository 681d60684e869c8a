package libsql

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/tree"
)

func (d *database) plant(ctx context.Context, nodes []tree.Node) error {
	return d.transaction(ctx, "BEGIN IMMEDIATE", func() error {
		_, err := d.lookup(ctx, nodes[0].Path)
		if err == nil {
			return nil
		}
		if !errors.Is(err, tree.ReasonFileNotFound) {
			return err
		}
		return d.writeNodes(ctx, nodes)
	})
}

func (d *database) writeNodes(ctx context.Context, nodes []tree.Node) error {
	now := time.Now()
	for _, n := range nodes {
		if err := d.writeNode(ctx, n, now); err != nil {
			return fmt.Errorf("write %s: %w", n.Path, err)
		}
	}
	return nil
}

func (d *database) writeNode(ctx context.Context, n tree.Node, now time.Time) error {
	parent, err := d.lookup(ctx, path.Dir(n.Path))
	if err != nil {
		return err
	}
	// A directory is linked by its parent's entry and its own ".", and links its parent by "..".
	mode, nlink, up := tree.FileMode, 1, 0
	if n.Dir {
		mode, nlink, up = tree.DirMode, 2, 1
	}
	sec, nsec := now.Unix(), now.Nanosecond()
	res, err := d.conn.ExecContext(ctx, `INSERT INTO fs_inode
		(mode, nlink, size, atime, mtime, ctime, atime_nsec, mtime_nsec, ctime_nsec) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
		mode, nlink, len(n.Content), sec, sec, sec, nsec, nsec, nsec)
	if err != nil {
		return fmt.Errorf("insert inode: %w", err)
	}
	ino, err := res.LastInsertId()
	if err != nil {
		return fmt.Errorf("insert inode: %w", err)
	}
	if _, err := d.conn.ExecContext(ctx, `INSERT INTO fs_dentry (name, parent_ino, ino) VALUES (?, ?, ?)`,
		path.Base(n.Path), parent, ino); err != nil {
		return fmt.Errorf("insert entry: %w", err)
	}
	if _, err := d.conn.ExecContext(ctx, `UPDATE fs_inode SET nlink = nlink + ?,
		mtime = ?, ctime = ?, mtime_nsec = ?, ctime_nsec = ? WHERE ino = ?`, up, sec, sec, nsec, nsec, parent); err != nil {
		return fmt.Errorf("touch directory: %w", err)
	}
	for i := int64(0); i*d.chunkSize < int64(len(n.Content)); i++ {
		chunk := n.Content[i*d.chunkSize : min((i+1)*d.chunkSize, int64(len(n.Content)))]
		if _, err := d.conn.ExecContext(ctx, `INSERT INTO fs_data (ino, chunk_index, data) VALUES (?, ?, ?)`, ino, i, chunk); err != nil {
			return fmt.Errorf("insert content: %w", err)
		}
	}
	return nil
}

// lookup returns the inode at a canonical path. Symlinks are not followed.
func (d *database) lookup(ctx context.Context, p string) (int64, error) {
	names, err := tree.Split(p)
	if err != nil {
		return 0, err
	}
	ino := int64(tree.RootInode)
	for _, name := range names {
		ino, err = d.integer(ctx, `SELECT ino FROM fs_dentry WHERE parent_ino = ? AND name = ?`, ino, name)
		if errors.Is(err, sql.ErrNoRows) {
			return 0, errs.New(errs.NotFound, tree.ReasonFileNotFound, "%s does not exist", p)
		}
		if err != nil {
			return 0, fmt.Errorf("look up %s: %w", p, err)
		}
	}
	return ino, nil
}

func (d *database) readFiles(ctx context.Context, paths []string, limit int64) ([][]byte, error) {
	contents := make([][]byte, 0, len(paths))
	err := d.transaction(ctx, "BEGIN", func() error {
		for _, p := range paths {
			c, err := d.readFile(ctx, p, limit)
			if err != nil {
				return err
			}
			contents = append(contents, c)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return contents, nil
}

func (d *database) readFile(ctx context.Context, p string, limit int64) ([]byte, error) {
	ino, err := d.lookup(ctx, p)
	if err != nil {
		return nil, err
	}
	var mode, size int64
	err = d.conn.QueryRowContext(ctx, `SELECT mode, size FROM fs_inode WHERE ino = ?`, ino).Scan(&mode, &size)
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && size < 0:
		return nil, damaged("an entry has no valid inode")
	case err != nil:
		return nil, fmt.Errorf("read inode of %s: %w", p, err)
	case mode&tree.TypeMask != tree.TypeFile:
		return nil, errs.New(errs.Precondition, tree.ReasonNotAFile, "%s is not a regular file", p)
	case size > limit:
		return nil, errs.New(errs.Exhausted, tree.ReasonFileTooLarge, "%s has %d bytes, want at most %d", p, size, limit)
	}
	// Holes, short chunks and chunks beyond the size are legal in what an SDK wrote.
	content := make([]byte, size)
	rows, err := d.conn.QueryContext(ctx, `SELECT chunk_index, data FROM fs_data
		WHERE ino = ? AND chunk_index BETWEEN 0 AND ? ORDER BY chunk_index`, ino, size/d.chunkSize)
	if err != nil {
		return nil, fmt.Errorf("read content of %s: %w", p, err)
	}
	for rows.Next() {
		var index int64
		var data []byte
		if err := rows.Scan(&index, &data); err != nil {
			return nil, errors.Join(fmt.Errorf("read content of %s: %w", p, err), rows.Close())
		}
		at := index * d.chunkSize
		copy(content[min(at, size):min(at+d.chunkSize, size)], data)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return nil, fmt.Errorf("read content of %s: %w", p, err)
	}
	return content, nil
}
