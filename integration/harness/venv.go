package harness

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// recorder is a hermes-acp that copies its standard input, byte for byte and before Hermes reads
// it, beside the organization's state.db, the one place of its view that outlives it. It changes
// no module of Hermes: it puts a pipe in front of the entry point.
const recorder = `import os, sys, threading

os.umask(0o077)
place = os.path.dirname(os.path.realpath(os.path.join(os.environ["HERMES_HOME"], "state.db")))
for number in range(1000000):
    try:
        copy = os.open(os.path.join(place, "stdin.%06d" % number), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        break
    except FileExistsError:
        pass
source = os.dup(0)
reader, writer = os.pipe()
os.dup2(reader, 0)
os.close(reader)


def write_all(fd, data):
    while data:
        data = data[os.write(fd, data):]


def tee():
    while True:
        data = os.read(source, 1 << 16)
        if not data:
            break
        write_all(copy, data)
        try:
            write_all(writer, data)
        except BrokenPipeError:
            break
    os.close(writer)


threading.Thread(target=tee, daemon=True).start()

from acp_adapter.entry import main

sys.exit(main())
`

// RecordingVenv makes a copy of a Hermes installation whose hermes-acp records its standard input;
// Recorded reads it. Files are linked where the file system allows.
func RecordingVenv(t T) string {
	t.Helper()
	dir := copyVenv(t)
	entry := filepath.Join(dir, "bin", "hermes-acp")
	if err := os.Remove(entry); err != nil { // or the write below would change the original
		t.Fatalf("copy Hermes: %v", err)
	}
	if err := os.WriteFile(entry, []byte(recorder), 0o755); err != nil {
		t.Fatalf("copy Hermes: %v", err)
	}
	return dir
}

func copyVenv(t T) string {
	t.Helper()
	source := os.Getenv(HermesVariable)
	if source == "" {
		t.Fatalf("%s is not set", HermesVariable)
	}
	dir, err := os.MkdirTemp("", "hwvenv-")
	if err != nil {
		t.Fatalf("make a directory for a copy of Hermes: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the copy of Hermes: %v", err)
		}
	})
	if err := copyTree(source, dir); err != nil {
		t.Fatalf("copy Hermes: %v", err)
	}
	return dir
}

// Movable is a copy of a Hermes installation that can go missing.
type Movable struct {
	Path string
	t    T
}

// MovableVenv makes one.
func MovableVenv(t T) *Movable {
	t.Helper()
	return &Movable{Path: copyVenv(t), t: t}
}

// Away makes Hermes's entry point go missing, Back brings it back.
func (m *Movable) Away() { m.rename("hermes-acp", "hermes-acp.away") }

// Back ends Away.
func (m *Movable) Back() { m.rename("hermes-acp.away", "hermes-acp") }

func (m *Movable) rename(from, to string) {
	m.t.Helper()
	if err := os.Rename(filepath.Join(m.Path, "bin", from), filepath.Join(m.Path, "bin", to)); err != nil {
		m.t.Fatalf("move Hermes: %v", err)
	}
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		switch {
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Type()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		case os.Link(path, target) == nil:
			return nil
		}
		return copyFile(path, target)
	})
}

func copyFile(from, to string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	raw, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.WriteFile(to, raw, info.Mode().Perm()); err != nil {
		return err
	}
	// Python trusts its compiled files by the source's modification time.
	return os.Chtimes(to, info.ModTime(), info.ModTime())
}

// OtherVenv makes an installation that says it is another version of Hermes; empty version: no
// Hermes at all.
func OtherVenv(t T, version string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hwvenv-")
	if err != nil {
		t.Fatalf("make a directory for a Hermes of another version: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // a few small files in the system's own place for them
	if version == "" {
		return dir
	}
	info := filepath.Join(dir, "lib", "python3.11", "site-packages", "hermes_agent-"+version+".dist-info")
	for _, d := range []string{info, filepath.Join(dir, "bin")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatalf("make a Hermes of another version: %v", err)
		}
	}
	files := map[string]string{filepath.Join(info, "METADATA"): "Metadata-Version: 2.4\nName: hermes-agent\nVersion: " + version + "\n\n",
		filepath.Join(dir, "bin", "hermes-acp"): "raise SystemExit('never run')\n"}
	for path, text := range files {
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatalf("make a Hermes of another version: %v", err)
		}
	}
	return dir
}

// Prompt is one session/prompt as the child read it.
type Prompt struct {
	SessionID string
	// Blocks are the exact bytes of the content blocks.
	Blocks [][]byte
}

// Recorded returns every prompt that children of an organization read, by child and in order. The
// system must run with RecordingVenv.
func (s *System) Recorded(organization string) ([]Prompt, error) {
	files, err := filepath.Glob(filepath.Join(s.SessionDir(organization), "stdin.*"))
	if err != nil {
		return nil, err
	}
	var all []Prompt
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(raw)) {
			if !strings.HasSuffix(line, "\n") {
				break // the child was killed while it read
			}
			var m struct {
				Method string `json:"method"`
				Params struct {
					SessionID string            `json:"sessionId"`
					Prompt    []json.RawMessage `json:"prompt"`
				} `json:"params"`
			}
			if err := json.Unmarshal([]byte(line), &m); err != nil {
				return nil, fmt.Errorf("a line at the child's stdin is not JSON: %w: %.100q", err, line)
			}
			if m.Method != "session/prompt" {
				continue
			}
			p := Prompt{SessionID: m.Params.SessionID}
			for _, b := range m.Params.Prompt {
				p.Blocks = append(p.Blocks, b)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// SessionDir is the directory of an organization's state.db on the cell.
func (s *System) SessionDir(organization string) string {
	return filepath.Join(s.Dir, "data", "cell", "sessions", organization)
}
