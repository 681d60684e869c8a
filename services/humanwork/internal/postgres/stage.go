package postgres

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// The stage is our own binary, executed again by root as the first process of new mount, pid and IPC namespaces. It binds
// the data directory and, where needed, PostgreSQL's programs to places that every user can reach (the real ones may lie
// below a directory that only root can enter), becomes the unprivileged user and turns into the program. A postmaster that
// is process 1 of its pid namespace takes every process of the server with it when it ends.

const (
	stageName = "humanwork-postgres-stage" // argument 0 of the re-executed binary

	stageLock  = 3 // the server lock, which the program keeps
	stageAlive = 4 // the read end of a pipe whose other end only the parent holds

	// The stage covers the directory /tmp with a small file system of its own for these.
	stageRoot     = "/tmp"
	stageBase     = stageRoot + "/base"
	stagePrograms = stageRoot + "/programs"

	stageFailed = 125 // exit status
)

// stageOrder is what the stage is to do; it travels as JSON in argument 1.
type stageOrder struct {
	Base   string   // the directory that holds the cluster, bound to stageBase
	Prefix string   // bound to stagePrograms; "" when the programs can be reached where they are
	User   int      // user and group id to become
	Group  int      //
	Args   []string // the program's path and its arguments
	Env    []string
}

var hooked atomic.Bool

// Hook must be the first call of main, and of TestMain in tests that start a server: root runs PostgreSQL through the
// binary itself, executed again, and then Hook does that work and does not return.
func Hook() {
	hooked.Store(true)
	if len(os.Args) != 2 || os.Args[0] != stageName {
		return
	}
	fmt.Fprintln(os.Stderr, "postgres stage:", stage(os.Args[1]))
	os.Exit(stageFailed)
}

// stage returns only when it fails.
func stage(argument string) error {
	// The parent-death signal belongs to the thread that asks for it, and exec keeps the thread that calls it.
	runtime.LockOSThread()
	var order stageOrder
	if err := json.Unmarshal([]byte(argument), &order); err != nil {
		return fmt.Errorf("read the order: %w", err)
	}
	if err := order.mount(); err != nil {
		return err
	}
	if err := os.Chdir(stageBase); err != nil {
		return fmt.Errorf("enter the data directory: %w", err)
	}
	if err := errors.Join(syscall.Setgroups(nil), syscall.Setgid(order.Group), syscall.Setuid(order.User)); err != nil {
		return fmt.Errorf("become user %d: %w", order.User, err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("give up new privileges: %w", err)
	}
	// Changing the user cleared the signal the parent had set. A parent that died in between is seen by its pipe.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("ask to die with the parent: %w", err)
	}
	parent := []unix.PollFd{{Fd: stageAlive, Events: unix.POLLIN}}
	n, err := unix.Poll(parent, 0)
	if err != nil {
		return fmt.Errorf("look for the parent: %w", err)
	}
	if n != 0 {
		return errors.New("the parent has ended")
	}
	unix.CloseOnExec(stageAlive)
	return fmt.Errorf("execute %s: %w", order.Args[0], syscall.Exec(order.Args[0], order.Args, order.Env))
}

// mount gives the stage its file system. Mounts do not travel back to the host; what the host unmounts goes here too, so
// that a long-lived server keeps no file system of the host busy.
func (o *stageOrder) mount() error {
	if err := unix.Mount("", "/", "", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("detach from the host's mounts: %w", err)
	}
	// Opened before stageRoot is covered, because they may lie below it.
	base, err := openPath(o.Base)
	if err != nil {
		return err
	}
	programs := -1
	if o.Prefix != "" {
		if programs, err = openPath(o.Prefix); err != nil {
			return err
		}
	}
	if err := unix.Mount("tmpfs", stageRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=64k"); err != nil {
		return fmt.Errorf("cover %s: %w", stageRoot, err)
	}
	if err := bind(base, stageBase); err != nil {
		return err
	}
	if programs >= 0 {
		if err := bind(programs, stagePrograms); err != nil {
			return err
		}
	}
	// Shared memory of its own: nothing is left in the host's when the server is killed, and a container's small limit
	// does not apply.
	if err := unix.Mount("tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777,size=256m"); err != nil {
		return fmt.Errorf("mount shared memory: %w", err)
	}
	return nil
}

func openPath(path string) (int, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open %s: %w", path, err)
	}
	return fd, nil
}

func bind(fd int, target string) error {
	if err := os.Mkdir(target, 0o755); err != nil {
		return fmt.Errorf("make a mount point: %w", err)
	}
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", fd), target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("bind to %s: %w", target, err)
	}
	return nil
}

// reachable says whether every user may pass all directories above path, and path itself.
func reachable(path string) bool {
	for dir := path; ; dir = filepath.Dir(dir) {
		info, err := os.Stat(dir)
		if err != nil || info.Mode().Perm()&0o001 == 0 {
			return false
		}
		if dir == "/" {
			// The stage covers stageRoot: what lies below is hidden from the program.
			return path != stageRoot && !strings.HasPrefix(path, stageRoot+"/")
		}
	}
}
