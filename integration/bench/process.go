package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"
)

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

// process is a started process in a session of its own. A terminal's interrupt does not reach it:
// the benchmark ends it in order. And where the kernel schedules by session (autogroup), a bare
// Hermes gets the share of a core that one of the system's gets, which has a session of its own too.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it is reaped
}

func start(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, err
	}
	p := &process{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // stop tells how it ended
		close(p.done)
	}()
	return p, nil
}

// stop asks the process to end, kills it after limit, and fails if it did not end well.
func (p *process) stop(ask func() error, limit time.Duration) error {
	err := ask()
	hard := time.NewTimer(limit)
	defer hard.Stop()
	select {
	case <-p.done:
	case <-hard.C:
		killed := p.cmd.Process.Kill()
		<-p.done
		return errors.Join(fmt.Errorf("did not end within %v and was killed", limit), err, killed)
	}
	if !p.cmd.ProcessState.Success() {
		return errors.Join(fmt.Errorf("ended with %s", p.cmd.ProcessState), err)
	}
	return nil
}

func (p *process) terminate() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send SIGTERM: %w", err)
	}
	return nil
}
