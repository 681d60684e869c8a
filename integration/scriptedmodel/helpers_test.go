package scriptedmodel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// start serves a model over HTTP until the test ends.
func start(t *testing.T, cfg Config) (*Model, string) {
	t.Helper()
	m := New(cfg)
	srv := httptest.NewServer(m.Handler())
	t.Cleanup(func() {
		m.Down() // what still hangs would keep Close waiting
		srv.Close()
	})
	return m, srv.URL
}

// bounded ends a wait that an error made endless.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

const someTools = `[ {"type" : "function","function":{"name":"terminal","parameters":{"a":1e2,"b":"\u00e9 \/"}}} ]`

func quoted(t *testing.T, s string) string {
	t.Helper()
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// turnBody is a turn's request in the shape Hermes sends, with the messages after the system message given as JSON.
func turnBody(stream bool, messages ...string) string {
	s := `{"messages":[{"role":"system","content":"You are an agent."},` + strings.Join(messages, ",") + `],"model":"m","tools":` + someTools
	if stream {
		s += `,"stream":true,"stream_options":{"include_usage":true}`
	}
	return s + `}`
}

func user(t *testing.T, text string) string {
	return `{"role":"user","content":` + quoted(t, text) + `}`
}

type result struct {
	status int
	text   string
	calls  []ToolCall
	ids    []string
	finish string
	usage  *usage
	chunks int
	done   bool
	err    error // reading the answer
}

func post(ctx context.Context, t *testing.T, base, body string) (*http.Response, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/v1/chat/completions", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return http.DefaultClient.Do(req)
}

// ask makes a request and reads the whole answer.
func ask(t *testing.T, base, body string) result {
	t.Helper()
	resp, err := post(bounded(t), t, base, body)
	if err != nil {
		return result{err: err}
	}
	defer resp.Body.Close()
	out := result{status: resp.StatusCode}
	if resp.Header.Get("Content-Type") == "text/event-stream" {
		readStream(&out, resp.Body)
		return out
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		out.err = err
		return out
	}
	var v completion
	if out.err = json.Unmarshal(b, &v); out.err != nil || len(v.Choices) == 0 {
		out.text = string(b)
		return out
	}
	c := v.Choices[0]
	out.text, out.finish, out.usage, out.done = *c.Message.Content, *c.FinishReason, v.Usage, true
	for _, tc := range c.Message.ToolCalls {
		out.calls = append(out.calls, ToolCall(tc.Function))
		out.ids = append(out.ids, tc.ID)
	}
	return out
}

func readStream(out *result, body io.Reader) {
	in := bufio.NewReader(body)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			return
		}
		if err != nil {
			out.err = err
			return
		}
		data, ok := bytes.CutPrefix(line, []byte("data: "))
		if !ok {
			continue
		}
		if string(data) == "[DONE]\n" {
			out.done = true
			continue
		}
		var v completion
		if out.err = json.Unmarshal(data, &v); out.err != nil {
			return
		}
		if v.Usage != nil {
			out.usage = v.Usage
		}
		if len(v.Choices) == 0 {
			continue
		}
		out.chunks++
		if f := v.Choices[0].FinishReason; f != nil {
			out.finish = *f
		}
		d := v.Choices[0].Delta
		if d.Content != nil {
			out.text += *d.Content
		}
		for _, tc := range d.ToolCalls {
			if *tc.Index == len(out.calls) {
				out.calls = append(out.calls, ToolCall{})
				out.ids = append(out.ids, tc.ID)
			}
			out.calls[*tc.Index].Name += tc.Function.Name
			out.calls[*tc.Index].Arguments += tc.Function.Arguments
		}
	}
}
