package hermes

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// An Installation is a virtual environment with Hermes.
type Installation struct {
	venv    string
	version string
}

// Venv is the root of the virtual environment, an absolute path.
func (i *Installation) Venv() string { return i.venv }

// Python is the environment's interpreter.
func (i *Installation) Python() string { return filepath.Join(i.venv, "bin", "python") }

// Entry is the hermes-acp script.
func (i *Installation) Entry() string { return filepath.Join(i.venv, "bin", entryName) }

// Version is the version of hermes-agent, as its metadata had it at the last Check.
func (i *Installation) Version() string { return i.version }

// Check reads the installed metadata, in about a millisecond and without running anything. Its errors have the types
// ErrMissing and ErrVersion.
func (i *Installation) Check(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	for _, program := range []string{i.Python(), i.Entry()} {
		info, err := os.Stat(program)
		if err == nil && (!info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0) {
			err = errors.New("it is no program")
		}
		if err != nil {
			return &ErrMissing{Venv: i.venv, What: "bin/" + filepath.Base(program), Err: err}
		}
	}
	info, err := i.distInfo()
	if err != nil {
		return err
	}
	version, err := metadataVersion(filepath.Join(info, "METADATA"))
	if err != nil {
		return &ErrMissing{Venv: i.venv, What: "readable metadata of " + distName, Err: err}
	}
	if version != Version {
		return &ErrVersion{Venv: i.venv, Found: version, Want: Version}
	}
	i.version = version
	return nil
}

// distInfo finds the metadata directory of hermes-agent.
func (i *Installation) distInfo() (string, error) {
	pattern := filepath.Join("lib", "python3.1[123]", "site-packages", distName+"-*.dist-info")
	// Below the environment, so that nothing in its own path is taken for a pattern.
	found, err := fs.Glob(os.DirFS(i.venv), pattern)
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("%d directories match %s", len(found), pattern)
	}
	if err != nil {
		return "", &ErrMissing{Venv: i.venv, What: distName + " for Python 3.11, 3.12 or 3.13", Err: err}
	}
	return filepath.Join(i.venv, found[0]), nil
}

func metadataVersion(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	// The headers end at the first empty line, and a long description follows.
	lines := bufio.NewScanner(io.LimitReader(file, 1<<20))
	for lines.Scan() && lines.Text() != "" {
		if version, ok := strings.CutPrefix(lines.Text(), "Version: "); ok {
			return strings.TrimSpace(version), nil
		}
	}
	return "", errors.Join(errors.New("no Version header"), lines.Err())
}

// VerifyFiles compares every file of hermes-agent with the SHA-256 in the list it was installed with, in about a second;
// compiled files, which have none there, are left out. A difference is an ErrModified.
func (i *Installation) VerifyFiles(ctx context.Context) error {
	info, err := i.distInfo()
	if err != nil {
		return err
	}
	record, err := os.ReadFile(filepath.Join(info, "RECORD"))
	if err != nil {
		return &ErrMissing{Venv: i.venv, What: "list of its files", Err: err}
	}
	rows, err := csv.NewReader(bytes.NewReader(record)).ReadAll()
	if err != nil {
		return fmt.Errorf("read the list of Hermes's files: %w", err)
	}
	var changed []string
	for _, row := range rows {
		if err := ctx.Err(); err != nil {
			return err
		}
		if len(row) < 2 || row[1] == "" {
			continue
		}
		want, ok := strings.CutPrefix(row[1], "sha256=")
		sum, err := fileDigest(filepath.Join(filepath.Dir(info), filepath.FromSlash(row[0])))
		if !ok || err != nil || sum != want {
			changed = append(changed, row[0])
		}
	}
	if len(changed) > 0 {
		return &ErrModified{Venv: i.venv, Files: changed}
	}
	return nil
}

// fileDigest returns the SHA-256 of a file in the form of RECORD: base64 for URLs, without padding.
func fileDigest(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer file.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, file); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(sum.Sum(nil)), nil
}
