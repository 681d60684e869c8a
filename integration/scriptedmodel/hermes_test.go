package scriptedmodel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const hermesVariable = "HUMANWORK_TEST_HERMES"

// hermesACP returns the hermes-acp of the virtual environment the variable names.
func hermesACP(t *testing.T) string {
	venv := os.Getenv(hermesVariable)
	if venv == "" {
		t.Skipf("%s is not set: name a Python virtual environment with hermes-agent[acp,mcp]==0.19.0", hermesVariable)
	}
	acp := filepath.Join(venv, "bin", "hermes-acp")
	if info, err := os.Stat(acp); err != nil || info.Mode()&0o111 == 0 {
		t.Fatalf("%s=%s has no program bin/hermes-acp (%v). Make it with: python3 -m venv %s && %s/bin/pip install 'hermes-agent[acp,mcp]==0.19.0'",
			hermesVariable, venv, err, venv, venv)
	}
	return acp
}

// hermes is one hermes-acp process and its session.
type hermes struct {
	t       *testing.T
	in      io.Writer
	lines   chan map[string]json.RawMessage
	id      int
	session string
}

func startHermes(t *testing.T, modelBase string) *hermes {
	acp := hermesACP(t)
	home, work := t.TempDir(), t.TempDir()
	config := fmt.Sprintf("model: {default: %s, provider: custom, base_url: %q, api_key: sk-test}\n", DefaultModelName, modelBase)
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(acp)
	cmd.Dir = work
	cmd.Env = append(os.Environ(), "HERMES_HOME="+home)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &hermes{t: t, in: in, lines: make(chan map[string]json.RawMessage, 1000)}
	go func() {
		defer close(h.lines)
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				return
			}
			var v map[string]json.RawMessage
			if json.Unmarshal(line, &v) == nil {
				h.lines <- v
			}
		}
	}()
	t.Cleanup(func() {
		in.Close()
		for range h.lines { // Wait may only follow the last read
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("hermes-acp ended with %v", err)
		}
		if t.Failed() {
			text, _ := os.ReadFile(stderr.Name())
			t.Logf("its stderr ends: %s", text[max(0, len(text)-4000):])
		}
		stderr.Close()
	})
	h.call("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}})
	h.session = h.call("session/new", map[string]any{"cwd": work, "mcpServers": []any{}}).SessionID
	if h.session == "" {
		t.Fatal("session/new answered no session id")
	}
	return h
}

type acpAnswer struct {
	SessionID  string `json:"sessionId"`
	StopReason string `json:"stopReason"`
	text       string // streamed before it
}

func (h *hermes) send(v map[string]any) {
	v["jsonrpc"] = "2.0"
	b, err := json.Marshal(v)
	if err != nil {
		h.t.Error(err)
	}
	if _, err := h.in.Write(append(b, '\n')); err != nil {
		h.t.Error(err) // not Fatal: a cancel is sent from another goroutine
	}
}

func (h *hermes) call(method string, params map[string]any) acpAnswer {
	h.t.Helper()
	h.id++
	h.send(map[string]any{"id": h.id, "method": method, "params": params})
	deadline := time.After(90 * time.Second)
	text := ""
	for {
		select {
		case <-deadline:
			h.t.Fatalf("%s: no answer in 90 s", method)
		case v, ok := <-h.lines:
			if !ok {
				h.t.Fatalf("%s: hermes-acp ended", method)
			}
			if string(v["id"]) == fmt.Sprint(h.id) && v["method"] == nil {
				if v["error"] != nil {
					h.t.Fatalf("%s: %s", method, v["error"])
				}
				var a acpAnswer
				if err := json.Unmarshal(v["result"], &a); err != nil {
					h.t.Fatal(err)
				}
				a.text = text
				return a
			}
			text += chunkText(v["params"])
		}
	}
}

func chunkText(params json.RawMessage) string {
	var p struct {
		Update struct {
			SessionUpdate string `json:"sessionUpdate"`
			Content       struct {
				Text string `json:"text"`
			} `json:"content"`
		} `json:"update"`
	}
	if json.Unmarshal(params, &p) != nil || p.Update.SessionUpdate != "agent_message_chunk" {
		return ""
	}
	return p.Update.Content.Text
}

func (h *hermes) prompt(text string) acpAnswer {
	h.t.Helper()
	return h.blocks(map[string]any{"type": "text", "text": text})
}

func (h *hermes) blocks(blocks ...map[string]any) acpAnswer {
	h.t.Helper()
	return h.call("session/prompt", map[string]any{"sessionId": h.session, "prompt": blocks})
}

// onePixel is a PNG.
const onePixel = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="

// TestWithRealHermes checks what the package documentation says was measured.
func TestWithRealHermes(t *testing.T) {
	m, base := start(t, Config{})
	h := startHermes(t, base+"/v1")
	await := func(kind Kind) Request {
		t.Helper()
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Second, errors.New("30 s are over"))
		defer cancel()
		r, err := m.Await(ctx, func(r Request) bool { return r.Kind == kind })
		if err != nil {
			t.Errorf("request of kind %s: %v", kind, err)
		}
		return r
	}
	says := func(prompt string, want ...string) {
		t.Helper()
		a := h.prompt(prompt)
		for _, w := range want {
			if a.StopReason != "end_turn" || !strings.Contains(a.text, w) {
				t.Errorf("%q: %s %q, want end_turn and %q in it", prompt, a.StopReason, a.text, w)
			}
		}
	}

	says("hello", introduction, "You wrote:\n\nhello\n\n")
	if title := await(KindTitle); !strings.HasPrefix(title.UserText, "User: hello\n\nAssistant: ") || title.Stream {
		t.Errorf("title request = %+v", title.UserText)
	}
	first := await(KindTurn)
	if !first.Stream || !first.includeUsage || first.UserText != "hello" || len(first.Tools) < 1000 {
		t.Errorf("turn request: stream %v, usage %v, %q, %d bytes of tools", first.Stream, first.includeUsage, first.UserText, len(first.Tools))
	}

	says("RUN:echo made-by-$((40+2))", "made-by-42")
	says("STEPS:\nRUN:echo one > f.txt\nTOOL:read_file {\"path\": \"f.txt\"}", "one")
	says("PARALLEL:\nRUN:echo first\nTOOL:todo", "first", "todos")
	says("LENGTH", "reached its output limit", "this is the rest of it")
	says("HALF", "This answer of the scripted", "this is the rest of it")
	says("LONG:70000", fillerLine)
	says("FAIL:400", "HTTP 400")
	says("GARBAGE")
	says("RUN:echo works-after-failures", "works-after-failures")

	cancelled := make(chan struct{})
	go func() {
		defer close(cancelled)
		if err := m.Gate(DefaultGate).Arrived(bounded(t), 1); err != nil {
			t.Error(err)
		}
		h.send(map[string]any{"method": "session/cancel", "params": map[string]any{"sessionId": h.session}})
	}()
	if a := h.prompt("HANG"); a.StopReason != "cancelled" {
		t.Errorf("HANG, then cancel: %s, want cancelled", a.StopReason)
	}
	<-cancelled
	says("SAY:not hanging again", "not hanging again")

	h.blocks(map[string]any{"type": "text", "text": "look"}, map[string]any{"type": "image", "data": onePixel, "mimeType": "image/png"})
	if v := await(KindVision); v.Stream || v.Tools != nil {
		t.Errorf("vision request: stream %v, %d bytes of tools", v.Stream, len(v.Tools))
	}
	says("TOOL:delegate_task {\"goal\": \"SAY:done\", \"context\": \"none\"}", "The tool answered")
	if d := await(KindDelegate); d.Prompt != "SAY:done" {
		t.Errorf("delegate's prompt = %q", d.Prompt)
	}
	if r := await(KindReview); string(r.Tools) != string(first.Tools) || r.Messages[0].Text() != first.Messages[0].Text() {
		t.Error("the review's tools or system message differ from the turn's")
	}
	for _, r := range m.Requests() {
		if r.Kind == KindOther {
			t.Errorf("request %d is of no known kind: %.200s", r.Seq, r.UserText)
		}
	}
}
