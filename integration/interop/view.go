package interop

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	_ "github.com/tursodatabase/go-libsql" // the engine

	"humanwork.internal/pkg/agentfs"
)

var viewer = agentfs.Caller{Actor: "interop"}

const page = 1000

// View returns what pkg/agentfs sees in one of its databases, and fails if it finds a fault there.
func View(ctx context.Context, file string) (t Tree, err error) {
	if t.KV, err = pairs(ctx, file); err != nil {
		return t, err
	}
	fs, err := agentfs.Open(ctx, agentfs.Options{Location: agentfs.Location{Path: file}})
	if err != nil {
		return t, fmt.Errorf("open the database: %w", err)
	}
	defer func() { err = errors.Join(err, fs.Close()) }()
	report, err := fs.Check(ctx, false)
	if err != nil {
		return t, fmt.Errorf("check the database: %w", err)
	}
	if len(report.Faults) > 0 {
		return t, fmt.Errorf("the database has %d faults, the first: %+v", len(report.Faults), report.Faults[0])
	}
	root, err := fs.Stat(ctx, agentfs.Root)
	if err != nil {
		return t, fmt.Errorf("stat the root: %w", err)
	}
	t.Nodes = []Node{nodeOf("/", root)}
	if err := t.walk(ctx, fs, "/", agentfs.Root); err != nil {
		return t, err
	}
	for after := int64(0); ; {
		calls, err := fs.ToolCalls(ctx, agentfs.Query{After: after, Limit: page})
		if err != nil {
			return t, fmt.Errorf("list tool calls: %w", err)
		}
		for _, c := range calls {
			t.ToolCalls = append(t.ToolCalls, callOf(c))
			after = c.Position
		}
		if len(calls) < page {
			return t, nil
		}
	}
}

func (t *Tree) walk(ctx context.Context, fs *agentfs.FS, path string, dir agentfs.Ino) error {
	if path == "/" {
		path = ""
	}
	for after := ""; ; {
		entries, err := fs.ReadDir(ctx, dir, after, page)
		if err != nil {
			return fmt.Errorf("list %s: %w", path, err)
		}
		for _, e := range entries {
			n := nodeOf(path+"/"+e.Name, e.Attr)
			switch e.Attr.Type() {
			case agentfs.TypeFile:
				err = n.read(ctx, fs)
			case agentfs.TypeSymlink:
				n.Target, err = fs.Readlink(ctx, e.Attr.Ino)
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", n.Path, err)
			}
			t.Nodes = append(t.Nodes, n)
			if e.Attr.IsDir() {
				if err := t.walk(ctx, fs, n.Path, e.Attr.Ino); err != nil {
					return err
				}
			}
			after = e.Name
		}
		if len(entries) < page {
			return nil
		}
	}
}

func (n *Node) read(ctx context.Context, fs *agentfs.FS) (err error) {
	file, err := fs.Open(ctx, viewer, agentfs.Ino(n.Ino), os.O_RDONLY)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	sum := sha256.New()
	n.Read, err = io.CopyBuffer(sum, io.NewSectionReader(file, 0, 1<<62), make([]byte, 1<<20))
	n.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return err
}

func nodeOf(path string, a agentfs.Attr) Node {
	return Node{Path: path, Ino: int64(a.Ino), Mode: a.Mode, Nlink: int64(a.Nlink), UID: int64(a.UID), GID: int64(a.GID), Size: a.Size, Mtime: a.Mtime.Unix()}
}

func callOf(c agentfs.ToolCall) ToolCall {
	out := ToolCall{ID: c.ID, Name: c.Name, Parameters: json.RawMessage(c.Parameters), Result: json.RawMessage(c.Result),
		Status: c.Status, StartedAt: c.Started.Unix()}
	if c.Error != "" {
		out.Error = &c.Error
	}
	if !c.Completed.IsZero() {
		completed, ms := c.Completed.Unix(), c.Duration.Milliseconds()
		out.CompletedAt, out.DurationMS = &completed, &ms
	}
	return out
}

// pairs reads kv_store, which pkg/agentfs keeps and does not use, from a database that nobody has open.
func pairs(ctx context.Context, file string) (out []Pair, err error) {
	db, err := sql.Open("libsql", "file:"+file)
	if err != nil {
		return nil, fmt.Errorf("open the database: %w", err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	// As blobs: the driver makes a time of a text that looks like one.
	rows, err := db.QueryContext(ctx, `SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM kv_store ORDER BY key`)
	if err != nil {
		return nil, fmt.Errorf("read kv_store: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var k, v []byte
		if err := rows.Scan(&k, &v); err != nil {
			return nil, fmt.Errorf("read kv_store: %w", err)
		}
		out = append(out, Pair{Key: string(k), Value: v})
	}
	return out, rows.Err()
}
