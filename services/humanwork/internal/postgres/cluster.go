package postgres

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	superuser = "humanwork"
	database  = "postgres"

	// Below the base directory, which belongs to the programs' user.
	clusterName  = "cluster"
	newCluster   = "cluster.new"  // an initdb that did not finish
	passwordCopy = "password.new" // for that initdb only
)

// initialize makes the cluster unless there is one. The password is on disk before the cluster has its name, and an
// interrupted initdb leaves no cluster: each start finds both or neither.
func (r *runner) initialize(ctx context.Context, base *os.Root, password string) error {
	for _, leftover := range []string{newCluster, passwordCopy} {
		if err := base.RemoveAll(leftover); err != nil {
			return fmt.Errorf("clear an interrupted initialization: %w", err)
		}
	}
	if err := base.WriteFile(passwordCopy, []byte(password+"\n"), 0o600); err != nil {
		return fmt.Errorf("hand the password to initdb: %w", err)
	}
	defer func() { _ = base.Remove(passwordCopy) }() // else the next start does
	if r.account.staged {
		if err := base.Lchown(passwordCopy, r.account.uid, r.account.gid); err != nil {
			return fmt.Errorf("hand the password to initdb: %w", err)
		}
	}
	args := []string{
		"--pgdata=" + r.seen(newCluster), "--username=" + superuser, "--pwfile=" + r.seen(passwordCopy),
		"--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--data-checksums",
		"--no-sync", // one sync of the file system below is much faster than its thousand
	}
	if r.programs.major >= 17 {
		args = append(args, "--locale-provider=builtin", "--builtin-locale=C")
	}
	if err := r.run(ctx, "initdb", args...); err != nil {
		return fmt.Errorf("make the database cluster: %w", err)
	}
	if err := syncAll(base); err != nil {
		return err
	}
	if err := base.Rename(newCluster, clusterName); err != nil {
		return fmt.Errorf("put the database cluster in place: %w", err)
	}
	return nil
}

// syncAll brings the whole file system of base to the disk.
func syncAll(base *os.Root) error {
	dir, err := base.Open(".")
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync the database cluster: %w", err)
	}
	return nil
}

// own gives everything below base to the programs' user, when it isn't already.
func (r *runner) own(base *os.Root) error {
	if !r.account.staged {
		return nil
	}
	info, err := base.Stat(".")
	if err != nil {
		return fmt.Errorf("inspect the data directory: %w", err)
	}
	if stat, ok := info.Sys().(*syscall.Stat_t); ok && int(stat.Uid) == r.account.uid {
		return nil
	}
	// The directory itself is last: a walk that was cut short is done again.
	err = fs.WalkDir(base.FS(), ".", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == "." {
			return err
		}
		return base.Lchown(path, r.account.uid, r.account.gid)
	})
	if err == nil {
		err = base.Lchown(".", r.account.uid, r.account.gid)
	}
	if err != nil {
		return fmt.Errorf("give the data directory to user %d: %w", r.account.uid, err)
	}
	return nil
}

// clearStale removes the postmaster.pid of a server that was killed. The locks prove that no server of ours lives; one
// that was started by hand is recognized by its working directory, which is the cluster.
func (r *runner) clearStale(base *os.Root) error {
	const name = clusterName + "/postmaster.pid"
	data, err := base.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read postmaster.pid: %w", err)
	}
	first, _, _ := strings.Cut(string(data), "\n")
	if pid, err := strconv.Atoi(strings.TrimSpace(first)); err == nil && pid > 1 {
		theirs, theirsErr := os.Stat(fmt.Sprintf("/proc/%d/cwd", pid))
		ours, oursErr := base.Stat(clusterName)
		if theirsErr == nil && oursErr == nil && os.SameFile(theirs, ours) {
			return &ErrInUse{Dir: r.dir, Holder: fmt.Sprintf("a postgres started by hand (process %d)", pid)}
		}
	}
	if err := base.Remove(name); err != nil {
		return fmt.Errorf("remove a stale postmaster.pid: %w", err)
	}
	return nil
}

// password reads the password kept in the data directory, or makes one for a cluster that is still to be made.
func password(dir string, exists bool) (string, error) {
	path := filepath.Join(dir, "password")
	data, err := os.ReadFile(path)
	if err == nil {
		return string(trimLine(data)), nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("read the database password: %w", err)
	}
	if exists {
		return "", &ErrPassword{Dir: dir, Err: err}
	}
	secret := rand.Text()
	if err := replaceFile(path, secret+"\n"); err != nil {
		return "", fmt.Errorf("keep the database password: %w", err)
	}
	return secret, nil
}

// choosePort returns the port of the last start when it is free, and otherwise another free one.
func choosePort(ctx context.Context, dir string) (int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "port"))
	if err == nil {
		port, err := strconv.Atoi(string(trimLine(data)))
		if err == nil && port > 0 && port < 1<<16 && portFree(ctx, port) {
			return port, nil
		}
	}
	return freePort(ctx)
}

func portFree(ctx context.Context, port int) bool {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	listener.Close()
	return true
}

func freePort(ctx context.Context) (int, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("choose a free port: %w", err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// replaceFile writes a small file of mode 0600 so that a crash leaves the old one or the new one.
func replaceFile(path, text string) error {
	file, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+"-")
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	err = errors.Join(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		_ = os.Remove(file.Name())
	}
	return err
}

func trimLine(data []byte) []byte {
	return []byte(strings.TrimSpace(string(data)))
}
