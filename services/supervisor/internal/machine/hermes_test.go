package machine

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// echoModel is the smallest OpenAI-compatible endpoint Hermes is content with; it answers every prompt with the same text.
func echoModel(t *testing.T, reply string) string {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"object":"list","data":[{"id":"fake-1","object":"model","context_length":200000}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		var request struct{ Stream bool }
		json.NewDecoder(r.Body).Decode(&request)
		const usage = `"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}`
		if !request.Stream {
			fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"fake-1","choices":[{"index":0,"message":{"role":"assistant","content":%q},"finish_reason":"stop"}],%s}`, reply, usage)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		const chunk = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"fake-1","choices":[{"index":0,"delta":%s,"finish_reason":%s}]%s}` + "\n\n"
		fmt.Fprintf(w, chunk, fmt.Sprintf(`{"role":"assistant","content":%q}`, reply), "null", "")
		fmt.Fprintf(w, chunk, "{}", `"stop"`, ","+usage)
		io.WriteString(w, "data: [DONE]\n\n")
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// acp is a line client, enough to see that the child talks.
type acp struct {
	t     *testing.T
	child *Child
	lines *bufio.Reader
	id    int
	seen  strings.Builder // every notification
}

func (a *acp) call(method, params string) map[string]any {
	a.t.Helper()
	a.id++
	if err := a.child.Stdin().SetWriteDeadline(time.Now().Add(30 * time.Second)); err != nil {
		a.t.Fatalf("no deadline on stdin: %v", err)
	}
	if _, err := fmt.Fprintf(a.child.Stdin(), `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", a.id, method, params); err != nil {
		a.t.Fatalf("%s: %v", method, err)
	}
	if err := a.child.Stdout().SetReadDeadline(time.Now().Add(60 * time.Second)); err != nil {
		a.t.Fatalf("no deadline on stdout: %v", err)
	}
	for {
		line, err := a.lines.ReadBytes('\n')
		if err != nil {
			a.t.Fatalf("%s: %v; exit %v", method, err, a.child.Exit())
		}
		var answer struct {
			ID     int            `json:"id"`
			Method string         `json:"method"`
			Result map[string]any `json:"result"`
			Error  any            `json:"error"`
		}
		if err := json.Unmarshal(line, &answer); err != nil {
			a.t.Fatalf("line %q: %v", line, err)
		}
		if answer.Method != "" || answer.ID != a.id {
			a.seen.Write(line)
			continue
		}
		if answer.Error != nil {
			a.t.Fatalf("%s: error %v", method, answer.Error)
		}
		return answer.Result
	}
}

func TestHermesAnswersAPrompt(t *testing.T) {
	venv := os.Getenv("HUMANWORK_TEST_HERMES")
	if venv == "" {
		t.Skip("HUMANWORK_TEST_HERMES names no Hermes installation")
	}
	f := newFixture(t)
	if err := os.Remove(f.sessionDB); err != nil {
		t.Fatal(err)
	}
	url := echoModel(t, "pong from the model")
	m, err := Start(t.Context(), Config{Organization: f.org, CellDir: f.cell, HermesVenv: venv})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	begin := time.Now()
	c, err := m.Spawn(t.Context(), ChildSpec{
		Conversation: "conv-1", SessionDB: f.sessionDB,
		Home: map[string][]byte{"config.yaml": fmt.Appendf(nil, "model: {default: fake-1, provider: custom, base_url: %q, api_key: sk-fake}\n", url+"/v1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	spawned := time.Since(begin)
	var stderr strings.Builder
	var drained sync.WaitGroup
	drained.Go(func() { io.Copy(&stderr, c.Stderr()) })
	defer func() {
		if t.Failed() {
			c.Kill()
			drained.Wait()
			t.Log(stderr.String())
		}
	}()

	a := &acp{t: t, child: c, lines: bufio.NewReaderSize(c.Stdout(), 1<<20)}
	a.call("initialize", `{"protocolVersion":1,"clientCapabilities":{}}`)
	initialized := time.Since(begin)
	session, _ := a.call("session/new", fmt.Sprintf(`{"cwd":%q,"mcpServers":[]}`, Workspace))["sessionId"].(string)
	created := time.Since(begin)
	result := a.call("session/prompt", fmt.Sprintf(`{"sessionId":%q,"prompt":[{"type":"text","text":"ping"}]}`, session))
	t.Logf("spawned %v, initialized %v, session %v, first turn %v", spawned, initialized, created, time.Since(begin))
	if result["stopReason"] != "end_turn" || !strings.Contains(a.seen.String(), "pong from the model") {
		t.Errorf("prompt = %v with %s; want end_turn and the model's text", result, a.seen.String())
	}
	rows, err := os.ReadFile(f.sessionDB)
	if err == nil {
		wal, _ := os.ReadFile(f.sessionDB + "-wal")
		rows = append(rows, wal...)
	}
	if err != nil || !strings.Contains(string(rows), "pong from the model") {
		t.Errorf("the organization's state.db (%v) does not hold the reply", err)
	}

	if err := m.Close(t.Context()); err != nil {
		t.Errorf("Close: %v", err)
	}
	if got, want := c.Exit(), (ExitStatus{}); got != want {
		t.Errorf("Hermes ended with %v on closed input, want %v", got, want)
	}
}
