package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

// runner starts PostgreSQL's programs on one data directory, as an unprivileged user.
type runner struct {
	dir      string // the data directory, for errors
	base     string // the directory below it that belongs to the programs' user
	programs *installation
	lock     *os.File // inherited by every program, so that it is free only when all of them are gone
	account  account
}

// account is the user the programs run as. staged: we are root, and the stage becomes that user.
type account struct {
	staged    bool
	uid, gid  int
	deathwish syscall.Signal // sent to the program when we die
}

// programsAccount returns the current user, or, for root, the machine's postgres user, or else nobody.
func programsAccount() (account, error) {
	if os.Geteuid() != 0 {
		// An immediate shutdown ends the backends too; killed alone, the postmaster would leave them to find out.
		return account{uid: os.Geteuid(), gid: os.Getegid(), deathwish: syscall.SIGQUIT}, nil
	}
	if !hooked.Load() {
		return account{}, errors.New("start postgres as root: postgres.Hook was not called at the start of the program")
	}
	nobody := account{staged: true, uid: 65534, gid: 65534, deathwish: syscall.SIGKILL}
	found, err := user.Lookup("postgres")
	if err != nil {
		return nobody, nil
	}
	uid, uidErr := strconv.Atoi(found.Uid)
	gid, gidErr := strconv.Atoi(found.Gid)
	if uidErr != nil || gidErr != nil || uid == 0 {
		return nobody, nil
	}
	return account{staged: true, uid: uid, gid: gid, deathwish: syscall.SIGKILL}, nil
}

// seen is the path under which the programs see a path below base.
func (r *runner) seen(name string) string {
	if r.account.staged {
		return filepath.Join(stageBase, name)
	}
	return filepath.Join(r.base, name)
}

// prepared is a program ready to start. alive and ours are the two ends of the stage's pipe, nil without a stage.
type prepared struct {
	cmd         *exec.Cmd
	alive, ours *os.File
}

// prepare makes a program ready to run with nothing of our environment.
func (r *runner) prepare(program string, args ...string) (*prepared, error) {
	forever := context.Background() // ended by signals of our choice
	env := []string{"PATH=/usr/bin:/bin", "LC_ALL=C", "TZ=UTC"}
	bin := r.programs.bin
	if !r.account.staged {
		cmd := exec.CommandContext(forever, filepath.Join(bin, program), args...)
		cmd.Env, cmd.Dir = env, r.base
		cmd.ExtraFiles = []*os.File{r.lock}
		// A session of its own: an interrupt typed at our terminal is ours to pass on, in order.
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: r.account.deathwish}
		return &prepared{cmd: cmd}, nil
	}
	order := stageOrder{Base: r.base, User: r.account.uid, Group: r.account.gid, Env: env}
	if !reachable(bin) {
		order.Prefix = filepath.Dir(bin)
		bin = filepath.Join(stagePrograms, filepath.Base(bin))
	}
	order.Args = append([]string{filepath.Join(bin, program)}, args...)
	argument, err := json.Marshal(order)
	if err != nil {
		return nil, fmt.Errorf("write the stage's order: %w", err)
	}
	alive, ours, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make the stage's pipe: %w", err)
	}
	cmd := exec.CommandContext(forever, "/proc/self/exe") // also right when the file on disk was replaced
	cmd.Args, cmd.Env = []string{stageName, string(argument)}, env
	cmd.ExtraFiles = []*os.File{r.lock, alive} // stageLock, stageAlive
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Pdeathsig:  r.account.deathwish,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
	}
	return &prepared{cmd: cmd, alive: alive, ours: ours}, nil
}

// start starts the program and closes our copy of the end that is the stage's.
func (p *prepared) start() error {
	err := p.cmd.Start()
	if p.alive != nil {
		p.alive.Close()
	}
	return err
}

// wait returns when the program has ended. The stage's pipe stays open until then: its end tells our death.
func (p *prepared) wait() error {
	err := p.cmd.Wait()
	if p.ours != nil {
		p.ours.Close()
	}
	return err
}

// A process is one running program.
type process struct {
	program string
	cmd     *exec.Cmd
	output  *output
	done    chan struct{} // closed when the program has ended and its output is read
	err     error         // valid after done; nil: it ended with status 0
}

// start runs a program with its output going to out.
func (r *runner) start(out *output, program string, args ...string) (*process, error) {
	ready, err := r.prepare(program, args...)
	if err != nil {
		return nil, err
	}
	ready.cmd.Stdout, ready.cmd.Stderr = out, out
	// A backend that outlives a killed postmaster for a moment holds the pipe; its output matters no more.
	ready.cmd.WaitDelay = time.Second
	p := &process{program: program, cmd: ready.cmd, output: out, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that made the child ends, so that thread stays here.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.done)
		err := ready.start()
		started <- err
		if err == nil {
			p.err = ready.wait()
		}
	}()
	if err := <-started; err != nil {
		if r.account.staged && errors.Is(err, syscall.EPERM) {
			return nil, &ErrNamespaces{Err: err}
		}
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	return p, nil
}

// run runs a program to its end; it is killed when ctx ends first.
func (r *runner) run(ctx context.Context, program string, args ...string) error {
	out := newOutput(nil)
	p, err := r.start(out, program, args...)
	if err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("run %s: %w", program, context.Cause(ctx))
	}
	if p.err != nil {
		return programError(r.dir, program, p.err, out.tail())
	}
	return nil
}

// signal reaches the program itself: the stage became it and kept its process id.
func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig) // it may have ended: done tells
}
