package sdks

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOnlyCompleteInstallationsCount(t *testing.T) {
	dir := t.TempDir()
	whole := Installation{Python: filepath.Join(dir, "env-1", "bin", "python"), Node: filepath.Join(dir, "env-1", "node"), Locks: locks()}
	for _, path := range []string{whole.Python, filepath.Join(whole.Node, "bin", "node")} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	with := func(change func(*Installation)) *Installation {
		i := whole
		change(&i)
		return &i
	}
	for name, c := range map[string]struct {
		stamp *Installation
		want  bool
	}{
		"complete":        {&whole, true},
		"interrupted":     {nil, false},
		"other locks":     {with(func(i *Installation) { i.Locks = "0" }), false},
		"moved":           {with(func(i *Installation) { i.Node = "/elsewhere/env-1/node" }), false},
		"without Python":  {with(func(i *Installation) { i.Python += "9" }), false},
		"without Node.js": {with(func(i *Installation) { i.Node = filepath.Join(dir, "env-1", "other") }), false},
	} {
		t.Run(name, func(t *testing.T) {
			stamp := filepath.Join(dir, stampName)
			if err := os.RemoveAll(stamp); err != nil {
				t.Fatal(err)
			}
			if c.stamp != nil {
				data, err := json.Marshal(c.stamp)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(stamp, data, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := finished(dir) != nil; got != c.want {
				t.Errorf("finished = %t, want %t", got, c.want)
			}
		})
	}
}

// A registry's address in a lock would be this machine's; a package without a digest could be any.
func TestLocksPin(t *testing.T) {
	var parsed struct {
		Packages map[string]struct{ Version, Integrity, Resolved string }
	}
	if err := json.Unmarshal(lock, &parsed); err != nil {
		t.Fatal(err)
	}
	for name, p := range parsed.Packages {
		if name != "" && (p.Version == "" || !strings.HasPrefix(p.Integrity, "sha512-") || p.Resolved != "") {
			t.Errorf("%s = %+v, want a version and a digest, and no address", name, p)
		}
	}
	var pins, hashes int
	for line := range strings.Lines(string(requirements)) {
		switch {
		case strings.Contains(line, "=="):
			pins++
		case strings.Contains(line, "--hash=sha256:"):
			hashes++
		}
	}
	// The comment at the top has one more.
	if pins != 5 || hashes != 6 {
		t.Errorf("%d pins and %d hashes, want 5 and 6", pins, hashes)
	}
}
