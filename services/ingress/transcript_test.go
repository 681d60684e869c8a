package ingress_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
)

// transcript reads a whole transcript in pages, as texts and URIs, and checks that no page is too
// long.
func (r *replica) transcript(t *testing.T, conv string, size int32) (out []string) {
	t.Helper()
	for token, pages := "", 0; ; pages++ {
		m, err := r.ListTranscript(t.Context(), &ingressv1.ListTranscriptRequest{OrganizationId: org, ConversationId: conv, PageSize: size, PageToken: token})
		if err != nil {
			t.Fatalf("ListTranscript: %v", err)
		}
		if size > 0 && len(m.GetMessages()) > int(size) || pages > 100 {
			t.Fatalf("page %d has %d entries, want at most %d", pages, len(m.GetMessages()), size)
		}
		for _, e := range m.GetMessages() {
			switch a := e.GetAttachment(); {
			case a == nil:
				out = append(out, e.GetText())
			case e.GetLocator() != nil || e.GetRole() != "" || e.GetCreateTime() == nil:
				t.Errorf("attachment = %v", e)
			default:
				out = append(out, strings.TrimPrefix(a.GetUri(), "file:///workspace/"))
			}
		}
		if token = m.GetNextPageToken(); token == "" {
			return out
		}
	}
}

// Attachments stand before their turn's own messages, on whatever page that is, also those of turns
// that left no message.
func TestTranscriptOfAttachments(t *testing.T) {
	w := newWorld(t)
	w.hermes = func(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult {
		if promptText(r) == "" {
			return answered("end_turn", false)
		}
		return echo(w, r, a)
	}
	r := start(t, testkit.Postgres(t), w)
	var want []string
	say := func(text string, files ...string) {
		t.Helper()
		var raws []string
		if text != "" {
			raws = append(raws, string(textBlock(text)))
		}
		for _, f := range files {
			w.disk.put("file:///workspace/"+f, f)
			raws = append(raws, link("file:///workspace/"+f))
			want = append(want, f)
		}
		if text != "" {
			want = append(want, text, "echo: "+text)
		}
		r.wait(t, "c1", r.send(t, blocks("c1", "", raws...)).GetTurnId())
		w.write("s-other", "user", "another conversation's row", "")
	}
	say("", "a", "b")
	say("one")
	say("two", "c")
	for i := range 7 {
		say("", fmt.Sprint("d", i))
	}
	say("three", "e", "f")
	say("", "g")
	for size := range int32(20) {
		if got := r.transcript(t, "c1", size); !slices.Equal(got, want) {
			t.Errorf("transcript in pages of %d = %q, want %q", size, got, want)
		}
	}
	m, err := r.ListTranscript(t.Context(), &ingressv1.ListTranscriptRequest{OrganizationId: org, ConversationId: "c1", PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	a := m.GetMessages()[0].GetAttachment()
	if a.GetName() != "a name" || a.GetMimeType() != "text/plain" || a.GetSize() != 1 || a.GetSha256() != "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" {
		t.Errorf("attachment = %v", a)
	}
	for _, token := range []string{"x", "1.2.3", "1.2.3.4", "-1.0.0.0.", "1.2.3.99999999999.", "01.0.0.0.", " 1.0.0.0.", "1.0.0.0.\x00"} {
		_, err := r.ListTranscript(t.Context(), &ingressv1.ListTranscriptRequest{OrganizationId: org, ConversationId: "c1", PageToken: token})
		wantReason(t, err, errs.Invalid, "INVALID_PAGE_TOKEN")
	}
}

func appendChanges(t *testing.T, conn *grpc.ClientConn, conv string, changes ...*ingressv1.FileChange) error {
	t.Helper()
	_, err := ingressv1.NewFileEventServiceClient(conn).AppendFileChanges(t.Context(),
		&ingressv1.AppendFileChangesRequest{OrganizationId: org, ConversationId: conv, Generation: "g1", Changes: changes})
	return err
}

// What happened to files reaches readers of this instance and of others, between the events of
// turns, once.
func TestFileEvents(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	told, other := start(t, url, w), start(t, url, w)
	agentfs := told.as(*rpc.Service("agentfs"))
	written := &ingressv1.FileChange{Position: 4, Uri: "file:///workspace/a%20b", Change: "written", Version: "7-9"}
	renamed := &ingressv1.FileChange{Position: 6, Uri: "file:///workspace/c", Change: "renamed", PreviousUri: "file:///workspace/a%20b", Version: "7-9"}
	removed := &ingressv1.FileChange{Position: 7, Uri: "file:///workspace/c", Change: "removed"}
	streams := []events{told.follow(t.Context(), t, "c1", 0), other.follow(t.Context(), t, "c1", 0)}
	for _, call := range [][]*ingressv1.FileChange{{written}, {written, renamed}, {renamed, removed}} {
		if err := appendChanges(t, agentfs, "c1", call...); err != nil {
			t.Fatal(err)
		}
	}
	id := told.submit(t, "c1", "hello").GetTurnId()
	want := []string{"1 file.changed", "2 file.changed", "3 file.changed", "4 turn.accepted", "5 turn.started", "6 message.delivered", "7 turn.ended"}
	for i, s := range append(streams, other.follow(t.Context(), t, "c1", 0)) {
		first, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		e := first.GetEvent()
		if f := e.GetFile(); e.GetTurnId() != "" || e.GetCreateTime() == nil || f.GetUri() != written.GetUri() || f.GetChange() != "written" || f.GetVersion() != "7-9" {
			t.Errorf("event = %v", e)
		}
		rest, _ := until(t, s, id)
		if got := append([]string{fmt.Sprint(e.GetSequence(), " ", e.GetType())}, rest...); !slices.Equal(got, want) {
			t.Errorf("reader %d got %q, want %q", i, got, want)
		}
	}
	for name, bad := range map[string][]*ingressv1.FileChange{
		"nothing":          nil,
		"falling":          {{Position: 9, Uri: "file:///workspace/a", Change: "written"}, {Position: 8, Uri: "file:///workspace/a", Change: "written"}},
		"path":             {{Position: 9, Uri: "/workspace/a", Change: "written"}},
		"private file":     {{Position: 9, Uri: "file:///SOUL.md", Change: "written"}},
		"unknown change":   {{Position: 9, Uri: "file:///workspace/a", Change: "read"}},
		"renamed from":     {{Position: 9, Uri: "file:///workspace/a", Change: "renamed"}},
		"written from":     {{Position: 9, Uri: "file:///workspace/a", Change: "written", PreviousUri: "file:///workspace/b"}},
		"NUL":              {{Position: 9, Uri: "file:///workspace/a", Change: "written", Version: "a\x00"}},
		"position of zero": {{Uri: "file:///workspace/a", Change: "written"}},
	} {
		if err := appendChanges(t, agentfs, "c1", bad...); errs.KindOf(err) != errs.Invalid {
			t.Errorf("%s: AppendFileChanges = %v, want %v", name, err, errs.Invalid)
		}
	}
	if n := query[int](t, url, "SELECT event_seq FROM ingress.conversation"); n != 7 {
		t.Errorf("%d events after refused changes, want 7", n)
	}
}
