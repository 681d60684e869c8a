package scriptedmodel

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
)

func TestModels(t *testing.T) {
	_, base := start(t, Config{ModelName: "m1", ContextLength: 70_000})
	resp, err := http.Get(base + "/v1/models")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	var got struct {
		Data []modelObject `json:"data"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&got); err != nil {
		t.Fatal(err)
	}
	if len(got.Data) != 1 || got.Data[0].ID != "m1" || got.Data[0].ContextLength != 70_000 {
		t.Errorf("models = %+v, want m1 with 70000", got.Data)
	}
}

func TestAnswersAreExactStreamedAndWhole(t *testing.T) {
	texts := []string{
		"", "one", " leading and trailing ", "two  spaces\r\n\ttab", "<user_message> & \u2028", "👩‍👩‍👧 é\u0301 \u202e",
		strings.Repeat("é👩‍👩‍👧x", 3000), strings.Repeat(" ", 5000),
	}
	m, base := start(t, Config{})
	for _, text := range texts {
		for _, stream := range []bool{true, false} {
			m.Queue("q", Text(text))
			got := ask(t, base, turnBody(stream, user(t, "q")))
			if got.err != nil || got.text != text || got.finish != "stop" || !got.done || got.usage == nil {
				t.Errorf("stream %v: got %d bytes, finish %q, done %v, usage %v, error %v; want %d bytes",
					stream, len(got.text), got.finish, got.done, got.usage, got.err, len(text))
			}
		}
	}
}

func TestUsageOnlyWhenAskedFor(t *testing.T) {
	_, base := start(t, Config{})
	body := strings.Replace(turnBody(true, user(t, "q")), `,"stream_options":{"include_usage":true}`, "", 1)
	if got := ask(t, base, body); got.usage != nil || !got.done {
		t.Errorf("usage = %v, done %v; want none, true", got.usage, got.done)
	}
}

func TestToolCalls(t *testing.T) {
	m, base := start(t, Config{})
	want := []ToolCall{NewToolCall("terminal", map[string]string{"command": "echo é"}), {Name: "other", Arguments: `{"n": 1}`}}
	seen := map[string]bool{}
	for _, stream := range []bool{true, false} {
		m.Queue("q", Calls(want...))
		got := ask(t, base, turnBody(stream, user(t, "q")))
		if !reflect.DeepEqual(got.calls, want) || got.finish != "tool_calls" {
			t.Errorf("stream %v: calls = %+v, finish %q; want %+v, tool_calls", stream, got.calls, got.finish, want)
		}
		for _, id := range got.ids {
			if id == "" || seen[id] {
				t.Errorf("id %q is empty or given twice", id)
			}
			seen[id] = true
		}
	}
}

func TestFailuresAndBrokenAnswers(t *testing.T) {
	m, base := start(t, Config{})
	long := "several words that make up an answer"
	tests := []struct {
		name  string
		reply Reply
		check func(stream bool, got result) bool
	}{
		{"status", Reply{Status: 429, Header: http.Header{"Retry-After": {"1"}}}, func(_ bool, got result) bool {
			return got.status == 429 && strings.Contains(got.text, `"error"`)
		}},
		{"garbage", Garbage(), func(stream bool, got result) bool {
			return got.status == 200 && !got.done && (stream || got.err != nil)
		}},
		{"length", Length(long), func(_ bool, got result) bool {
			return got.finish == "length" && got.text == long && got.done
		}},
		{"half", Half(long), func(stream bool, got result) bool {
			partial := got.text != "" && strings.HasPrefix(long, got.text) && got.text != long
			return errors.Is(got.err, io.ErrUnexpectedEOF) && got.finish == "" && !got.done && (partial || !stream)
		}},
		{"half a call", Reply{ToolCalls: []ToolCall{{Name: "x", Arguments: `{"a":"b"}`}}, Cut: true}, func(stream bool, got result) bool {
			return errors.Is(got.err, io.ErrUnexpectedEOF) && !got.done && (!stream || got.calls[0].Arguments == `{"a"`)
		}},
		{"long", Long(300_001), func(_ bool, got result) bool {
			return len(got.text) == 300_001 && got.finish == "stop" && got.done
		}},
	}
	for _, tt := range tests {
		for _, stream := range []bool{true, false} {
			m.Queue(tt.name, tt.reply)
			if got := ask(t, base, turnBody(stream, user(t, tt.name))); !tt.check(stream, got) {
				t.Errorf("%s, stream %v: got %.300q, %+v", tt.name, stream, got.text, got.err)
			}
		}
	}
}

func TestBadRequests(t *testing.T) {
	m, base := start(t, Config{})
	for _, body := range []string{"", "{", "[]", `{"messages":[]}`, `{"messages":"x"}`, `{"messages":[{"role":1}]}`} {
		if got := ask(t, base, body); got.status != 400 {
			t.Errorf("%q: status = %d, want 400", body, got.status)
		}
	}
	if n := len(m.Requests()); n != 0 {
		t.Errorf("recorded %d requests, want 0", n)
	}
	for _, path := range []string{"/api/show", "/v1/nothing", "/_control/requests"} {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: status = %d, want 404", path, resp.StatusCode)
		}
	}
}

func TestHangEndsWhenTheClientGoes(t *testing.T) {
	for _, reply := range []Reply{{Before: "g", Text: "x"}, {Between: "g", Text: "x"}} {
		m := New(Config{})
		srv := httptest.NewServer(m.Handler())
		m.Queue("q", reply)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			resp, err := post(ctx, t, srv.URL, turnBody(true, user(t, "q")))
			if err == nil {
				_, err = io.ReadAll(resp.Body)
				resp.Body.Close()
			}
			ended <- err
		}()
		if err := m.Gate("g").Arrived(bounded(t), 1); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("client's error = %v, want cancelled", err)
		}
		srv.Close() // returns when the handler has
	}
}

func TestGateReleasesAHang(t *testing.T) {
	m, base := start(t, Config{})
	got := make(chan result, 1)
	go func() { got <- ask(t, base, turnBody(true, user(t, "HANG:g1"))) }()
	if err := m.Gate("g1").Arrived(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	m.Gate("g1").Release()
	if r := <-got; !r.done || !strings.HasPrefix(r.text, "The gate was released.") {
		t.Errorf("answer = %+v", r)
	}
}

func TestGateBetweenChunks(t *testing.T) {
	m, base := start(t, Config{})
	resp, err := post(bounded(t), t, base, turnBody(true, user(t, "SLOW:s|one two three")))
	if err != nil {
		t.Fatal(err) // the headers must come before the first chunk's gate
	}
	defer resp.Body.Close()
	in := bufio.NewReader(resp.Body)
	for i, want := range []string{"one ", "two ", "three"} {
		if err := m.Gate("s").Arrived(bounded(t), i+1); err != nil {
			t.Fatal(err)
		}
		m.Gate("s").Step()
		line, err := in.ReadString('\n')
		if err != nil || !strings.Contains(line, `"content":"`+want+`"`) {
			t.Fatalf("chunk %d = %s, %v; want %q", i, line, err, want)
		}
		if _, err := in.Discard(len("\n")); err != nil {
			t.Fatal(err)
		}
	}
	if b, err := io.ReadAll(in); err != nil || !bytes.HasSuffix(b, []byte("data: [DONE]\n\n")) {
		t.Errorf("end = %s, %v", b, err)
	}
}

func TestDownAndUp(t *testing.T) {
	m, base := start(t, Config{})
	hung := make(chan result, 1)
	go func() { hung <- ask(t, base, turnBody(true, user(t, "HANG"))) }()
	if err := m.Gate(DefaultGate).Arrived(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	m.Down()
	if got := <-hung; got.err == nil || errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("the answer in progress = %+v, want its connection cut", got)
	}
	for _, body := range []string{turnBody(true, user(t, "a")), "{"} {
		if got := ask(t, base, body); got.err == nil {
			t.Errorf("while down: status %d, want no answer", got.status)
		}
	}
	if resp, err := http.Get(base + "/v1/models"); err == nil {
		resp.Body.Close()
		t.Errorf("models while down: status %d, want no answer", resp.StatusCode)
	}
	m.Up()
	if got := ask(t, base, turnBody(true, user(t, "SAY:back"))); got.text != "back" {
		t.Errorf("after Up: %+v", got)
	}
	if n := len(m.Requests()); n != 2 {
		t.Errorf("recorded %d requests, want 2: none of the outage", n)
	}
}

func TestOrderOfScripts(t *testing.T) {
	m, base := start(t, Config{})
	all := func(Request) bool { return true }
	say := func(text string) string { return ask(t, base, turnBody(true, user(t, text))).text }
	if got := say("SAY:directive"); got != "directive" {
		t.Errorf("got %q, want the directive", got)
	}
	m.On(all, Text("old rule"))
	m.On(func(r Request) bool { return r.Kind == KindTurn }, Text("new rule"))
	m.Queue("SAY:directive", Text("first"), Text("second"))
	for _, want := range []string{"first", "second", "new rule"} {
		if got := say("SAY:directive"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestAwait(t *testing.T) {
	m, base := start(t, Config{})
	got := make(chan Request, 1)
	go func() {
		r, err := m.Await(bounded(t), func(r Request) bool { return r.Prompt == "two" })
		if err != nil {
			t.Error(err)
		}
		got <- r
	}()
	ask(t, base, turnBody(true, user(t, "one")))
	ask(t, base, turnBody(true, user(t, "two")))
	if r := <-got; r.Seq != 2 {
		t.Errorf("seq = %d, want 2", r.Seq)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Await(ctx, func(Request) bool { return false }); !errors.Is(err, context.Canceled) {
		t.Errorf("error = %v, want cancelled", err)
	}
}
