package harness

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// AgentFSFile is the path of an organization's AgentFS database.
func (s *System) AgentFSFile(organization string) string {
	return filepath.Join(s.Dir, "data", "agentfs", "organizations", organization+".db")
}

// AgentFSBytes is how much an organization's AgentFS takes on disk, with its write-ahead log.
func (s *System) AgentFSBytes(organization string) (int64, error) {
	var sum int64
	for _, suffix := range []string{"", "-wal"} {
		info, err := os.Stat(s.AgentFSFile(organization) + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return 0, err
		}
		sum += info.Size()
	}
	return sum, nil
}

// Export writes a copy of an organization's AgentFS to a new file, which the system removes, and returns its path.
func (s *System) Export(ctx context.Context, organization string) (string, error) {
	f, err := os.CreateTemp(s.Dir, "export-*.db")
	if err != nil {
		return "", err
	}
	defer f.Close()
	if err := s.Client.ExportAgentFS(ctx, organization, "", f); err != nil {
		return "", fmt.Errorf("export the AgentFS of %s: %w", organization, err)
	}
	return f.Name(), f.Close()
}

// Restore replaces an organization's AgentFS by a database file.
func (s *System) Restore(ctx context.Context, organization, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return s.Client.RestoreAgentFS(ctx, organization, f, info.Size())
}

// Python runs a script with the Python of the Hermes installation, whose SQLite reads and writes databases with none of this project's
// code; in, if not nil, is its standard input as JSON, into what it prints.
func (s *System) Python(ctx context.Context, script string, in, into any, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(s.opts.Venv, "bin", "python"), append([]string{"-c", script}, args...)...)
	if in != nil {
		raw, err := json.Marshal(in)
		if err != nil {
			return err
		}
		cmd.Stdin = bytes.NewReader(raw)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("run Python: %w\n%s", err, stderr.String())
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(out, into); err != nil {
		return fmt.Errorf("read what Python printed: %w", err)
	}
	return nil
}

// Inode is a name in an AgentFS database, as any SQLite reads it.
type Inode struct {
	Path   string `json:"path"`
	Ino    int64  `json:"ino"`
	Mode   uint32 `json:"mode"`
	Nlink  int64  `json:"nlink"`
	Size   int64  `json:"size"`
	Mtime  int64  `json:"mtime"`
	Target string `json:"target"`
	SHA256 string `json:"sha256"` // regular files
}

const inspectAgentFS = `import hashlib, json, sqlite3, sys
db = sqlite3.connect("file:" + sys.argv[1] + "?mode=ro", uri=True)
chunk = int(db.execute("SELECT value FROM fs_config WHERE key = 'chunk_size'").fetchone()[0])
inodes = {r[0]: r for r in db.execute("SELECT ino, mode, nlink, size, mtime FROM fs_inode")}
targets = dict(db.execute("SELECT ino, target FROM fs_symlink"))
below = {}
for name, parent, ino in db.execute("SELECT name, parent_ino, ino FROM fs_dentry ORDER BY name"):
    below.setdefault(parent, []).append((name, ino))
hashes = {}

def content(ino, size):
    if ino in hashes:
        return hashes[ino]
    h, at = hashlib.sha256(), 0
    for index, data in db.execute("SELECT chunk_index, data FROM fs_data WHERE ino = ? ORDER BY chunk_index", (ino,)):
        h.update(bytes(index * chunk - at))
        h.update(data[:size - index * chunk])
        at = min(index * chunk + len(data), size)
    h.update(bytes(size - at))
    hashes[ino] = h.hexdigest()
    return hashes[ino]

found, queue = [], [("/", 1)]
while queue:
    path, ino = queue.pop()
    _, mode, nlink, size, mtime = inodes[ino]
    kind = mode & 0o170000
    found.append({"path": path, "ino": ino, "mode": mode, "nlink": nlink, "size": size, "mtime": mtime, "target": targets.get(ino, ""),
                  "sha256": content(ino, size) if kind == 0o100000 else ""})
    if kind == 0o040000:
        queue += [(path.rstrip("/") + "/" + name, child) for name, child in below.get(ino, [])]
found.sort(key=lambda f: f["path"])
json.dump(found, sys.stdout)
`

// Inodes reads every name of a copied-out AgentFS database.
func (s *System) Inodes(ctx context.Context, database string) ([]Inode, error) {
	var got []Inode
	err := s.Python(ctx, inspectAgentFS, nil, &got, database)
	return got, err
}

// Planted is a name that something else than this project puts into an AgentFS database.
type Planted struct {
	Path    string `json:"path"` // from the database's root; its directory exists
	Mode    uint32 `json:"mode"` // type and permissions; 0: the name is removed
	Content []byte `json:"content,omitempty"`
	Target  string `json:"target,omitempty"`
	// Size beyond the content is a hole.
	Size int64 `json:"size,omitempty"`
	// Count makes that many empty files f-000000, f-000001, ... in the directory Path.
	Count int `json:"count,omitempty"`
}

const plantAgentFS = `import base64, json, sqlite3, sys
db = sqlite3.connect(sys.argv[1])
chunk = int(db.execute("SELECT value FROM fs_config WHERE key = 'chunk_size'").fetchone()[0])
now = 1700000000

def lookup(path):
    ino = 1
    for name in [n for n in path.split("/") if n]:
        ino = db.execute("SELECT ino FROM fs_dentry WHERE parent_ino = ? AND name = ?", (ino, name)).fetchone()[0]
    return ino

def inode(mode, size):
    return db.execute("INSERT INTO fs_inode (mode, nlink, size, atime, mtime, ctime) VALUES (?, ?, ?, ?, ?, ?)",
                      (mode, 2 if mode & 0o170000 == 0o040000 else 1, size, now, now, now)).lastrowid

def link(parent, name, ino):
    db.execute("INSERT INTO fs_dentry (name, parent_ino, ino) VALUES (?, ?, ?)", (name, parent, ino))

for n in json.load(sys.stdin):
    directory, name = n["path"].rsplit("/", 1)
    parent = lookup(directory)
    if n.get("count"):
        parent = lookup(n["path"])
        for i in range(n["count"]):
            link(parent, "f-%06d" % i, inode(n["mode"], 0))
        continue
    if not n["mode"]:
        ino = lookup(n["path"])
        db.execute("DELETE FROM fs_dentry WHERE parent_ino = ? AND name = ?", (parent, name))
        for table in ("fs_inode", "fs_data", "fs_symlink"):
            db.execute("DELETE FROM %s WHERE ino = ?" % table, (ino,))
        continue
    data, target = base64.b64decode(n.get("content", "")), n.get("target", "")
    ino = inode(n["mode"], max(len(data), n.get("size", 0), len(target.encode())))
    link(parent, name, ino)
    if n["mode"] & 0o170000 == 0o040000:
        db.execute("UPDATE fs_inode SET nlink = nlink + 1 WHERE ino = ?", (parent,))
    if target:
        db.execute("INSERT INTO fs_symlink (ino, target) VALUES (?, ?)", (ino, target))
    if n.get("size", 0) > len(data): # only the last chunk of a file may be short
        data += bytes(-len(data) % chunk)
    for i in range(0, len(data), chunk):
        db.execute("INSERT INTO fs_data (ino, chunk_index, data) VALUES (?, ?, ?)", (ino, i // chunk, data[i:i + chunk]))
db.commit()
db.close()
`

// Plant changes a copied-out AgentFS database as one of the official SDKs could.
func (s *System) Plant(ctx context.Context, database string, nodes ...Planted) error {
	return s.Python(ctx, plantAgentFS, nodes, nil, database)
}

// ResetPeak makes a service's peak of resident memory what it has now.
func (s *System) ResetPeak(name string) error {
	return os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", s.all[name].Pid()), []byte("5"), 0)
}

// Peak is a service's peak of resident memory in bytes.
func (s *System) Peak(name string) (int64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.all[name].Pid()))
	if err != nil {
		return 0, err
	}
	_, rest, found := strings.Cut(string(raw), "VmHWM:")
	fields := strings.Fields(rest)
	if !found || len(fields) == 0 {
		return 0, fmt.Errorf("no VmHWM in the status of %s", name)
	}
	kib, err := strconv.ParseInt(fields[0], 10, 64)
	return kib << 10, err
}

// FileDigest is the hexadecimal SHA-256 of a file of this host.
func FileDigest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Holding returns the files below a directory that hold one of the texts, by their path from it.
func Holding(dir string, texts ...[]byte) (map[string]int, error) {
	found := map[string]int{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) { // it was removed meanwhile
				return nil
			}
			return err
		}
		if !d.Type().IsRegular() {
			return nil
		}
		raw, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, text := range texts {
			if n := bytes.Count(raw, text); n > 0 {
				rel, err := filepath.Rel(dir, path)
				if err != nil {
					return err
				}
				found[rel] += n
			}
		}
		return nil
	})
	return found, err
}
