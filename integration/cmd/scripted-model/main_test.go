package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"humanwork.internal/integration/scriptedmodel"
)

func TestServesAndRecords(t *testing.T) {
	file := filepath.Join(t.TempDir(), "requests.jsonl")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := run(ctx, []string{"--record", file}, in, io.Discard)
		in.CloseWithError(io.EOF)
		ended <- err
	}()
	base, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || !strings.HasPrefix(base, "http://127.0.0.1:") {
		t.Fatalf("printed %q, %v; want a loopback URL", base, err)
	}
	base = strings.TrimSpace(base)

	body := `{"messages": [{"role":"user","content":"hi"}]}`
	resp, err := http.Post(base+"/chat/completions", "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("status = %d, want 200", resp.StatusCode)
	}
	// Read while the process still serves: the line must not wait for its end.
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := bytes.Split(bytes.TrimSpace(b), []byte("\n"))
	var got scriptedmodel.Request
	if err := json.Unmarshal(lines[len(lines)-1], &got); err != nil || len(lines) != 2 || string(got.Body) != body {
		t.Errorf("file = %s, %v; want one more line with the body", b, err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("run = %v, want nil", err)
	}
}

func TestHelpAndBadArguments(t *testing.T) {
	var help bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, io.Discard, &help); err != nil {
		t.Errorf("--help = %v", err)
	}
	for _, want := range []string{"RUN:command", "-record", "-addr", "-control"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help has no %q", want)
		}
	}
	for _, args := range [][]string{
		{"--nothing"}, {"extra"}, {"--addr", "nonsense"}, {"--record", "/nonexistent/file"}, {"--context-length", "0"}, {"--record-bytes", "-1"},
	} {
		if err := run(t.Context(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
