// Package machine runs an organization's resident machine and the Hermes children below it. The machine is this binary executed again in
// PID and mount namespaces of its own; each child is a further re-execution (package child) in namespaces nested in those. So the end of
// a child's init process ends the child, the end of the machine ends every child, and the end of the supervisor ends the machine.
//
// The machine is spoken to over its fd 3. A child's pipes are made by the machine and handed over there; what flows through them never
// crosses the machine, and its backpressure is the pipe's own.
package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"humanwork.internal/services/supervisor/internal/child"
)

// Paths of a child's view: the session's working directory, the artifacts and HERMES_HOME.
const (
	Workspace  = child.Workspace
	Artifacts  = child.Artifacts
	HermesHome = child.HermesHome
)

var (
	// ErrGone means: the machine process has ended, or is being closed.
	ErrGone = errors.New("the resident machine is gone")
	// ErrInvalid means: the configuration or the spec breaks a rule; nothing was started.
	ErrInvalid = errors.New("invalid")
)

// closeGrace is how long Close lets children end by their closed input when its context has no deadline. Hermes takes 0.7 s.
const closeGrace = 10 * time.Second

var idPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// Config describes one organization's machine.
type Config struct {
	Organization string // id, 1-63 of [a-z0-9-]
	CellDir      string // the cell's directory; sessions/<organization> in it is all of it a child sees
	// DataDir is emptied in a child's view. It must hold CellDir; by default it is the directory CellDir lies in, or CellDir itself
	// where that is the root.
	DataDir    string
	HermesVenv string   // the Hermes installation; may be empty when every spawn has a Command
	Lock       *os.File // the cell's lock: machine and child-init processes inherit it, Hermes does not
	Stderr     *os.File // where the machine process reports what it can't send; by default os.Stderr
}

// Machine is a running resident machine.
type Machine struct {
	config  residentConfig
	cellDir string
	cmd     *exec.Cmd
	channel *channel
	done    chan struct{}

	mu       sync.Mutex
	nextID   uint64
	pending  map[uint64]chan answer // spawns not yet answered
	children map[uint64]*Child
	closing  bool
}

// answer is what a spawn got: a child, or an error.
type answer struct {
	child *Child
	err   error
}

// Start starts a machine and returns when it can spawn. Errors: ErrInvalid, ErrNamespaces.
func Start(ctx context.Context, cfg Config) (*Machine, error) {
	resident, cellDir, err := resolve(cfg)
	if err != nil {
		return nil, fmt.Errorf("start machine: %w", err)
	}
	m := &Machine{
		config: resident, cellDir: cellDir, done: make(chan struct{}),
		pending: map[uint64]chan answer{}, children: map[uint64]*Child{},
	}
	if err := m.launch(cfg); err != nil {
		return nil, err
	}
	ready := make(chan error, 1)
	go m.receive(ready)
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		_ = m.cmd.Process.Kill()
		<-m.done
		return nil, fmt.Errorf("start machine: %w", err)
	}
	return m, nil
}

// launch starts the machine process with one end of the channel.
func (m *Machine) launch(cfg Config) error {
	configFile, err := sealed("configuration", m.config, maxConfig)
	if err != nil {
		return fmt.Errorf("start machine: %w", err)
	}
	defer configFile.Close()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("start machine: make its channel: %w", err)
	}
	far := os.NewFile(uintptr(pair[1]), "machine channel")
	defer far.Close()
	m.channel, err = newChannel(os.NewFile(uintptr(pair[0]), "machine channel"))
	if err != nil {
		return fmt.Errorf("start machine: %w", err)
	}
	m.cmd = reexec(machineName, m.config.Organization)
	m.cmd.Stderr = os.Stderr
	if cfg.Stderr != nil {
		m.cmd.Stderr = cfg.Stderr
	}
	m.cmd.ExtraFiles = []*os.File{far, configFile, nil, nil, nil, cfg.Lock}
	if err := startLocked(m.cmd); err != nil {
		return errors.Join(explain("start machine", err), m.channel.close())
	}
	return nil
}

// resolve checks cfg and makes its paths real ones: the view is built of paths that no link leads out of.
func resolve(cfg Config) (residentConfig, string, error) {
	if !idPattern.MatchString(cfg.Organization) {
		return residentConfig{}, "", fmt.Errorf("%w: organization %q", ErrInvalid, cfg.Organization)
	}
	cellDir, err := realPath(cfg.CellDir)
	if err != nil {
		return residentConfig{}, "", fmt.Errorf("%w: cell directory: %w", ErrInvalid, err)
	}
	dataDir := filepath.Dir(cellDir)
	if dataDir == "/" {
		dataDir = cellDir
	}
	if cfg.DataDir != "" {
		if dataDir, err = realPath(cfg.DataDir); err != nil {
			return residentConfig{}, "", fmt.Errorf("%w: data directory: %w", ErrInvalid, err)
		}
		if rel, err := filepath.Rel(dataDir, cellDir); err != nil || !filepath.IsLocal(rel) || dataDir == "/" {
			return residentConfig{}, "", fmt.Errorf("%w: data directory %s does not hold the cell directory %s", ErrInvalid, dataDir, cellDir)
		}
	}
	r := residentConfig{Organization: cfg.Organization, DataDir: dataDir, Lock: cfg.Lock != nil}
	if cfg.HermesVenv == "" {
		return r, cellDir, nil
	}
	if r.Venv, err = realPath(cfg.HermesVenv); err != nil {
		return residentConfig{}, "", fmt.Errorf("%w: Hermes virtual environment: %w", ErrInvalid, err)
	}
	python, err := realPath(filepath.Join(r.Venv, "bin", "python"))
	if err != nil {
		return residentConfig{}, "", fmt.Errorf("%w: Hermes virtual environment has no interpreter: %w", ErrInvalid, err)
	}
	// The interpreter's own installation (<prefix>/bin/python) may lie where the view hides things.
	r.Expose = []string{filepath.Dir(filepath.Dir(python))}
	return r, cellDir, nil
}

func realPath(path string) (string, error) {
	if path == "" {
		return "", errors.New("not set")
	}
	absolute, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(absolute)
}

// receive reads the channel to its end, then waits for the process, and with it for every child. It never blocks on anything else, so
// that the machine can always send.
func (m *Machine) receive(ready chan<- error) {
	for {
		msg, fds, err := m.channel.receive()
		if err == nil {
			err = m.handle(msg, fds, ready)
		}
		if err != nil {
			break
		}
	}
	// A machine that closed its channel or spoke nonsense is of no use; one that has ended is not harmed.
	_ = m.cmd.Process.Kill()
	_ = m.cmd.Wait()
	_ = m.channel.close()

	m.mu.Lock()
	defer m.mu.Unlock()
	m.closing = true
	for id, waiting := range m.pending {
		waiting <- answer{err: ErrGone}
		delete(m.pending, id)
	}
	for id, c := range m.children {
		c.end(ExitStatus{Signal: syscall.SIGKILL, MachineGone: true})
		delete(m.children, id)
	}
	select {
	case ready <- ErrGone:
	default: // it was ready once
	}
	close(m.done)
}

// handle returns an error when the machine broke the protocol.
func (m *Machine) handle(msg message, fds []int, ready chan<- error) error {
	if msg.Op != opSpawned && len(fds) > 0 {
		closeAll(fds)
		return fmt.Errorf("message %q carries descriptors", msg.Op)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch msg.Op {
	case opReady:
		return settle(ready, nil)
	case opFailed:
		err := errors.New(msg.Error)
		if msg.Denied {
			err = denied(err)
		}
		if msg.ID == 0 {
			return settle(ready, err)
		}
		return m.answer(msg.ID, answer{err: err})
	case opSpawned:
		c, err := newChild(fds)
		if err != nil {
			return err
		}
		m.children[msg.ID] = c
		return m.answer(msg.ID, answer{child: c})
	case opExited:
		c := m.children[msg.ID]
		if c == nil {
			return fmt.Errorf("child %d, which does not exist, exited", msg.ID)
		}
		delete(m.children, msg.ID)
		c.end(ExitStatus{Code: msg.Code, Signal: syscall.Signal(msg.Signal)})
		return nil
	default:
		return fmt.Errorf("message %q is not for a supervisor", msg.Op)
	}
}

// settle gives the start its one result.
func settle(ready chan<- error, err error) error {
	select {
	case ready <- err:
		return nil
	default:
		return errors.New("the machine's start was settled before")
	}
}

// answer is called with the lock held; the channel has room for the one answer.
func (m *Machine) answer(id uint64, a answer) error {
	waiting := m.pending[id]
	if waiting == nil {
		return fmt.Errorf("spawn %d was not asked for", id)
	}
	delete(m.pending, id)
	waiting <- a
	return nil
}

// Done is closed when the machine process is gone, and with it every child.
func (m *Machine) Done() <-chan struct{} { return m.done }

// Pid is the machine process's id in this process's PID namespace.
func (m *Machine) Pid() int { return m.cmd.Process.Pid }

// Close ends the machine in order: it refuses new spawns, closes every child's input, waits for them until ctx ends (10 s when it has no
// deadline), and kills what is left with the namespace. It returns when all are gone, with ctx's error if something had to be killed.
// It may be called more than once.
func (m *Machine) Close(ctx context.Context) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, closeGrace)
		defer cancel()
	}
	err := m.drain(ctx)
	_ = m.cmd.Process.Kill()
	<-m.done
	if err != nil {
		return fmt.Errorf("close machine: children had to be killed: %w", err)
	}
	return nil
}

func (m *Machine) drain(ctx context.Context) error {
	m.mu.Lock()
	m.closing = true
	var open []*Child
	for _, c := range m.children {
		open = append(open, c)
	}
	m.mu.Unlock()
	for _, c := range open {
		c.stdin.Close()
	}
	for _, c := range open {
		select {
		case <-c.Done():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
