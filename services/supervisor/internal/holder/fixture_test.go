package holder

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"humanwork.internal/services/supervisor/internal/acp"
)

// TestMain turns the test binary into the fake agent when a test starts it as a child.
func TestMain(m *testing.M) {
	if os.Getenv("HUMANWORK_FAKE_AGENT") != "" {
		os.Exit(fakeAgent(os.Getenv("HUMANWORK_FAKE_AGENT"), os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// execCell runs children as plain process groups, without namespaces.
type execCell struct {
	t       *testing.T
	command func(org, conversation string, home Home) *exec.Cmd
	lingers chan struct{} // not nil: a child's namespace is gone only once this is closed

	mu       sync.Mutex
	fail     error // the next StartMachine's answer
	machines []*execMachine
	stdin    map[string]*strings.Builder // what each conversation's children were sent
}

func (c *execCell) StartMachine(_ context.Context, org string) (Machine, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.fail; err != nil {
		c.fail = nil
		return nil, err
	}
	m := &execMachine{cell: c, org: org, done: make(chan struct{})}
	c.machines = append(c.machines, m)
	return m, nil
}

func (c *execCell) machineCount() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.machines)
}

func (c *execCell) sent(conversation string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.stdin[conversation]; b != nil {
		return b.String()
	}
	return ""
}

// lastChild returns the newest child of the newest machine.
func (c *execCell) lastChild() *execChild {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.machines[len(c.machines)-1]
	return m.children[len(m.children)-1]
}

type execMachine struct {
	cell     *execCell
	org      string
	children []*execChild
	once     sync.Once
	done     chan struct{}
}

func (m *execMachine) Spawn(_ context.Context, conversation string, home Home) (Child, error) {
	select {
	case <-m.done:
		return nil, fmt.Errorf("the machine is gone")
	default:
	}
	cmd := m.cell.command(m.org, conversation, home)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	child := &execChild{cmd: cmd, done: make(chan struct{})}
	var ends []*os.File
	pipe := func(childReads bool) (*os.File, *os.File) {
		r, w, err := os.Pipe()
		if err != nil {
			m.cell.t.Error(err)
		}
		if childReads {
			ends = append(ends, r)
			return r, w
		}
		ends = append(ends, w)
		return w, r
	}
	var in *os.File
	cmd.Stdin, in = pipe(true)
	cmd.Stdout, child.stdout = pipe(false)
	cmd.Stderr, child.stderr = pipe(false)
	child.stdin = &tee{File: in, cell: m.cell, conversation: conversation}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	for _, f := range ends {
		_ = f.Close()
	}
	m.cell.mu.Lock()
	m.children = append(m.children, child)
	m.cell.mu.Unlock()
	go func() {
		_ = cmd.Wait()
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if m.cell.lingers != nil {
			<-m.cell.lingers
		}
		close(child.done)
	}()
	return child, nil
}

func (m *execMachine) Done() <-chan struct{} { return m.done }

func (m *execMachine) Close(context.Context) error {
	m.once.Do(func() {
		m.cell.mu.Lock()
		children := m.children
		m.cell.mu.Unlock()
		for _, c := range children {
			_ = c.Kill()
			<-c.done
		}
		close(m.done)
	})
	return nil
}

type execChild struct {
	cmd            *exec.Cmd
	stdin          *tee
	stdout, stderr *os.File
	done           chan struct{}
}

func (c *execChild) Stdin() io.WriteCloser { return c.stdin }
func (c *execChild) Stdout() io.ReadCloser { return c.stdout }
func (c *execChild) Stderr() io.ReadCloser { return c.stderr }
func (c *execChild) Kill() error           { return syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL) }
func (c *execChild) Done() <-chan struct{} { return c.done }
func (c *execChild) Exit() string          { return c.cmd.ProcessState.String() }

// tee keeps a copy of what the child is sent.
type tee struct {
	*os.File
	cell         *execCell
	conversation string
}

func (t *tee) Write(p []byte) (int, error) {
	t.cell.mu.Lock()
	b := t.cell.stdin[t.conversation]
	if b == nil {
		b = &strings.Builder{}
		t.cell.stdin[t.conversation] = b
	}
	b.Write(p)
	t.cell.mu.Unlock()
	return t.File.Write(p)
}

type homesFunc func(organization, conversation string) (Home, error)

func (f homesFunc) ConversationHome(_ context.Context, o, c string) (Home, error) { return f(o, c) }

// watcher records what the holder reports.
type watcher struct {
	t     *testing.T
	mu    sync.Mutex
	ended []ChildReport
}

func (*watcher) MachineStarted(string, time.Duration)       {}
func (*watcher) MachineEnded(string)                        {}
func (*watcher) ChildStarted(string, string, time.Duration) {}
func (w *watcher) ChildLine(string, string, string)         {}
func (*watcher) TurnEnded(Attempt, Result)                  {}
func (w *watcher) ChildEnded(r ChildReport) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = append(w.ended, r)
}

func (w *watcher) reports() []ChildReport {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]ChildReport(nil), w.ended...)
}

type fixture struct {
	*Holder
	cell    *execCell
	watcher *watcher
	stop    func() error // ends Run and returns its error

	modesMu sync.Mutex
	modes   map[string]string // of the fake agent, by conversation
}

func (f *fixture) setMode(conversation, mode string) {
	f.modesMu.Lock()
	defer f.modesMu.Unlock()
	f.modes[conversation] = mode
}

// until waits for a state that no channel tells a test of. The condition runs under the holder's
// lock.
func (f *fixture) until(condition func() bool) {
	for {
		f.mu.Lock()
		ok := condition()
		f.mu.Unlock()
		if ok {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// untilSent waits until the conversation's children were sent something.
func (f *fixture) untilSent(conversation, what string) error {
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if strings.Contains(f.cell.sent(conversation), what) {
			return nil
		}
	}
	return fmt.Errorf("%s was not sent", what)
}

func testConfig() Config {
	return Config{
		MaxChildren: 32, AdmissionTimeout: 2 * time.Minute, CancelTimeout: 10 * time.Second,
		WatchdogTimeout: time.Minute, ExitGrace: 5 * time.Second, DrainTimeout: 10 * time.Second,
		ACP: acp.Config{MaxLine: 1 << 20},
	}
}

// startHolder runs a holder; at the test's end it must have ended everything it started.
func startHolder(t *testing.T, cfg Config, command func(org, conversation string, home Home) *exec.Cmd) *fixture {
	t.Helper()
	f := &fixture{
		cell:    &execCell{t: t, command: command, stdin: map[string]*strings.Builder{}},
		watcher: &watcher{t: t}, modes: map[string]string{},
	}
	f.Holder = New(cfg, f.cell, homesFunc(func(_, c string) (Home, error) {
		f.modesMu.Lock()
		defer f.modesMu.Unlock()
		return Home{"config.yaml": []byte(f.modes[c])}, nil
	}), f.watcher)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	f.stop = sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := f.stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
		for _, m := range f.cell.machines {
			<-m.done
			for _, c := range m.children {
				<-c.done
			}
		}
	})
	f.until(func() bool { return f.phase == phaseRunning }) // Run opens the holder
	return f
}

// withFakes runs the fake agent; a conversation's mode is its config.yaml.
func withFakes(t *testing.T, cfg Config) *fixture {
	t.Helper()
	return startHolder(t, cfg, func(_, _ string, home Home) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = []string{"HUMANWORK_FAKE_AGENT=mode:" + string(home["config.yaml"])}
		return cmd
	})
}

// withHermes runs the real Hermes of the virtual environment HUMANWORK_TEST_HERMES.
func withHermes(t *testing.T, cfg Config, modelURL string) *fixture {
	t.Helper()
	venv := os.Getenv("HUMANWORK_TEST_HERMES")
	if venv == "" {
		t.Skip("HUMANWORK_TEST_HERMES is not set: run the tests with make test")
	}
	dir := t.TempDir()
	f := startHolder(t, cfg, func(org, conversation string, home Home) *exec.Cmd {
		hermesHome, err := os.MkdirTemp(dir, conversation)
		if err != nil {
			t.Error(err)
		}
		for name, content := range map[string][]byte{
			".env": []byte("SOME_SECRET=planted-credential\n"), "SOUL.md": []byte("You are a test.\n"),
			"config.yaml": fmt.Appendf(nil, "model: {default: fake-1, provider: custom, base_url: %q, api_key: sk-planted}\n", modelURL),
		} {
			if err := os.WriteFile(filepath.Join(hermesHome, name), content, 0o600); err != nil {
				t.Error(err)
			}
		}
		if err := os.Symlink(filepath.Join(dir, org+".db"), filepath.Join(hermesHome, "state.db")); err != nil {
			t.Error(err)
		}
		cmd := exec.Command(filepath.Join(venv, "bin", "hermes-acp"))
		cmd.Env = []string{"HERMES_HOME=" + hermesHome, "HOME=" + hermesHome, "PATH=" + os.Getenv("PATH")}
		return cmd
	})
	return f
}

func attempt(conversation, turn string) Attempt {
	return Attempt{Organization: "org", Conversation: conversation, Turn: turn, Number: 1, Epoch: 1}
}

func text(s string) [][]byte {
	return [][]byte{fmt.Appendf(nil, `{"type":"text","text":%q}`, s)}
}

// turnOf runs one attempt to its end and returns its result and streamed text.
func (f *fixture) turnOf(t *testing.T, a Attempt, session string, blocks [][]byte) (Result, string) {
	t.Helper()
	s, err := f.Prompt(a, session, blocks)
	if err != nil {
		t.Fatalf("Prompt(%s): %v", a.Turn, err)
	}
	return follow(t, s)
}

func follow(t *testing.T, s *Subscription) (Result, string) {
	t.Helper()
	defer s.Close()
	var b strings.Builder
	for {
		d, ok, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			return s.Result(), b.String()
		}
		if d.Update != nil {
			b.WriteString(d.Update.Text)
		}
	}
}
