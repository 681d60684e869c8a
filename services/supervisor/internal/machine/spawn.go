package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"humanwork.internal/services/supervisor/internal/child"
)

// ChildSpec describes one conversation's child.
type ChildSpec struct {
	Conversation string            // id, 1-63 of [a-z0-9-]
	Home         map[string][]byte // files of HERMES_HOME by plain name (.env, SOUL.md, config.yaml); in the child's tmpfs only
	SessionDB    string            // the organization's state.db, below the cell's sessions/<organization>; empty: no state.db
	// Command runs in place of Hermes, for tests. It sees the child's view: /proc/self/exe is this binary, wherever it lies.
	Command []string
}

// ExitStatus is how a child ended.
type ExitStatus struct {
	Code        int            // exit code, when Signal is 0
	Signal      syscall.Signal // the signal that ended the command, or its whole namespace
	MachineGone bool           // it ended with its machine
}

func (s ExitStatus) String() string {
	switch {
	case s.MachineGone:
		return "ended with its machine"
	case s.Signal != 0:
		return "signal: " + s.Signal.String()
	default:
		return "exit code " + strconv.Itoa(s.Code)
	}
}

// Child is a running child. The caller owns the three files and closes them.
type Child struct {
	stdin, stdout, stderr *os.File
	process               *os.File // pidfd of the init process
	pid                   int
	done                  chan struct{}
	status                ExitStatus // set before done is closed
}

// Spawn starts a child and returns when its command runs. A spawn given up by ctx leaves no child. Errors: ErrInvalid, ErrNamespaces, ErrGone.
func (m *Machine) Spawn(ctx context.Context, spec ChildSpec) (*Child, error) {
	if err := m.check(spec); err != nil {
		return nil, fmt.Errorf("spawn child: %w", err)
	}
	home, err := sealed("home", spec.Home, child.MaxHomeBytes)
	if err != nil {
		return nil, fmt.Errorf("spawn child: %w", err)
	}
	defer home.Close()
	waiting := make(chan answer, 1)
	m.mu.Lock()
	if m.closing {
		m.mu.Unlock()
		return nil, fmt.Errorf("spawn child: %w", ErrGone)
	}
	m.nextID++
	id := m.nextID
	m.pending[id] = waiting
	m.mu.Unlock()

	request := message{Op: opSpawn, ID: id, Conversation: spec.Conversation, Command: spec.Command}
	if spec.SessionDB != "" {
		request.SessionDB = filepath.Join(m.sessions(), "state.db")
	}
	err = m.channel.send(request, home)
	if err != nil {
		m.mu.Lock()
		delete(m.pending, id)
		m.mu.Unlock()
		if errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) || errors.Is(err, net.ErrClosed) {
			// The channel breaks a moment before the machine's end is known; the caller learns both at once.
			select {
			case <-m.done:
			case <-ctx.Done():
			}
			err = fmt.Errorf("%w: %w", ErrGone, err)
		}
		return nil, fmt.Errorf("spawn child: %w", err)
	}
	select {
	case a := <-waiting:
		if a.err != nil {
			return nil, fmt.Errorf("spawn child: %w", a.err)
		}
		return a.child, nil
	case <-ctx.Done():
		go func() {
			if a := <-waiting; a.child != nil {
				a.child.abandon()
			}
		}()
		return nil, fmt.Errorf("spawn child: %w", ctx.Err())
	}
}

func (m *Machine) check(spec ChildSpec) error {
	if !idPattern.MatchString(spec.Conversation) {
		return fmt.Errorf("%w: conversation %q", ErrInvalid, spec.Conversation)
	}
	if len(spec.Command) == 0 && m.config.Venv == "" {
		return fmt.Errorf("%w: no Hermes virtual environment is configured", ErrInvalid)
	}
	for name := range spec.Home {
		if err := child.CheckHomeName(name); err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
	}
	if spec.SessionDB == "" {
		return nil
	}
	// The directory is bound at the path the link in HERMES_HOME names, so that path must be a real one.
	want := m.sessions()
	dir, err := realPath(filepath.Dir(spec.SessionDB))
	if err != nil {
		return fmt.Errorf("%w: the organization has no sessions on this cell: %w", ErrInvalid, err)
	}
	if dir != want || filepath.Base(spec.SessionDB) != "state.db" {
		return fmt.Errorf("%w: session database %s is not this organization's, which is in %s", ErrInvalid, spec.SessionDB, want)
	}
	return nil
}

func (m *Machine) sessions() string {
	return filepath.Join(m.cellDir, "sessions", m.config.Organization)
}

// newChild takes the descriptors of an opSpawned message over.
func newChild(fds []int) (*Child, error) {
	if len(fds) != 4 {
		closeAll(fds)
		return nil, fmt.Errorf("a child came with %d descriptors", len(fds))
	}
	// Non-blocking, so that the runtime's poller serves them: a read or write waits without a thread and ends by deadline or Close.
	for _, fd := range fds[:3] {
		if err := unix.SetNonblock(fd, true); err != nil {
			closeAll(fds)
			return nil, fmt.Errorf("take a child's pipes: %w", err)
		}
	}
	c := &Child{
		stdin: os.NewFile(uintptr(fds[0]), "child stdin"), stdout: os.NewFile(uintptr(fds[1]), "child stdout"),
		stderr: os.NewFile(uintptr(fds[2]), "child stderr"), process: os.NewFile(uintptr(fds[3]), "child pidfd"),
		pid: pidOf(fds[3]), done: make(chan struct{}),
	}
	return c, nil
}

// pidOf is the process's id in this process's PID namespace, 0 when it has ended already.
func pidOf(pidfd int) int {
	f, err := os.Open("/proc/self/fdinfo/" + strconv.Itoa(pidfd))
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "Pid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || pid < 0 {
				return 0
			}
			return pid
		}
	}
	return 0
}

// Stdin is the write end of the child's input. Close it to let Hermes end in order.
func (c *Child) Stdin() *os.File { return c.stdin }

// Stdout is the read end of the child's output.
func (c *Child) Stdout() *os.File { return c.stdout }

// Stderr is the read end of the child's error output. It must be read to its end: a full pipe stops Hermes.
func (c *Child) Stderr() *os.File { return c.stderr }

// Pid is the init process's id in this process's PID namespace, 0 when it had ended before it could be asked for.
func (c *Child) Pid() int { return c.pid }

// Kill sends SIGKILL to the child's PID namespace; Done tells when it is gone. Killing a child that is gone is no error.
func (c *Child) Kill() error {
	raw, err := c.process.SyscallConn()
	if err != nil {
		return nil // closed by its end
	}
	// A pidfd, not a number: it can't name another process, and it works without the machine's help.
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
	if err != nil || sent == nil || errors.Is(sent, unix.ESRCH) {
		return nil // sent, or the child is gone
	}
	return fmt.Errorf("kill child: %w", sent)
}

// Done is closed when every process of the child's namespace is gone.
func (c *Child) Done() <-chan struct{} { return c.done }

// Exit is how the child ended; call it after Done.
func (c *Child) Exit() ExitStatus { return c.status }

// end is called once, by the machine's receive loop.
func (c *Child) end(s ExitStatus) {
	c.status = s
	c.process.Close()
	close(c.done)
}

// abandon ends a child nobody has.
func (c *Child) abandon() {
	_ = c.Kill()
	c.stdin.Close()
	c.stdout.Close()
	c.stderr.Close()
}
