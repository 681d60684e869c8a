package machine

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestTheChildSeesItsViewOnly(t *testing.T) {
	t.Setenv("PLANTED_SECRET", "in the supervisor's environment")
	f := newFixture(t)
	if err := os.WriteFile(filepath.Join(f.data, "token"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	leak, err := os.Open(f.other)
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	// As a C library that knows no close-on-exec would leave it.
	inherited, err := syscall.Dup(int(leak.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	m := f.start()
	other := f.shell(m, "echo mine > /workspace/private; echo mine > /tmp/private; echo ready; exec cat")
	line(t, other)

	for _, tc := range []struct{ name, script, want string }{
		{"environment", `env | grep -v ^PWD= | sort`, "HERMES_HOME=/hermes\nHOME=/tmp/home\nLANG=C.UTF-8\n" +
			"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\nPYTHONDONTWRITEBYTECODE=1\nPYTHONUNBUFFERED=1\nTERM=dumb\n"},
		{"descriptors", `for n in 0 1 2 3 4 5 6 7 8 9 10 11 12; do test -e /proc/$$/fd/$n && echo $n; done`, "0\n1\n2\n"},
		{"directory", `pwd`, "/workspace\n"},
		{"processes", `cat /proc/[0-9]*/comm`, "exe\nsh\n"},
		{"home", `ls -A /hermes; cat /hermes/.env; stat -c %a /hermes /hermes/.env`, ".env\nconfig.yaml\nstate.db\nKEY=private\n700\n600\n"},
		{"artifacts", `ls -A /artifacts`, "inbound\noutbound\n"},
		{"other conversation", `ls -A /workspace /tmp/private 2>&1`, "ls: cannot access '/tmp/private': No such file or directory\n/workspace:\n"},
		{"data directory", `find ` + f.data + ` -type f`, f.sessionDB + "\n"},
		{"sockets of the host", `ls /run; ls /dev/shm`, ""},
		{"devices", `echo /dev/*`, "/dev/fd /dev/full /dev/null /dev/ptmx /dev/pts /dev/random /dev/shm /dev/stderr /dev/stdin /dev/stdout /dev/tty /dev/urandom /dev/zero\n"},
		{"host's tree", `ls -d /.host 2>/dev/null; touch /etc/x 2>/dev/null || touch /x 2>/dev/null || echo read-only`, "read-only\n"},
		{"own places", `for d in /workspace /artifacts/outbound /hermes /tmp $HOME /dev/shm; do echo x > $d/x && echo ok; done`, strings.Repeat("ok\n", 6)},
		{"init process", `cat /proc/1/environ 2>&1 | tr -d '\0'; readlink /proc/1/fd/6 /proc/1/root || echo closed`, "cat: /proc/1/environ: Permission denied\nclosed\n"},
		{"mounts", `umount /hermes 2>/dev/null || umount ` + f.data + ` 2>/dev/null || mount -t tmpfs x /tmp 2>/dev/null || echo refused`, "refused\n"},
		{"kernel settings", `cat /proc/sys/kernel/core_pattern > /proc/sys/kernel/core_pattern || echo refused`, "refused\n"},
		{"terminal", `test -c /dev/ptmx && echo pty`, "pty\n"},
		{"core files", `ulimit -c`, "0\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f.t = t
			got := f.output(m, tc.script)
			if got != tc.want {
				t.Errorf("%s\nprinted %q\nwant    %q", tc.script, got, tc.want)
			}
		})
	}
	for _, path := range []string{"/hermes", "/workspace/private", "/tmp/private", "/artifacts"} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s exists on the host (%v)", path, err)
		}
	}
}

// The data directory of the other tests lies below /tmp, which the view replaces anyway.
func TestADataDirectoryAnywhereIsEmptied(t *testing.T) {
	here, err := os.Getwd()
	if strings.HasPrefix(here, "/tmp/") {
		here, err = os.UserHomeDir()
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(here, "testdata-")
	if errors.Is(err, os.ErrPermission) {
		t.Skip("this user may not write here")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	f := newFixtureIn(t, dir)
	m := f.start()
	got := f.output(m, `find `+f.data+` -type f; cat `+f.other+` 2>/dev/null; touch `+f.data+`/x 2>/dev/null || umount `+f.data+` 2>/dev/null || echo refused
ls -d `+filepath.Dir(here))
	if want := f.sessionDB + "\nrefused\n" + filepath.Dir(here) + "\n"; got != want {
		t.Errorf("the data directory shows %q, want %q", got, want)
	}
	if data, err := os.ReadFile(f.other); err != nil || string(data) != "rows" {
		t.Errorf("the other organization's file = %q, %v", data, err)
	}
}

func TestStateDBIsTheOrganizationsFile(t *testing.T) {
	f := newFixture(t)
	m := f.start()
	got := f.output(m, `cd $HERMES_HOME; cat state.db; echo " and more" >> state.db; echo wal > "$(readlink state.db)-wal"; readlink state.db`)
	if want := "rows" + f.sessionDB + "\n"; got != want {
		t.Errorf("child printed %q, want %q", got, want)
	}
	for path, want := range map[string]string{f.sessionDB: "rows and more\n", f.sessionDB + "-wal": "wal\n"} {
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("%s on the host = %q, %v; want %q", filepath.Base(path), data, err, want)
		}
	}
}

func TestTheInstallationStaysVisibleInTheDataDirectory(t *testing.T) {
	f := newFixture(t)
	venv := filepath.Join(f.data, "hermes", "venv")
	interpreter := filepath.Join(f.data, "python", "bin", "python3")
	for path, text := range map[string]string{interpreter: "#!/bin/sh\necho python \"$@\"\n", filepath.Join(venv, "bin", "hermes-acp"): ""} {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(interpreter, filepath.Join(venv, "bin", "python")); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), Config{Organization: f.org, CellDir: f.cell, HermesVenv: venv})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	c, err := m.Spawn(t.Context(), ChildSpec{Conversation: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := line(t, c), "python "+venv+"/bin/hermes-acp"; got != want {
		t.Errorf("child said %q, want %q", got, want)
	}
	await(t, c.Done())
	got := f.output(m, "touch "+venv+"/x 2>/dev/null || echo read-only")
	if got != "read-only\n" {
		t.Errorf("the installation: %q", got)
	}
}

func TestTheMachineHasItsDescriptorsOnly(t *testing.T) {
	f := newFixture(t)
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	inherited, err := syscall.Dup(int(null.Fd()))
	null.Close()
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(inherited)
	lock, err := os.Create(filepath.Join(f.cell, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	m, err := Start(t.Context(), Config{Organization: f.org, CellDir: f.cell, Lock: lock})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	dir := "/proc/" + strconv.Itoa(m.Pid())
	entries, err := os.ReadDir(dir + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		target, err := os.Readlink(dir + "/fd/" + e.Name())
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(target, "anon_inode:") || strings.HasPrefix(target, "socket:") {
			continue // the runtime's poller, and the channel's copy in it
		}
		got = append(got, e.Name()+" "+target)
	}
	stderr, err := os.Readlink("/proc/self/fd/2")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"0 /dev/null", "1 /dev/null", "2 " + stderr, "4 /memfd:configuration (deleted)", "8 " + lock.Name()}
	if !slices.Equal(got, want) {
		t.Errorf("descriptors %q, want %q", got, want)
	}
	if env, err := os.ReadFile(dir + "/environ"); err != nil || string(env) != "GODEBUG=containermaxprocs=0\x00GOMAXPROCS=2\x00" {
		t.Errorf("environment %q, %v; want the Go runtime's alone", env, err)
	}
}

func TestCheckPasses(t *testing.T) {
	if err := Check(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !probed.Load() {
		t.Error("a success was not remembered")
	}
}

// TestOrdinaryUser runs the tests of this package as a user without privileges, in user namespaces, where it can write: below a directory
// beside this file, if other users may come here at all.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root")
	}
	here, err := os.Getwd()
	if strings.HasPrefix(here, "/tmp/") {
		here, err = os.UserHomeDir()
	}
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(here, "testdata-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	const nobody = 65534
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe", "-test.v", "-test.skip", "^TestOrdinaryUser$", "-test.timeout", "2m")
	if err := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "test", "-w", dir).Run(); err != nil {
		t.Skipf("user %d can't reach %s", nobody, dir)
	}
	cmd.Dir = dir
	cmd.Env = []string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("as uid %d: %v\n%s", nobody, err, out)
	}
	if !strings.Contains(string(out), "--- PASS: TestSpawnRunsACommand") {
		t.Errorf("as uid %d nothing ran:\n%s", nobody, out)
	}
}
