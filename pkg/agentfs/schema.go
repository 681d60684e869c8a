package agentfs

// SchemaVersion is the version of the AgentFS specification that the databases follow.
const SchemaVersion = "0.4"

// format is the version of this package's own tables, prefixed hw_; another one is refused.
const format = "1"

// Of new databases; others are honoured.
const (
	chunkSize = 16384
	pageSize  = 4096
)

// maxChunk bounds the chunk size of databases that others made.
const maxChunk = 1 << 20

// checkpointPages is how many pages the write-ahead log may have before a commit folds it in.
const checkpointPages = 4096

// specified is AgentFS 0.4 as its specification and official SDKs have it, a statement each because
// the driver runs one at a time. No triggers, FTS tables, generated columns or auto_vacuum: other
// engines refuse such a file. The two columns of fs_inode that begin with hw_ are ours: the content
// version, and the inode of the directory whose quota the inode counts in (0: the organization's).
var specified = []string{
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
}

// extension is what this package adds to a database of the specification, new or restored from one
// that an SDK made.
var extension = []string{
	`ALTER TABLE fs_inode ADD COLUMN hw_version INTEGER NOT NULL DEFAULT 0`,
	`ALTER TABLE fs_inode ADD COLUMN hw_project INTEGER NOT NULL DEFAULT 0`,
	`CREATE INDEX hw_dentry_ino ON fs_dentry(ino)`,
	// format, generation (which database this is: new after every restore), writer (whose id range
	// new rows take), announced (position of the ledger up to which others were told).
	`CREATE TABLE hw_meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID`,
	// One row a writer: ids lie in [writer << 32, (writer + 1) << 32), so that rows made on both
	// sides never collide; all stay below 2^53, which TypeScript needs. The ledger's chain is the
	// writer's own.
	`CREATE TABLE hw_writer (
		writer INTEGER PRIMARY KEY,
		next_id INTEGER NOT NULL,
		ledger_sequence INTEGER NOT NULL DEFAULT 0,
		ledger_hash BLOB NOT NULL
	)`,
	// Use of each quota: of the whole database (0) and of each directory that has its own. Bytes
	// are sizes, not what is stored: a hole counts, because an export fills it.
	`CREATE TABLE hw_project (
		project INTEGER PRIMARY KEY,
		bytes INTEGER NOT NULL DEFAULT 0,
		files INTEGER NOT NULL DEFAULT 0
	)`,
	// Inodes without a name that somebody has open. After a crash nobody has.
	`CREATE TABLE hw_orphan (ino INTEGER PRIMARY KEY)`,
	`CREATE TABLE hw_xattr (
		ino INTEGER NOT NULL,
		name BLOB NOT NULL,
		value BLOB NOT NULL,
		PRIMARY KEY (ino, name)
	) WITHOUT ROWID`,
	// SHA-256 of the content of one version.
	`CREATE TABLE hw_digest (
		ino INTEGER PRIMARY KEY,
		version INTEGER NOT NULL,
		sha256 BLOB NOT NULL
	)`,
	// A file that a turn still needs.
	`CREATE TABLE hw_hold (
		holder TEXT NOT NULL,
		ino INTEGER NOT NULL,
		created INTEGER NOT NULL,
		PRIMARY KEY (holder, ino)
	) WITHOUT ROWID`,
	`CREATE INDEX hw_hold_ino ON hw_hold(ino)`,
	// Which rows changed, in order, for replication; the rows themselves say how. A row that is not
	// there any more was deleted. See change.go for what each kind's columns hold.
	`CREATE TABLE hw_change (
		sequence INTEGER PRIMARY KEY AUTOINCREMENT,
		writer INTEGER NOT NULL,
		kind INTEGER NOT NULL,
		ino INTEGER NOT NULL,
		name BLOB,
		first INTEGER,
		last INTEGER,
		base INTEGER,
		version INTEGER
	)`,
	`CREATE TABLE hw_ledger (
		position INTEGER PRIMARY KEY AUTOINCREMENT,
		writer INTEGER NOT NULL,
		sequence INTEGER NOT NULL,
		time INTEGER NOT NULL,
		actor TEXT NOT NULL,
		action TEXT NOT NULL,
		project INTEGER NOT NULL,
		ino INTEGER NOT NULL,
		mode INTEGER NOT NULL,
		path TEXT NOT NULL,
		target TEXT,
		version INTEGER NOT NULL,
		size INTEGER NOT NULL,
		tool_call INTEGER,
		hash BLOB NOT NULL,
		UNIQUE (writer, sequence)
	)`,
	`CREATE INDEX hw_ledger_project ON hw_ledger(project, position)`,
}

// tables must be in a database for it to be an AgentFS; ours as well for it to be one of this
// package's.
var (
	tables = []string{"fs_config", "fs_inode", "fs_dentry", "fs_data", "fs_symlink", "fs_whiteout", "fs_origin",
		"fs_overlay_config", "kv_store", "tool_calls"}
	extensionTables = []string{"hw_meta", "hw_writer", "hw_project", "hw_orphan", "hw_xattr", "hw_digest", "hw_hold",
		"hw_change", "hw_ledger"}
)
