package postgres

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"humanwork.internal/services/humanwork/internal/filelock"
)

// helperDir names the data directory of a helper process: the test binary itself, which starts a server, prints its URL
// and lives until its input is closed or it is killed.
const helperDir = "HUMANWORK_POSTGRES_TEST_DIR"

func TestMain(m *testing.M) {
	Hook()
	if dir := os.Getenv(helperDir); dir != "" {
		helper(dir)
		return
	}
	status := m.Run()
	if template.dir != "" {
		_ = os.RemoveAll(template.dir)
	}
	os.Exit(status)
}

// template is a cluster made once, of which each test that doesn't look at the first start gets a copy.
var template struct {
	once sync.Once
	dir  string
	err  error
}

// madeDir returns a data directory, below one that only its owner can enter, whose cluster exists.
func madeDir(t *testing.T) string {
	t.Helper()
	template.once.Do(func() {
		if template.dir, template.err = os.MkdirTemp("", "humanwork-postgres-"); template.err != nil {
			return
		}
		var server *Server
		if server, template.err = Start(context.Background(), Config{DataDir: template.dir}); template.err == nil {
			server.Stop(context.Background())
		}
	})
	if template.err != nil {
		t.Fatal(template.err)
	}
	top := t.TempDir()
	if err := os.Chmod(top, 0o700); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(top, "data")
	if out, err := exec.Command("cp", "-a", template.dir, dir).CombinedOutput(); err != nil {
		t.Fatalf("copy the template: %v: %s", err, out)
	}
	if err := os.Remove(filepath.Join(dir, "port")); err != nil {
		t.Fatal(err)
	}
	return dir
}

func helper(dir string) {
	server, err := Start(context.Background(), Config{DataDir: dir, CacheDir: filepath.Join(dir, "cache")})
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println(server.URL())
	_, _ = io.Copy(io.Discard, os.Stdin)
	server.Stop(context.Background())
}

// startHelper returns the helper's URL and process; closing stdin ends it in order.
func startHelper(t *testing.T, binary, dir string, attr *syscall.SysProcAttr) (url string, cmd *exec.Cmd, stdin io.Closer) {
	t.Helper()
	cmd = exec.Command(binary)
	cmd.Env = append(os.Environ(), helperDir+"="+dir)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = attr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "postgres://") {
		kill(cmd)
		t.Fatalf("helper said %q (%v)", line, err)
	}
	return strings.TrimSpace(line), cmd, stdin
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
}

func start(t *testing.T, dir string) *Server {
	t.Helper()
	server, err := Start(t.Context(), Config{DataDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Stop(context.Background()) })
	return server
}

func exec1(t *testing.T, url, sql string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, err := conn.Query(t.Context(), sql)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	var text string
	for rows.Next() {
		values, err := rows.Values()
		if err != nil {
			t.Fatal(err)
		}
		text += fmt.Sprint(values...) + "\n"
	}
	if err := rows.Err(); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return strings.TrimSpace(text)
}

// wantGone fails when any process of the directory's server lives: each of them holds the server lock.
func wantGone(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), leftoverLimit)
	defer cancel()
	lock, err := filelock.Wait(ctx, filepath.Join(dir, "server.lock"))
	if err != nil {
		t.Fatalf("a process of the server is left: %v", err)
	}
	lock.Unlock()
}

func TestStartStopRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	begun := time.Now()
	server := start(t, dir)
	t.Logf("first start: %v", time.Since(begun))

	wantUnprivileged(t, server)
	settings := exec1(t, server.URL(), `select name, setting from pg_settings where name in
		('server_encoding', 'fsync', 'listen_addresses', 'unix_socket_directories', 'log_min_messages', 'data_checksums') order by 1`)
	want := "data_checksumson\nfsyncon\nlisten_addresses127.0.0.1\nlog_min_messageswarning\nserver_encodingUTF8\nunix_socket_directories"
	if got := strings.ReplaceAll(settings, " ", ""); got != want {
		t.Errorf("settings: got\n%s\nwant\n%s", got, want)
	}
	if got, want := exec1(t, server.URL(), `select string_agg(x, '' order by x) from (values ('b'), ('B'), ('a'), ('é')) v(x)`), "Babé"; got != want {
		t.Errorf("sort order: got %s, want that of the code points %s", got, want)
	}
	exec1(t, server.URL(), "create table kept as select 42 as n")
	info, err := os.Stat(filepath.Join(dir, "password"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("password file: got mode %v (%v), want 0600", info.Mode(), err)
	}
	url := server.URL()
	server.Stop(t.Context())
	select {
	case <-server.Done():
	default:
		t.Error("Done is open after Stop")
	}
	if err := server.Err(); err != nil {
		t.Errorf("Err after Stop: %v", err)
	}
	lock, err := filelock.Try(filepath.Join(dir, "server.lock"))
	if err != nil {
		t.Fatalf("after Stop a process is left: %v", err)
	}
	lock.Unlock()

	begun = time.Now()
	server = start(t, dir)
	warm := time.Since(begun)
	t.Logf("warm start: %v", warm)
	if server.URL() != url {
		t.Errorf("URL after a restart: got %s, want %s", server.URL(), url)
	}
	if got := exec1(t, server.URL(), "select n from kept"); got != "42" {
		t.Errorf("row after a restart: got %q, want 42", got)
	}
}

func wantUnprivileged(t *testing.T, server *Server) {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", server.process.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		fields := strings.Fields(line)
		switch fields[0] {
		case "Name:":
			if fields[1] != "postgres" {
				t.Errorf("process name: got %s, want postgres", fields[1])
			}
		case "Uid:", "Gid:":
			for _, id := range fields[1:] {
				if id == "0" {
					t.Errorf("postmaster has %s", line)
				}
			}
		case "CapEff:", "CapPrm:":
			if n, err := strconv.ParseUint(fields[1], 16, 64); err != nil || n != 0 {
				t.Errorf("postmaster has %s", line)
			}
		}
	}
}

func TestKilledOwner(t *testing.T) {
	dir := madeDir(t)
	url, cmd, _ := startHelper(t, "/proc/self/exe", dir, nil)
	exec1(t, url, "create table kept as select 42 as n")
	kill(cmd)
	begun := time.Now()
	server := start(t, dir)
	t.Logf("start after a kill: %v", time.Since(begun))
	if got := exec1(t, server.URL(), "select n from kept"); got != "42" {
		t.Errorf("row after a kill: got %q, want 42", got)
	}
	if server.URL() != url {
		t.Errorf("URL after a kill: got %s, want %s", server.URL(), url)
	}
	server.Stop(t.Context())
	wantGone(t, dir)
}

// An ordinary user's server has no namespace that ends it.
func TestKilledOrdinaryOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user; otherwise TestKilledOwner shows the same")
	}
	top, err := os.MkdirTemp("", "humanwork-postgres-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(top) })
	binary, dir := filepath.Join(top, "helper"), filepath.Join(top, "data")
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	const uid = 65534
	if err := errors.Join(os.WriteFile(binary, self, 0o755), os.Chmod(top, 0o755), os.Rename(madeDir(t), dir)); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("chown", "-R", fmt.Sprint(uid), dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ordinary := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid, NoSetGroups: false}}
	url, cmd, _ := startHelper(t, binary, dir, ordinary)
	exec1(t, url, "create table kept as select 42 as n")
	kill(cmd)
	url, cmd, stdin := startHelper(t, binary, dir, ordinary)
	if got := exec1(t, url, "select n from kept"); got != "42" {
		t.Errorf("row after a kill: got %q, want 42", got)
	}
	stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("helper: %v", err)
	}
	wantGone(t, dir)
}

func TestKilledServer(t *testing.T) {
	dir := madeDir(t)
	server := start(t, dir)
	exec1(t, server.URL(), "create table kept as select 42 as n")
	server.process.signal(syscall.SIGKILL)
	<-server.Done()
	if err := server.Err(); err == nil {
		t.Error("Err after a kill: got nil")
	}
	server.Stop(t.Context())
	again := start(t, dir)
	if got := exec1(t, again.URL(), "select n from kept"); got != "42" {
		t.Errorf("row after a kill: got %q, want 42", got)
	}
}

func TestStopWithoutTime(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	dir := madeDir(t)
	server, err := Start(t.Context(), Config{DataDir: dir, Logger: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	exec1(t, server.URL(), "create table kept as select 42 as n")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	server.process.signal(syscall.SIGSTOP) // so that the fast shutdown can't win
	go func() {
		time.AfterFunc(100*time.Millisecond, func() { server.process.signal(syscall.SIGCONT) })
	}()
	server.Stop(ctx)
	server.Stop(ctx) // once is enough
	entry := logs.FilterMessage("Postgres stopped").All()
	if len(entry) != 1 || entry[0].ContextMap()["shutdown"] != "immediate" {
		t.Errorf("log: got %v, want one immediate shutdown", entry)
	}
	if got := exec1(t, start(t, dir).URL(), "select n from kept"); got != "42" {
		t.Errorf("row after an immediate shutdown: got %q, want 42", got)
	}
}

func TestSecondInstance(t *testing.T) {
	dir := madeDir(t)
	start(t, dir)
	_, err := Start(t.Context(), Config{DataDir: dir})
	var inUse *ErrInUse
	if !errors.As(err, &inUse) {
		t.Fatalf("second start: got %v, want ErrInUse", err)
	}
	if !strings.Contains(inUse.Holder, strconv.Itoa(os.Getpid())) {
		t.Errorf("holder: got %q, want it to name process %d", inUse.Holder, os.Getpid())
	}
}

func TestPorts(t *testing.T) {
	dir := madeDir(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = Start(t.Context(), Config{DataDir: dir, Port: port})
	var taken *ErrPortTaken
	if !errors.As(err, &taken) || taken.Port != port {
		t.Fatalf("start on a taken port: got %v, want ErrPortTaken of %d", err, port)
	}
	if err := os.WriteFile(filepath.Join(dir, "port"), fmt.Appendln(nil, port), 0o600); err != nil {
		t.Fatal(err)
	}
	server := start(t, dir)
	if exec1(t, server.URL(), "select 1") != "1" || strings.Contains(server.URL(), ":"+strconv.Itoa(port)+"/") {
		t.Errorf("URL with the remembered port taken: got %s", server.URL())
	}
}

func TestReadOnly(t *testing.T) {
	dir := t.TempDir()
	if os.Geteuid() == 0 {
		mountTmpfs(t, dir, syscall.MS_RDONLY, "")
	} else if err := os.Chmod(dir, 0o500); err != nil {
		t.Fatal(err)
	}
	for _, data := range []string{dir, filepath.Join(dir, "below")} {
		_, err := Start(t.Context(), Config{DataDir: data})
		var denied *ErrNotWritable
		if !errors.As(err, &denied) || denied.Dir != data {
			t.Errorf("start in %s: got %v, want ErrNotWritable", data, err)
		}
	}
}

func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount a small file system")
	}
	dir := t.TempDir()
	mountTmpfs(t, dir, 0, "size=8m")
	_, err := Start(t.Context(), Config{DataDir: dir})
	var full *ErrDiskFull
	if !errors.As(err, &full) {
		t.Fatalf("start on 8 MiB: got %v, want ErrDiskFull", err)
	}
	wantGone(t, dir)
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	start(t, dir).Stop(t.Context())
}

func mountTmpfs(t *testing.T, dir string, flags uintptr, options string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", flags, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
}

func TestOtherVersion(t *testing.T) {
	dir := t.TempDir()
	cluster := filepath.Join(dir, "base", clusterName)
	if err := errors.Join(os.MkdirAll(cluster, 0o700), os.WriteFile(filepath.Join(cluster, "PG_VERSION"), []byte("9\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Config{DataDir: dir})
	var other *ErrVersion
	if !errors.As(err, &other) || other.Found != "9" {
		t.Fatalf("start: got %v, want ErrVersion of 9", err)
	}
}

// A postmaster.pid proves nothing by itself: after a kill its number may have been given to any other process.
func TestClearStale(t *testing.T) {
	top := t.TempDir()
	cluster := filepath.Join(top, clusterName)
	if err := os.Mkdir(cluster, 0o700); err != nil {
		t.Fatal(err)
	}
	base, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	inside := exec.Command("cat")
	inside.Dir = cluster
	stdin, err := inside.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := inside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		stdin.Close()
		_ = inside.Wait()
	}()
	for name, test := range map[string]struct {
		pid   int
		inUse bool
	}{
		"first of its namespace":   {pid: 1},
		"number of another":        {pid: os.Getpid()},
		"one that runs there":      {pid: inside.Process.Pid, inUse: true},
		"number nobody has (2^22)": {pid: 1 << 22},
	} {
		file := filepath.Join(cluster, "postmaster.pid")
		if err := os.WriteFile(file, fmt.Appendf(nil, "%d\n/somewhere\n", test.pid), 0o600); err != nil {
			t.Fatal(err)
		}
		err := (&runner{dir: top}).clearStale(base)
		var inUse *ErrInUse
		if errors.As(err, &inUse) != test.inUse || err != nil && !test.inUse {
			t.Errorf("%s: got %v, want in use: %v", name, err, test.inUse)
		}
		if _, err := os.Stat(file); (err == nil) != test.inUse {
			t.Errorf("%s: file is there: %v, want %v", name, err == nil, test.inUse)
		}
	}
}

func TestWrongPassword(t *testing.T) {
	dir := madeDir(t)
	start(t, dir).Stop(t.Context())
	for name, spoil := range map[string]func() error{
		"other":   func() error { return os.WriteFile(filepath.Join(dir, "password"), []byte("guess\n"), 0o600) },
		"missing": func() error { return os.Remove(filepath.Join(dir, "password")) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		_, err := Start(t.Context(), Config{DataDir: dir})
		var refused *ErrPassword
		if !errors.As(err, &refused) {
			t.Errorf("%s password: got %v, want ErrPassword", name, err)
		}
		wantGone(t, dir)
	}
}

func TestCancelledStart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond) // in the middle of initdb
	defer cancel()
	if _, err := Start(ctx, Config{DataDir: dir}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("start without time: got %v, want DeadlineExceeded", err)
	}
	wantGone(t, dir)
	start(t, dir)
}

func TestFetch(t *testing.T) {
	if os.Getenv("HUMANWORK_TEST_INSTALL") == "" {
		t.Skip("fetches 15 MB from a package registry: set HUMANWORK_TEST_INSTALL=1")
	}
	begun := time.Now()
	cache := t.TempDir()
	fetched, err := fetch(t.Context(), cache)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("fetch: %v", time.Since(begun))
	begun = time.Now()
	if _, err := fetch(t.Context(), cache); err != nil {
		t.Fatal(err)
	}
	t.Logf("fetched already: %v", time.Since(begun))
	// A data directory of the fetched version finds its programs again.
	dir := filepath.Join(t.TempDir(), "data")
	cluster := filepath.Join(dir, "base", clusterName)
	account, err := programsAccount()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(cluster), 0o700); err != nil {
		t.Fatal(err)
	}
	base, err := os.OpenRoot(filepath.Dir(cluster))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = base.Close() }()
	lock, err := filelock.Try(filepath.Join(dir, "server.lock"))
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{dir: dir, base: filepath.Dir(cluster), programs: fetched, lock: lock.File(), account: account}
	secret, err := password(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(r.own(base), r.initialize(t.Context(), base, secret)); err != nil {
		t.Fatal(err)
	}
	lock.Unlock()
	server, err := Start(t.Context(), Config{DataDir: dir, CacheDir: cache})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop(context.Background())
	if got := exec1(t, server.URL(), "show server_version_num"); !strings.HasPrefix(got, strconv.Itoa(fetchedMajor)) {
		t.Errorf("server version: got %s, want %d", got, fetchedMajor)
	}
	if got := exec1(t, server.URL(), "show shared_preload_libraries"); got != "pg_stat_statements" {
		t.Errorf("preloaded libraries: got %q, want pg_stat_statements", got)
	}
}
