package humanwork

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"humanwork.internal/pkg/rpc"
	"humanwork.internal/services/humanwork/internal/filelock"
)

// dataDir is the locked directory of one instance.
type dataDir struct {
	path string
	lock *filelock.Lock
}

func openDataDir(path string) (*dataDir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w; choose a writable one with --data-dir or HUMANWORK_DATA_DIR", err)
	}
	// Links are resolved once: children see the directory by its real path.
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, fmt.Errorf("find the data directory: %w", err)
	}
	lock, err := filelock.Try(filepath.Join(path, "instance.lock"))
	switch {
	case errors.Is(err, filelock.ErrHeld):
		return nil, fmt.Errorf("another instance uses the data directory %s (%w): stop it, or choose another directory with --data-dir or HUMANWORK_DATA_DIR", path, err)
	case err != nil:
		return nil, fmt.Errorf("lock the data directory: %w; choose a writable one with --data-dir or HUMANWORK_DATA_DIR", err)
	}
	return &dataDir{path: path, lock: lock}, nil
}

func (d *dataDir) close() { d.lock.Unlock() }

// secretFiles are the secrets of an instance, each in a file only its owner can read.
type secretFiles struct {
	signer *rpc.Signer
	token  string

	tokenFile, digestKeyFile, modelKeyFile, postgresURLFile string
}

func (d *dataDir) secrets(s Settings) (*secretFiles, error) {
	dir := filepath.Join(d.path, "secrets")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the secrets directory: %w", err)
	}
	out := &secretFiles{
		tokenFile: filepath.Join(dir, "token"), digestKeyFile: filepath.Join(dir, "digest.key"),
		modelKeyFile: filepath.Join(dir, "model.key"), postgresURLFile: filepath.Join(dir, "postgres.url"),
	}
	// The principal key lives as long as the process: nothing signed with it outlives a minute.
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return nil, fmt.Errorf("make the principal key: %w", err)
	}
	var err error
	if out.signer, err = rpc.NewSigner(key); err != nil {
		return nil, err
	}
	if _, err = keep(out.digestKeyFile, ""); err != nil {
		return nil, err
	}
	if out.token, err = keep(out.tokenFile, s.Token); err != nil {
		return nil, err
	}
	modelKey := s.ModelAPIKey
	if modelKey == "" {
		// Hermes wants a key even where the endpoint does not.
		modelKey = "none"
	}
	_, err = keep(out.modelKeyFile, modelKey)
	return out, err
}

// keep writes value to the file, or without one keeps what is there, or makes 32 random bytes.
func keep(path, value string) (string, error) {
	if value == "" {
		raw, err := os.ReadFile(path)
		if err == nil && len(strings.TrimSpace(string(raw))) > 0 {
			return strings.TrimSpace(string(raw)), nil
		}
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read secret: %w", err)
		}
		var random [32]byte
		if _, err := rand.Read(random[:]); err != nil {
			return "", fmt.Errorf("make secret: %w", err)
		}
		value = hex.EncodeToString(random[:])
	}
	// Written beside and renamed: a full disk must not leave half a key.
	tmp := path + ".new"
	if err := os.WriteFile(tmp, []byte(value+"\n"), 0o600); err != nil {
		return "", fmt.Errorf("write secret: %w", err)
	}
	if err := os.Rename(tmp, path); err != nil {
		return "", fmt.Errorf("write secret: %w", err)
	}
	return value, nil
}
