package gateway_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
)

func TestListFiles(t *testing.T) {
	w := start(t, &fakes{})
	w.agentfs.put("workspace/a b.txt", fakeFile{content: []byte("hello")})
	got := w.call(t, "GET", chat+"/files?prefix=workspace/a%20&pageSize=1000&shallow=true&pageToken=t", "")
	want := `{"files":[{"uri":"file:///workspace/a%20b.txt","path":"workspace/a b.txt","size":"5","mode":33188,"modifyTime":"2026-05-01T12:00:00.120Z",` +
		`"version":"101-1","sha256":"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"}],"directories":["workspace/src/"],"nextPageToken":"next"}`
	if got.status != http.StatusOK || !sameJSON(t, got.body, want) {
		t.Errorf("got %d %s, want 200 %s", got.status, got.body, want)
	}
	r := w.agentfs.seen.(*agentfsv1.ListFilesRequest)
	if r.GetOrganizationId() != "acme" || r.GetConversationId() != "c1" || r.GetPrefix() != "workspace/a " || r.GetPageSize() != 1000 ||
		!r.GetShallow() || r.GetPageToken() != "t" {
		t.Errorf("got request %v, want every parameter", r)
	}
	if got := w.call(t, "GET", chat+"/files?prefix=none", ""); !sameJSON(t, got.body, `{"files":[],"directories":[],"nextPageToken":""}`) {
		t.Errorf("got %s, want lists that are not null", got.body)
	}
	for _, query := range []string{"pageSize=0", "pageSize=1001", "pageSize=x", "shallow=1", "shallow=", "pageToken=" + strings.Repeat("t", 8193),
		"prefix=" + strings.Repeat("p", 4097)} {
		wantProblem(t, w.call(t, "GET", chat+"/files?"+query, ""), http.StatusBadRequest, "INVALID_PARAMETER")
	}
	wantProblem(t, w.call(t, "GET", chat+"/files?organizationId=rival", ""), http.StatusBadRequest, "UNKNOWN_PARAMETER")
}

func TestAttachments(t *testing.T) {
	w := start(t, &fakes{})
	for _, name := range []string{"a.txt", "it's 2024-01-05 \"é\" <b>&.txt", "-rf", "e\u0301.txt", `back\slash`, "a\nb", strings.Repeat("é", 127)} {
		got := w.call(t, "POST", chat+"/attachments?filename="+url.QueryEscape(name), "hello")
		if got.status != http.StatusCreated {
			t.Errorf("%q: got %d %s, want 201", name, got.status, got.body)
			continue
		}
		var stored struct {
			URI, Size, MimeType, SHA256 string
			Block                       json.RawMessage
		}
		if err := json.Unmarshal([]byte(got.body), &stored); err != nil {
			t.Fatal(err)
		}
		file := "artifacts/inbound/0123456789abcdef/" + name
		uri := "file:///" + (&url.URL{Path: file}).EscapedPath()
		media := "application/octet-stream"
		if strings.HasSuffix(name, ".txt") {
			media = "text/plain; charset=utf-8"
		}
		text := func(s string) string {
			var b strings.Builder
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			if err := enc.Encode(s); err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(b.String())
		}
		// The exact bytes: this is what the agent gets.
		block := `{"type":"resource_link","uri":` + text(uri) + `,"name":` + text(name) + `,"mimeType":` + text(media) + `,"size":5}`
		if string(stored.Block) != block || stored.URI != uri || stored.Size != "5" || stored.MimeType != media || len(stored.SHA256) != 64 {
			t.Errorf("%q: got %s, want the block %s", name, got.body, block)
		}
		if back := w.call(t, "GET", got.header.Get("Location"), ""); back.status != http.StatusOK || back.body != "hello" {
			t.Errorf("%q: got %d %q at Location, want the attachment", name, back.status, back.body)
		}
	}
	for _, query := range []string{"", "?filename=", "?filename=.", "?filename=..", "?filename=a/b", "?filename=a%2Fb", "?filename=a%00", "?filename=%FF",
		"?filename=" + strings.Repeat("a", 256)} {
		meta := wantProblem(t, w.call(t, "POST", chat+"/attachments"+query, "x"), http.StatusBadRequest, "INVALID_PARAMETER")
		if meta["parameter"] != "filename" {
			t.Errorf("%s: got metadata %v, want the parameter", query, meta)
		}
	}
}

func TestAudit(t *testing.T) {
	w := start(t, &fakes{})
	record := `{"position":"7","time":"2026-05-01T12:00:00.120Z","actor":"user:mia","action":"write","path":"workspace/a","target":"",` +
		`"inode":"9007199254740993","version":"1-2","size":"3","hash":"ab","writer":"1","sequence":"7"}`
	call := `{"id":"1","name":"shell","parameters":"{\"a\": 1}","result":"","error":"","status":"pending","startTime":"2026-05-01T12:00:00.120Z","durationMs":"0"}`
	for owner, conversation := range map[string]string{chat: "c1", acme: ""} {
		got := w.call(t, "GET", owner+"/audit/timeline?path=workspace&after=6&pageSize=2&pageToken=t", "")
		if got.status != http.StatusOK || !sameJSON(t, got.body, `{"records":[`+record+`],"nextPageToken":""}`) {
			t.Errorf("timeline: got %d %s, want one record", got.status, got.body)
		}
		r := w.agentfs.seen.(*agentfsv1.ListTimelineRequest)
		if r.GetConversationId() != conversation || r.GetPath() != "workspace" || r.GetAfter() != 6 || r.GetPageSize() != 2 || r.GetPageToken() != "t" {
			t.Errorf("timeline: got request %v, want every parameter", r)
		}
		got = w.call(t, "GET", owner+"/audit/diff?from=3&to=9&pageSize=2&pageToken=t", "")
		if got.status != http.StatusOK || !sameJSON(t, got.body, `{"differences":[{"kind":"ADDED","path":"workspace/a","directory":false}],"from":"3","to":"9","nextPageToken":""}`) {
			t.Errorf("diff: got %d %s, want one difference", got.status, got.body)
		}
		d := w.agentfs.seen.(*agentfsv1.DiffFilesRequest)
		if d.GetConversationId() != conversation || d.GetFrom() != 3 || d.GetTo() != 9 || d.GetPageSize() != 2 || d.GetPageToken() != "t" {
			t.Errorf("diff: got request %v, want every parameter", d)
		}
		got = w.call(t, "GET", owner+"/audit/toolcalls?pageSize=2", "")
		if got.status != http.StatusOK || !sameJSON(t, got.body, `{"toolCalls":[`+call+`],"nextPageToken":""}`) {
			t.Errorf("toolcalls: got %d %s, want one call", got.status, got.body)
		}
		if c := w.agentfs.seen.(*agentfsv1.ListToolCallsRequest); c.GetConversationId() != conversation || c.GetPageSize() != 2 {
			t.Errorf("toolcalls: got request %v, want every parameter", c)
		}
	}
	for _, query := range []string{"timeline?after=-1", "timeline?after=x", "timeline?pageSize=1001", "timeline?path=" + strings.Repeat("p", 4097),
		"diff?from=x", "diff?to=-1", "diff?pageSize=0", "toolcalls?pageToken=" + strings.Repeat("t", 513)} {
		wantProblem(t, w.call(t, "GET", chat+"/audit/"+query, ""), http.StatusBadRequest, "INVALID_PARAMETER")
	}
	wantProblem(t, w.call(t, "GET", acme+"/audit/timeline?conversationId=c1", ""), http.StatusBadRequest, "UNKNOWN_PARAMETER")
}

func TestBackup(t *testing.T) {
	const image = "SQLite format 3\x00 and so on"
	w := start(t, &fakes{agentfs: fakeAgentFS{exported: func(s grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error {
		for _, m := range []*agentfsv1.ExportOrganizationResponse{{Size: int64(len(image))}, {Data: []byte(image[:9])}, {Data: []byte(image[9:])}} {
			if err := s.Send(m); err != nil {
				return err
			}
		}
		return nil
	}}})
	one := `{"name":"a","createTime":"2026-05-01T12:00:00.120Z","size":"4096"}`
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"POST", ":check", "", 200, `{"faults":[],"truncated":false,"inodes":"3","bytes":"0","ledgerRecords":"0","snapshot":""}`},
		{"POST", ":check", `{"repair":true}`, 200, `{"faults":[],"truncated":false,"inodes":"3","bytes":"0","ledgerRecords":"0","snapshot":""}`},
		{"POST", "/snapshots", `{"name":"a"}`, 200, one},
		{"GET", "/snapshots", "", 200, `{"snapshots":[` + one + `]}`},
		{"DELETE", "/snapshots/a", "", 204, ""},
		{"POST", ":restore", image, 200, `{"previous":{"name":"before","createTime":"2026-05-01T12:00:00.120Z","size":"4096"}}`},
	} {
		got := w.call(t, c.method, acme+"/agentfs"+c.path, c.body)
		if c.path == ":restore" {
			if want := fmt.Sprintf(":%d:%s", len(image), image); string(w.agentfs.restored) != want {
				t.Errorf("got %q restored, want the body and its size", w.agentfs.restored)
			}
		}
		if got.status != c.status || c.want != "" && !sameJSON(t, got.body, c.want) {
			t.Errorf("%s %s: got %d %s, want %d %s", c.method, c.path, got.status, got.body, c.status, c.want)
		}
	}
	if r := w.agentfs.seen.(*agentfsv1.CheckOrganizationRequest); !r.GetRepair() || r.GetOrganizationId() != "acme" {
		t.Errorf("got request %v, want a repair", r)
	}
	if got := w.call(t, "POST", acme+"/agentfs:restore?snapshot=a", ""); got.status != http.StatusOK || string(w.agentfs.restored) != "a:0:" {
		t.Errorf("got %d and %q restored, want the snapshot", got.status, w.agentfs.restored)
	}
	export := w.call(t, "GET", acme+"/agentfs/export?snapshot=a", "")
	if export.status != http.StatusOK || export.body != image || export.header.Get("Content-Type") != "application/vnd.sqlite3" ||
		export.header.Get("Content-Disposition") != `attachment; filename="acme-a.db"; filename*=UTF-8''acme-a.db` || export.header.Get("Cache-Control") != "no-store" {
		t.Errorf("got %d %q %v, want the file", export.status, export.body, export.header)
	}
	for _, c := range []struct {
		method, path, body string
		status             int
		reason             string
	}{
		{"POST", "/snapshots", `{"name":"taken"}`, 409, "SNAPSHOT_EXISTS"},
		{"POST", "/snapshots", `{"name":"NO"}`, 400, "INVALID_ARGUMENT"},
		{"POST", "/snapshots", `{"label":"a"}`, 400, "UNKNOWN_FIELD"},
		{"POST", ":check", `{"repair":"yes"}`, 400, "INVALID_FIELD"},
		{"DELETE", "/snapshots/b", "", 404, "SNAPSHOT_NOT_FOUND"},
		{"DELETE", "/snapshots/B", "", 400, "INVALID_ID"},
		{"GET", "/export?snapshot=", "", 400, "INVALID_PARAMETER"},
		{"GET", "/export?snapshot=..%2Fx", "", 400, "INVALID_PARAMETER"},
		{"POST", ":restore", "", 400, "INVALID_PARAMETER"},
		{"POST", ":restore?snapshot=a", "x", 400, "INVALID_PARAMETER"},
		{"POST", ":restore?snapshot=", "x", 400, "INVALID_PARAMETER"},
		{"POST", ":burn", "", 404, "ROUTE_NOT_FOUND"},
		{"PUT", "/export", "", 405, "METHOD_NOT_ALLOWED"},
	} {
		wantProblem(t, w.call(t, c.method, acme+"/agentfs"+c.path, c.body), c.status, c.reason)
	}
	if got := w.call(t, "HEAD", acme+"/agentfs/export", ""); got.status != http.StatusMethodNotAllowed {
		t.Errorf("HEAD of an export: got %d, want 405", got.status)
	}
}

func TestExportErrors(t *testing.T) {
	var fail error
	w := start(t, &fakes{agentfs: fakeAgentFS{exported: func(grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error { return fail }}})
	for _, c := range []struct {
		err    error
		status int
	}{
		{errs.New(errs.NotFound, "SNAPSHOT_NOT_FOUND", "no such snapshot"), 404},
		{errs.New(errs.Precondition, "AGENTFS_REMOTE", "a server has it"), 409},
		{errs.New(errs.Denied, "PERMISSION_DENIED", "no"), 403},
	} {
		fail = c.err
		got := w.call(t, "GET", acme+"/agentfs/export", "")
		wantProblem(t, got, c.status, string(errs.ReasonOf(c.err)))
		if got.header.Get("Content-Disposition") != "" {
			t.Errorf("got headers %v on an error", got.header)
		}
	}
}

// TestFilesOfTurns covers what turns, the transcript and events say about files.
func TestFilesOfTurns(t *testing.T) {
	const uri = "file:///artifacts/inbound/0123456789abcdef/a%20b.txt"
	f := &fakes{}
	f.submit = func(ctx context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
		resp, err := accept(ctx, r)
		resp.GetTurn().GetMessages()[0].Blocks = []*ingressv1.AcceptedBlock{{Type: "resource_link", Sha256: "ab", Uri: uri}, {Type: "text", Sha256: "cd"}}
		return resp, err
	}
	f.transcript = func(context.Context, *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
		return &ingressv1.ListTranscriptResponse{Messages: []*ingressv1.TranscriptMessage{
			{CreateTime: created, Attachment: &ingressv1.Attachment{Uri: uri, Name: "a b.txt", MimeType: "text/plain", Size: 1<<53 + 1, Sha256: "ef"}},
			{CreateTime: created, Attachment: &ingressv1.Attachment{Uri: uri, Name: "a b.txt"}},
			{Locator: &ingressv1.Locator{SessionId: "s", MessageId: 7}, Role: "user", Text: "hi", Version: "v", CreateTime: created},
		}}, nil
	}
	f.stream = func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		if err := attached(s); err != nil {
			return err
		}
		e := event(5, "file.changed")
		e.Event.TurnId = ""
		e.Event.File = &ingressv1.FileChange{Position: 9, Uri: uri, Change: "renamed", PreviousUri: "file:///workspace/x", Version: "1-2"}
		return s.Send(e)
	}
	w := start(t, f)
	got := w.call(t, "POST", chat+"/turns", `{"messages":[{"blocks":[{"type":"text","text":"a"}]}]}`)
	want := `{"turnId":"t1","state":"ACCEPTED","messages":[{"inboundId":"i1","blocks":[{"type":"resource_link","sha256":"ab","uri":"` + uri + `"},{"type":"text","sha256":"cd"}]}]}`
	if got.status != http.StatusAccepted || !sameJSON(t, got.body, want) {
		t.Errorf("turn: got %d %s, want %s", got.status, got.body, want)
	}
	got = w.call(t, "GET", chat+"/transcript", "")
	want = `{"messages":[{"attachment":{"uri":"` + uri + `","name":"a b.txt","mimeType":"text/plain","size":"9007199254740993","sha256":"ef"},"createTime":"2026-05-01T12:00:00.12Z"},` +
		`{"attachment":{"uri":"` + uri + `","name":"a b.txt","mimeType":"","size":"0"},"createTime":"2026-05-01T12:00:00.12Z"},` +
		`{"locator":{"sessionId":"s","messageId":"7"},"role":"user","text":"hi","version":"v","createTime":"2026-05-01T12:00:00.12Z"}],"nextPageToken":""}`
	if !sameJSON(t, got.body, want) {
		t.Errorf("transcript: got %s, want %s", got.body, want)
	}
	s := w.open(t.Context(), t, chat+"/events")
	if got := s.next(t); got != ": attached" {
		t.Fatalf("got %q, want the stream to begin", got)
	}
	want = "id: 5\nevent: file.changed\ndata: " + `{"sequence":"5","type":"file.changed","createTime":"2026-05-01T12:00:00.12Z",` +
		`"file":{"uri":"` + uri + `","change":"renamed","previousUri":"file:///workspace/x","version":"1-2"}}`
	if got := s.next(t); got != want {
		t.Errorf("event: got %q, want %q", got, want)
	}
}
