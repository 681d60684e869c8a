package machine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// ErrNamespaces means: this host does not let the process make the mount and PID namespaces a machine is made of. The concrete error is a
// *NamespaceError.
var ErrNamespaces = errors.New("namespaces are not allowed")

// NamespaceError names the setting in the way and what to do about it.
type NamespaceError struct {
	Setting string // such as "user.max_user_namespaces = 0"
	Remedy  string
	Err     error
}

func (e *NamespaceError) Error() string {
	return fmt.Sprintf("%v (%s): %v; %s", ErrNamespaces, e.Setting, e.Err, e.Remedy)
}

func (e *NamespaceError) Unwrap() []error { return []error{ErrNamespaces, e.Err} }

// attributes are the clone flags of a machine: with CAP_SYS_ADMIN its namespaces directly, without it in a user namespace that maps the
// own user and group to themselves, where the ambient set gives the machine what it needs and its children lose it again.
func attributes() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS,
		Setsid:     true, // a terminal's Ctrl-C is the supervisor's to handle, in order
		Pdeathsig:  syscall.SIGKILL,
	}
	if !privileged() {
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return attr
}

func privileged() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	err := unix.Capget(&header, &data[0])
	return err == nil && data[0].Effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

var probed atomic.Bool

// Check tells whether a machine could start here, by making its namespaces once with a process that ends at once; after a success it
// answers without trying again.
func Check(ctx context.Context) error {
	if probed.Load() {
		return nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("probe namespaces: %w", err)
	}
	defer reader.Close()
	cmd := reexec(probeName)
	cmd.ExtraFiles = []*os.File{writer}
	err = startLocked(cmd)
	writer.Close()
	if err != nil {
		return explain("probe namespaces", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	said, _ := io.ReadAll(io.LimitReader(reader, maxMessage))
	if err := cmd.Wait(); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("probe namespaces: %w", ctx.Err())
		}
		if len(said) > 0 {
			err = errors.New(string(said))
		}
		return denied(err)
	}
	probed.Store(true)
	return nil
}

// probe is the re-executed process of Check.
func probe() {
	if err := enter(); err != nil {
		fmt.Fprint(os.NewFile(channelFD, "report"), err)
		unix.Exit(1)
	}
	unix.Exit(0)
}

// enter makes this process's mount namespace its own, with a /proc of its PID namespace.
func enter() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// explain makes a NamespaceError of what clone answers when namespaces are refused.
func explain(action string, err error) error {
	for _, refused := range []error{unix.EPERM, unix.EACCES, unix.ENOSPC, unix.ENOSYS, unix.EINVAL, unix.EUSERS} {
		if errors.Is(err, refused) {
			return denied(fmt.Errorf("%s: %w", action, err))
		}
	}
	return fmt.Errorf("%s: %w", action, err)
}

func denied(err error) error {
	e := &NamespaceError{
		Setting: "CAP_SYS_ADMIN, or clone and mount in the container's seccomp and AppArmor profiles",
		Remedy:  "run the supervisor with CAP_SYS_ADMIN and profiles that allow clone, mount and pivot_root",
		Err:     err,
	}
	for _, s := range []struct{ file, value, remedy string }{
		{"user/max_pid_namespaces", "0", "sysctl -w user.max_pid_namespaces=10000"},
		{"user/max_mnt_namespaces", "0", "sysctl -w user.max_mnt_namespaces=10000"},
		{"user/max_user_namespaces", "0", "run as root or: sysctl -w user.max_user_namespaces=10000"},
		{"kernel/unprivileged_userns_clone", "0", "run as root or: sysctl -w kernel.unprivileged_userns_clone=1"},
		{"kernel/apparmor_restrict_unprivileged_userns", "1", "run as root or: sysctl -w kernel.apparmor_restrict_unprivileged_userns=0"},
	} {
		value, readErr := os.ReadFile("/proc/sys/" + s.file)
		if readErr == nil && strings.TrimSpace(string(value)) == s.value {
			e.Setting = strings.ReplaceAll(s.file, "/", ".") + " = " + s.value
			e.Remedy = s.remedy
			break
		}
	}
	return e
}

// runtimeEnv is all that a machine and a child-init process have in their environment. Without containermaxprocs the Go runtime keeps the
// cgroup's files open, at the numbers of the machine's descriptor map.
func runtimeEnv(threads string) []string {
	return []string{"GODEBUG=containermaxprocs=0", "GOMAXPROCS=" + threads}
}

// reexec is this binary as another process, with nothing of this one's environment.
func reexec(name string, args ...string) *exec.Cmd {
	return &exec.Cmd{Path: "/proc/self/exe", Args: append([]string{name}, args...), Env: runtimeEnv("2"), SysProcAttr: attributes()}
}
