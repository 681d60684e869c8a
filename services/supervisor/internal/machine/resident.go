package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"humanwork.internal/services/supervisor/internal/child"
)

// Descriptors of the machine process. 5 to 7 are kept free for credentials, CA bundle and runtime manifest.
const (
	channelFD = 3
	configFD  = 4 // sealed memfd: residentConfig
	lockFD    = 8 // the cell's lock, if the cell has one
)

const maxConfig = 64 << 10

type residentConfig struct {
	Organization string   `json:"organization"`
	DataDir      string   `json:"dataDir"`
	Venv         string   `json:"venv"`
	Expose       []string `json:"expose"`
	Lock         bool     `json:"lock"`
}

// residence is the machine process: process 1 of the organization's PID namespace. Its only children are the init processes of the
// conversations, each waited for by name: what they leave behind is reaped inside their own namespaces.
type residence struct {
	config  residentConfig
	channel *channel
	lock    *os.File
}

// resident runs the machine process; it never returns. It ends when fd 3 does, which is also how it sees a supervisor that died before the
// parent-death signal was set: in a new PID namespace getppid is 0 either way. (unix.Exit, because os.Exit waits a second in race builds.)
func resident() {
	for _, fd := range []int{channelFD, configFD, lockFD} {
		unix.CloseOnExec(fd)
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
	ch, err := newChannel(os.NewFile(channelFD, "machine channel"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "humanwork machine:", err)
		unix.Exit(1)
	}
	r := &residence{channel: ch}
	if err := r.open(); err != nil {
		_ = ch.send(message{Op: opFailed, Error: err.Error(), Denied: refusal(err)})
		unix.Exit(1)
	}
	if err := r.serve(); err != nil {
		fmt.Fprintln(os.Stderr, "humanwork machine:", err)
		unix.Exit(1)
	}
	unix.Exit(0)
}

func (r *residence) open() error {
	f := os.NewFile(configFD, "configuration")
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxConfig))
	if err != nil {
		return fmt.Errorf("read the machine's configuration: %w", err)
	}
	if err := json.Unmarshal(data, &r.config); err != nil {
		return fmt.Errorf("decode the machine's configuration: %w", err)
	}
	if r.config.Lock {
		r.lock = os.NewFile(lockFD, "cell lock")
	}
	return enter()
}

func (r *residence) serve() error {
	if err := r.channel.send(message{Op: opReady}); err != nil {
		return err
	}
	for {
		m, fds, err := r.channel.receive()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if m.Op != opSpawn || len(fds) != 1 {
			closeAll(fds)
			return fmt.Errorf("message %q with %d descriptors is not for a machine", m.Op, len(fds))
		}
		home := os.NewFile(uintptr(fds[0]), "home")
		go r.child(m, home)
	}
}

// child runs one child from its spawn to its end.
func (r *residence) child(m message, home *os.File) {
	run, err := r.spawn(m, home)
	home.Close()
	if err != nil {
		r.tell(message{Op: opFailed, ID: m.ID, Error: err.Error(), Denied: refusal(err)})
		return
	}
	// Said only after the wait: the kernel reaps process 1 of a namespace when the last process of it is gone.
	status := run.wait()
	r.tell(message{Op: opExited, ID: m.ID, Code: status.Code, Signal: status.Signal})
}

// tell ends the machine when the supervisor can't be told: nobody would know of this child any more.
func (r *residence) tell(m message, files ...*os.File) {
	if err := r.channel.send(m, files...); err != nil {
		fmt.Fprintln(os.Stderr, "humanwork machine:", err)
		unix.Exit(1)
	}
}

type running struct {
	cmd     *exec.Cmd
	status  *os.File
	decoder *json.Decoder
}

// spawn starts the init process, waits until the command runs in its view, and hands the supervisor its ends of the pipes.
func (r *residence) spawn(m message, home *os.File) (*running, error) {
	plan, err := sealed("plan", child.Plan{
		DataDir: r.config.DataDir, SessionDB: m.SessionDB, Venv: r.config.Venv, Expose: r.config.Expose, Command: m.Command,
	}, maxConfig)
	if err != nil {
		return nil, err
	}
	defer plan.Close()
	// All copies left here are closed on return: one that stayed would hide a stream's end from the other side.
	var made pipes
	defer made.close()
	stdin, stdout, stderr, status, err := made.four()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{child.InitName, r.config.Organization, m.Conversation}, Env: runtimeEnv("1"),
		Stdin: stdin.r, Stdout: stdout.w, Stderr: stderr.w,
		ExtraFiles:  []*os.File{status.w, plan, home, r.lock},
		SysProcAttr: &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS, Setsid: true},
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start child-init: %w", err)
	}
	status.w.Close()
	run := &running{cmd: cmd, status: status.r, decoder: json.NewDecoder(io.LimitReader(status.r, maxConfig))}
	var first child.Status
	err = run.decoder.Decode(&first)
	if err == nil && first.Started {
		err = r.handOver(m.ID, run, stdin.w, stdout.r, stderr.r)
		if err == nil {
			made.keep(status.r)
			return run, nil
		}
	} else if err == nil {
		err = errors.New(first.Error)
		if first.Denied {
			err = fmt.Errorf("%w: %w", errRefused, err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("child-init ended before its command ran: %s", cmd.ProcessState)
	}
	return nil, err
}

func (r *residence) handOver(id uint64, run *running, files ...*os.File) error {
	pidfd, err := unix.PidfdOpen(run.cmd.Process.Pid, 0)
	if err != nil {
		return fmt.Errorf("open a pidfd of the child: %w", err)
	}
	process := os.NewFile(uintptr(pidfd), "pidfd")
	defer process.Close()
	r.tell(message{Op: opSpawned, ID: id}, append(files, process)...)
	return nil
}

// wait returns when the child's namespace is gone.
func (r *running) wait() child.Status {
	var last child.Status
	err := r.decoder.Decode(&last)
	r.status.Close()
	_ = r.cmd.Wait() // the state below tells more than the error
	if err == nil && last.Exited {
		return last
	}
	ws, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return child.Status{Exited: true, Signal: int(ws.Signal())}
	}
	return child.Status{Exited: true, Code: r.cmd.ProcessState.ExitCode()}
}

// errRefused stands for the kernel's refusal that a child-init reported as text.
var errRefused = errors.New("refused by the kernel")

func refusal(err error) bool {
	return errors.Is(err, errRefused) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOSPC)
}

type pipe struct{ r, w *os.File }

type pipes []*os.File

// four makes the pipes of one child. Only the status pipe's read end is in non-blocking mode: waiting there must not take a thread per
// child, and a mode belongs to both sides of a descriptor that is passed on.
func (p *pipes) four() (stdin, stdout, stderr, status pipe, err error) {
	for i, made := range []*pipe{&stdin, &stdout, &stderr, &status} {
		var fds [2]int
		if err = unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
			return stdin, stdout, stderr, status, fmt.Errorf("make a pipe: %w", err)
		}
		if i == 3 {
			err = unix.SetNonblock(fds[0], true)
		}
		made.r, made.w = os.NewFile(uintptr(fds[0]), "pipe"), os.NewFile(uintptr(fds[1]), "pipe")
		*p = append(*p, made.r, made.w)
		if err != nil {
			return stdin, stdout, stderr, status, fmt.Errorf("set a pipe's mode: %w", err)
		}
	}
	return stdin, stdout, stderr, status, nil
}

// keep takes f out of what close closes.
func (p *pipes) keep(f *os.File) {
	*p = slices.DeleteFunc(*p, func(other *os.File) bool { return other == f })
}

func (p *pipes) close() {
	for _, f := range *p {
		f.Close()
	}
}
