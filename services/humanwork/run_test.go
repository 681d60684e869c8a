package humanwork_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"humanwork.internal/pkg/testkit"
	"humanwork.internal/services/humanwork"
)

func TestMain(m *testing.M) {
	humanwork.Hook()
	os.Exit(m.Run())
}

// hermesVariable names the variable with a virtual environment that holds Hermes.
const hermesVariable = "HUMANWORK_TEST_HERMES"

func options(t *testing.T) humanwork.Options {
	t.Helper()
	venv := os.Getenv(hermesVariable)
	if venv == "" {
		t.Skipf("%s is not set: run the tests with make test", hermesVariable)
	}
	dir := t.TempDir()
	return humanwork.Options{
		Settings:  humanwork.Settings{DataDir: dir, HTTPAddr: "127.0.0.1:0", HermesVenv: venv, PostgresURL: testkit.Postgres(t)},
		SharedDir: dir, Progress: func(line string) { t.Log(line) }, Logger: testkit.Logger(t),
	}
}

// start runs an instance and returns its address and how to stop it, which checks what is left.
func start(t *testing.T, opt humanwork.Options) (humanwork.Address, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	started, done := make(chan humanwork.Address, 1), make(chan error, 1)
	go func() { done <- humanwork.Run(ctx, opt, func(a humanwork.Address) { started <- a }) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
		leftovers(t, opt.DataDir)
	})
	t.Cleanup(stop)
	select {
	case a := <-started:
		return a, stop
	case err := <-done:
		done <- nil
		t.Fatalf("Run = %v before it started", err)
	}
	panic("unreachable")
}

// leftovers finds processes and mounts that name the data directory.
func leftovers(t *testing.T, dir string) {
	t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		if p == "/proc/"+strconv.Itoa(os.Getpid()) {
			continue
		}
		for _, name := range []string{"cmdline", "mountinfo"} {
			raw, err := os.ReadFile(filepath.Join(p, name))
			if err == nil && bytes.Contains(raw, []byte(dir)) {
				t.Errorf("%s/%s still names %s", p, name, dir)
			}
		}
	}
}

func call(t *testing.T, a humanwork.Address, method, path, body string) map[string]any {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, a.BaseURL+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+a.Token)
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	var out map[string]any
	if err := json.Unmarshal(raw, &out); err != nil || resp.StatusCode/100 != 2 {
		t.Fatalf("%s %s: %s: %s", method, path, resp.Status, raw)
	}
	return out
}

func oneTurn(t *testing.T, a humanwork.Address, conversation string) {
	t.Helper()
	call(t, a, "POST", "/v1/organizations", `{"organizationId":"acme"}`)
	call(t, a, "POST", "/v1/organizations/acme/conversations", `{"conversationId":"`+conversation+`"}`)
	turns := "/v1/organizations/acme/conversations/" + conversation + "/turns"
	sent := call(t, a, "POST", turns, `{"messages":[{"blocks":[{"type":"text","text":"hello"}]}]}`)
	ended := call(t, a, "GET", turns+"/"+sent["turnId"].(string)+"?wait=120s", "")
	if ended["state"] != "REPLIED" {
		t.Errorf("turn = %v, want REPLIED", ended)
	}
}

func TestInstancesRunSideBySideAndLeaveNothing(t *testing.T) {
	first, second := options(t), options(t)
	a, stopA := start(t, first)
	b, stopB := start(t, second)
	oneTurn(t, a, "c1")
	oneTurn(t, b, "c1")
	stopA()
	oneTurn(t, b, "c2")
	stopB()

	// The same directory again: the organization's files, session and token are those of before.
	again, stop := start(t, second)
	defer stop()
	if again.Token != b.Token {
		t.Error("the token changed between two starts of one data directory")
	}
	oneTurn(t, again, "c1")
	got := call(t, again, "GET", "/v1/organizations/acme/conversations/c1/transcript", "")
	if n := len(got["messages"].([]any)); n != 4 {
		t.Errorf("transcript has %d messages, want the 2 of before and 2 new ones", n)
	}
}

func TestRefusedStarts(t *testing.T) {
	opt := options(t)
	_, stop := start(t, opt)
	defer stop()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		change func(*humanwork.Options)
		want   string
	}{
		{"data directory in use", func(*humanwork.Options) {}, "another instance uses the data directory"},
		{"port taken", func(o *humanwork.Options) { o.DataDir, o.HTTPAddr = t.TempDir(), taken.Addr().String() }, "--http-addr"},
		{"data directory is a file", func(o *humanwork.Options) { o.DataDir = file }, "--data-dir"},
		{"no Hermes in the environment", func(o *humanwork.Options) { o.DataDir, o.HermesVenv = t.TempDir(), t.TempDir() }, "Hermes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := opt
			tc.change(&o)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := humanwork.Run(ctx, o, func(humanwork.Address) { t.Error("it started") })
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Run = %v, want an error that says %q", err, tc.want)
			}
		})
	}
}
