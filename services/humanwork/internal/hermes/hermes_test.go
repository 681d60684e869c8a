package hermes

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakePython stands in for Python, venv and pip. It logs each call to $FAKE_LOG, with the settings of the test that it sees.
const fakePython = `#!/bin/sh
case "$3" in
venv)
	echo venv >> "$FAKE_LOG"
	mkdir -p "$4/bin" "$4/lib/python3.11/site-packages"
	ln -s "$FAKE_SELF" "$4/bin/python" ;;
pip)
	echo pip $(env | sed -n 's/^\(PIP_[A-Z_]*\|PYTHON[A-Z]*\)=of-the-test$/\1/p' | sort) >> "$FAKE_LOG"
	echo "Collecting hermes-agent==0.19.0 (from -r somewhere)"
	if [ -n "$FAKE_FIFO" ]; then echo blocked; cat "$FAKE_FIFO"; fi
	if [ -n "$FAKE_FAIL" ]; then echo "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES" >&2; exit 1; fi
	venv=$(dirname "$(dirname "$0")")
	info=$venv/lib/python3.11/site-packages/hermes_agent-0.19.0.dist-info
	mkdir -p "$info"
	printf 'Metadata-Version: 2.4\nName: hermes-agent\nVersion: 0.19.0\n\nVersion: none\n' > "$info/METADATA"
	printf '#!/bin/sh\n' > "$venv/bin/hermes-acp"; chmod 755 "$venv/bin/hermes-acp" ;;
*)
	echo '{"executable": "'"$FAKE_SELF"'", "version": [3, 11, 7], "implementation": "cpython", "venv": true}' ;;
esac
`

// fake puts the stand-in on the PATH and returns a data directory and a function that returns the calls made since it
// was last asked.
func fake(t *testing.T) (dataDir string, calls func() []string) {
	t.Helper()
	dir := t.TempDir()
	self, log := filepath.Join(dir, "python3.11"), filepath.Join(dir, "log")
	if err := os.WriteFile(self, []byte(fakePython), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("FAKE_SELF", self)
	t.Setenv("FAKE_LOG", log)
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	return filepath.Join(dir, "data"), func() []string {
		data, err := os.ReadFile(log)
		if err != nil {
			return nil
		}
		_ = os.Remove(log)
		return strings.Split(strings.TrimSpace(string(data)), "\n")
	}
}

func ensure(t *testing.T, dataDir string) *Installation {
	t.Helper()
	installed, err := Ensure(t.Context(), Config{DataDir: dataDir, Python: "python3.11"})
	if err != nil {
		t.Fatal(err)
	}
	return installed
}

func TestEnsureInstallsOnce(t *testing.T) {
	dataDir, calls := fake(t)
	for _, name := range []string{"PIP_TARGET", "PIP_NO_BINARY", "PIP_CERT", "PYTHONPATH"} {
		t.Setenv(name, "of-the-test")
	}
	var progress []string
	installed, err := Ensure(t.Context(), Config{DataDir: dataDir, Python: "python3.11", Progress: func(line string) { progress = append(progress, line) }})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(calls(), ";"), "venv;pip PIP_CERT"; got != want {
		t.Errorf("calls: got %q, want %q", got, want)
	}
	if installed.Version() != Version || installed.Entry() != filepath.Join(installed.Venv(), "bin", "hermes-acp") {
		t.Errorf("installation: got %+v", installed)
	}
	want := []string{
		"make a virtual environment for Hermes 0.19.0", "fetch and install the packages for Hermes 0.19.0",
		"Collecting hermes-agent==0.19.0", "installed Hermes 0.19.0",
	}
	if strings.Join(progress, "\n") != strings.Join(want, "\n") {
		t.Errorf("progress: got %q, want %q", progress, want)
	}
	begun := time.Now()
	again := ensure(t, dataDir)
	if took := time.Since(begun); took > 50*time.Millisecond {
		t.Errorf("second Ensure took %v, want at most 50ms", took)
	}
	if got := calls(); got != nil {
		t.Errorf("second Ensure called %q", got)
	}
	if again.Venv() != installed.Venv() {
		t.Errorf("second Ensure: got %s, want %s", again.Venv(), installed.Venv())
	}
}

func TestEnsureMakesABrokenOneAnew(t *testing.T) {
	tests := map[string]func(t *testing.T, dataDir string, i *Installation) error{
		"no stamp": func(_ *testing.T, dataDir string, _ *Installation) error {
			return os.Remove(filepath.Join(dataDir, "hermes", stampName))
		},
		"torn stamp": func(_ *testing.T, dataDir string, _ *Installation) error {
			return os.Truncate(filepath.Join(dataDir, "hermes", stampName), 5)
		},
		"other lock": func(_ *testing.T, dataDir string, _ *Installation) error {
			path := filepath.Join(dataDir, "hermes", stampName)
			data, err := os.ReadFile(path)
			return errors.Join(err, os.WriteFile(path, bytes.Replace(data, []byte(lockDigest()), []byte("0000"), 1), 0o644))
		},
		"no entry script": func(_ *testing.T, _ string, i *Installation) error { return os.Remove(i.Entry()) },
		"no metadata": func(_ *testing.T, _ string, i *Installation) error {
			return os.RemoveAll(filepath.Join(i.Venv(), "lib"))
		},
		"Python replaced": func(t *testing.T, _ string, i *Installation) error {
			other := filepath.Join(t.TempDir(), "python")
			return errors.Join(os.WriteFile(other, []byte(fakePython), 0o755), os.Remove(i.Python()), os.Symlink(other, i.Python()))
		},
		"Python gone": func(_ *testing.T, _ string, i *Installation) error {
			return errors.Join(os.Remove(i.Python()), os.Symlink("/nonexistent", i.Python()))
		},
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			dataDir, calls := fake(t)
			first := ensure(t, dataDir)
			if err := spoil(t, dataDir, first); err != nil {
				t.Fatal(err)
			}
			calls()
			second := ensure(t, dataDir)
			if got := calls(); len(got) != 2 {
				t.Errorf("calls: got %q, want venv and pip", got)
			}
			if _, err := os.Stat(first.Venv()); err == nil {
				t.Errorf("the broken environment %s is left", first.Venv())
			}
			if err := second.Check(t.Context()); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

func TestEnsureAfterAMove(t *testing.T) {
	dataDir, calls := fake(t)
	ensure(t, dataDir)
	calls()
	moved := dataDir + "2"
	if err := os.Rename(dataDir, moved); err != nil {
		t.Fatal(err)
	}
	if got := ensure(t, moved).Venv(); !strings.HasPrefix(got, moved+"/") {
		t.Errorf("environment after a move: got %s, want one below %s", got, moved)
	}
}

func TestEnsureFailsWithPipsWords(t *testing.T) {
	dataDir, _ := fake(t)
	t.Setenv("FAKE_FAIL", "1")
	_, err := Ensure(t.Context(), Config{DataDir: dataDir})
	var failed *ErrInstall
	if !errors.As(err, &failed) || !strings.Contains(failed.Tail, "DO NOT MATCH THE HASHES") {
		t.Fatalf("Ensure: got %v, want ErrInstall with the end of pip's output", err)
	}
	t.Setenv("FAKE_FAIL", "")
	ensure(t, dataDir)
}

func TestEnsureAtTheSameTime(t *testing.T) {
	dataDir, calls := fake(t)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			if _, err := Ensure(t.Context(), Config{DataDir: dataDir, Python: "python3.11"}); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := calls(); len(got) != 2 {
		t.Errorf("calls: got %q, want one installation", got)
	}
}

func TestEnsureCancelled(t *testing.T) {
	dataDir, calls := fake(t)
	fifo := filepath.Join(t.TempDir(), "fifo")
	if out, err := exec.Command("mkfifo", fifo).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Setenv("FAKE_FIFO", fifo)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	_, err := Ensure(ctx, Config{DataDir: dataDir, Python: "python3.11", Progress: func(line string) {
		if line == "blocked" {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("Ensure: got %v, want Canceled", err)
	}
	calls()
	t.Setenv("FAKE_FIFO", "")
	ensure(t, dataDir) // would wait for ever if a process of the first were left: it would hold the lock
	if got := calls(); len(got) != 2 {
		t.Errorf("calls after a cancelled installation: got %q, want venv and pip", got)
	}
}

func TestFindPython(t *testing.T) {
	answer := func(version, venv string) string {
		return `echo '{"executable": "/the/python", "version": ` + version + `, "implementation": "cpython", "venv": ` + venv + `}'`
	}
	tests := []struct {
		name       string
		programs   map[string]string // shell text by name
		configured string
		want       string   // "" for an ErrPython
		errs       []string // that its text holds
	}{
		{name: "none", errs: []string{"found none", "apt-get install python3 python3-venv"}},
		{name: "newest", programs: map[string]string{"python3.12": answer("[3, 12, 1]", "true"), "python3": "exit 9"}, want: "/the/python"},
		{name: "wrapper without its version", want: "/the/python",
			programs: map[string]string{"python3.13": "echo 'pyenv: no such command' >&2; exit 127", "python3": answer("[3, 11, 2]", "true")}},
		{name: "too old and too new", errs: []string{"cpython 3.9.2", "cpython 3.14.0", "3.11, 3.12 or 3.13"},
			programs: map[string]string{"python3": answer("[3, 9, 2]", "true"), "python3.13": answer("[3, 14, 0]", "true")}},
		{name: "without venv", errs: []string{"cpython 3.11.2 without", "apt-get install python3-venv"},
			programs: map[string]string{"python3": answer("[3, 11, 2]", "false")}},
		{name: "garbage", programs: map[string]string{"python3": "echo hello"}, errs: []string{`answers "hello\n"`}},
		{name: "configured only", configured: "mine", errs: []string{"cpython 3.9.2"},
			programs: map[string]string{"python3": answer("[3, 11, 2]", "true"), "mine": answer("[3, 9, 2]", "true")}},
		{name: "configured and missing", configured: "mine", errs: []string{`"mine"`},
			programs: map[string]string{"python3": answer("[3, 11, 2]", "true")}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("PATH", dir)
			for name, text := range test.programs {
				if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
					t.Fatal(err)
				}
			}
			got, err := findPython(t.Context(), test.configured)
			var none *ErrPython
			if test.want != "" && (err != nil || got != test.want) || test.want == "" && !errors.As(err, &none) {
				t.Fatalf("findPython: got %q, %v, want %q", got, err, test.want)
			}
			for _, part := range test.errs {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestOpen(t *testing.T) {
	dataDir, _ := fake(t)
	made := ensure(t, dataDir)
	metadata := filepath.Join(made.Venv(), "lib/python3.11/site-packages/hermes_agent-0.19.0.dist-info/METADATA")
	if _, err := Ensure(t.Context(), Config{Venv: made.Venv()}); err != nil {
		t.Fatalf("existing environment: %v", err)
	}
	if err := os.WriteFile(metadata, []byte("Name: hermes-agent\nVersion: 0.18.2\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := Ensure(t.Context(), Config{Venv: made.Venv()})
	var other *ErrVersion
	if !errors.As(err, &other) || other.Found != "0.18.2" || other.Want != Version {
		t.Errorf("another version: got %v, want ErrVersion", err)
	}
	var missing *ErrMissing
	if _, err := Ensure(t.Context(), Config{Venv: t.TempDir()}); !errors.As(err, &missing) {
		t.Errorf("an empty directory: got %v, want ErrMissing", err)
	}
	if err := os.Remove(metadata); err != nil {
		t.Fatal(err)
	}
	if _, err := Ensure(t.Context(), Config{Venv: made.Venv()}); !errors.As(err, &missing) {
		t.Errorf("no metadata: got %v, want ErrMissing", err)
	}
}

func TestVerifyFiles(t *testing.T) {
	dataDir, _ := fake(t)
	made := ensure(t, dataDir)
	site := filepath.Join(made.Venv(), "lib/python3.11/site-packages")
	record := "run_agent.py,sha256=3FG4yWwtdF3zvVWQ2ZAjCkgv0kcSNZlUjgYy_b-X_CI,3\n" + // of "ok\n"
		"__pycache__/run_agent.cpython-311.pyc,,\nhermes_agent-0.19.0.dist-info/RECORD,,\n"
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(site, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("hermes_agent-0.19.0.dist-info/RECORD", record)
	write("run_agent.py", "ok\n")
	if err := made.VerifyFiles(t.Context()); err != nil {
		t.Errorf("as published: %v", err)
	}
	write("run_agent.py", "no\n")
	var modified *ErrModified
	if err := made.VerifyFiles(t.Context()); !errors.As(err, &modified) || len(modified.Files) != 1 || modified.Files[0] != "run_agent.py" {
		t.Errorf("changed: got %v, want ErrModified of run_agent.py", err)
	}
	if err := os.Remove(filepath.Join(site, "run_agent.py")); err != nil {
		t.Fatal(err)
	}
	if err := made.VerifyFiles(t.Context()); !errors.As(err, &modified) {
		t.Errorf("removed: got %v, want ErrModified", err)
	}
}

func TestLockPinsEverything(t *testing.T) {
	pin := regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*==[^ ;]+ \\$`)
	hash := regexp.MustCompile(`^    --hash=sha256:[0-9a-f]{64}( \\)?$`)
	pins, lastWasPin := 0, false
	for n, line := range strings.Split(strings.TrimSuffix(string(lockfile), "\n"), "\n") {
		isPin := pin.MatchString(line)
		if !isPin && !hash.MatchString(line) && !strings.HasPrefix(line, "#") || isPin && lastWasPin {
			t.Errorf("line %d is no pinned package with its hashes: %s", n+1, line)
		}
		if isPin {
			pins++
		}
		lastWasPin = isPin
	}
	if pins < 50 || !bytes.Contains(lockfile, []byte("\nhermes-agent=="+Version+" \\\n")) {
		t.Errorf("the lock has %d packages and must have hermes-agent %s", pins, Version)
	}
}

func TestRealInstall(t *testing.T) {
	if os.Getenv("HUMANWORK_TEST_INSTALL") == "" {
		t.Skip("installs 70 packages from the registry in about a minute: set HUMANWORK_TEST_INSTALL=1")
	}
	dataDir := t.TempDir()
	begun := time.Now()
	installed, err := Ensure(t.Context(), Config{DataDir: dataDir, Progress: func(line string) { t.Log(line) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("installed in %v", time.Since(begun))
	begun = time.Now()
	if _, err := Ensure(t.Context(), Config{DataDir: dataDir}); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	t.Logf("recognized in %v", took)
	if took > 50*time.Millisecond {
		t.Errorf("second Ensure took %v, want at most 50ms", took)
	}
	begun = time.Now()
	if err := installed.VerifyFiles(t.Context()); err != nil {
		t.Error(err)
	}
	t.Logf("files verified in %v", time.Since(begun))
	if out, err := exec.Command(installed.Python(), "-I", "-m", "pip", "check").CombinedOutput(); err != nil {
		t.Errorf("pip check: %v: %s", err, out)
	}
	if out, err := exec.Command(installed.Entry(), "--version").CombinedOutput(); err != nil {
		t.Errorf("%s --version: %v: %s", installed.Entry(), err, out)
	}
}
