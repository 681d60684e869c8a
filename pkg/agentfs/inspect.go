package agentfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

const sqliteMagic = "SQLite format 3\x00"

// quickCheckBytes is up to which size opening looks at every page, which takes some 50 ms there;
// opening a larger file costs the same whatever its size, and Check looks at every page.
const quickCheckBytes = 32 << 20

// inspectFile refuses what SQLite should not even open.
func inspectFile(l Location) error {
	if l.remote() {
		return nil
	}
	info, err := os.Lstat(l.Path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return ErrNotExist
	case err != nil:
		return fmt.Errorf("look at the file: %w", err)
	case !info.Mode().IsRegular():
		return fmt.Errorf("%w: not a regular file", ErrForeign)
	case info.Size() == 0:
		return ErrNotExist
	}
	// Closing a descriptor of a file drops all locks of this process on it. No connection of this
	// process to it is open yet.
	file, err := os.Open(l.Path)
	if err != nil {
		return fmt.Errorf("look at the file: %w", err)
	}
	head := make([]byte, 100)
	n, err := file.ReadAt(head, 0)
	file.Close()
	if err != nil && !errors.Is(err, io.EOF) { // a file of fewer bytes ends early
		return fmt.Errorf("read the header: %w", err)
	}
	if n < len(head) || string(head[:len(sqliteMagic)]) != sqliteMagic {
		return fmt.Errorf("%w: not an SQLite database", ErrForeign)
	}
	page := int64(binary.BigEndian.Uint16(head[16:]))
	if page == 1 {
		page = 65536
	}
	pages := int64(binary.BigEndian.Uint32(head[28:]))
	// The number of pages counts if the same change wrote it as the rest; a log may hold the others.
	if _, err := os.Lstat(l.Path + "-wal"); errors.Is(err, os.ErrNotExist) &&
		string(head[24:28]) == string(head[92:96]) && info.Size() < page*pages {
		return fmt.Errorf("%w: it was cut short", ErrDamaged)
	}
	return nil
}

type facts struct {
	chunk      int64
	generation string
}

// inspect checks that the database is one of this package and reads what an FS must know of it.
func inspect(c *conn, l Location) (facts, error) {
	none := facts{}
	chunk, err := inspectSpecified(c)
	if err != nil {
		return none, err
	}
	missing, err := missingTables(c, extensionTables)
	if err != nil {
		return none, err
	}
	if slices.Contains(missing, "hw_meta") {
		return none, fmt.Errorf("%w: it was made by an SDK and not adopted", ErrSchema)
	}
	meta := map[string]string{}
	if err := c.each(`SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM hw_meta`, func(r row) error {
		meta[r.text(0)] = r.text(1)
		return nil
	}); err != nil {
		return none, fmt.Errorf("inspect: %w", err)
	}
	switch {
	case meta["format"] != format:
		return none, fmt.Errorf("%w: format %q, want %q", ErrSchema, meta["format"], format)
	case len(missing) > 0:
		return none, fmt.Errorf("%w: it has no table %s", ErrDamaged, missing[0])
	case meta["generation"] == "" || meta["writer"] == "":
		return none, fmt.Errorf("%w: hw_meta is incomplete", ErrDamaged)
	}
	if !l.remote() {
		if info, err := os.Stat(l.Path); err != nil {
			return none, fmt.Errorf("look at the file: %w", err)
		} else if info.Size() > quickCheckBytes {
			return facts{chunk, meta["generation"]}, nil
		}
		verdict, err := c.row("PRAGMA quick_check(1)")
		if err != nil {
			return none, fmt.Errorf("check: %w", err)
		}
		if v := verdict.text(0); v != "ok" {
			return none, fmt.Errorf("%w: %s", ErrDamaged, v)
		}
	}
	return facts{chunk, meta["generation"]}, nil
}

// inspectSpecified checks what every AgentFS has, whoever made it, and returns its chunk size.
func inspectSpecified(c *conn) (chunk int64, err error) {
	r, err := c.row("SELECT count(*) FROM sqlite_master")
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if r.int(0) == 0 {
		return 0, ErrNotExist
	}
	missing, err := missingTables(c, tables)
	if err != nil {
		return 0, err
	}
	if slices.Contains(missing, "fs_config") {
		return 0, fmt.Errorf("%w: it has other tables", ErrForeign)
	}
	config := map[string]string{}
	if err := c.each(`SELECT CAST(key AS BLOB), CAST(value AS BLOB) FROM fs_config`, func(r row) error {
		config[r.text(0)] = r.text(1)
		return nil
	}); err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if v := config["schema_version"]; v != SchemaVersion {
		return 0, fmt.Errorf("%w: version %q, want %q", ErrSchema, v, SchemaVersion)
	}
	if len(missing) > 0 {
		return 0, fmt.Errorf("%w: it has no table %s", ErrDamaged, missing[0])
	}
	chunk, err = strconv.ParseInt(config["chunk_size"], 10, 64)
	if err != nil || chunk <= 0 || chunk > maxChunk {
		return 0, fmt.Errorf("%w: its chunk size is not a number from 1 to %d", ErrDamaged, maxChunk)
	}
	r, err = c.row("SELECT mode FROM fs_inode WHERE ino = 1")
	if err != nil {
		return 0, fmt.Errorf("inspect: %w", err)
	}
	if r == nil || r.int(0)&TypeMask != TypeDir {
		return 0, fmt.Errorf("%w: it has no root directory", ErrDamaged)
	}
	return chunk, nil
}

// missingTables returns which of the names are no tables of the database.
func missingTables(c *conn, names []string) ([]string, error) {
	missing := slices.Clone(names)
	args := make([]any, len(names))
	for i, n := range names {
		args[i] = n
	}
	err := c.each(`SELECT CAST(name AS BLOB) FROM sqlite_master WHERE type = 'table' AND name IN (?`+
		strings.Repeat(", ?", len(names)-1)+`)`, func(r row) error {
		missing = slices.DeleteFunc(missing, func(n string) bool { return n == r.text(0) })
		return nil
	}, args...)
	if err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return missing, nil
}
