package libsql

import (
	"strconv"

	"humanwork.internal/services/agentfs/internal/tree"
)

const (
	schemaVersion    = "0.4"
	defaultChunkSize = 4096
)

// schema is AgentFS 0.4 as its specification and official SDKs have it, a statement each because
// the driver runs one at a time. No triggers, FTS tables, generated columns or auto_vacuum: other
// engines refuse such a file.
var schema = []string{
	`CREATE TABLE fs_config (key TEXT PRIMARY KEY, value TEXT NOT NULL)`,
	`CREATE TABLE fs_inode (
		ino INTEGER PRIMARY KEY AUTOINCREMENT,
		mode INTEGER NOT NULL,
		nlink INTEGER NOT NULL DEFAULT 0,
		uid INTEGER NOT NULL DEFAULT 0,
		gid INTEGER NOT NULL DEFAULT 0,
		size INTEGER NOT NULL DEFAULT 0,
		atime INTEGER NOT NULL,
		mtime INTEGER NOT NULL,
		ctime INTEGER NOT NULL,
		rdev INTEGER NOT NULL DEFAULT 0,
		atime_nsec INTEGER NOT NULL DEFAULT 0,
		mtime_nsec INTEGER NOT NULL DEFAULT 0,
		ctime_nsec INTEGER NOT NULL DEFAULT 0
	)`,
	`CREATE TABLE fs_dentry (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		name TEXT NOT NULL,
		parent_ino INTEGER NOT NULL,
		ino INTEGER NOT NULL,
		UNIQUE(parent_ino, name)
	)`,
	`CREATE INDEX idx_fs_dentry_parent ON fs_dentry(parent_ino, name)`,
	`CREATE TABLE fs_data (
		ino INTEGER NOT NULL,
		chunk_index INTEGER NOT NULL,
		data BLOB NOT NULL,
		PRIMARY KEY (ino, chunk_index)
	)`,
	`CREATE TABLE fs_symlink (ino INTEGER PRIMARY KEY, target TEXT NOT NULL)`,
	`CREATE TABLE fs_whiteout (
		path TEXT PRIMARY KEY,
		parent_path TEXT NOT NULL DEFAULT '',
		created_at INTEGER NOT NULL
	)`,
	`CREATE INDEX idx_fs_whiteout_parent ON fs_whiteout(parent_path)`,
	`CREATE TABLE fs_origin (delta_ino INTEGER PRIMARY KEY, base_ino INTEGER NOT NULL)`,
	`CREATE TABLE fs_overlay_config (key TEXT PRIMARY KEY, value TEXT NOT NULL)`,
	`CREATE TABLE kv_store (
		key TEXT PRIMARY KEY,
		value TEXT NOT NULL,
		created_at INTEGER DEFAULT (unixepoch()),
		updated_at INTEGER DEFAULT (unixepoch())
	)`,
	`CREATE INDEX idx_kv_store_created_at ON kv_store(created_at)`,
	`CREATE TABLE tool_calls (
		id INTEGER PRIMARY KEY AUTOINCREMENT,
		name TEXT NOT NULL,
		parameters TEXT,
		result TEXT,
		error TEXT,
		status TEXT NOT NULL DEFAULT 'pending',
		started_at INTEGER NOT NULL,
		completed_at INTEGER,
		duration_ms INTEGER
	)`,
	`CREATE INDEX idx_tool_calls_name ON tool_calls(name)`,
	`CREATE INDEX idx_tool_calls_started_at ON tool_calls(started_at)`,
	`INSERT INTO fs_config (key, value) VALUES
		('chunk_size', '` + strconv.Itoa(defaultChunkSize) + `'), ('schema_version', '` + schemaVersion + `')`,
	`INSERT INTO fs_inode (ino, mode, nlink, atime, mtime, ctime)
		VALUES (` + strconv.Itoa(tree.RootInode) + `, ` + strconv.Itoa(tree.RootMode) + `, 2, unixepoch(), unixepoch(), unixepoch())`,
}

// tables are what a database must have to be an AgentFS.
var tables = []string{"fs_config", "fs_inode", "fs_dentry", "fs_data", "fs_symlink", "fs_whiteout", "fs_origin",
	"fs_overlay_config", "kv_store", "tool_calls"}
