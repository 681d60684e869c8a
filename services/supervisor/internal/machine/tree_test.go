package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// family is a child with a background process and one that left its session and its parent. It prints three lines; then three processes
// carry the marker.
func family(marker string) string {
	return fmt.Sprintf(`sh -c 'echo background; sleep 1000; : %[1]s' &
setsid sh -c 'sh -c "echo daemon; exec 0<&- 1>&- 2>&-; sleep 1000; : %[1]s" &' </dev/null
echo ready; cat; : %[1]s`, marker)
}

// supervise is a supervisor in a process of its own, to be killed.
func supervise(org, cell string) {
	m, err := Start(context.Background(), Config{Organization: org, CellDir: cell})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	c, err := m.Spawn(context.Background(), ChildSpec{Conversation: "conv-1", Command: []string{"/bin/sh", "-c", family(org)}})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	lines := bufio.NewReader(c.Stdout())
	for range 3 {
		lines.ReadString('\n')
	}
	fmt.Println(m.Pid(), c.Pid())
	select {}
}

func mountTable(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestEveryKillEndsEverythingBelow(t *testing.T) {
	for _, tc := range []struct {
		name string
		kill func(*Machine, *Child) error
		want ExitStatus
	}{
		{"kill", func(_ *Machine, c *Child) error { return c.Kill() }, ExitStatus{Signal: syscall.SIGKILL}},
		{"init", func(_ *Machine, c *Child) error { return unix.Kill(c.Pid(), unix.SIGKILL) }, ExitStatus{Signal: syscall.SIGKILL}},
		{"closed-input", func(_ *Machine, c *Child) error { return c.Stdin().Close() }, ExitStatus{}},
		{"machine", func(m *Machine, _ *Child) error { return unix.Kill(m.Pid(), unix.SIGKILL) }, ExitStatus{Signal: syscall.SIGKILL, MachineGone: true}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := newFixture(t)
			before := mountTable(t)
			m := f.start()
			c := f.shell(m, family(f.org+"-family"))
			for range 3 {
				line(t, c)
			}
			if got := processes(t, f.org+"-family"); len(got) < 3 { // more while a shell has forked and not executed yet
				t.Fatalf("processes before: %q, want 3", got)
			}
			if err := tc.kill(m, c); err != nil {
				t.Fatal(err)
			}
			await(t, c.Done())
			wantNone(t, f.org+"-family")
			if got := c.Exit(); got != tc.want {
				t.Errorf("exit = %v, want %v", got, tc.want)
			}
			if _, err := io.ReadAll(c.Stdout()); err != nil {
				t.Errorf("the output's end: %v, want EOF", err)
			}
			if err := c.Kill(); err != nil {
				t.Errorf("Kill of a child that is gone: %v", err)
			}
			if tc.want.MachineGone {
				await(t, m.Done())
				wantNone(t, f.org)
				if _, err := m.Spawn(t.Context(), ChildSpec{Conversation: "c", Command: []string{"/bin/true"}}); !errors.Is(err, ErrGone) {
					t.Errorf("Spawn after the machine's end: %v, want ErrGone", err)
				}
			} else if out := f.output(m, "echo again"); out != "again\n" {
				t.Errorf("the next child said %q", out)
			}
			if after := mountTable(t); after != before {
				t.Errorf("mounts changed:\n%s\nwere:\n%s", after, before)
			}
		})
	}
}

func TestSupervisorsDeathEndsItsMachines(t *testing.T) {
	for _, stopped := range []bool{false, true} { // a stopped machine can't see its fd 3 end: the parent-death signal must reach it
		t.Run(fmt.Sprintf("stopped=%v", stopped), func(t *testing.T) {
			f := newFixture(t)
			cmd := exec.Command("/proc/self/exe", "supervise", f.org, f.cell)
			cmd.Stderr = os.Stderr
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			said, _ := bufio.NewReader(out).ReadString('\n')
			var machinePid, childPid int
			if _, err := fmt.Sscan(said, &machinePid, &childPid); err != nil {
				t.Fatalf("the supervisor said %q", said)
			}
			machineEnd, childEnd := ended(t, machinePid), ended(t, childPid)
			if stopped {
				if err := unix.Kill(machinePid, unix.SIGSTOP); err != nil {
					t.Fatal(err)
				}
			}
			cmd.Process.Kill()
			cmd.Wait()
			await(t, childEnd)
			await(t, machineEnd)
			wantNone(t, f.org)
		})
	}
}

func TestCloseEndsChildrenInOrderAndKillsTheRest(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	polite := f.shell(m, "cat; exit 3")
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got, want := polite.Exit(), (ExitStatus{Code: 3}); got != want {
		t.Errorf("exit = %v, want %v: its input was closed", got, want)
	}
	wantNone(t, f.org)
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("second Close: %v", err)
	}

	m = f.start()
	stubborn := f.shell(m, "echo ready; sleep 1000; :")
	line(t, stubborn)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := m.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close with a child that ignores its input's end: %v, want the deadline's error", err)
	}
	await(t, stubborn.Done())
	wantNone(t, f.org)
}

func TestAnUndrainedChildBlocksNobodyElse(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	noisy := f.shell(m, "echo ready; cat /dev/zero >&2; :")
	line(t, noisy)
	if out := f.output(m, "echo works"); out != "works\n" {
		t.Errorf("another child said %q", out)
	}
	if err := noisy.Stdout().SetReadDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := noisy.Stdout().Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read of silent output: %v, want the deadline's error", err)
	}
	if err := noisy.Kill(); err != nil {
		t.Fatal(err)
	}
	await(t, noisy.Done())
}

func TestTheCommandAloneHoldsItsPipes(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	c := f.shell(m, "exec 1>&- 2>&-; read x; exec 0<&-; sleep 1000; :")
	for name, file := range map[string]*os.File{"stdout": c.Stdout(), "stderr": c.Stderr()} {
		if err := file.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadAll(file); err != nil {
			t.Errorf("%s that the command closed: %v, want its end", name, err)
		}
	}
	if err := c.Stdin().SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	io.WriteString(c.Stdin(), "x\n")
	full := make([]byte, 1<<20) // more than the pipe holds: the write ends only by an error
	if _, err := c.Stdin().Write(full); !errors.Is(err, unix.EPIPE) {
		t.Errorf("write to closed input: %v, want EPIPE", err)
	}
}

func TestSignalsFromBelowAndTerminalsDoNotEndTheTree(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	c := f.shell(m, "kill -TERM 1; kill -HUP 1; kill -INT 1; kill -KILL 1; echo alive; exec cat")
	if got := line(t, c); got != "alive" {
		t.Errorf("child said %q", got)
	}
	for _, pid := range []int{m.Pid(), c.Pid()} {
		if err := unix.Kill(pid, unix.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if group, err := unix.Getpgid(pid); err != nil || group != pid {
			t.Errorf("process group of %d = %d, %v; want its own", pid, group, err)
		}
	}
	io.WriteString(c.Stdin(), "still here\n")
	if got := line(t, c); got != "still here" {
		t.Errorf("child said %q after SIGTERM to the tree", got)
	}
}

func TestFailedSpawnsLeaveNothing(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	fds := openDescriptors(t)
	home := map[string][]byte{"../up": nil}
	for name, tc := range map[string]struct {
		spec ChildSpec
		want error
	}{
		"no such program":     {ChildSpec{Conversation: "c", Command: []string{"/no/such/program"}}, nil},
		"no environment":      {ChildSpec{Conversation: "c"}, ErrInvalid},
		"conversation id":     {ChildSpec{Conversation: "../c", Command: []string{"/bin/true"}}, ErrInvalid},
		"file name":           {ChildSpec{Conversation: "c", Home: home, Command: []string{"/bin/true"}}, ErrInvalid},
		"another's database":  {ChildSpec{Conversation: "c", SessionDB: f.other, Command: []string{"/bin/true"}}, ErrInvalid},
		"a database to guess": {ChildSpec{Conversation: "c", SessionDB: f.sessionDB + "/../../other/state.db", Command: []string{"/bin/true"}}, ErrInvalid},
		"an endless command":  {ChildSpec{Conversation: "c", Command: []string{strings.Repeat("x", maxMessage)}}, nil},
		"endless files":       {ChildSpec{Conversation: "c", Home: map[string][]byte{"a": make([]byte, 16<<20)}, Command: []string{"/bin/true"}}, nil},
	} {
		c, err := m.Spawn(t.Context(), tc.spec)
		if err == nil {
			t.Errorf("%s: spawned %d", name, c.Pid())
			continue
		}
		if tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
		if errors.Is(err, ErrNamespaces) {
			t.Errorf("%s: %v blames namespaces", name, err)
		}
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 {
		c, err := m.Spawn(cancelled, ChildSpec{Conversation: "c", Command: []string{"/bin/cat"}})
		if err == nil { // the answer was faster
			c.abandon()
		} else if !errors.Is(err, context.Canceled) {
			t.Errorf("Spawn with an ended context: %v", err)
		}
	}
	// Close waits for all of them, also for those nobody was given.
	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	wantNone(t, f.org)
	if got := openDescriptors(t); got > fds {
		t.Errorf("%d descriptors are open, %d were", got, fds)
	}
}

func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestTheLockIsFreeWhenTheLastMachineIsGone(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.cell, "lock")
	lock, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	var machines []*Machine
	for range 2 {
		m, err := Start(t.Context(), Config{Organization: f.org, CellDir: f.cell, Lock: lock})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close(t.Context())
		machines = append(machines, m)
	}
	c := f.shell(machines[1], `ls -l /proc/self/fd; echo ready; exec cat`)
	for text := line(t, c); text != "ready"; text = line(t, c) {
		if strings.Contains(text, "lock") {
			t.Errorf("the child holds the lock: %s", text)
		}
	}
	lock.Close() // the supervisor's share
	second, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	for i, m := range machines {
		if err := unix.Flock(int(second.Fd()), unix.LOCK_EX|unix.LOCK_NB); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("flock with %d machines left: %v, want EWOULDBLOCK", len(machines)-i, err)
		}
		m.Close(t.Context())
	}
	if err := unix.Flock(int(second.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("flock after the last machine: %v", err)
	}
}
