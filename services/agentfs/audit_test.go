package agentfs

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

// timeline reads all pages, each record as "actor action path>target".
func timeline(t *testing.T, c agentfsv1.AuditServiceClient, r *agentfsv1.ListTimelineRequest) (lines []string) {
	t.Helper()
	r.OrganizationId = "acme"
	last := int64(0)
	for {
		page, err := c.ListTimeline(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range page.GetRecords() {
			if l.GetPosition() <= last || l.GetHash() == "" || l.GetSequence() == 0 || l.GetTime() == nil {
				t.Errorf("record %v after position %d", l, last)
			}
			last = l.GetPosition()
			line := l.GetActor() + " " + l.GetAction() + " " + l.GetPath()
			if l.GetTarget() != "" {
				line += ">" + l.GetTarget()
			}
			lines = append(lines, line)
		}
		if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
			return lines
		}
	}
}

func TestTimelineOfAConversation(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	audit := agentfsv1.NewAuditServiceClient(s.dial(member))
	c.put(t, "workspace/a", "1")
	c.put(t, "workspace/a", "2")
	c.get(t, "workspace/a")
	s.files(admin).put(t, "artifacts/outbound/d/it's.txt", "3")
	other := c
	other.conversation = "c2"
	other.put(t, "workspace/secret-of-c2", "x")
	supervisor := agentfsv1.NewEstablishmentServiceClient(s.dial(*rpc.Service("supervisor")))
	if _, err := supervisor.GetConversationHome(t.Context(), &agentfsv1.GetConversationHomeRequest{OrganizationId: "acme", ConversationId: "c1"}); err != nil {
		t.Fatal(err)
	}
	by := core.Caller{Actor: "agent:c1"}
	s.core(t, func(fs *core.FS) error {
		home, err := fs.Resolve(t.Context(), "/conversations/c1")
		if err != nil {
			return err
		}
		work, err := fs.Resolve(t.Context(), "/conversations/c1/work")
		if err != nil {
			return err
		}
		state, err := fs.Resolve(t.Context(), "/conversations/c1/state")
		if err != nil {
			return err
		}
		if _, err := fs.Symlink(t.Context(), by, work.Ino, "l", "../.env"); err != nil {
			return err
		}
		if _, _, err := fs.Put(t.Context(), by, core.Placement{Parent: state.Ino, Name: "private"}, 0o600, nil); err != nil {
			return err
		}
		for _, m := range []struct {
			from core.Ino
			name string
			to   core.Ino
			as   string
		}{{state.Ino, "private", work.Ino, "public"}, {work.Ino, "public", work.Ino, "renamed"}, {work.Ino, "renamed", state.Ino, "hidden"}} {
			if err := fs.Rename(t.Context(), by, m.from, m.name, m.to, m.as, 0); err != nil {
				return err
			}
		}
		_, err = fs.RecordToolCall(t.Context(), by, home.Ino, core.ToolCall{Name: "terminal", Parameters: `{"command":"ls"}`,
			Status: core.ToolSuccess, Started: time.Unix(100, 0), Completed: time.Unix(102, 0), Duration: 2 * time.Second})
		return err
	})
	if err := c.remove(t.Context(), "workspace/a", nil); err != nil {
		t.Fatal(err)
	}
	wanted := []string{"user:ada create workspace/a", "user:ada replace workspace/a", "user:ada open workspace/a",
		"user:root mkdir artifacts/outbound/d", "user:root create artifacts/outbound/d/it's.txt", "agent:c1 symlink workspace/l>../.env",
		"agent:c1 rename >workspace/public", "agent:c1 rename workspace/public>workspace/renamed", "agent:c1 rename workspace/renamed", "user:ada remove workspace/a"}
	for _, size := range []int32{1, 3, 1000} {
		if got := timeline(t, audit, &agentfsv1.ListTimelineRequest{ConversationId: "c1", PageSize: size}); !slices.Equal(got, wanted) {
			t.Errorf("by %d: got\n%s\nwant\n%s", size, strings.Join(got, "\n"), strings.Join(wanted, "\n"))
		}
	}
	for path, n := range map[string]int{"workspace/a": 4, "artifacts/outbound": 2, "artifacts": 2, "workspace": 8, "artifacts/outbound/d/": 2, "workspace/none": 0} {
		if got := timeline(t, audit, &agentfsv1.ListTimelineRequest{ConversationId: "c1", Path: path}); len(got) != n {
			t.Errorf("path %s: got %q, want %d", path, got, n)
		}
	}
	_, err := audit.ListTimeline(t.Context(), &agentfsv1.ListTimelineRequest{OrganizationId: "acme", ConversationId: "c1", Path: "state"})
	want(t, "private path", err, errs.Invalid, fault.InvalidPath)
	_, err = audit.ListTimeline(t.Context(), &agentfsv1.ListTimelineRequest{OrganizationId: "acme", ConversationId: "c1", PageToken: "x"})
	want(t, "token", err, errs.Invalid, fault.InvalidPageToken)
	_, err = audit.ListTimeline(t.Context(), &agentfsv1.ListTimelineRequest{OrganizationId: "acme"})
	want(t, "organization's ledger as a member", err, errs.Denied, rpc.ReasonDenied)
	_, err = audit.ListTimeline(t.Context(), &agentfsv1.ListTimelineRequest{OrganizationId: "acme", ConversationId: "nobody"})
	want(t, "unknown conversation", err, errs.NotFound, fault.ConversationNotFound)

	whole := timeline(t, agentfsv1.NewAuditServiceClient(s.dial(admin)), &agentfsv1.ListTimelineRequest{})
	for _, line := range []string{"service:routing provision /.env", "service:supervisor open /conversations/c1/.env", "user:ada create /conversations/c2/work/secret-of-c2",
		"agent:c1 rename /conversations/c1/state/private>/conversations/c1/work/public", "agent:c1 tool >terminal"} {
		if !slices.Contains(whole, line) {
			t.Errorf("the organization's ledger has no %q:\n%s", line, strings.Join(whole, "\n"))
		}
	}

	calls, err := audit.ListToolCalls(t.Context(), &agentfsv1.ListToolCallsRequest{OrganizationId: "acme", ConversationId: "c1"})
	if err != nil || len(calls.GetToolCalls()) != 1 {
		t.Fatalf("tool calls: got %v, %v, want one", calls, err)
	}
	if call := calls.GetToolCalls()[0]; call.GetName() != "terminal" || call.GetParameters() != `{"command":"ls"}` || call.GetDurationMs() != 2000 || call.GetEndTime().GetSeconds() != 102 {
		t.Errorf("tool call %v", call)
	}
	calls, err = audit.ListToolCalls(t.Context(), &agentfsv1.ListToolCallsRequest{OrganizationId: "acme", ConversationId: "c2"})
	if err != nil || len(calls.GetToolCalls()) != 0 {
		t.Errorf("tool calls of another conversation: got %v, %v", calls, err)
	}
}

func TestToolCallsByPages(t *testing.T) {
	s := established(t, testConfig(t))
	s.core(t, func(fs *core.FS) error {
		home, err := fs.Resolve(t.Context(), "/conversations/c1")
		for i := 0; err == nil && i < 5; i++ {
			_, err = fs.RecordToolCall(t.Context(), core.Caller{Actor: "agent:c1"}, home.Ino,
				core.ToolCall{Name: fmt.Sprint("t", i), Status: core.ToolPending, Started: time.Unix(1, 0)})
		}
		return err
	})
	audit := agentfsv1.NewAuditServiceClient(s.dial(member))
	r := &agentfsv1.ListToolCallsRequest{OrganizationId: "acme", ConversationId: "c1", PageSize: 2}
	var names []string
	for pages := 0; ; pages++ {
		page, err := audit.ListToolCalls(t.Context(), r)
		if err != nil || pages > 3 {
			t.Fatalf("page %d: %v", pages, err)
		}
		for _, c := range page.GetToolCalls() {
			names = append(names, c.GetName())
			if c.GetEndTime() != nil {
				t.Errorf("pending call ended: %v", c)
			}
		}
		if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
			break
		}
	}
	if got := strings.Join(names, " "); got != "t0 t1 t2 t3 t4" {
		t.Errorf("got %s", got)
	}
}

func TestDifferences(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	audit := agentfsv1.NewAuditServiceClient(s.dial(member))
	diff := func(from, to int64, size int32) (lines []string, last int64) {
		t.Helper()
		r := &agentfsv1.DiffFilesRequest{OrganizationId: "acme", ConversationId: "c1", From: from, To: to, PageSize: size}
		for {
			page, err := audit.DiffFiles(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range page.GetDifferences() {
				line := strings.TrimPrefix(d.GetKind().String(), "KIND_") + " " + d.GetPath()
				if d.GetPreviousPath() != "" {
					line += " from " + d.GetPreviousPath()
				}
				lines = append(lines, line)
			}
			if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
				return lines, page.GetTo()
			}
		}
	}
	c.put(t, "workspace/a", "1")
	c.put(t, "workspace/b", "1")
	c.put(t, "artifacts/outbound/it's", "1")
	lines, point := diff(0, 0, 1)
	if got, want := strings.Join(lines, ", "), "ADDED artifacts/outbound/it's, ADDED workspace/a, ADDED workspace/b"; got != want {
		t.Errorf("against the base: got %s, want %s", got, want)
	}
	c.put(t, "workspace/a", "2")
	if err := c.remove(t.Context(), "workspace/b", nil); err != nil {
		t.Fatal(err)
	}
	s.core(t, func(fs *core.FS) error {
		by := core.Caller{Actor: "agent:c1"}
		from, err := fs.Resolve(t.Context(), "/conversations/c1/artifacts/outbound")
		if err != nil {
			return err
		}
		work, err := fs.Resolve(t.Context(), "/conversations/c1/work")
		if err != nil {
			return err
		}
		state, err := fs.Resolve(t.Context(), "/conversations/c1/state")
		if err != nil {
			return err
		}
		if _, _, err := fs.Put(t.Context(), by, core.Placement{Parent: state.Ino, Name: "private"}, 0o600, []byte("x")); err != nil {
			return err
		}
		return fs.Rename(t.Context(), by, from.Ino, "it's", work.Ino, "moved", 0)
	})
	lines, _ = diff(point, 0, 2)
	if got, want := strings.Join(lines, ", "), "MODIFIED workspace/a, REMOVED workspace/b, RENAMED workspace/moved from artifacts/outbound/it's"; got != want {
		t.Errorf("since then: got %s, want %s", got, want)
	}
	if lines, _ := diff(point, point, 0); len(lines) != 0 {
		t.Errorf("between a point and itself: %q", lines)
	}
	for _, p := range [][2]int64{{point, 1}, {1 << 40, 0}, {0, 1 << 40}} {
		_, err := audit.DiffFiles(t.Context(), &agentfsv1.DiffFilesRequest{OrganizationId: "acme", ConversationId: "c1", From: p[0], To: p[1]})
		want(t, fmt.Sprint(p), err, errs.OutOfRange, fault.LedgerPosition)
	}
}
