// Package hermes provides the Hermes agent in a Python virtual environment: made below the data directory from pinned and
// hashed packages, or an existing one that is checked and never changed.
package hermes

import (
	"context"
	"crypto/sha256"
	_ "embed" // the lock
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"humanwork.internal/services/humanwork/internal/filelock"
)

const (
	// Version is the version of hermes-agent that this program was made for.
	Version = "0.19.0"

	requirement = "hermes-agent[acp,mcp]==" + Version
	distName    = "hermes_agent"
	entryName   = "hermes-acp"
	stampName   = "installed.json"
)

//go:embed requirements.lock
var lockfile []byte

// Config says where Hermes is, or is to be.
type Config struct {
	// DataDir gets the directory hermes/ with the virtual environment. Unused with Venv.
	DataDir string
	// Venv is an existing virtual environment with Hermes; it is checked only.
	Venv string
	// Python is the interpreter to make the environment with; "" looks for python3.13, python3.12, python3.11 and python3.
	Python string
	// Progress is told, in short lines and one at a time, what an installation does.
	Progress func(string)
}

// Ensure returns a checked installation. Made environments are made once: a finished one is recognized in a few
// milliseconds, an interrupted one is made anew, and callers at the same time, in any process, wait for the first. Errors
// that the user can mend have the types ErrMissing, ErrVersion, ErrPython and ErrInstall.
func Ensure(ctx context.Context, cfg Config) (*Installation, error) {
	if cfg.Venv != "" {
		return Open(ctx, cfg.Venv)
	}
	dir, err := filepath.Abs(filepath.Join(cfg.DataDir, "hermes"))
	if err != nil {
		return nil, fmt.Errorf("find the directory of Hermes: %w", err)
	}
	if installed := finished(ctx, dir); installed != nil {
		return installed, nil
	}
	if cfg.Progress == nil {
		cfg.Progress = func(string) {}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of Hermes: %w", err)
	}
	lock, err := filelock.Wait(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("wait for another installation of Hermes: %w", err)
	}
	defer lock.Drop()
	if installed := finished(ctx, dir); installed != nil {
		return installed, nil
	}
	python, err := findPython(ctx, cfg.Python)
	if err != nil {
		return nil, err
	}
	return install(ctx, dir, python, lock.File(), cfg.Progress)
}

// Open returns the installation in an existing virtual environment.
func Open(ctx context.Context, venv string) (*Installation, error) {
	venv, err := filepath.Abs(venv)
	if err != nil {
		return nil, fmt.Errorf("find the virtual environment: %w", err)
	}
	i := &Installation{venv: venv}
	if err := i.Check(ctx); err != nil {
		return nil, err
	}
	return i, nil
}

// stamp is written when an environment is complete, and never before.
type stamp struct {
	Venv   string `json:"venv"`   // its path then: the scripts inside hold it, so a moved one is of no use
	Lock   string `json:"lock"`   // SHA-256 of the lock it was made from
	Python string `json:"python"` // the interpreter its links led to
}

// finished returns the complete environment of dir that was made from our lock, or nil.
func finished(ctx context.Context, dir string) *Installation {
	data, err := os.ReadFile(filepath.Join(dir, stampName))
	if err != nil {
		return nil
	}
	var s stamp
	if json.Unmarshal(data, &s) != nil || s.Lock != lockDigest() || filepath.Dir(s.Venv) != dir {
		return nil
	}
	i, err := Open(ctx, s.Venv)
	if err != nil {
		return nil
	}
	// Behind a link like python3 there may be another version by now, for which nothing is installed.
	if python, err := filepath.EvalSymlinks(i.Python()); err != nil || python != s.Python {
		return nil
	}
	return i
}

// writeStamp declares the environment complete.
func writeStamp(dir, venv string) error {
	python, err := filepath.EvalSymlinks(filepath.Join(venv, "bin", "python"))
	if err != nil {
		return err
	}
	data, err := json.Marshal(stamp{Venv: venv, Lock: lockDigest(), Python: python})
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, stampName+".new") // only the holder of the lock writes it
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, stampName))
}

func lockDigest() string {
	sum := sha256.Sum256(lockfile)
	return hex.EncodeToString(sum[:])
}
