package sessiondb_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/sessiondb"
	"humanwork.internal/services/sessiondb/internal/store/storetest"
)

const org = "acme"

// system is the service behind its production chain, over a fresh cell.
type system struct {
	t     *testing.T
	cell  string
	dial  func(rpc.Principal) *grpc.ClientConn
	reads sessiondbv1.SessionReadServiceClient
}

func start(t *testing.T, cell string) *system {
	t.Helper()
	svc, err := sessiondb.New(sessiondb.Config{CellDir: cell}, serve.Environment{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	s := &system{t: t, cell: cell}
	s.dial = testkit.Serve(t, rpc.ServerConfig{Service: "sessiondb", Policy: sessiondb.Policy()}, svc.Register)
	s.reads = sessiondbv1.NewSessionReadServiceClient(s.dial(*rpc.Service("ingress")))
	return s
}

func (s *system) provision() {
	s.t.Helper()
	c := sessiondbv1.NewSessionWriteServiceClient(s.dial(*rpc.Service("routing")))
	for range 2 {
		if _, err := c.ProvisionOrganization(s.t.Context(), &sessiondbv1.ProvisionOrganizationRequest{OrganizationId: org}); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *system) mark() int64 {
	s.t.Helper()
	r, err := s.reads.GetWatermark(s.t.Context(), &sessiondbv1.GetWatermarkRequest{OrganizationId: org})
	if err != nil {
		s.t.Fatal(err)
	}
	return r.GetWatermark()
}

// list reads the transcript in pages of the given size.
func (s *system) list(session string, size int32) (texts []string, pages int) {
	s.t.Helper()
	for token := ""; ; {
		r, err := s.reads.ListMessages(s.t.Context(), &sessiondbv1.ListMessagesRequest{
			OrganizationId: org, SessionId: session, PageSize: size, PageToken: token})
		if err != nil {
			s.t.Fatal(err)
		}
		pages++
		for _, m := range r.GetMessages() {
			texts = append(texts, fmt.Sprintf("%d %s", m.GetMessageId(), m.GetText()))
		}
		if token = r.GetNextPageToken(); token == "" {
			return texts, pages
		}
	}
}

func TestTurn(t *testing.T) {
	s := start(t, t.TempDir())
	s.provision()
	if got := s.mark(); got != 0 {
		t.Fatalf("watermark before Hermes ran: %d, want 0", got)
	}
	h := storetest.Start(t, storetest.Path(s.cell, org))
	routing := sessiondbv1.NewSessionReadServiceClient(s.dial(*rpc.Service("routing")))
	before, err := routing.GetSessionWatermark(t.Context(), &sessiondbv1.GetSessionWatermarkRequest{OrganizationId: org})
	if err != nil {
		t.Fatal(err)
	}
	h.NewSession("s", "acp", nil)
	unbound, err := routing.FindUnboundSessions(t.Context(), &sessiondbv1.FindUnboundSessionsRequest{OrganizationId: org, AfterWatermark: before.GetWatermark()})
	if err != nil || !slices.Equal(unbound.GetSessionIds(), []string{"s"}) {
		t.Fatalf("unbound sessions %v, %v; want [s]", unbound.GetSessionIds(), err)
	}
	mark := s.mark()
	h.Append("s", storetest.Message{Role: "user", Content: "hello", APIContent: " hello\n"},
		storetest.Message{Role: "assistant", Content: "par", Finish: "length"}, storetest.User("[System: go on]"), storetest.Reply("tial"))
	out, err := s.reads.ReadOutcome(t.Context(), &sessiondbv1.ReadOutcomeRequest{OrganizationId: org, SessionId: "s", Watermark: mark, PromptText: " hello\n"})
	if err != nil {
		t.Fatal(err)
	}
	if out.GetUserMessageId() != 1 || !slices.Equal(out.GetUserMessageIds(), []int64{1}) || out.GetEndWatermark() != 4 ||
		len(out.GetReplies()) != 1 || out.GetReplies()[0].GetMessageId() != 4 || out.GetReplies()[0].GetFinishReason() != "stop" {
		t.Errorf("outcome %v", out)
	}
	got, err := s.reads.BatchGetMessages(t.Context(), &sessiondbv1.BatchGetMessagesRequest{OrganizationId: org, SessionId: "s", MessageIds: []int64{4, 1}})
	if err != nil {
		t.Fatal(err)
	}
	if m := got.GetMessages(); len(m) != 2 || m[0].GetText() != "partial" || m[1].GetText() != " hello\n" || m[1].GetRole() != "user" {
		t.Errorf("messages %v", m)
	}
}

func TestPages(t *testing.T) {
	s := start(t, t.TempDir())
	s.provision()
	h := storetest.Start(t, storetest.Path(s.cell, org))
	h.NewSession("s", "acp", nil)
	h.NewSession("t", "acp", nil)
	for i := range 100 {
		h.Append("s", storetest.User(fmt.Sprint("q", i)))
		h.Append("t", storetest.User("elsewhere"))
		if i%5 == 0 {
			h.Append("s", storetest.Message{Role: "assistant", Content: "cut ", Finish: "length"}, storetest.User("go on"))
		}
		h.Append("s", storetest.Reply(fmt.Sprint("r", i)))
	}
	whole, pages := s.list("s", 500)
	if len(whole) != 220 || pages != 1 {
		t.Fatalf("%d messages in %d pages, want 220 in 1", len(whole), pages)
	}
	for _, size := range []int32{1, 7, 50} {
		if got, _ := s.list("s", size); !slices.Equal(got, whole) {
			t.Errorf("pages of %d differ from the whole: %d messages, want %d", size, len(got), len(whole))
		}
	}
	// A compaction between two pages changes neither ids nor order.
	first, err := s.reads.ListMessages(t.Context(), &sessiondbv1.ListMessagesRequest{OrganizationId: org, SessionId: "s", PageSize: 50})
	if err != nil {
		t.Fatal(err)
	}
	h.Compact("s", storetest.User("q0"), storetest.Message{Role: "assistant", Content: "summary", Finish: "stop"}, storetest.User("q99"), storetest.Reply("r99"))
	second, err := s.reads.ListMessages(t.Context(), &sessiondbv1.ListMessagesRequest{OrganizationId: org, SessionId: "s", PageSize: 500, PageToken: first.GetNextPageToken()})
	if err != nil {
		t.Fatal(err)
	}
	var after []string
	for _, m := range append(first.GetMessages(), second.GetMessages()...) {
		after = append(after, fmt.Sprintf("%d %s", m.GetMessageId(), m.GetText()))
	}
	if !slices.Equal(after, whole) {
		t.Errorf("a compaction between pages changed the transcript: %d messages, want %d", len(after), len(whole))
	}
	for _, token := range []string{"x", "AAAA", strings.Repeat("A", 22), first.GetNextPageToken() + "A"} {
		_, err := s.reads.ListMessages(t.Context(), &sessiondbv1.ListMessagesRequest{OrganizationId: org, SessionId: "s", PageToken: token})
		if !errors.Is(err, errs.Reason("INVALID_PAGE_TOKEN")) {
			t.Errorf("token %q: %v, want INVALID_PAGE_TOKEN", token, err)
		}
	}
	_, err = s.reads.ListMessages(t.Context(), &sessiondbv1.ListMessagesRequest{OrganizationId: org, SessionId: "t", PageToken: first.GetNextPageToken()})
	if !errors.Is(err, errs.Reason("INVALID_PAGE_TOKEN")) {
		t.Errorf("another session's token: %v, want INVALID_PAGE_TOKEN", err)
	}
}

func TestLargePagesEndEarly(t *testing.T) {
	s := start(t, t.TempDir())
	s.provision()
	h := storetest.Start(t, storetest.Path(s.cell, org))
	h.NewSession("s", "acp", nil)
	big := strings.Repeat("x", 6<<20)
	for range 4 {
		h.Append("s", storetest.Reply(big), storetest.User("q"))
	}
	got, pages := s.list("s", 500)
	if len(got) != 8 || pages < 2 {
		t.Errorf("%d messages in %d pages, want 8 in several", len(got), pages)
	}
	_, err := s.reads.BatchGetMessages(t.Context(), &sessiondbv1.BatchGetMessagesRequest{OrganizationId: org, SessionId: "s", MessageIds: []int64{1, 1, 1, 1, 1, 1}})
	if !errors.Is(err, errs.Reason("RESPONSE_TOO_LARGE")) {
		t.Errorf("six large messages: %v, want RESPONSE_TOO_LARGE", err)
	}
}

func TestErrors(t *testing.T) {
	s := start(t, t.TempDir())
	mark := func(org string) error {
		_, err := s.reads.GetWatermark(t.Context(), &sessiondbv1.GetWatermarkRequest{OrganizationId: org})
		return err
	}
	if err := mark(org); !errors.Is(err, rpc.ReasonOrganizationNotFound) || !errors.Is(err, errs.NotFound) {
		t.Errorf("unknown organization: %v, want ORGANIZATION_NOT_FOUND", err)
	}
	if err := mark("../x"); !errors.Is(err, errs.Invalid) {
		t.Errorf("bad organization id: %v, want invalid", err)
	}
	s.provision()
	path := storetest.Path(s.cell, org)
	if err := os.WriteFile(path, []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := mark(org); !errors.Is(err, errs.Reason("SESSIONDB_FOREIGN")) || !errors.Is(err, errs.Precondition) {
		t.Errorf("foreign file: %v, want SESSIONDB_FOREIGN", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	h := storetest.Start(t, path)
	h.NewSession("s", "acp", nil)
	h.Append("s", storetest.User("q"))
	for _, id := range []int64{2, -1, 1 << 60} {
		_, err := s.reads.BatchGetMessages(t.Context(), &sessiondbv1.BatchGetMessagesRequest{OrganizationId: org, SessionId: "s", MessageIds: []int64{id}})
		if !errors.Is(err, errs.Reason("MESSAGE_NOT_FOUND")) {
			t.Errorf("message %d: %v, want MESSAGE_NOT_FOUND", id, err)
		}
	}
	_, err := s.reads.BatchGetMessages(t.Context(), &sessiondbv1.BatchGetMessagesRequest{OrganizationId: org, SessionId: "other", MessageIds: []int64{1}})
	if !errors.Is(err, errs.Reason("MESSAGE_NOT_FOUND")) {
		t.Errorf("another session's message: %v, want MESSAGE_NOT_FOUND", err)
	}
}

func TestPolicy(t *testing.T) {
	s := start(t, t.TempDir())
	s.provision()
	for _, who := range []rpc.Principal{{Organization: org, Subject: "u", Roles: []string{rpc.RoleMember}}, *rpc.Service("gateway")} {
		_, err := sessiondbv1.NewSessionReadServiceClient(s.dial(who)).GetWatermark(t.Context(), &sessiondbv1.GetWatermarkRequest{OrganizationId: org})
		if !errors.Is(err, errs.Denied) {
			t.Errorf("%s reads a watermark: %v, want denied", who.Subject, err)
		}
	}
	for name, desc := range map[string]grpc.ServiceDesc{"read": sessiondbv1.SessionReadService_ServiceDesc, "write": sessiondbv1.SessionWriteService_ServiceDesc} {
		for _, m := range desc.Methods {
			if len(sessiondb.Policy()["/"+desc.ServiceName+"/"+m.MethodName].Roles) == 0 {
				t.Errorf("no rule for the %s method %s", name, m.MethodName)
			}
		}
	}
}
