// Package hermes knows which Hermes this supervisor was made for and whether it is installed.
package hermes

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"humanwork.internal/pkg/errs"
)

// Version is the release whose behaviour docs and tests describe. Another one may number rows or
// tell outcomes in another way, so none other is run.
const Version = "0.19.0"

// ReasonUnavailable means: Hermes is missing, or another version.
const ReasonUnavailable errs.Reason = "HERMES_UNAVAILABLE"

// Check says whether the virtual environment holds this Hermes. The error tells what to do.
func Check(venv string) error {
	program := filepath.Join(venv, "bin", "hermes-acp")
	if _, err := os.Stat(program); err != nil {
		return unavailable(err, "%s is missing", program)
	}
	found, err := filepath.Glob(filepath.Join(venv, "lib", "python3*", "site-packages", "hermes_agent-*.dist-info", "METADATA"))
	if err != nil {
		return unavailable(err, "%s cannot be searched", venv)
	}
	if len(found) == 0 {
		return unavailable(fs.ErrNotExist, "%s holds no hermes-agent", venv)
	}
	for _, path := range found {
		version, err := readVersion(path)
		if err != nil {
			return unavailable(err, "the version of hermes-agent cannot be read from %s", path)
		}
		if version != Version {
			return unavailable(nil, "%s holds hermes-agent %q", venv, version)
		}
	}
	return nil
}

func unavailable(cause error, format string, args ...any) error {
	e := errs.Wrap(cause, errs.Precondition, ReasonUnavailable,
		"%s; run `humanwork setup`, or install hermes-agent[acp,mcp]==%s into the environment that hermes_venv names", fmt.Sprintf(format, args...), Version)
	return e
}

// readVersion reads the Version field of a distribution's METADATA, which comes before the first
// empty line.
func readVersion(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan() && lines.Text() != ""; {
		if v, ok := strings.CutPrefix(lines.Text(), "Version:"); ok {
			return strings.TrimSpace(v), nil
		}
	}
	return "", errors.New("it has no Version field")
}
