package hermes

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// pipSettings are the variables that say how this machine reaches its packages. Every other setting of pip could change
// what is installed, or where.
var pipSettings = []string{
	"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_NO_INDEX", "PIP_TRUSTED_HOST", "PIP_CERT", "PIP_CLIENT_CERT",
	"PIP_PROXY", "PIP_TIMEOUT", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES", "PIP_CACHE_DIR", "PIP_NO_CACHE_DIR", "PIP_CONFIG_FILE",
	"PIP_KEYRING_PROVIDER",
}

// install makes a new environment in dir and returns it when it is complete. The lock is held by the programs too.
//
// Each attempt has a directory of its own: an environment can't be renamed, since its scripts hold its path, and a program
// left over from an attempt that was killed must not write into the next one.
func install(ctx context.Context, dir, python string, lock *os.File, progress func(string)) (*Installation, error) {
	old, _ := filepath.Glob(filepath.Join(dir, "venv-*")) // the pattern is well formed unless the path is odd: then they stay
	for _, venv := range old {
		_ = os.RemoveAll(venv) // garbage; what can't go now goes at the next installation
	}
	venv, err := os.MkdirTemp(dir, "venv-"+lockDigest()[:8]+"-")
	if err != nil {
		return nil, fmt.Errorf("make the directory of Hermes: %w", err)
	}
	requirements := filepath.Join(venv, "requirements.lock")
	// A child of another user reads the environment too; MkdirTemp made the directory ours alone.
	if err := os.Chmod(venv, 0o755); err != nil {
		return nil, fmt.Errorf("open the directory of Hermes: %w", err)
	}
	if err := os.WriteFile(requirements, lockfile, 0o644); err != nil {
		return nil, fmt.Errorf("write the list of packages: %w", err)
	}
	steps := []struct {
		name string
		args []string
	}{
		{"make a virtual environment", []string{python, "-I", "-m", "venv", venv}},
		{"fetch and install the packages", []string{
			filepath.Join(venv, "bin", "python"), "-I", "-m", "pip", "install",
			"--require-hashes", "--no-deps", "--only-binary=:all:", "--requirement=" + requirements,
			"--no-input", "--progress-bar=off", "--no-color", "--disable-pip-version-check", "--no-warn-script-location",
		}},
	}
	for _, step := range steps {
		progress(step.name + " for Hermes " + Version)
		if err := run(ctx, step.name, step.args, lock, progress); err != nil {
			_ = os.RemoveAll(venv) // else the next installation does
			return nil, err
		}
	}
	installed, err := Open(ctx, venv)
	if err != nil {
		return nil, err
	}
	// The stamp must not reach the disk before what it vouches for.
	if err := syncFiles(venv); err != nil {
		return nil, fmt.Errorf("sync the installation of Hermes: %w", err)
	}
	if err := writeStamp(dir, venv); err != nil {
		return nil, fmt.Errorf("finish the installation of Hermes: %w", err)
	}
	progress("installed Hermes " + installed.Version())
	return installed, nil
}

// run runs one program to its end, and its whole process group to an end when ctx ends first.
func run(ctx context.Context, step string, args []string, lock *os.File, progress func(string)) error {
	out := &lines{each: progress}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = environment(os.Environ())
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	ended := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that made the child ends, so that thread stays here.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		ended <- cmd.Run()
	}()
	err := <-ended
	if ctx.Err() != nil {
		return fmt.Errorf("install Hermes: %s: %w", step, context.Cause(ctx))
	}
	if err != nil {
		return &ErrInstall{Step: step, Err: err, Tail: strings.Join(out.last, "\n")}
	}
	return nil
}

// environment keeps what tells pip how to reach packages, and drops its other settings and Python's.
func environment(all []string) []string {
	return slices.DeleteFunc(slices.Clone(all), func(setting string) bool {
		name, _, _ := strings.Cut(setting, "=")
		if strings.HasPrefix(name, "PIP_") {
			return !slices.Contains(pipSettings, name)
		}
		return strings.HasPrefix(name, "PYTHON") || name == "VIRTUAL_ENV" || name == "__PYVENV_LAUNCHER__"
	})
}

const (
	lineLimit = 4 << 10
	tailLines = 15
	shortLine = 120
)

// lines passes on each line written to it, shortened, and keeps the last ones whole for an error.
type lines struct {
	each    func(string)
	pending []byte
	last    []string
}

func (l *lines) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		l.pending = append(l.pending, line[:min(len(line), lineLimit-len(l.pending))]...)
		if whole {
			l.line(strings.TrimSpace(string(l.pending)))
			l.pending = l.pending[:0]
		}
		rest = after
	}
	return len(data), nil
}

func (l *lines) line(line string) {
	if line == "" {
		return
	}
	if len(l.last) == tailLines {
		l.last = append(l.last[:0], l.last[1:]...)
	}
	l.last = append(l.last, line)
	short, _, _ := strings.Cut(line, " (from ") // pip names the list on every line
	l.each(abbreviate(short))
}

func abbreviate(text string) string {
	if utf8.RuneCountInString(text) <= shortLine {
		return text
	}
	return string([]rune(text)[:shortLine-1]) + "…"
}

func syncFiles(path string) error {
	dir, err := os.Open(path)
	if err != nil {
		return err
	}
	defer dir.Close()
	return unix.Syncfs(int(dir.Fd()))
}
