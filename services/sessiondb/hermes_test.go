package sessiondb_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"humanwork.internal/integration/scriptedmodel"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/sessiondb/internal/store/storetest"
)

// hermes is the real hermes-acp with its state.db in the service's cell.
type hermes struct {
	*system
	venv, home string
	session    string
	delivered  map[int64]string // reply texts by locator, as they were delivered

	cancelOnText bool // cancel the prompt once some of its answer has come

	in    io.WriteCloser
	lines chan map[string]json.RawMessage
	ended chan error
	id    int
}

func (s *system) hermes(venv, model string, contextLength int) *hermes {
	s.t.Helper()
	h := &hermes{system: s, venv: venv, home: s.t.TempDir(), delivered: map[int64]string{}}
	config := fmt.Sprintf("model: {default: %s, provider: custom, base_url: %q, api_key: sk-test, context_length: %d}\ncompression: {in_place: true}\n",
		scriptedmodel.DefaultModelName, model+"/v1", contextLength)
	if err := os.WriteFile(filepath.Join(h.home, "config.yaml"), []byte(config), 0o600); err != nil {
		s.t.Fatal(err)
	}
	if err := os.Symlink(storetest.Path(s.cell, org), filepath.Join(h.home, "state.db")); err != nil {
		s.t.Fatal(err)
	}
	h.spawn()
	s.t.Cleanup(h.stop)
	var made struct{ SessionID string }
	h.call("session/new", map[string]any{"cwd": s.t.TempDir(), "mcpServers": []any{}}, &made)
	h.session = made.SessionID
	return h
}

func (h *hermes) spawn() {
	h.t.Helper()
	cmd := exec.Command(filepath.Join(h.venv, "bin", "hermes-acp"))
	cmd.Env = append(os.Environ(), "HERMES_HOME="+h.home)
	var err error
	if h.in, err = cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		h.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.lines, h.ended = make(chan map[string]json.RawMessage, 10000), make(chan error, 1)
	go func() {
		for r := bufio.NewReader(out); ; {
			line, err := r.ReadBytes('\n')
			if err != nil {
				break
			}
			var v map[string]json.RawMessage
			if json.Unmarshal(line, &v) == nil {
				h.lines <- v
			}
		}
		close(h.lines)
		h.ended <- cmd.Wait()
	}()
	h.call("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}, nil)
}

func (h *hermes) stop() {
	if h.in == nil {
		return
	}
	_ = h.in.Close()
	h.in = nil
	if err := <-h.ended; err != nil {
		h.t.Errorf("hermes-acp ended with %v", err)
	}
}

func (h *hermes) restart() {
	h.t.Helper()
	h.stop()
	h.spawn()
}

func (h *hermes) send(v map[string]any) {
	v["jsonrpc"] = "2.0"
	b, err := json.Marshal(v)
	if err != nil {
		h.t.Error(err)
	}
	if _, err := h.in.Write(append(b, '\n')); err != nil {
		h.t.Error(err)
	}
}

func (h *hermes) call(method string, params map[string]any, into any) {
	h.t.Helper()
	h.id++
	h.send(map[string]any{"id": h.id, "method": method, "params": params})
	deadline := time.After(90 * time.Second)
	for {
		select {
		case <-deadline:
			h.t.Fatalf("%s: no answer in 90 s", method)
		case v, ok := <-h.lines:
			if !ok {
				h.t.Fatalf("%s: hermes-acp ended", method)
			}
			if string(v["id"]) != fmt.Sprint(h.id) || v["method"] != nil {
				if h.cancelOnText && strings.Contains(string(v["params"]), "agent_message_chunk") {
					h.cancelOnText = false
					h.send(map[string]any{"method": "session/cancel", "params": map[string]any{"sessionId": h.session}})
				}
				continue
			}
			if v["error"] != nil {
				h.t.Fatalf("%s: %s", method, v["error"])
			}
			if into != nil {
				if err := json.Unmarshal(v["result"], into); err != nil {
					h.t.Fatal(err)
				}
			}
			return
		}
	}
}

// turn prompts and reads the outcome as ingress does. It notes the texts of complete replies.
func (h *hermes) turn(text string) *sessiondbv1.ReadOutcomeResponse {
	h.t.Helper()
	mark := h.mark()
	h.call("session/prompt", map[string]any{"sessionId": h.session, "prompt": []any{map[string]any{"type": "text", "text": text}}}, nil)
	out, err := h.reads.ReadOutcome(h.t.Context(), &sessiondbv1.ReadOutcomeRequest{
		OrganizationId: org, SessionId: h.session, Watermark: mark, PromptText: text})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range out.GetReplies() {
		if r.GetFinishReason() != "" {
			h.delivered[r.GetMessageId()] = h.text(r.GetMessageId())
		}
	}
	return out
}

func (h *hermes) text(id int64) string {
	h.t.Helper()
	r, err := h.reads.BatchGetMessages(h.t.Context(), &sessiondbv1.BatchGetMessagesRequest{
		OrganizationId: org, SessionId: h.session, MessageIds: []int64{id}})
	if err != nil {
		h.t.Fatal(err)
	}
	return r.GetMessages()[0].GetText()
}

// want checks a turn's number of user rows, and how each of its replies begins and ended.
func (h *hermes) want(what string, out *sessiondbv1.ReadOutcomeResponse, users int, replies ...string) {
	h.t.Helper()
	if len(out.GetUserMessageIds()) != users || len(out.GetReplies()) != len(replies) {
		h.t.Errorf("%s: %v, want %d user rows and %d replies", what, out, users, len(replies))
		return
	}
	for i, r := range out.GetReplies() {
		finish, text, _ := strings.Cut(replies[i], " ")
		if got := h.text(r.GetMessageId()); r.GetFinishReason() != finish || !strings.HasPrefix(got, text) {
			h.t.Errorf("%s: reply %d %q, want %q", what, r.GetMessageId(), r.GetFinishReason()+" "+got, replies[i])
		}
	}
}

// resolve checks that every delivered locator still gives the text it was delivered with, that the
// transcript lists it once, and that nothing is listed twice.
func (h *hermes) resolve(when string) {
	h.t.Helper()
	listed := map[int64]bool{}
	for token := ""; ; {
		r, err := h.reads.ListMessages(h.t.Context(), &sessiondbv1.ListMessagesRequest{
			OrganizationId: org, SessionId: h.session, PageSize: 7, PageToken: token})
		if err != nil {
			h.t.Fatal(err)
		}
		for _, m := range r.GetMessages() {
			if listed[m.GetMessageId()] {
				h.t.Errorf("%s: message %d is listed twice", when, m.GetMessageId())
			}
			listed[m.GetMessageId()] = true
			if m.GetRole() == "assistant" && len(m.GetToolCalls()) == 0 {
				if _, ok := h.delivered[m.GetMessageId()]; !ok && strings.HasPrefix(m.GetText(), "reply") {
					h.t.Errorf("%s: message %d is listed and was never delivered: %q", when, m.GetMessageId(), m.GetText())
				}
			}
		}
		if token = r.GetNextPageToken(); token == "" {
			break
		}
	}
	for id, want := range h.delivered {
		if got := h.text(id); got != want {
			h.t.Errorf("%s: locator %d gives %.60q, want %.60q", when, id, got, want)
		}
		if !listed[id] {
			h.t.Errorf("%s: locator %d is not in the transcript", when, id)
		}
	}
}

func startReal(t *testing.T, contextLength int) (*hermes, *scriptedmodel.Model) {
	t.Helper()
	venv := os.Getenv("HUMANWORK_TEST_HERMES")
	if venv == "" {
		t.Skip("HUMANWORK_TEST_HERMES is not set: name a virtual environment with hermes-agent[acp,mcp]==0.19.0")
	}
	model := scriptedmodel.New(scriptedmodel.Config{})
	srv := httptest.NewServer(model.Handler())
	t.Cleanup(func() {
		model.Down()
		srv.Close()
	})
	s := start(t, t.TempDir())
	s.provision()
	return s.hermes(venv, srv.URL, contextLength), model
}

func TestRealHermesTurns(t *testing.T) {
	h, model := startReal(t, 200_000)
	h.want("text", h.turn("  SAY:reply one\n"), 1, "stop reply one")
	h.want("tool", h.turn("RUN:echo hi"), 1, "stop ")
	h.want("output limit", h.turn("LENGTH"), 1, "stop This answer of the scripted demo model reached its output limit")
	h.want("broken stream", h.turn("HALF"), 1, "stop This answer")
	h.want("native command", h.turn("/help"), 0)
	h.want("white space", h.turn(" \n "), 0)
	h.want("queue", h.turn("/queue SAY:reply two"), 0)
	h.want("the prompt and the queued text", h.turn("SAY:reply three"), 2, "stop reply three", "stop reply two")
	h.want("steer", h.turn("/steer SAY:reply four"), 1, "stop reply four")
	h.want("outage", h.turn("FAIL:400"), 1)

	gate := model.Gate("cancel")
	gate.Step()
	gate.Step()
	h.cancelOnText = true
	h.want("cancel in a stream", h.turn("SLOW:cancel|torn off here and now"), 1, " torn")
	gate.Release()
	h.want("after a cancel", h.turn("SAY:reply five"), 1, "stop reply five")
	h.resolve("one child")

	h.restart()
	h.want("a new child", h.turn("SAY:reply six"), 1, "stop reply six")
	h.resolve("a new child")
	h.want("model command", h.turn("/model "+scriptedmodel.DefaultModelName), 0)
	h.resolve("/model")
	h.want("after /model", h.turn("SAY:reply six"), 1, "stop reply six")
	h.restart()
	h.call("session/load", map[string]any{"sessionId": h.session, "cwd": t.TempDir(), "mcpServers": []any{}}, nil)
	h.resolve("session/load")
	h.want("after session/load", h.turn("SAY:reply six"), 1, "stop reply six")
	h.restart()
	h.want("reset in a new child", h.turn("/reset"), 0)
	h.resolve("/reset")
	h.want("after /reset", h.turn("SAY:reply six"), 1, "stop reply six")
	h.resolve("the end")
}

func TestRealHermesCompaction(t *testing.T) {
	h, _ := startReal(t, 70_000)
	long := strings.Repeat(" lorem ipsum", 1300)
	compactions := 0
	for i := range 24 {
		before := h.archived()
		prompt := fmt.Sprintf("SAY:reply %d%s", i%2, long) // texts repeat on purpose
		want := fmt.Sprintf("stop reply %d", i%2)
		if i == 16 {
			h.want("failing turn", h.turn("FAIL:400"), 1)
			continue
		}
		h.want(fmt.Sprint("turn ", i), h.turn(prompt), 1, want)
		if h.archived() != before {
			compactions++
			h.resolve(fmt.Sprint("compaction in turn ", i))
		}
	}
	if compactions == 0 {
		t.Error("no compaction ran")
	}
	h.restart()
	h.want("compact in a new child", h.turn("/compact"), 0)
	h.resolve("/compact")
	h.want("after /compact", h.turn("SAY:reply 1"), 1, "stop reply 1")
	h.resolve("the end")
}

// archived counts the rows that compactions have archived.
func (h *hermes) archived() int64 {
	db := storetest.Attach(h.t, storetest.Path(h.cell, org))
	defer db.Stop()
	return db.Int("SELECT COUNT(*) FROM messages WHERE compacted = 1")
}
