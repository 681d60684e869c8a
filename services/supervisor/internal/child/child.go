// Package child is the first process of one conversation's namespaces: it builds the mount view Hermes sees, starts Hermes with
// descriptors 0 to 2 and an allow-listed environment, reaps what Hermes leaves, and ends with it. It is process 1 of a PID namespace,
// so that its end, however it comes, is the end of every process below it.
//
// The view (architecture.md, "Process tree of a cell", first form):
//
//	/workspace   tmpfs, the working directory
//	/artifacts   tmpfs with inbound/ and outbound/
//	/hermes      tmpfs, HERMES_HOME: the conversation's private files, state.db a link to the organization's SessionDB
//	/tmp         tmpfs; HOME is /tmp/home
//	/proc /dev   of this namespace only
//	the rest     the host's, read-only; the data directory is empty but for the organization's sessions and the Hermes installation
package child

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Paths of a child's view.
const (
	Workspace  = "/workspace"
	Artifacts  = "/artifacts"
	HermesHome = "/hermes"
	userHome   = "/tmp/home"
)

// InitName is argv[0] of the re-executed binary that makes it this process.
const InitName = "humanwork-child-init"

// Descriptors of the init process. None of them reaches Hermes.
const (
	StatusFD = 3 // pipe, write end: Status documents
	PlanFD   = 4 // memfd: a Plan
	HomeFD   = 5 // sealed memfd: map of file name to bytes
	LockFD   = 6 // the cell's lock, held by being open (absent when the cell has none)
)

// Limits of what a child is started with.
const (
	MaxHomeBytes = 16 << 20 // encoded
	maxPlanBytes = 64 << 10
)

// Plan says what to build and run. Paths are absolute and free of symbolic links.
type Plan struct {
	DataDir   string   `json:"dataDir"`   // emptied in the view
	SessionDB string   `json:"sessionDb"` // the organization's state.db; its directory is bound read-write
	Venv      string   `json:"venv"`      // the Hermes installation
	Expose    []string `json:"expose"`    // more trees that must be visible, read-only
	Command   []string `json:"command"`   // what to run in place of Hermes
}

// Status is what the init process tells the machine: one document when the command runs or could not be started, and one when it ended.
type Status struct {
	Started bool   `json:"started,omitempty"`
	Exited  bool   `json:"exited,omitempty"`
	Code    int    `json:"code,omitempty"`
	Signal  int    `json:"signal,omitempty"`
	Error   string `json:"error,omitempty"`
	Denied  bool   `json:"denied,omitempty"` // the kernel refused a mount or namespace operation
}

// Main runs the init process; it never returns. It ends by unix.Exit: os.Exit waits a second in race builds.
func Main() {
	// The bounding set, no_new_privs and the ambient set belong to a thread; the thread that drops them must be the one that forks.
	runtime.LockOSThread()
	unix.CloseOnExec(StatusFD)
	status := os.NewFile(StatusFD, "status")
	err := run(status)
	report(status, Status{Error: err.Error(), Denied: errors.Is(err, errDenied)})
	unix.Exit(1)
}

// run returns only when the command could not be started.
func run(status *os.File) error {
	for _, fd := range []int{PlanFD, HomeFD, LockFD} {
		unix.CloseOnExec(fd)
	}
	// Hermes runs as the same user: without this it could read this process's descriptors (the cell's lock) in /proc/1.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("clear dumpable: %w", err)
	}
	// A handler, not SIG_IGN, which Hermes would inherit. Nothing is forwarded: Hermes ends by its closed input or with the namespace.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)

	var plan Plan
	if err := readJSON(PlanFD, "plan", maxPlanBytes, &plan); err != nil {
		return err
	}
	home := map[string][]byte{}
	if err := readJSON(HomeFD, "home", MaxHomeBytes, &home); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("forbid core files: %w", err)
	}
	if err := assemble(plan); err != nil {
		return err
	}
	if err := writeHome(plan, home); err != nil {
		return err
	}
	if err := dropPrivileges(); err != nil {
		return err
	}
	pid, err := start(plan)
	if err != nil {
		return err
	}
	// The command alone holds the pipes now: what it closes is closed.
	if err := releaseStdio(); err != nil {
		return err
	}
	report(status, Status{Started: true})
	reap(pid, status)
	return nil
}

func readJSON(fd int, name string, limit int64, into any) error {
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	data, err := io.ReadAll(io.NewSectionReader(f, 0, limit+1))
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	if int64(len(data)) > limit {
		return fmt.Errorf("read %s: over %d bytes", name, limit)
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("decode %s: %w", name, err)
	}
	return nil
}

// writeHome fills HERMES_HOME.
func writeHome(plan Plan, home map[string][]byte) error {
	for name, data := range home {
		if err := CheckHomeName(name); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(HermesHome, name), data, 0o600); err != nil {
			return fmt.Errorf("write private file: %w", err)
		}
	}
	if plan.SessionDB == "" {
		return nil
	}
	if err := os.Symlink(plan.SessionDB, filepath.Join(HermesHome, "state.db")); err != nil {
		return fmt.Errorf("link state.db: %w", err)
	}
	return nil
}

// CheckHomeName refuses every name that is not a plain file of HERMES_HOME, and the SessionDB's own.
func CheckHomeName(name string) error {
	if name == "" || name == "." || name == ".." || len(name) > 255 || strings.ContainsAny(name, "/\x00") || strings.HasPrefix(name, "state.db") {
		return fmt.Errorf("private file %q: not a plain file name", name)
	}
	return nil
}

// argv is the command of the plan, by default Hermes under its environment's own interpreter (its script's first line may be too long for the kernel).
func (p Plan) argv() []string {
	if len(p.Command) > 0 {
		return p.Command
	}
	return []string{filepath.Join(p.Venv, "bin", "python"), filepath.Join(p.Venv, "bin", "hermes-acp")}
}

// environment is everything Hermes inherits. Credentials are in HERMES_HOME/.env, which Hermes loads itself: what is passed here
// stays readable in /proc/<pid>/environ.
func environment() []string {
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=" + userHome,
		"HERMES_HOME=" + HermesHome,
		"LANG=C.UTF-8",
		"PYTHONUNBUFFERED=1",
		"PYTHONDONTWRITEBYTECODE=1",
		"TERM=dumb",
	}
}

// start forks the command. It is not an os.Process: reap waits for every process of the namespace at once.
func start(plan Plan) (int, error) {
	argv := plan.argv()
	pid, err := syscall.ForkExec(argv[0], argv, &syscall.ProcAttr{
		Dir:   Workspace,
		Env:   environment(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, fmt.Errorf("start %s: %w", argv[0], err)
	}
	return pid, nil
}

func releaseStdio() error {
	null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(null)
	for fd := range 3 {
		if err := unix.Dup3(null, fd, 0); err != nil {
			return fmt.Errorf("release descriptor %d: %w", fd, err)
		}
	}
	return nil
}

// reap waits for every process of the namespace and exits as the command did, which ends what it left behind.
func reap(command int, status *os.File) {
	for {
		var ws unix.WaitStatus
		pid, err := unix.Wait4(-1, &ws, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil { // ECHILD is impossible while the command is not reaped
			unix.Exit(1)
		}
		if pid != command {
			continue
		}
		if ws.Signaled() {
			report(status, Status{Exited: true, Signal: int(ws.Signal())})
			unix.Exit(128 + int(ws.Signal()))
		}
		report(status, Status{Exited: true, Code: ws.ExitStatus()})
		unix.Exit(ws.ExitStatus())
	}
}

// report ignores its error: the reader is the machine, whose end is this process's end.
func report(status *os.File, s Status) {
	_ = json.NewEncoder(status).Encode(s)
}
