package machine

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	Hook()
	if len(os.Args) == 4 && os.Args[1] == "supervise" {
		supervise(os.Args[2], os.Args[3])
	}
	if len(os.Args) == 3 && os.Args[1] == "forbid" {
		forbid(os.Args[2])
	}
	os.Exit(m.Run())
}

// fixture is a data directory with a cell of two organizations.
type fixture struct {
	t                *testing.T
	data, cell, org  string
	sessionDB, other string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	return newFixtureIn(t, t.TempDir())
}

func newFixtureIn(t *testing.T, dir string) *fixture {
	t.Helper()
	data, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, data: data, cell: filepath.Join(data, "cell"), org: marker()}
	f.sessionDB = filepath.Join(f.cell, "sessions", f.org, "state.db")
	f.other = filepath.Join(f.cell, "sessions", "other", "state.db")
	for _, path := range []string{f.sessionDB, f.other} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("rows"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f *fixture) start() *Machine {
	f.t.Helper()
	m, err := Start(f.t.Context(), Config{Organization: f.org, CellDir: f.cell})
	if err != nil {
		f.t.Fatalf("Start: %v", err)
	}
	f.t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = m.Close(ctx)
	})
	return m
}

func (f *fixture) shell(m *Machine, script string) *Child {
	f.t.Helper()
	c, err := m.Spawn(f.t.Context(), ChildSpec{
		Conversation: "conv-1", SessionDB: f.sessionDB, Command: []string{"/bin/sh", "-c", script},
		Home: map[string][]byte{".env": []byte("KEY=private\n"), "config.yaml": []byte("model: {}\n")},
	})
	if err != nil {
		f.t.Fatalf("Spawn: %v", err)
	}
	return c
}

// output runs a script to its end and returns what it printed.
func (f *fixture) output(m *Machine, script string) string {
	f.t.Helper()
	c := f.shell(m, script)
	c.Stdin().Close()
	errs := make(chan string, 1)
	go func() { b, _ := io.ReadAll(c.Stderr()); errs <- string(b) }()
	out, err := io.ReadAll(c.Stdout())
	if err != nil {
		f.t.Fatalf("read stdout: %v", err)
	}
	if s := <-errs; s != "" {
		f.t.Logf("stderr: %s", s)
	}
	await(f.t, c.Done())
	return string(out)
}

func await(t *testing.T, done <-chan struct{}) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("not done after 20 s")
	}
}

// marker is an organization id that nothing else on this host has in its command line.
func marker() string { return "t" + strings.ToLower(rand.Text()) }

// line reads one line of the child's output.
func line(t *testing.T, c *Child) string {
	t.Helper()
	var text []byte
	for b := make([]byte, 1); ; {
		if _, err := c.Stdout().Read(b); err != nil {
			t.Fatalf("read stdout after %q: %v", text, err)
		}
		if b[0] == '\n' {
			return string(text)
		}
		text = append(text, b[0])
	}
}

// processes are the command lines of the host's processes that hold the marker.
func processes(t *testing.T, marker string) []string {
	t.Helper()
	entries, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, path := range entries {
		data, err := os.ReadFile(path)
		if err == nil && strings.Contains(string(data), marker) {
			found = append(found, filepath.Base(filepath.Dir(path))+" "+strings.ReplaceAll(string(data), "\x00", " "))
		}
	}
	return found
}

func wantNone(t *testing.T, marker string) {
	t.Helper()
	if got := processes(t, marker); len(got) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(got, "\n"))
	}
}

// ended returns a channel that is closed when the process is gone.
func ended(t *testing.T, pid int) <-chan struct{} {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatalf("process %d: %v", pid, err)
	}
	done := make(chan struct{})
	go func() {
		defer unix.Close(fd)
		for {
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
			if n == 1 {
				close(done)
				return
			}
			if err != unix.EINTR {
				return
			}
		}
	}()
	return done
}

func TestSpawnRunsACommand(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	c := f.shell(m, "cat; echo problem >&2; exit 7")
	go func() {
		io.WriteString(c.Stdin(), "through the pipe\n")
		c.Stdin().Close()
	}()
	out, err := io.ReadAll(c.Stdout())
	if err != nil || string(out) != "through the pipe\n" {
		t.Errorf("stdout = %q, %v", out, err)
	}
	if problem, _ := io.ReadAll(c.Stderr()); string(problem) != "problem\n" {
		t.Errorf("stderr = %q", problem)
	}
	await(t, c.Done())
	if got, want := c.Exit(), (ExitStatus{Code: 7}); got != want {
		t.Errorf("exit = %v, want %v", got, want)
	}
}
