package gateway_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/gateway"
)

func TestSignIn(t *testing.T) {
	w := start(t, &fakes{})
	for name, c := range map[string]struct {
		headers []string
		reason  string
	}{
		"none":         {nil, "TOKEN_MISSING"},
		"wrong":        {[]string{"Bearer wrong-token-0123456789"}, "TOKEN_INVALID"},
		"prefix":       {[]string{"Bearer " + adminToken[:len(adminToken)-1]}, "TOKEN_INVALID"},
		"other scheme": {[]string{"Basic " + adminToken}, "TOKEN_INVALID"},
		"no scheme":    {[]string{adminToken}, "TOKEN_INVALID"},
		"two":          {[]string{"Bearer " + adminToken, "Bearer " + adminToken}, "TOKEN_INVALID"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.call(t, "GET", acme, "", func(r *http.Request) { r.Header.Del("Authorization") }, func(r *http.Request) {
				if c.headers != nil {
					r.Header["Authorization"] = c.headers
				}
			})
			wantProblem(t, got, http.StatusUnauthorized, c.reason)
			if h := got.header.Get("WWW-Authenticate"); !strings.HasPrefix(h, "Bearer") {
				t.Errorf("got WWW-Authenticate %q, want Bearer", h)
			}
		})
	}
	if got := w.call(t, "GET", acme, "", header("Authorization", "bearer "+memberToken)); got.status != http.StatusOK {
		t.Errorf("lower case scheme: got %d, want 200", got.status)
	}
}

func TestForeignOrganizationsDoNotExist(t *testing.T) {
	w := start(t, &fakes{})
	member := header("Authorization", "Bearer "+memberToken)
	foreign := w.call(t, "GET", "/v1/organizations/rival/conversations", "", member)
	wantProblem(t, foreign, http.StatusNotFound, "ORGANIZATION_NOT_FOUND")
	if unknown := w.call(t, "GET", "/v1/organizations/no-such", "", member); unknown.body != foreign.body {
		t.Errorf("got %q for a foreign and %q for an unknown organization, want the same", foreign.body, unknown.body)
	}
	wantProblem(t, w.call(t, "GET", acme+"/conversations/c2", "", member), http.StatusNotFound, "CONVERSATION_NOT_FOUND")
}

func TestRefusals(t *testing.T) {
	w := start(t, &fakes{submit: accept}, func(c *gateway.Config) { c.MaxBodyBytes = 4096 })
	text := `{"messages":[{"blocks":[{"type":"text","text":"%s"}]}]}`
	for name, c := range map[string]struct {
		method, path, body string
		change             request
		status             int
		reason, meta, says string
	}{
		"unknown route":         {"GET", "/v1/nothing", "", nil, 404, "ROUTE_NOT_FOUND", "", ""},
		"trailing slash":        {"GET", acme + "/", "", nil, 404, "ROUTE_NOT_FOUND", "", ""},
		"unknown verb":          {"POST", chat + "/turns/t1:retry", "", nil, 404, "ROUTE_NOT_FOUND", "", ""},
		"method":                {"DELETE", chat, "", nil, 405, "METHOD_NOT_ALLOWED", "", ""},
		"method of a verb":      {"GET", chat + "/turns/t1:cancel", "", nil, 405, "METHOD_NOT_ALLOWED", "", ""},
		"head of a stream":      {"HEAD", chat + "/events", "", nil, 405, "", "", ""},
		"id":                    {"GET", "/v1/organizations/ACME", "", nil, 400, "INVALID_ID", "organizationId", "field"},
		"escaped slash":         {"GET", "/v1/organizations/a%2Fb", "", nil, 404, "ROUTE_NOT_FOUND", "", ""},
		"long id":               {"GET", "/v1/organizations/" + strings.Repeat("a", 64), "", nil, 400, "INVALID_ID", "organizationId", "field"},
		"unknown parameter":     {"GET", acme + "?x=1", "", nil, 400, "UNKNOWN_PARAMETER", "x", "parameter"},
		"proto parameter":       {"GET", acme + "/conversations?page_size=1", "", nil, 400, "UNKNOWN_PARAMETER", "page_size", "parameter"},
		"repeated parameter":    {"GET", chat + "/turns?pageSize=1&pageSize=2", "", nil, 400, "INVALID_PARAMETER", "pageSize", "parameter"},
		"page size":             {"GET", chat + "/turns?pageSize=ten", "", nil, 400, "INVALID_PARAMETER", "pageSize", "parameter"},
		"page size zero":        {"GET", acme + "/conversations?pageSize=0", "", nil, 400, "INVALID_PARAMETER", "pageSize", "parameter"},
		"page size over":        {"GET", chat + "/transcript?pageSize=501", "", nil, 400, "INVALID_PARAMETER", "pageSize", "parameter"},
		"page token":            {"GET", chat + "/turns?pageToken=" + strings.Repeat("t", 513), "", nil, 400, "INVALID_PARAMETER", "pageToken", "parameter"},
		"bad UTF-8 parameter":   {"GET", chat + "/turns?pageToken=%ff", "", nil, 400, "INVALID_PARAMETER", "pageToken", "parameter"},
		"broken query":          {"GET", chat + "/turns?pageToken=%zz", "", nil, 400, "INVALID_PARAMETER", "", ""},
		"unknown field":         {"POST", "/v1/organizations", `{"organizationId":"a","b":1}`, nil, 400, "UNKNOWN_FIELD", "b", "field"},
		"proto field":           {"POST", "/v1/organizations", `{"organization_id":"a"}`, nil, 400, "UNKNOWN_FIELD", "organization_id", "field"},
		"field from the path":   {"POST", acme + "/conversations", `{"organizationId":"rival"}`, nil, 400, "UNKNOWN_FIELD", "organizationId", "field"},
		"wrong type":            {"POST", "/v1/organizations", `{"organizationId":5}`, nil, 400, "INVALID_FIELD", "organizationId", "field"},
		"wrong map value":       {"POST", acme + "/conversations", `{"environment":{"A":1}}`, nil, 400, "INVALID_FIELD", "environment.A", "field"},
		"missing field":         {"POST", "/v1/organizations", `{}`, nil, 400, "INVALID_FIELD", "organizationId", "field"},
		"value refused behind":  {"POST", "/v1/organizations", `{"organizationId":"A B"}`, nil, 400, "INVALID_ARGUMENT", "", ""},
		"duplicate":             {"POST", "/v1/organizations", `{"organizationId":"a","organizationId":"b"}`, nil, 400, "DUPLICATE_FIELD", "organizationId", "field"},
		"no body":               {"POST", chat + "/turns", "", nil, 400, "INVALID_JSON", "", ""},
		"trailing data":         {"POST", chat + "/turns", fmt.Sprintf(text, "a") + "x", nil, 400, "INVALID_JSON", "", ""},
		"lone surrogate":        {"POST", chat + "/turns", fmt.Sprintf(text, `\ud800`), nil, 400, "INVALID_UNICODE", "messages[0].blocks[0].text", "field"},
		"lone surrogate in org": {"POST", acme + "/conversations", `{"persona":"\udc00"}`, nil, 400, "INVALID_UNICODE", "persona", "field"},
		"bad UTF-8":             {"POST", chat + "/turns", fmt.Sprintf(text, "\xff"), nil, 400, "INVALID_UNICODE", "", ""},
		"cancel with a field":   {"POST", chat + "/turns/t1:cancel", `{"a":1}`, nil, 400, "UNKNOWN_FIELD", "a", "field"},
		"too large":             {"POST", chat + "/turns", fmt.Sprintf(text, strings.Repeat("x", 5000)), nil, 413, "BODY_TOO_LARGE", "4096", "limitBytes"},
		"form":                  {"POST", "/v1/organizations", `{}`, header("Content-Type", "application/x-www-form-urlencoded"), 415, "UNSUPPORTED_MEDIA_TYPE", "", ""},
		"other charset":         {"POST", "/v1/organizations", `{}`, header("Content-Type", "application/json; charset=latin1"), 415, "UNSUPPORTED_MEDIA_TYPE", "", ""},
		"compressed":            {"POST", "/v1/organizations", `{}`, header("Content-Encoding", "gzip"), 415, "UNSUPPORTED_MEDIA_TYPE", "", ""},
		"accept":                {"GET", acme, "", header("Accept", "text/html, application/json;q=0"), 406, "NOT_ACCEPTABLE", "", ""},
		"accept of a stream":    {"GET", chat + "/events", "", header("Accept", "application/json"), 406, "NOT_ACCEPTABLE", "", ""},
		"empty key":             {"POST", chat + "/turns", fmt.Sprintf(text, "a"), header("Idempotency-Key", ""), 400, "INVALID_IDEMPOTENCY_KEY", "", ""},
		"key with a space":      {"POST", chat + "/turns", fmt.Sprintf(text, "a"), header("Idempotency-Key", "a b"), 400, "INVALID_IDEMPOTENCY_KEY", "", ""},
		"key not ASCII":         {"POST", chat + "/turns", fmt.Sprintf(text, "a"), header("Idempotency-Key", "é"), 400, "INVALID_IDEMPOTENCY_KEY", "", ""},
		"long key":              {"POST", chat + "/turns", fmt.Sprintf(text, "a"), header("Idempotency-Key", strings.Repeat("k", 256)), 400, "INVALID_IDEMPOTENCY_KEY", "", ""},
		"two keys":              {"POST", chat + "/turns", fmt.Sprintf(text, "a"), header("Idempotency-Key", "a", "a"), 400, "INVALID_IDEMPOTENCY_KEY", "", ""},
		"bad event id":          {"GET", chat + "/events", "", header("Last-Event-ID", "x"), 400, "INVALID_EVENT_ID", "", ""},
		"negative after":        {"GET", chat + "/events?after=-1", "", nil, 400, "INVALID_EVENT_ID", "", ""},
		"signed after":          {"GET", chat + "/events?after=%2B1", "", nil, 400, "INVALID_EVENT_ID", "", ""},
		"huge after":            {"GET", chat + "/events?after=9223372036854775808", "", nil, 400, "INVALID_EVENT_ID", "", ""},
		"bad after, good id":    {"GET", chat + "/events?after=x", "", header("Last-Event-ID", "1"), 400, "INVALID_EVENT_ID", "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var changes []request
			if c.change != nil {
				changes = append(changes, c.change)
			}
			got := w.call(t, c.method, c.path, c.body, changes...)
			if c.method == http.MethodHead {
				if got.status != c.status {
					t.Errorf("got %d, want %d", got.status, c.status)
				}
				return
			}
			meta := wantProblem(t, got, c.status, c.reason)
			if c.says != "" && meta[c.says] != c.meta {
				t.Errorf("got metadata %v, want %s = %q", meta, c.says, c.meta)
			}
			if c.status == 405 && got.header.Get("Allow") == "" {
				t.Error("got no Allow header")
			}
		})
	}
	for _, good := range []request{header("Idempotency-Key", strings.Repeat("~", 255)), header("Accept", "text/*;q=0.1, */*"), header("Content-Type", "application/json; charset=UTF-8")} {
		if got := w.call(t, "POST", chat+"/turns", fmt.Sprintf(text, "a"), good); got.status != http.StatusAccepted {
			t.Errorf("got %d %s, want 202", got.status, got.body)
		}
	}
	if got := w.call(t, "HEAD", acme, ""); got.status != 200 || got.body != "" || got.header.Get("Content-Length") == "" {
		t.Errorf("HEAD: got %d %q %v, want 200, the length and no body", got.status, got.body, got.header)
	}
}

func TestChunkedBodyIsCounted(t *testing.T) {
	w := start(t, &fakes{submit: accept}, func(c *gateway.Config) { c.MaxBodyBytes = 4096 })
	unsized := func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(strings.Repeat(" ", 5000))), -1
	}
	wantProblem(t, w.call(t, "POST", chat+"/turns", "x", unsized), http.StatusRequestEntityTooLarge, "BODY_TOO_LARGE")
}

func TestBodyThatNeverArrives(t *testing.T) {
	w := start(t, &fakes{submit: accept}, func(c *gateway.Config) { c.BodyTimeout = 50 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintf(conn, "POST %s/turns HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: 100\r\n\r\n{", chat, adminToken)
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	wantProblem(t, answer{resp.StatusCode, resp.Header, string(raw)}, http.StatusRequestTimeout, "BODY_TIMEOUT")
}

func TestServiceErrors(t *testing.T) {
	var fail error
	w := start(t, &fakes{submit: func(context.Context, *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
		return nil, fail
	}})
	for _, c := range []struct {
		err           error
		status, code  int
		reason, retry string
	}{
		{errs.New(errs.Conflict, "IDEMPOTENCY_KEY_REUSED", "other body"), 409, 6, "IDEMPOTENCY_KEY_REUSED", ""},
		{errs.New(errs.Precondition, "CONVERSATION_BUSY", "busy"), 409, 9, "CONVERSATION_BUSY", ""},
		{errs.New(errs.Exhausted, "QUEUE_FULL", "full").WithRetryAfter(1500 * time.Millisecond), 429, 8, "QUEUE_FULL", "2"},
		{errs.New(errs.Denied, "PERMISSION_DENIED", "no"), 403, 7, "PERMISSION_DENIED", ""},
		{errs.New(errs.Unavailable, "DATABASE_UNAVAILABLE", "gone"), 503, 14, "DATABASE_UNAVAILABLE", "1"},
		{errs.New(errs.Timeout, "DEADLINE_EXCEEDED", "late"), 504, 4, "DEADLINE_EXCEEDED", ""},
		{fmt.Errorf("password=hunter2"), 500, 13, "INTERNAL", ""},
	} {
		fail = c.err
		got := w.call(t, "POST", chat+"/turns", `{"messages":[]}`)
		wantProblem(t, got, c.status, c.reason)
		if code := got.json(t)["code"]; code != float64(c.code) {
			t.Errorf("%s: got code %v, want %d", c.reason, code, c.code)
		}
		if h := got.header.Get("Retry-After"); h != c.retry {
			t.Errorf("%s: got Retry-After %q, want %q", c.reason, h, c.retry)
		}
		if strings.Contains(got.body, "hunter2") {
			t.Errorf("got %s, want no cause", got.body)
		}
	}
}

func TestServiceDown(t *testing.T) {
	w := start(t, &fakes{})
	w.routing.Stop()
	got := w.call(t, "GET", acme, "")
	wantProblem(t, got, http.StatusServiceUnavailable, "UNAVAILABLE")
	if strings.Contains(got.body, "dial") || strings.Contains(got.body, "bufconn") || got.header.Get("Retry-After") == "" {
		t.Errorf("got %s, want no transport detail, and Retry-After", got.body)
	}
	ready := w.call(t, "GET", "/readyz", "")
	if ready.status != http.StatusServiceUnavailable || !strings.Contains(ready.body, `"service":"routing","state":"UNREACHABLE"`) {
		t.Errorf("got %d %s, want routing to be unreachable", ready.status, ready.body)
	}
}

func TestPanicIsAnInternalError(t *testing.T) {
	core, logs := observer.New(zapcore.ErrorLevel)
	w := startLogged(t, &fakes{}, zap.New(core))
	// A nil fake function panics in the fake's server, whose chain recovers; the gateway shows 500.
	wantProblem(t, w.call(t, "GET", chat+"/transcript", ""), http.StatusInternalServerError, "INTERNAL")
	if n := logs.FilterMessage("Answered a request").Len(); n != 1 {
		t.Errorf("got %d error lines, want one", n)
	}
}

func TestClientThatLeavesIsNoError(t *testing.T) {
	core, logs := observer.New(zapcore.DebugLevel)
	answered := make(chan struct{}, 1)
	log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
		if e.Message == "Answered a request" {
			answered <- struct{}{}
		}
		return nil
	}))
	entered := make(chan struct{})
	w := startLogged(t, &fakes{getTurn: func(ctx context.Context, _ *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
		close(entered)
		<-ctx.Done()
		return nil, ctx.Err()
	}}, log)
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+chat+"/turns/t1?wait=60s", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	go func() { <-entered; cancel() }()
	if resp, err := http.DefaultClient.Do(req); err == nil {
		_ = resp.Body.Close()
		t.Fatal("got an answer, want the client's own end")
	}
	<-answered
	lines := logs.FilterMessage("Answered a request").All()
	if len(lines) != 1 || lines[0].Level != zapcore.InfoLevel || lines[0].ContextMap()["status"] != int64(499) {
		t.Errorf("got lines %v, want one at info with status 499", lines)
	}
	if n := logs.FilterLevelExact(zapcore.ErrorLevel).Len(); n != 0 {
		t.Errorf("got %d error lines, want none", n)
	}
}
