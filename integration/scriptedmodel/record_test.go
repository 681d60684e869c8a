package scriptedmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestRecordsAreExact(t *testing.T) {
	var file bytes.Buffer
	m, base := start(t, Config{RecordTo: &file})
	body := "  " + turnBody(true, `{"role":"user","content":"SAY:\u00e9 \ud800 é"}`) + "\n"
	ask(t, base, body)
	ask(t, base, strings.Replace(body, `"tools":`+someTools, `"tools":null`, 1))

	rs := m.Requests()
	if len(rs) != 2 {
		t.Fatalf("recorded %d requests, want 2", len(rs))
	}
	if got := string(rs[0].Body); got != body {
		t.Errorf("body = %q, want %q", got, body)
	}
	if got := string(rs[0].Tools); got != someTools {
		t.Errorf("tools = %s, want %s", got, someTools)
	}
	if rs[1].Tools != nil {
		t.Errorf("tools = %s, want none for null", rs[1].Tools)
	}
	if rs[0].Time.IsZero() || rs[0].Seq != 1 || !rs[0].Stream || rs[0].Model != "m" || len(rs[0].Messages) != 2 {
		t.Errorf("request = %+v", rs[0])
	}

	lines := strings.Split(strings.TrimSuffix(file.String(), "\n"), "\n")
	if len(lines) != 2 {
		t.Fatalf("file has %d lines, want 2", len(lines))
	}
	var got Request
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil {
		t.Fatal(err)
	}
	if string(got.Body) != body || got.Kind != KindTurn || got.Seq != 1 {
		t.Errorf("line = %+v", got)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("disk full") }

func TestRecordThatFailsIsNotAnswered(t *testing.T) {
	_, base := start(t, Config{RecordTo: full{}})
	if got := ask(t, base, turnBody(true, user(t, "x"))); got.status != 500 || !strings.Contains(got.text, "disk full") {
		t.Errorf("answer = %+v, want 500 with the reason", got)
	}
}

func TestRecordsAreBounded(t *testing.T) {
	m, base := start(t, Config{RecordBytes: 40_000})
	for range 20 {
		ask(t, base, turnBody(true, user(t, "SAY:x"+strings.Repeat("y", 4000))))
	}
	rs := m.Requests()
	if len(rs) == 0 || rs[len(rs)-1].Seq != 20 {
		t.Fatalf("kept %d requests, want the newest", len(rs))
	}
	var size int64
	for _, r := range rs {
		size += r.cost()
	}
	if size > 40_000 || m.Dropped() != int64(20-len(rs)) || m.Dropped() == 0 {
		t.Errorf("kept %d requests of %d bytes and dropped %d", len(rs), size, m.Dropped())
	}
	if got := m.rec.after(19); len(got) != 1 || got[0].Seq != 20 {
		t.Errorf("after 19: %d requests, want only 20", len(got))
	}
	if got := m.rec.after(1); len(got) != len(rs) {
		t.Errorf("after a dropped one: %d requests, want all %d", len(got), len(rs))
	}
}
