// Package cell owns the directory that the supervisor and sessiondb of one cell share:
//
//	lock                      held by the one supervisor of the cell and by every machine and child-init process it started
//	sessions/<org>/state.db   the organizations' SessionDBs
//
// The lock is flock's, which belongs to an open file description: every process that inherited it keeps it. So it is free only when the
// last process of a supervisor's tree is gone, whichever way the supervisor went.
package cell

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrInUse means: another supervisor, or what is left of one, has the directory. The concrete error is an *InUseError.
var ErrInUse = errors.New("the cell directory is in use")

// ErrOrganization means: not an organization id.
var ErrOrganization = errors.New("not an organization id")

// InUseError names who has the directory.
type InUseError struct {
	Dir   string
	Pid   int  // of the supervisor that wrote the lock, 0 if unknown
	Alive bool // false: that supervisor is gone, and processes it started are still ending
}

func (e *InUseError) Error() string {
	if e.Alive {
		return fmt.Sprintf("%v: %s, by process %d", ErrInUse, e.Dir, e.Pid)
	}
	return fmt.Sprintf("%v: %s, by processes left by supervisor %d", ErrInUse, e.Dir, e.Pid)
}

// Is makes the error match ErrInUse.
func (e *InUseError) Is(target error) bool { return target == ErrInUse }

var idPattern = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// Cell is an open, locked cell directory.
type Cell struct {
	dir  string
	lock *os.File
}

// Open makes what is missing of the directory and takes its lock. When a live supervisor has it, Open answers ErrInUse at once. When the
// supervisor that had it is gone, processes it started are ending, and Open waits for them until ctx ends.
func Open(ctx context.Context, dir string) (*Cell, error) {
	if err := os.MkdirAll(filepath.Join(dir, "sessions"), 0o700); err != nil {
		return nil, fmt.Errorf("open cell: make its directory: %w", err)
	}
	absolute, err := filepath.Abs(dir)
	if err == nil {
		absolute, err = filepath.EvalSymlinks(absolute)
	}
	if err != nil {
		return nil, fmt.Errorf("open cell: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(absolute, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open cell: open its lock: %w", err)
	}
	if err := acquire(ctx, absolute, lock); err != nil {
		return nil, fmt.Errorf("open cell: %w", err)
	}
	if err := writeHolder(lock); err != nil {
		lock.Close()
		return nil, fmt.Errorf("open cell: %w", err)
	}
	return &Cell{dir: absolute, lock: lock}, nil
}

// acquire locks the file or closes it.
func acquire(ctx context.Context, dir string, lock *os.File) error {
	err := flock(lock, unix.LOCK_EX|unix.LOCK_NB)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.EWOULDBLOCK) {
		lock.Close()
		return fmt.Errorf("lock: %w", err)
	}
	pid, alive := readHolder(lock)
	if alive {
		lock.Close()
		return &InUseError{Dir: dir, Pid: pid, Alive: true}
	}
	locked := make(chan error, 1)
	go func() { locked <- flock(lock, unix.LOCK_EX) }()
	select {
	case err := <-locked:
		if err != nil {
			lock.Close()
			return fmt.Errorf("lock: %w", err)
		}
		return nil
	case <-ctx.Done():
		// flock can't be interrupted; whoever waits for it gives the lock back as soon as it has it.
		go func() {
			if <-locked == nil {
				_ = unix.Flock(int(lock.Fd()), unix.LOCK_UN)
			}
			lock.Close()
		}()
		pid, alive := readHolder(lock)
		return fmt.Errorf("%w: %w", &InUseError{Dir: dir, Pid: pid, Alive: alive}, ctx.Err())
	}
}

func flock(f *os.File, how int) error {
	for {
		err := unix.Flock(int(f.Fd()), how)
		if err != unix.EINTR {
			return err
		}
	}
}

// writeHolder records this process by id and start time, so that a later process with the same id is not taken for it.
func writeHolder(lock *os.File) error {
	start, err := startTime(os.Getpid())
	if err != nil {
		return fmt.Errorf("read the own start time: %w", err)
	}
	text := fmt.Sprintf("%d %s\n", os.Getpid(), start)
	if err := lock.Truncate(0); err != nil {
		return fmt.Errorf("write the lock: %w", err)
	}
	if _, err := lock.WriteAt([]byte(text), 0); err != nil {
		return fmt.Errorf("write the lock: %w", err)
	}
	return nil
}

func readHolder(lock *os.File) (pid int, alive bool) {
	buf := make([]byte, 64)
	n, _ := lock.ReadAt(buf, 0) // a short read is io.EOF
	idText, start, ok := strings.Cut(strings.TrimSpace(string(buf[:n])), " ")
	if !ok {
		return 0, false
	}
	pid, err := strconv.Atoi(idText)
	if err != nil || pid <= 0 {
		return 0, false
	}
	now, err := startTime(pid)
	return pid, err == nil && now == start
}

// startTime is field 22 of /proc/<pid>/stat, in clock ticks since boot. A zombie counts as gone: it holds no lock any more.
func startTime(pid int) (string, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", err
	}
	// The second field is the name in parentheses, which may hold anything.
	fields := strings.Fields(string(data[strings.LastIndexByte(string(data), ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", fmt.Errorf("process %d has ended", pid)
	}
	return fields[19], nil
}

// Dir is the cell's directory, absolute and without links.
func (c *Cell) Dir() string { return c.dir }

// Lock is the locked file, for the processes that must keep it. It stays the cell's.
func (c *Cell) Lock() *os.File { return c.lock }

// SessionDB is the path of the organization's state.db. Nothing is made: provisioning an organization is sessiondb's.
func (c *Cell) SessionDB(org string) (string, error) {
	if !idPattern.MatchString(org) {
		return "", fmt.Errorf("%w: %q", ErrOrganization, org)
	}
	return filepath.Join(c.dir, "sessions", org, "state.db"), nil
}

// Close gives up this process's share of the lock; the directory is free when the processes that inherited it are gone too.
func (c *Cell) Close() error {
	if err := c.lock.Close(); err != nil {
		return fmt.Errorf("close cell: %w", err)
	}
	return nil
}
