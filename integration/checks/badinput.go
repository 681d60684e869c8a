package checks

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// BadInput sends what no client should, and wants a named error for each, and nothing of it to happen.
func BadInput(t harness.T) string {
	w := start(t, 3*time.Minute, harness.Options{Configure: func(service string, file map[string]any) {
		if service == harness.Ingress(0) {
			file["waiting_turns"] = 5
		}
	}})
	conv, _ := w.conversation("bad")
	w.says(conv, "SAY:before", "before")
	before := w.transcript(conv)
	deep := strings.Repeat(`{"a":`, 200) + "1" + strings.Repeat("}", 200)
	text := `{"type":"text","text":"x"}`
	turns, one := conv.Path()+"/turns", func(block string) string { return `{"messages":[{"blocks":[` + block + `]}]}` }
	cases := []struct {
		name, method, path, body string
		header                   http.Header
		status                   int
		reason                   string
	}{
		{"no JSON", "POST", turns, `{"messages":`, nil, 400, "INVALID_JSON"},
		{"an empty body", "POST", turns, ``, nil, 400, ""},
		{"data after the document", "POST", turns, one(text) + "{}", nil, 400, "INVALID_JSON"},
		{"an unknown field", "POST", turns, `{"messages":[{"blocks":[` + text + `]}],"extra":1}`, nil, 400, "UNKNOWN_FIELD"},
		{"an unknown field of a message", "POST", turns, `{"messages":[{"blocks":[` + text + `],"role":"system"}]}`, nil, 400, "UNKNOWN_FIELD"},
		{"an unknown field of a block", "POST", turns, one(`{"type":"text","text":"x","extra":1}`), nil, 400, "INVALID_CONTENT_BLOCK"},
		{"a field twice", "POST", turns, one(`{"type":"text","text":"x","text":"y"}`), nil, 400, "DUPLICATE_FIELD"},
		{"a wrong type", "POST", turns, `{"messages":"x"}`, nil, 400, "INVALID_FIELD"},
		{"a block that is no object", "POST", turns, one(`"x"`), nil, 400, "INVALID_FIELD"},
		{"an unknown kind of block", "POST", turns, one(`{"type":"video","data":"eA=="}`), nil, 400, "INVALID_CONTENT_BLOCK"},
		{"text that is a number", "POST", turns, one(`{"type":"text","text":1}`), nil, 400, "INVALID_CONTENT_BLOCK"},
		{"no base64", "POST", turns, one(`{"type":"image","data":"!","mimeType":"image/png"}`), nil, 400, "INVALID_CONTENT_BLOCK"},
		{"NUL", "POST", turns, one(`{"type":"text","text":"\u0000"}`), nil, 400, "INVALID_CONTENT_BLOCK"},
		{"a lone surrogate", "POST", turns, one(`{"type":"text","text":"\udfff"}`), nil, 400, "INVALID_UNICODE"},
		{"bad UTF-8", "POST", turns, one("{\"type\":\"text\",\"text\":\"\xc3\x28\"}"), nil, 400, "INVALID_UNICODE"},
		{"no message", "POST", turns, `{"messages":[]}`, nil, 400, "EMPTY_TURN"},
		{"no block", "POST", turns, `{"messages":[{"blocks":[]}]}`, nil, 400, "EMPTY_TURN"},
		{"white space only", "POST", turns, one(`{"type":"text","text":" \n\t\u00a0\u2003"}`), nil, 400, "EMPTY_TURN"},
		{"65 blocks", "POST", turns, one(strings.Repeat(text+",", 64) + text), nil, 400, "CONTENT_TOO_LARGE"},
		{"deep nesting", "POST", turns, one(`{"type":"text","text":"x","_meta":` + deep + `}`), nil, 400, ""},
		{"a body over 16 MiB", "POST", turns, one(`{"type":"text","text":"` + strings.Repeat("x", 17<<20) + `"}`), nil, 413, "BODY_TOO_LARGE"},
		{"a file outside the conversation", "POST", turns, one(`{"type":"resource_link","name":"x","uri":"file:///etc/passwd"}`), nil, 400, "INVALID_FILE_URI"},
		{"a file that does not exist", "POST", turns, one(`{"type":"resource_link","name":"x","uri":"file:///workspace/none"}`), nil, 400, "INVALID_FILE_URI"},
		{"an unknown busyPolicy", "POST", turns, `{"messages":[{"blocks":[` + text + `]}],"busyPolicy":"WAIT"}`, nil, 400, "INVALID_FIELD"},
		{"a malformed key", "POST", turns, one(text), http.Header{"Idempotency-Key": {"with space"}}, 400, "INVALID_IDEMPOTENCY_KEY"},
		{"two keys", "POST", turns, one(text), http.Header{"Idempotency-Key": {"a", "b"}}, 400, "INVALID_IDEMPOTENCY_KEY"},
		{"another media type", "POST", turns, one(text), http.Header{"Content-Type": {"text/plain"}}, 415, "UNSUPPORTED_MEDIA_TYPE"},
		{"an unknown conversation", "POST", "/v1/organizations/" + w.org + "/conversations/none/turns", one(text), nil, 404, "CONVERSATION_NOT_FOUND"},
		{"an unknown organization", "POST", "/v1/organizations/none/conversations/bad/turns", one(text), nil, 404, ""},
		{"a malformed id", "POST", "/v1/organizations/" + w.org + "/conversations/Bad_Id/turns", one(text), nil, 400, "INVALID_ID"},
		{"an unknown turn", "GET", turns + "/none", "", nil, 404, "TURN_NOT_FOUND"},
		{"an unknown path", "GET", conv.Path() + "/nothing", "", nil, 404, "ROUTE_NOT_FOUND"},
		{"an unknown method", "DELETE", turns, "", nil, 405, "METHOD_NOT_ALLOWED"},
		{"an unknown parameter", "GET", turns + "?limit=1", "", nil, 400, "UNKNOWN_PARAMETER"},
		{"a bad wait", "GET", turns + "/x?wait=soon", "", nil, 400, "INVALID_PARAMETER"},
		{"a bad page token", "GET", turns + "?pageToken=none%21", "", nil, 400, "INVALID_PAGE_TOKEN"},
		{"a bad Last-Event-ID", "GET", conv.Path() + "/events", "", http.Header{"Last-Event-Id": {"x"}}, 400, "INVALID_EVENT_ID"},
		{"no token", "GET", turns, "", http.Header{"Authorization": nil}, 401, ""},
		{"a wrong token", "GET", turns, "", http.Header{"Authorization": {"Bearer wrong-wrong-wrong"}}, 401, "TOKEN_INVALID"},
		{"a bad organization id", "POST", "/v1/organizations", `{"organizationId":"No Such!"}`, nil, 400, ""},
		{"a bad variable name", "POST", "/v1/organizations/" + w.org + "/conversations", `{"conversationId":"env","environment":{"LD_PRELOAD":"x"}}`, nil, 400, "INVALID_ENVIRONMENT"},
	}
	for _, c := range cases {
		answer, err := w.Client.Raw(w.ctx, c.method, c.path, c.header, []byte(c.body))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		reason := harness.ReasonOf(answer.Err())
		if answer.Status != c.status || reason == "" || c.reason != "" && reason != c.reason {
			t.Errorf("%s = %d %s %.200s, want %d %s", c.name, answer.Status, reason, bytes.TrimSpace(answer.Body), c.status, c.reason)
		}
	}
	full := w.fullQueue(conv)
	if after := w.transcript(conv); len(after) != len(before)+full {
		t.Errorf("the transcript grew by %d messages, want the %d of the turns that were accepted", len(after)-len(before), full)
	}
	return fmt.Sprintf("%d kinds of bad requests, each a named error and nothing sent on; a full queue 429 with Retry-After", len(cases))
}

// fullQueue fills the queue of 5 and returns how many messages the accepted turns make.
func (w *world) fullQueue(conv harness.Conversation) int {
	w.t.Helper()
	running := w.submit(conv, "HANG:full")
	w.arrived("full", 1)
	var ids []string
	for i := range 5 {
		turn, _, err := w.Client.Submit(w.ctx, conv, fmt.Sprintf("full-%d", i), harness.TextTurn("SAY:waited"))
		if err != nil {
			w.t.Fatalf("fill the queue: %v", err)
		}
		ids = append(ids, turn.TurnID)
	}
	raw, err := json.Marshal(harness.TextTurn("SAY:too much"))
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	answer, err := w.Client.Raw(w.ctx, http.MethodPost, conv.Path()+"/turns", nil, raw)
	if err != nil || answer.Status != http.StatusTooManyRequests || harness.ReasonOf(answer.Err()) != "QUEUE_FULL" || answer.Header.Get("Retry-After") == "" {
		w.t.Errorf("a sixth waiting turn = %d %s, Retry-After %q (%v), want 429 QUEUE_FULL with Retry-After", answer.Status, answer.Body, answer.Header.Get("Retry-After"), err)
	}
	again, answer2, err := w.Client.Submit(w.ctx, conv, "full-0", harness.TextTurn("SAY:waited"))
	if err != nil || again.TurnID != ids[0] || answer2.Header.Get("Idempotency-Replayed") != "true" {
		w.t.Errorf("a replay while the queue is full = %v, want the same turn", err)
	}
	w.Model.Gate("full").Release()
	for _, id := range append(ids, running.TurnID) {
		if turn := w.wait(conv, id); turn.State != "REPLIED" {
			w.t.Errorf("a turn of the full queue: %s, want REPLIED", describe(turn))
		}
	}
	return 2 * (len(ids) + 1)
}
