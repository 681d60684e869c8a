package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"humanwork.internal/pkg/testkit"
	"humanwork.internal/services/humanwork"
)

// beMain makes the test binary the command itself, for examples that call it.
const beMain = "HUMANWORK_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		main()
		return
	}
	humanwork.Hook()
	os.Exit(m.Run())
}

// serve runs an instance and returns its address.
func serve(t *testing.T) humanwork.Address {
	t.Helper()
	venv := os.Getenv("HUMANWORK_TEST_HERMES")
	if venv == "" {
		t.Skip("HUMANWORK_TEST_HERMES is not set: run the tests with make test")
	}
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	started, done := make(chan humanwork.Address, 1), make(chan error, 1)
	go func() {
		done <- humanwork.Run(ctx, humanwork.Options{
			Settings:  humanwork.Settings{DataDir: dir, HTTPAddr: "127.0.0.1:0", HermesVenv: venv, PostgresURL: testkit.Postgres(t)},
			SharedDir: dir, Progress: func(line string) { t.Log(line) }, Logger: testkit.Logger(t),
		}, func(a humanwork.Address) { started <- a })
	}()
	select {
	case a := <-started:
		t.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("Run = %v, want nil", err)
			}
		})
		return a
	case err := <-done:
		cancel()
		t.Fatalf("Run = %v before it started", err)
	}
	panic("unreachable")
}

var example = regexp.MustCompile("(?s)```bash\n(.*?)```\n")

// TestExamplesOfFiles runs every example of docs/files.md, in order, in one shell.
func TestExamplesOfFiles(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "docs", "files.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tool := range []string{"bash", "curl", "jq"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("%s is not installed", tool)
		}
	}
	examples := example.FindAllStringSubmatch(string(page), -1)
	if len(examples) < 10 {
		t.Fatalf("found %d examples; the search is broken", len(examples))
	}
	a := serve(t)
	// "! command" never ends a shell with -e, so each one is made a test of its own.
	script := "set -euo pipefail\n"
	for i, e := range examples {
		script += fmt.Sprintf("echo '== example %d'\n%s", i+1, expected.ReplaceAllString(e[1], "if $1; then echo 'it should have failed'; exit 1; fi"))
	}
	out, err := shell(t, a, script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"workspace/figures.txt  26 B  version ", "created\n", "North  1,204\nSouth    987\n", "file:///workspace/figures.tar",
		"VERSION_MISMATCH", "REPLIED\n", `"type": "resource_link"`, "event: file.changed", "added ", "workspace/later.txt", "before-the-change",
		"restored; kept as it was before: snapshot ", "0 faults, 0 of them remain",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if t.Failed() {
		t.Log(out)
	}
}

var expected = regexp.MustCompile(`(?m)^! (.*)$`)

// shell runs a script in an empty directory, with this program as humanwork.
func shell(t *testing.T, a humanwork.Address, script string) (string, error) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "humanwork"), fmt.Appendf(nil, "#!/bin/sh\nexport %s=1\nexec %q \"$@\"\n", beMain, self), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HUMANWORK_HTTP_ADDR="+strings.TrimPrefix(a.BaseURL, "http://"), "HUMANWORK_TOKEN="+a.Token)
	out, err := cmd.CombinedOutput()
	return string(out), err
}
