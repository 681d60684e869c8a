package hermes

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

func TestCheck(t *testing.T) {
	for name, tc := range map[string]struct {
		program  bool
		versions map[string]string // version in the directory's name -> METADATA
		want     string            // in the message; empty: no error
	}{
		"right":          {true, map[string]string{"0.19.0": "Name: hermes-agent\nVersion: 0.19.0\n\nVersion: 9\n"}, ""},
		"no program":     {false, map[string]string{"0.19.0": "Version: 0.19.0\n"}, "hermes-acp is missing"},
		"no package":     {true, nil, "holds no hermes-agent"},
		"older":          {true, map[string]string{"0.18.2": "Version: 0.18.2\n"}, `hermes-agent "0.18.2"`},
		"two":            {true, map[string]string{"0.19.0": "Version: 0.19.0\n", "0.20.0": "Version: 0.20.0\n"}, `hermes-agent "0.20.0"`},
		"no version":     {true, map[string]string{"0.19.0": "Name: hermes-agent\n\nVersion: 0.19.0\n"}, "cannot be read"},
		"name is not it": {true, map[string]string{"0.19.0": "Version: 0.19.0.post1\n"}, `"0.19.0.post1"`},
	} {
		t.Run(name, func(t *testing.T) {
			venv := t.TempDir()
			if tc.program {
				write(t, filepath.Join(venv, "bin", "hermes-acp"), "#!/bin/sh\n")
			}
			for v, metadata := range tc.versions {
				write(t, filepath.Join(venv, "lib", "python3.11", "site-packages", "hermes_agent-"+v+".dist-info", "METADATA"), metadata)
			}
			err := Check(venv)
			if tc.want == "" {
				if err != nil {
					t.Errorf("got %v, want no error", err)
				}
				return
			}
			if !errors.Is(err, ReasonUnavailable) || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "humanwork setup") {
				t.Errorf("got %v, want %s with %q and the remedy", err, ReasonUnavailable, tc.want)
			}
		})
	}
}
