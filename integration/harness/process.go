package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// ErrKilled means that the process did not end in time and was killed.
var ErrKilled = errors.New("did not stop in time and was killed")

type processSpec struct {
	Name string
	Path string
	Args []string
	Env  []string // added to this process's own
	Log  string   // file that standard output and error are appended to
}

// Process is one process of a system, running or ended.
type Process struct {
	spec processSpec
	cmd  *exec.Cmd
	done chan struct{} // closed when it is reaped

	mu      sync.Mutex
	lines   []string
	changed chan struct{} // closed and replaced at every line
}

// starter runs starts on one thread that never ends: the parent-death signal is sent when the
// THREAD that made a process ends.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// startProcess starts a process of its own group that dies with this one.
func startProcess(spec processSpec) (*Process, error) {
	if err := os.MkdirAll(filepath.Dir(spec.Log), 0o755); err != nil {
		return nil, fmt.Errorf("make the log's directory: %w", err)
	}
	log, err := os.OpenFile(spec.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		log.Close()
		return nil, fmt.Errorf("make the log's pipe: %w", err)
	}
	p := &Process{spec: spec, done: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(spec.Path, spec.Args...)
	p.cmd.Env = append(os.Environ(), spec.Env...)
	p.cmd.Dir = filepath.Dir(spec.Log)
	p.cmd.Stdout, p.cmd.Stderr = w, w
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starter() <- func() { started <- p.cmd.Start() }
	err = <-started
	w.Close()
	if err != nil {
		r.Close()
		log.Close()
		return nil, err
	}
	go p.follow(r, log)
	go func() {
		_ = p.cmd.Wait() // State tells it
		close(p.done)
	}()
	return p, nil
}

// follow copies the output to the log and keeps its lines.
func (p *Process) follow(r, log *os.File) {
	defer r.Close()
	defer log.Close()
	for in := bufio.NewReader(r); ; {
		line, err := in.ReadString('\n')
		if line != "" {
			_, _ = log.WriteString(line) // a full disk is not what is tested
			p.mu.Lock()
			p.lines = append(p.lines, strings.TrimSuffix(line, "\n"))
			close(p.changed)
			p.changed = make(chan struct{})
			p.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

// AwaitLine waits until the process has written a line with text in it.
func (p *Process) AwaitLine(ctx context.Context, text string) error {
	for seen := 0; ; {
		p.mu.Lock()
		lines, changed := p.lines[seen:], p.changed
		p.mu.Unlock()
		seen += len(lines)
		for _, line := range lines {
			if strings.Contains(line, text) {
				return nil
			}
		}
		select {
		case <-changed:
		case <-p.done:
			return fmt.Errorf("ended before it wrote %q: %s\n%s", text, p.State(), p.Tail(10))
		case <-ctx.Done():
			return fmt.Errorf("wait for the line %q: %w", text, context.Cause(ctx))
		}
	}
}

// Lines are those the process wrote with text in them.
func (p *Process) Lines(text string) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var found []string
	for _, line := range p.lines {
		if strings.Contains(line, text) {
			found = append(found, line)
		}
	}
	return found
}

// Tail is the last n lines.
func (p *Process) Tail(n int) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-n):], "\n")
}

// Log is the path of the log file.
func (p *Process) Log() string { return p.spec.Log }

// Pid is the process's id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended and was reaped.
func (p *Process) Done() <-chan struct{} { return p.done }

// Ended reports whether Done is closed.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// State is how the process ended.
func (p *Process) State() string {
	if !p.Ended() {
		return "running"
	}
	return p.cmd.ProcessState.String()
}

// Kill sends SIGKILL and returns when the process is reaped.
func (p *Process) Kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send SIGKILL: %w", err)
	}
	<-p.done
	return nil
}

// Stop sends SIGTERM and waits; the error says that the process did not end with exit code 0.
func (p *Process) Stop(limit time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send SIGTERM: %w", err)
	}
	hard := time.NewTimer(limit)
	defer hard.Stop()
	select {
	case <-p.done:
	case <-hard.C:
		return errors.Join(ErrKilled, p.Kill())
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("ended with %s, want exit code 0\n%s", p.State(), p.Tail(10))
	}
	return nil
}
