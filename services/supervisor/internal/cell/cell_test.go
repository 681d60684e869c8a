package cell

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "hold" {
		hold(os.Args[2])
	}
	os.Exit(m.Run())
}

// hold is a supervisor in a process of its own: it opens the cell, starts a heir of the lock, says the heir's pid and waits.
func hold(dir string) {
	c, err := Open(context.Background(), dir)
	if err != nil {
		os.Stdout.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
	heir := exec.Command("cat")
	heir.Stdin = os.Stdin // ends when the test closes its end
	heir.ExtraFiles = []*os.File{c.Lock()}
	if err := heir.Start(); err != nil {
		os.Exit(1)
	}
	os.Stdout.WriteString("ready\n")
	select {}
}

func TestOpenMakesTheDirectoryAndRefusesASecondHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data", "cell")
	c, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "sessions")); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("sessions: %v, %v; want a directory of mode 0700", info, err)
	}
	_, err = Open(t.Context(), dir)
	var inUse *InUseError
	if !errors.Is(err, ErrInUse) || !errors.As(err, &inUse) || inUse.Pid != os.Getpid() || !inUse.Alive {
		t.Errorf("second Open = %v, want ErrInUse by live process %d", err, os.Getpid())
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c, err = Open(t.Context(), dir)
	if err != nil {
		t.Fatalf("Open after Close: %v", err)
	}
	c.Close()
}

func TestOpenWaitsForWhatADeadHolderStarted(t *testing.T) {
	dir := t.TempDir()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer write.Close()
	holder := exec.Command("/proc/self/exe", "hold", dir)
	holder.Stdin = read
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	read.Close()
	line := make([]byte, 64)
	if n, _ := out.Read(line); string(line[:n]) != "ready\n" {
		t.Fatalf("holder said %q", line[:n])
	}
	var inUse *InUseError
	if _, err := Open(t.Context(), dir); !errors.As(err, &inUse) || !inUse.Alive || inUse.Pid != holder.Process.Pid {
		t.Errorf("Open with a live holder = %v, want in use by %d", err, holder.Process.Pid)
	}
	holder.Process.Kill()
	holder.Wait()

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Open(ctx, dir); !errors.As(err, &inUse) || inUse.Alive || !errors.Is(err, context.Canceled) {
		t.Errorf("Open with a heir and an ended context = %v, want in use by what a dead holder left", err)
	}
	opened := make(chan error, 1)
	waiting := make(chan struct{})
	go func() {
		close(waiting)
		c, err := Open(t.Context(), dir)
		if err == nil {
			c.Close()
		}
		opened <- err
	}()
	<-waiting
	select {
	case err := <-opened:
		t.Fatalf("Open returned %v while the lock was held", err)
	default:
	}
	write.Close() // the heir ends
	if err := <-opened; err != nil {
		t.Errorf("Open after the heir ended: %v", err)
	}
}

func TestHolderIsNotALaterProcessWithItsID(t *testing.T) {
	lock, err := os.Create(filepath.Join(t.TempDir(), "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	start, err := startTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	pid := os.Getpid()
	for _, tc := range []struct {
		name, text string
		pid        int
		alive      bool
	}{
		{"this process", strconv.Itoa(pid) + " " + start + "\n", pid, true},
		{"another start", strconv.Itoa(pid) + " 1\n", pid, false},
		{"empty", "", 0, false},
		{"garbage", "x y z", 0, false},
		{"negative", "-1 " + start, 0, false},
	} {
		if err := lock.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err := lock.WriteAt([]byte(tc.text), 0); err != nil {
			t.Fatal(err)
		}
		if gotPid, alive := readHolder(lock); gotPid != tc.pid || alive != tc.alive {
			t.Errorf("%s: readHolder = %d, %v; want %d, %v", tc.name, gotPid, alive, tc.pid, tc.alive)
		}
	}
}

func TestSessionDBTakesIdsOnly(t *testing.T) {
	c, err := Open(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	got, err := c.SessionDB("org-1")
	if want := filepath.Join(c.Dir(), "sessions", "org-1", "state.db"); err != nil || got != want {
		t.Errorf("SessionDB = %q, %v; want %q", got, err, want)
	}
	for _, org := range []string{"", "..", "a/b", "A", "a\x00"} {
		if _, err := c.SessionDB(org); !errors.Is(err, ErrOrganization) {
			t.Errorf("SessionDB(%q): %v, want ErrOrganization", org, err)
		}
	}
}

func TestOpenNamesAnUnusableDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), filepath.Join(file, "cell")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("Open below a file: %v, want ENOTDIR", err)
	}
}
