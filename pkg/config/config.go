// Package config reads one strict YAML file a service: unknown keys, wrong types and everything
// Validate finds are reported together.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Validator is a configuration that can check itself. base is the directory that relative paths
// in the file refer to; Validate makes them absolute.
type Validator interface {
	Validate(base string) error
}

// Load reads the file at path into cfg, which may hold defaults, and validates it. The error
// joins every problem found, each with its line or key.
func Load(path string, cfg Validator) error {
	raw, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	base, err := filepath.Abs(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("locate configuration: %w", err)
	}
	if err := Parse(raw, base, cfg); err != nil {
		return fmt.Errorf("configuration %s:\n%w", path, err)
	}
	return nil
}

// Parse is Load for bytes at hand.
func Parse(raw []byte, base string, cfg Validator) error {
	dec := yaml.NewDecoder(bytes.NewReader(raw))
	dec.KnownFields(true)
	var problems []error
	if err := dec.Decode(cfg); err != nil && len(bytes.TrimSpace(raw)) > 0 {
		var te *yaml.TypeError
		if !errors.As(err, &te) {
			return err
		}
		for _, p := range te.Errors {
			problems = append(problems, errors.New(p))
		}
	}
	problems = append(problems, cfg.Validate(base))
	return errors.Join(problems...)
}

// Problems collects what Validate finds.
type Problems struct{ list []error }

// Addf records a problem of the key at the dotted path.
func (p *Problems) Addf(key, format string, args ...any) {
	p.list = append(p.list, fmt.Errorf("%s: %s", key, fmt.Sprintf(format, args...)))
}

// Require records a problem if value is empty.
func (p *Problems) Require(key, value string) {
	if value == "" {
		p.Addf(key, "is required")
	}
}

// Err joins the problems; nil if there are none.
func (p *Problems) Err() error { return errors.Join(p.list...) }

// Path returns path made absolute against base; "" stays "".
func Path(base, path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(base, path)
}

// Secret returns the content of the file at path without its last line end. Secrets are never
// values in a configuration file.
func Secret(path string) (string, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	s := strings.TrimRight(string(raw), "\r\n")
	if s == "" {
		return "", fmt.Errorf("read secret: %s is empty", path)
	}
	return s, nil
}
