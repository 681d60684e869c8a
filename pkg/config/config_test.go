package config_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"humanwork.internal/pkg/config"
)

type sample struct {
	Addr  string `yaml:"addr"`
	Count int    `yaml:"count"`
	File  string `yaml:"file"`
}

func (s *sample) Validate(base string) error {
	var p config.Problems
	p.Require("addr", s.Addr)
	s.File = config.Path(base, s.File)
	return p.Err()
}

func TestParseReportsEveryProblemAtOnce(t *testing.T) {
	err := config.Parse([]byte("count: many\nadrr: x\nother: 1\n"), "/", &sample{})
	if err == nil {
		t.Fatal("Parse = nil, want an error")
	}
	for _, want := range []string{"many", "adrr", "other", "addr: is required"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %q", err, want)
		}
	}
}

func TestLoadResolvesPathsAgainstTheFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(path, []byte("addr: a\nfile: s/key\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := &sample{Count: 7}
	if err := config.Load(path, cfg); err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(dir, "s/key"); cfg.File != want {
		t.Errorf("File = %q, want %q", cfg.File, want)
	}
	if cfg.Count != 7 {
		t.Errorf("default Count = %d, want 7", cfg.Count)
	}
}

func TestSecretRefusesAnEmptyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "k")
	if err := os.WriteFile(path, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := config.Secret(path); err == nil {
		t.Error("Secret of an empty file = nil error, want one")
	}
}
