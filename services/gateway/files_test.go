package gateway_test

import (
	"bufio"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway"
)

const filesPath = chat + "/files/"

// raw sends a request whose target no client library has touched, and returns the answer.
func (w *world) raw(t *testing.T, method, target, rest string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if rest == "" {
		rest = "\r\n"
	}
	fmt.Fprintf(conn, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s", method, target, adminToken, rest)
	resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%s: %v", target, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

func TestPutGetDelete(t *testing.T) {
	w := start(t, &fakes{})
	bytes := header("Content-Type", "application/x-whatever")
	put := w.call(t, "PUT", filesPath+"workspace/a%20b.txt", "hello", bytes)
	want := `{"uri":"file:///workspace/a%20b.txt","path":"workspace/a b.txt","size":"5","mode":33188,"modifyTime":"2026-05-01T12:00:00.120Z",` +
		`"version":"101-1","sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}`
	if put.status != http.StatusCreated || !sameJSON(t, put.body, want) || put.header.Get("ETag") != `"101-1"` ||
		put.header.Get("Location") != filesPath+"workspace/a%20b.txt" {
		t.Errorf("create: got %d %s %v, want 201 %s", put.status, put.body, put.header, want)
	}
	if put = w.call(t, "PUT", filesPath+"workspace/a%20b.txt", "hello, you", bytes); put.status != http.StatusOK || put.header.Get("Location") != "" {
		t.Errorf("replace: got %d %v, want 200 without Location", put.status, put.header)
	}
	got := w.call(t, "GET", filesPath+"workspace/a%20b.txt", "")
	if got.status != http.StatusOK || got.body != "hello, you" {
		t.Errorf("get: got %d %q, want the bytes", got.status, got.body)
	}
	for name, want := range map[string]string{
		"ETag": `"102-2"`, "Content-Type": "text/plain; charset=utf-8", "Content-Length": "10", "Accept-Ranges": "bytes",
		"Last-Modified": "Fri, 01 May 2026 12:00:00 GMT", "Cache-Control": "private, no-cache", "X-Content-Type-Options": "nosniff",
		"Content-Disposition":     `attachment; filename="a b.txt"; filename*=UTF-8''a%20b.txt`,
		"Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
	} {
		if v := got.header.Get(name); v != want {
			t.Errorf("get: got %s %q, want %q", name, v, want)
		}
	}
	calls := len(w.agentfs.called())
	head := w.call(t, "HEAD", filesPath+"workspace/a%20b.txt", "", header("Range", "bytes=0-1"))
	if head.status != http.StatusOK || head.body != "" || head.header.Get("Content-Length") != "10" || head.header.Get("ETag") != `"102-2"` {
		t.Errorf("head: got %d %q %v, want the headers of the file", head.status, head.body, head.header)
	}
	if n := len(w.agentfs.called()); n != calls+1 {
		t.Errorf("head: got %d calls, want one stat and no read", n-calls)
	}
	if got := w.call(t, "DELETE", filesPath+"workspace/a%20b.txt", ""); got.status != http.StatusNoContent || got.body != "" {
		t.Errorf("delete: got %d %q, want 204", got.status, got.body)
	}
	gone := w.call(t, "GET", filesPath+"workspace/a%20b.txt", "")
	wantProblem(t, gone, http.StatusNotFound, "FILE_NOT_FOUND")
	for _, name := range []string{"ETag", "Content-Disposition", "Last-Modified"} {
		if v := gone.header.Get(name); v != "" {
			t.Errorf("got %s %q on an error", name, v)
		}
	}
	empty := w.call(t, "PUT", filesPath+"workspace/empty", "")
	if empty.status != http.StatusCreated || empty.json(t)["size"] != "0" {
		t.Errorf("empty: got %d %s, want 201", empty.status, empty.body)
	}
	if got := w.call(t, "GET", filesPath+"workspace/empty", "", header("Range", "bytes=0-5")); got.status != http.StatusOK || got.body != "" {
		t.Errorf("empty: got %d %q, want 200 and nothing", got.status, got.body)
	}
}

// TestPathsAreDecodedOnce sends targets as they are and says which name agentfs must see.
func TestPathsAreDecodedOnce(t *testing.T) {
	w := start(t, &fakes{})
	long := strings.Repeat("%C3%A9", 127)
	for target, want := range map[string]string{
		"workspace/x":                    "workspace/x",
		"workspace/%78":                  "workspace/x",
		"workspace/a+b":                  "workspace/a+b",
		"workspace/a%2Bb":                "workspace/a+b",
		"workspace/%252e%252e/x":         "workspace/%2e%2e/x",
		"workspace/..%252fx":             "workspace/..%2fx",
		`workspace/..\..\x`:              `workspace/..\..\x`,
		"workspace/..%5C..%5Cx":          `workspace/..\..\x`,
		"workspace/.../..a/.b":           "workspace/.../..a/.b",
		"workspace/a%3Fb%23c":            "workspace/a?b#c",
		"workspace/a;b:c@d":              "workspace/a;b:c@d",
		"workspace/%E2%80%AEtxt.exe":     "workspace/\u202etxt.exe",
		"workspace/e%CC%81":              "workspace/e\u0301",
		"workspace/%C3%A9":               "workspace/\u00e9",
		"workspace/\xc3\xa9":             "workspace/\u00e9",
		"workspace/-rf":                  "workspace/-rf",
		"workspace/%20":                  "workspace/ ",
		"workspace/a%0D%0Ab":             "workspace/a\r\nb",
		"workspace/2024-01-05/it's.txt":  "workspace/2024-01-05/it's.txt",
		"workspace/" + long:              "workspace/" + strings.Repeat("\u00e9", 127),
		"%77orkspace/turns/x:cancel":     "workspace/turns/x:cancel",
		"elsewhere/for/agentfs/to/judge": "elsewhere/for/agentfs/to/judge",
	} {
		w.agentfs.mu.Lock()
		w.agentfs.calls = nil
		w.agentfs.mu.Unlock()
		got := w.raw(t, "GET", filesPath+target, "")
		if calls := w.agentfs.called(); got.status != http.StatusNotFound || len(calls) != 1 || calls[0] != "ReadFile "+want+" 0+-1" {
			t.Errorf("%s: got %d and calls %q, want one about %q", target, got.status, calls, want)
		}
	}
}

func TestHostilePathsAreRefusedBeforeAnyCall(t *testing.T) {
	w := start(t, &fakes{})
	for _, target := range []string{
		"", "workspace/", "/workspace/x", "workspace//x", "workspace/x/",
		".", "..", "workspace/../x", "workspace/./x", "workspace/..", "../../../../healthz",
		"workspace/%2e%2e/x", "workspace/%2E./x", "workspace/.%2e/x", "workspace/%2e/x",
		"workspace/..%2fx", "workspace%2fx", "workspace/a%2Fb", "workspace/%2F", "workspace/%2e%2e%2fx",
		// A byte that should have been escaped must not change how the rest is read.
		"workspace/a%2Fb\xc3\xa9", `workspace/a%2Fb"c`, "workspace/%2e%2e/\xc3\xa9",
		"workspace/a%00", "workspace/%00", "workspace/a%00.txt",
		"workspace/%C0%AE%C0%AE/x", "workspace/%C0%AFx", "workspace/%E0%80%AFx", "workspace/%F0%80%80%AFx",
		"workspace/%FF", "workspace/%ED%A0%80", "workspace/%80", "workspace/\xff", "workspace/%C3",
		"workspace/" + strings.Repeat("a", 256), "workspace/" + strings.Repeat("%C3%A9", 128),
		strings.Repeat("aaaaaaa/", 512) + "aaaaaaa",
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "DELETE"} {
			got := w.raw(t, method, filesPath+target, "Content-Length: 0\r\n\r\n")
			if method == "HEAD" {
				if got.status != http.StatusBadRequest {
					t.Errorf("HEAD %q: got %d, want 400", target, got.status)
				}
				continue
			}
			wantProblem(t, got, http.StatusBadRequest, "INVALID_PATH")
			if got.header.Get("Location") != "" {
				t.Errorf("%s %q: got a redirect", method, target)
			}
		}
	}
	for _, target := range []string{chat + "/files%2Fworkspace%2Fx", chat + "/files/%zz", "/v1/organizations/acme/conversations/c1%2Ffiles/workspace/x",
		"/v1/organizations/acme/conversations/../c1/files/workspace/x", "/v1//organizations/acme/conversations/c1/files/workspace/x"} {
		if got := w.raw(t, "GET", target, ""); got.status != http.StatusNotFound && got.status != http.StatusBadRequest {
			t.Errorf("%q: got %d %s, want 404 or 400", target, got.status, got.body)
		}
	}
	if calls := w.agentfs.called(); len(calls) != 0 {
		t.Errorf("got calls %q, want none", calls)
	}
	// Who may not see the organization learns nothing about paths either.
	foreign := w.call(t, "GET", "/v1/organizations/rival/conversations/c1/files/workspace/%2e%2e/x", "", header("Authorization", "Bearer "+memberToken))
	wantProblem(t, foreign, http.StatusNotFound, "ORGANIZATION_NOT_FOUND")
}

func TestRangesAndConditions(t *testing.T) {
	w := start(t, &fakes{})
	content := []byte("0123456789")
	etag := w.agentfs.put("workspace/d", fakeFile{content: content})
	target := filesPath + "workspace/d"
	weak := "W/" + etag
	for name, c := range map[string]struct {
		headers []request
		status  int
		body    string
		ranged  string
		read    string
	}{
		"first":                  {[]request{header("Range", "bytes=0-3")}, 206, "0123", "bytes 0-3/10", "0+4"},
		"unit in capitals":       {[]request{header("Range", "Bytes=0-3")}, 206, "0123", "bytes 0-3/10", "0+4"},
		"open":                   {[]request{header("Range", "bytes=7-")}, 206, "789", "bytes 7-9/10", "7+3"},
		"suffix":                 {[]request{header("Range", "bytes=-2")}, 206, "89", "bytes 8-9/10", "8+2"},
		"beyond the end":         {[]request{header("Range", "bytes=8-99")}, 206, "89", "bytes 8-9/10", "8+2"},
		"other unit":             {[]request{header("Range", "lines=0-3")}, 200, "0123456789", "", "0+10"},
		"more than there is":     {[]request{header("Range", "bytes=0-9,0-9")}, 200, "0123456789", "", "0+10"},
		"many":                   {[]request{header("Range", "bytes=0-0"+strings.Repeat(",2-2", 16))}, 200, "0123456789", "", "0+10"},
		"twice":                  {[]request{header("Range", "bytes=0-0", "bytes=1-1")}, 200, "0123456789", "", "0+10"},
		"if range":               {[]request{header("Range", "bytes=0-3"), header("If-Range", etag)}, 206, "0123", "bytes 0-3/10", "0+4"},
		"if range of another":    {[]request{header("Range", "bytes=0-3"), header("If-Range", `"9-9"`)}, 200, "0123456789", "", "0+10"},
		"if range, weak":         {[]request{header("Range", "bytes=0-3"), header("If-Range", weak)}, 200, "0123456789", "", "0+10"},
		"if range, a time":       {[]request{header("Range", "bytes=0-3"), header("If-Range", "Fri, 01 May 2026 12:00:00 GMT")}, 200, "0123456789", "", "0+10"},
		"none match":             {[]request{header("If-None-Match", etag)}, 304, "", "", ""},
		"none match, weak":       {[]request{header("If-None-Match", `"9-9", `+weak)}, 304, "", "", ""},
		"none match, star":       {[]request{header("If-None-Match", "*")}, 304, "", "", ""},
		"none match, another":    {[]request{header("If-None-Match", `"9-9"`)}, 200, "0123456789", "", "0+10"},
		"match":                  {[]request{header("If-Match", `"9-9", `+etag)}, 200, "0123456789", "", "0+10"},
		"match and range":        {[]request{header("If-Match", etag), header("Range", "bytes=1-1")}, 206, "1", "bytes 1-1/10", "1+1"},
		"not modified since":     {[]request{header("If-Modified-Since", "Fri, 01 May 2026 12:00:00 GMT")}, 304, "", "", ""},
		"the tag is more exact":  {[]request{header("If-None-Match", `"9-9"`), header("If-Modified-Since", "Fri, 01 May 2026 12:00:00 GMT")}, 200, "0123456789", "", "0+10"},
		"modified since the day": {[]request{header("If-Modified-Since", "Thu, 30 Apr 2026 12:00:00 GMT")}, 200, "0123456789", "", "0+10"},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(w.agentfs.called())
			got := w.call(t, "GET", target, "", c.headers...)
			if got.status != c.status || got.body != c.body || got.header.Get("Content-Range") != c.ranged || got.header.Get("ETag") != etag {
				t.Errorf("got %d %q %v, want %d %q %q with the ETag", got.status, got.body, got.header, c.status, c.body, c.ranged)
			}
			want := []string{"StatFile workspace/d"}
			if c.read != "" {
				want = append(want, "ReadFile workspace/d "+c.read)
			}
			if calls := w.agentfs.called()[before:]; strings.Join(calls, ";") != strings.Join(want, ";") {
				t.Errorf("got calls %q, want %q", calls, want)
			}
		})
	}
	for name, c := range map[string]struct {
		headers []request
		status  int
		reason  string
	}{
		"match another":      {[]request{header("If-Match", `"9-9"`)}, 412, "VERSION_MISMATCH"},
		"match, weak":        {[]request{header("If-Match", weak)}, 412, "VERSION_MISMATCH"},
		"beyond":             {[]request{header("Range", "bytes=10-")}, 416, "RANGE_NOT_SATISFIABLE"},
		"malformed":          {[]request{header("Range", "bytes=x")}, 416, "RANGE_NOT_SATISFIABLE"},
		"match before range": {[]request{header("If-Match", `"9-9"`), header("Range", "bytes=10-")}, 412, "VERSION_MISMATCH"},
	} {
		got := w.call(t, "GET", target, "", c.headers...)
		wantProblem(t, got, c.status, c.reason)
		if name == "beyond" && got.header.Get("Content-Range") != "bytes */10" {
			t.Errorf("%s: got Content-Range %q, want the size", name, got.header.Get("Content-Range"))
		}
		if got.header.Get("Content-Disposition") != "" || got.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: got headers %v, want none of a file", name, got.header)
		}
	}
}

func TestSeveralRanges(t *testing.T) {
	w := start(t, &fakes{})
	content := make([]byte, 2<<20)
	for i := range content {
		content[i] = byte(i >> 8)
	}
	w.agentfs.put("workspace/d", fakeFile{content: content})
	got := w.call(t, "GET", filesPath+"workspace/d", "", header("Range", "bytes=0-9, 1000000-1599999, -3"))
	media, params, err := mime.ParseMediaType(got.header.Get("Content-Type"))
	if err != nil || got.status != http.StatusPartialContent || media != "multipart/byteranges" {
		t.Fatalf("got %d %v, want 206 multipart/byteranges", got.status, got.header)
	}
	parts := multipart.NewReader(strings.NewReader(got.body), params["boundary"])
	for _, c := range [][2]int{{0, 10}, {1_000_000, 1_600_000}, {len(content) - 3, len(content)}} {
		part, err := parts.NextPart()
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(part)
		want := fmt.Sprintf("bytes %d-%d/%d", c[0], c[1]-1, len(content))
		if err != nil || string(body) != string(content[c[0]:c[1]]) || part.Header.Get("Content-Range") != want || part.Header.Get("Content-Type") != "text/plain; charset=utf-8" {
			t.Errorf("got %d bytes, %v, %v, want %s", len(body), part.Header, err, want)
		}
	}
	if _, err := parts.NextPart(); err != io.EOF {
		t.Errorf("got %v, want three parts", err)
	}
}

func TestConditionalWrites(t *testing.T) {
	w := start(t, &fakes{})
	for name, c := range map[string]struct {
		headers       []request
		absent, there int // statuses of PUT
		reason        string
	}{
		"match":             {[]request{header("If-Match", "ETAG")}, 412, 200, "VERSION_MISMATCH"},
		"match in a list":   {[]request{header("If-Match", `"9-9" ,, ETAG`)}, 412, 200, "VERSION_MISMATCH"},
		"match in two":      {[]request{header("If-Match", `"9-9"`, "ETAG")}, 412, 200, "VERSION_MISMATCH"},
		"match another":     {[]request{header("If-Match", `"9-9"`)}, 412, 412, "VERSION_MISMATCH"},
		"match, weak":       {[]request{header("If-Match", "W/ETAG")}, 412, 412, "VERSION_MISMATCH"},
		"match, not ours":   {[]request{header("If-Match", `"abc"`)}, 412, 412, "VERSION_MISMATCH"},
		"match, empty":      {[]request{header("If-Match", `""`)}, 412, 412, "VERSION_MISMATCH"},
		"match star":        {[]request{header("If-Match", "*")}, 412, 200, "VERSION_MISMATCH"},
		"none match star":   {[]request{header("If-None-Match", " * ")}, 201, 412, "VERSION_MISMATCH"},
		"none match":        {[]request{header("If-None-Match", "ETAG")}, 201, 412, "VERSION_MISMATCH"},
		"none match, weak":  {[]request{header("If-None-Match", "W/ETAG")}, 201, 412, "VERSION_MISMATCH"},
		"none match, other": {[]request{header("If-None-Match", `"9-9", "abc"`)}, 201, 200, ""},
		"both":              {[]request{header("If-Match", "ETAG"), header("If-None-Match", `"9-9"`)}, 412, 200, "VERSION_MISMATCH"},
		"unquoted":          {[]request{header("If-Match", "9-9")}, 400, 400, "INVALID_HEADER"},
		"unclosed":          {[]request{header("If-Match", `"9-9`)}, 400, 400, "INVALID_HEADER"},
		"star in a list":    {[]request{header("If-None-Match", `*, "9-9"`)}, 400, 400, "INVALID_HEADER"},
		"no comma":          {[]request{header("If-None-Match", `"9-9" "8-8"`)}, 400, 400, "INVALID_HEADER"},
		"empty":             {[]request{header("If-None-Match", "")}, 400, 400, "INVALID_HEADER"},
		"too many":          {[]request{header("If-None-Match", strings.Repeat(`"9-9",`, 101))}, 400, 400, "INVALID_HEADER"},
		"a time":            {[]request{header("If-Unmodified-Since", "Fri, 01 May 2026 12:00:00 GMT")}, 400, 400, "INVALID_HEADER"},
		"a part":            {[]request{header("Content-Range", "bytes 0-1/5")}, 400, 400, "INVALID_HEADER"},
	} {
		t.Run(name, func(t *testing.T) {
			w.agentfs.mu.Lock()
			delete(w.agentfs.files, "workspace/f")
			w.agentfs.mu.Unlock()
			judge := func(when string, got answer, status int) {
				t.Helper()
				if status >= 400 {
					wantProblem(t, got, status, c.reason)
				} else if got.status != status {
					t.Errorf("%s: got %d %s, want %d", when, got.status, got.body, status)
				}
			}
			headers := func(etag string) request {
				return func(r *http.Request) {
					in := http.Request{Header: http.Header{}}
					for _, h := range c.headers {
						h(&in)
					}
					for name, values := range in.Header {
						for _, v := range values {
							r.Header.Add(name, strings.ReplaceAll(v, "ETAG", etag))
						}
					}
				}
			}
			judge("absent", w.call(t, "PUT", filesPath+"workspace/f", "x", headers(`"1-1"`)), c.absent)
			etag := w.agentfs.put("workspace/f", fakeFile{content: []byte("x")})
			judge("there", w.call(t, "PUT", filesPath+"workspace/f", "y", headers(etag)), c.there)
			etag = w.agentfs.put("workspace/f", fakeFile{content: []byte("x")})
			status := c.there
			if status == 200 {
				status = 204
			}
			judge("delete", w.call(t, "DELETE", filesPath+"workspace/f", "", headers(etag)), status)
		})
	}
}

func TestFileErrors(t *testing.T) {
	var fail error
	w := start(t, &fakes{agentfs: fakeAgentFS{admit: func(*agentfsv1.WriteFileHeader) error { return fail }}}, func(c *gateway.Config) { c.MaxFileBytes = 1000 })
	for _, c := range []struct {
		err    error
		status int
	}{
		{errs.New(errs.Invalid, "INVALID_PATH", "below no root"), 400},
		{errs.New(errs.Invalid, "INVALID_FILE_URI", "not canonical"), 400},
		{errs.New(errs.Invalid, "SIZE_MISMATCH", "another size"), 400},
		{errs.New(errs.Denied, "PERMISSION_DENIED", "no"), 403},
		{errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no"), 404},
		{errs.New(errs.Precondition, "FILE_HELD", "held").With("turnId", "t1"), 409},
		{errs.New(errs.Precondition, "SYMLINK_REFUSED", "a link"), 409},
		{errs.New(errs.Precondition, "NOT_A_FILE", "a directory"), 409},
		{errs.New(errs.Precondition, "VERSION_MISMATCH", "another"), 412},
		{errs.New(errs.Exhausted, "FILE_TOO_LARGE", "large"), 413},
		{errs.New(errs.Exhausted, "QUOTA_EXCEEDED", "full"), 507},
		{errs.New(errs.Exhausted, "STORAGE_FULL", "full"), 507},
		{errs.New(errs.Timeout, "UPLOAD_STALLED", "late"), 408},
		{errs.New(errs.Unavailable, "AGENTFS_BUSY", "busy"), 503},
	} {
		fail = c.err
		reason := string(errs.ReasonOf(c.err))
		for _, change := range [][]request{nil, {header("Expect", "100-continue")}} {
			meta := wantProblem(t, w.call(t, "PUT", filesPath+"workspace/f", "x", change...), c.status, reason)
			if reason == "FILE_HELD" && meta["turnId"] != "t1" {
				t.Errorf("got metadata %v, want the turn", meta)
			}
		}
	}
	fail = nil
	for name, size := range map[string]int64{"announced": 1001, "chunked": -1} {
		meta := wantProblem(t, w.call(t, "PUT", filesPath+"workspace/f", strings.Repeat("x", 1001), func(r *http.Request) { r.ContentLength = size }), 413, "FILE_TOO_LARGE")
		if meta["limitBytes"] != "1000" {
			t.Errorf("%s: got metadata %v, want the limit", name, meta)
		}
	}
	if w.agentfs.get("workspace/f") != nil {
		t.Error("a refused file is there")
	}
	wantProblem(t, w.call(t, "GET", filesPath+"workspace/link", ""), 409, "SYMLINK_REFUSED")
	wantProblem(t, w.call(t, "GET", acme+"/conversations/c2/files/workspace/f", ""), 404, "CONVERSATION_NOT_FOUND")
	wantProblem(t, w.call(t, "PUT", filesPath+"workspace/f", "x", header("Content-Encoding", "gzip")), 415, "UNSUPPORTED_MEDIA_TYPE")
	if allow := w.call(t, "POST", filesPath+"workspace/f", "x").header.Get("Allow"); allow != "DELETE, GET, HEAD, PUT" {
		t.Errorf("got Allow %q, want every method of a file", allow)
	}
}

func TestContentDisposition(t *testing.T) {
	w := start(t, &fakes{})
	for name, want := range map[string]string{
		"plain.txt":                   `attachment; filename="plain.txt"; filename*=UTF-8''plain.txt`,
		"it's.txt":                    `attachment; filename="it's.txt"; filename*=UTF-8''it%27s.txt`,
		`a"; filename="evil.exe`:      `attachment; filename="a_; filename=_evil.exe"; filename*=UTF-8''a%22%3B%20filename%3D%22evil.exe`,
		"a\r\nSet-Cookie: x=y":        `attachment; filename="a__Set-Cookie: x=y"; filename*=UTF-8''a%0D%0ASet-Cookie%3A%20x%3Dy`,
		`back\slash%41`:               `attachment; filename="back_slash_41"; filename*=UTF-8''back%5Cslash%2541`,
		"на\u00efve \U0001f600.txt":   `attachment; filename="___ve _.txt"; filename*=UTF-8''%D0%BD%D0%B0%C3%AFve%20%F0%9F%98%80.txt`,
		"\u202egpj.exe":               `attachment; filename="_gpj.exe"; filename*=UTF-8''%E2%80%AEgpj.exe`,
		strings.Repeat("\u00e9", 127): `attachment; filename="` + strings.Repeat("_", 127) + `"; filename*=UTF-8''` + strings.Repeat("%C3%A9", 127),
	} {
		w.agentfs.put("workspace/"+name, fakeFile{content: []byte("x")})
		got := w.call(t, "GET", filesPath+"workspace/"+url.PathEscape(name), "")
		if v := got.header.Get("Content-Disposition"); got.status != http.StatusOK || v != want {
			t.Errorf("%q: got %d %s, want %s", name, got.status, v, want)
		}
	}
}
