package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	host    = "/.host" // where the machine's root stays until the view is complete
	hidden  = unix.MS_NOSUID | unix.MS_NODEV
	guarded = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
)

// replaced are the top-level names that the view makes itself.
var replaced = []string{"proc", "sys", "dev", "run", "tmp", "workspace", "artifacts", "hermes", ".host"}

// errDenied marks a mount operation the kernel refused, apart from a file that may not be read.
var errDenied = errors.New("refused")

func mountError(err error) error {
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return fmt.Errorf("%w: %w", errDenied, err)
	}
	return err
}

// assemble builds the view in this process's own mount namespace and makes it the root. The new root is pivoted to first, so that the
// host's tree lies whole below one directory and every later path is a plain one.
func assemble(plan Plan) error {
	resolver, err := filepath.EvalSymlinks("/etc/resolv.conf")
	if err != nil {
		resolver = "" // no resolver: nothing to keep
	}
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/tmp", "tmpfs", hidden, "mode=0755"); err != nil {
		return err
	}
	if err := os.Mkdir("/tmp"+host, 0o700); err != nil {
		return fmt.Errorf("make the old root's place: %w", err)
	}
	if err := unix.PivotRoot("/tmp", "/tmp"+host); err != nil {
		return fmt.Errorf("pivot root: %w", mountError(err))
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	steps := []func() error{
		bindTopLevel,
		func() error { return bindReadOnly("/sys") },
		mountOwn,
		mountDev,
		mountProc,
		func() error { return bindResolver(resolver) },
		func() error { return bindData(plan) },
		func() error { return bindVisible(plan) },
		sealRoot,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// bindTopLevel shows the host's tree read-only, one mount a top-level entry, because the interpreter of the Hermes installation and the
// programs the agent uses may live anywhere in it.
func bindTopLevel() error {
	entries, err := os.ReadDir(host)
	if err != nil {
		return fmt.Errorf("list the host's root: %w", err)
	}
	for _, e := range entries {
		if slices.Contains(replaced, e.Name()) {
			continue
		}
		path := "/" + e.Name()
		switch {
		case e.Type()&os.ModeSymlink != 0:
			target, err := os.Readlink(host + path)
			if err != nil {
				return fmt.Errorf("read the link %s: %w", path, err)
			}
			if err := os.Symlink(target, path); err != nil {
				return fmt.Errorf("make the link %s: %w", path, err)
			}
		case e.IsDir(), e.Type().IsRegular():
			if err := bindReadOnly(path); err != nil {
				return err
			}
		}
	}
	return nil
}

// mountOwn makes the file systems that are this child's alone.
func mountOwn() error {
	own := []struct{ path, mode string }{
		{"/tmp", "1777"}, {"/run", "0755"}, {Workspace, "0755"}, {Artifacts, "0755"}, {HermesHome, "0700"},
	}
	for _, m := range own {
		if err := mountTmpfs(m.path, m.mode); err != nil {
			return err
		}
	}
	if _, err := os.Stat("/var/tmp"); err == nil {
		if err := mountTmpfs("/var/tmp", "1777"); err != nil {
			return err
		}
	}
	for _, dir := range []string{Artifacts + "/inbound", Artifacts + "/outbound", userHome} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	return nil
}

// mountDev makes a /dev without the host's disks, terminals and shared memory.
func mountDev() error {
	if err := mountTmpfs("/dev", "0755"); err != nil {
		return err
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty"} {
		path := "/dev/" + name
		if err := touch(path); err != nil {
			return err
		}
		if err := mount(host+path, path, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	for _, dir := range []string{"/dev/pts", "/dev/shm"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	if err := mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620"); err != nil {
		return err
	}
	if err := mount("tmpfs", "/dev/shm", "tmpfs", hidden, "mode=1777"); err != nil {
		return err
	}
	links := map[string]string{"ptmx": "pts/ptmx", "fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2"}
	for name, target := range links {
		if err := os.Symlink(target, "/dev/"+name); err != nil {
			return fmt.Errorf("make the link /dev/%s: %w", name, err)
		}
	}
	return nil
}

// mountProc makes /proc of this PID namespace. It comes before the host's tree is let go: in a user namespace the kernel allows it only
// while another whole /proc is in sight.
func mountProc() error {
	if err := os.Mkdir("/proc", 0o555); err != nil {
		return fmt.Errorf("make /proc: %w", err)
	}
	if err := mount("proc", "/proc", "proc", hidden|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return nil // the kernel's settings belong to root
	}
	// Root may write these without any capability (kernel.core_pattern starts a program on the host).
	for _, name := range []string{"sys", "sysrq-trigger", "irq", "bus", "fs"} {
		path := "/proc/" + name
		err := mount(path, path, "", unix.MS_BIND|unix.MS_REC, "")
		if errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil {
			err = setAttr(path, unix.AT_RECURSIVE, unix.MOUNT_ATTR_RDONLY)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bindResolver keeps /etc/resolv.conf working where it is a link into /run, which the view replaces because of the sockets in it.
func bindResolver(path string) error {
	if !strings.HasPrefix(path, "/run/") {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("make %s: %w", filepath.Dir(path), err)
	}
	return bindReadOnly(path)
}

// bindData empties the data directory and shows the organization's own sessions in it.
func bindData(plan Plan) error {
	masked := false
	if _, err := os.Stat(plan.DataDir); err == nil {
		if err := mount("tmpfs", plan.DataDir, "tmpfs", hidden, "mode=0755"); err != nil {
			return err
		}
		masked = true
	}
	if plan.SessionDB != "" {
		sessions := filepath.Dir(plan.SessionDB)
		if err := bind(sessions); err != nil {
			return err
		}
		if err := setAttr(sessions, unix.AT_RECURSIVE, guarded|unix.MOUNT_ATTR_NOEXEC); err != nil {
			return err
		}
	}
	for _, path := range append([]string{plan.Venv}, plan.Expose...) {
		if !within(path, plan.DataDir) {
			continue
		}
		if err := bindReadOnly(path); err != nil {
			return err
		}
	}
	if !masked {
		return nil
	}
	return setAttr(plan.DataDir, 0, unix.MOUNT_ATTR_RDONLY)
}

// bindVisible shows what must be visible and lies below a directory that the view replaced.
func bindVisible(plan Plan) error {
	for _, path := range append([]string{plan.Venv}, plan.Expose...) {
		if path == "" {
			continue
		}
		if _, err := os.Stat(path); err == nil {
			continue
		}
		if err := bindReadOnly(path); err != nil {
			return err
		}
	}
	return nil
}

// sealRoot lets the host's tree go.
func sealRoot() error {
	if err := unix.Unmount(host, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("let the host's root go: %w", err)
	}
	if err := os.Remove(host); err != nil {
		return fmt.Errorf("remove the old root's place: %w", err)
	}
	return setAttr("/", 0, unix.MOUNT_ATTR_RDONLY)
}

// bind shows the host's path, with what is mounted below it, at the same path of the view.
func bind(path string) error {
	info, err := os.Stat(host + path)
	if err != nil {
		return fmt.Errorf("find %s: %w", path, err)
	}
	if info.IsDir() {
		err = os.MkdirAll(path, 0o755)
	} else {
		err = touch(path)
	}
	if err != nil {
		return fmt.Errorf("make the place of %s: %w", path, err)
	}
	return mount(host+path, path, "", unix.MS_BIND|unix.MS_REC, "")
}

func bindReadOnly(path string) error {
	if err := bind(path); err != nil {
		return err
	}
	return setAttr(path, unix.AT_RECURSIVE, guarded|unix.MOUNT_ATTR_RDONLY)
}

func mountTmpfs(path, mode string) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return mount("tmpfs", path, "tmpfs", hidden, "mode="+mode)
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("mount %s: %w", target, mountError(err))
	}
	return nil
}

func setAttr(path string, flags uint, attr uint64) error {
	if err := unix.MountSetattr(unix.AT_FDCWD, path, flags, &unix.MountAttr{Attr_set: attr}); err != nil {
		return fmt.Errorf("restrict the mount %s: %w", path, mountError(err))
	}
	return nil
}

func touch(path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o644)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	return f.Close()
}

func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && path != "" && filepath.IsLocal(rel)
}
