package gateway_test

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/gateway"
)

const (
	adminToken  = "admin-token-0123456789"
	memberToken = "member-token-0123456789"
	acme        = "/v1/organizations/acme"
	chat        = acme + "/conversations/c1"
)

// fakes are the services behind the gateway, served through the production chain.
type fakes struct {
	routingv1.UnimplementedRoutingServiceServer
	routingv1.UnimplementedRoutingReadServiceServer
	ingressv1.UnimplementedIngressServiceServer
	ingressv1.UnimplementedIngressReadServiceServer

	submit     func(context.Context, *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error)
	getTurn    func(context.Context, *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error)
	stream     func(*ingressv1.StreamEventsRequest, grpc.ServerStreamingServer[ingressv1.StreamEventsResponse]) error
	transcript func(context.Context, *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error)

	mu           sync.Mutex
	conversation *routingv1.CreateConversationRequest
	principal    rpc.Principal
	ready        error

	agentfs fakeAgentFS
}

func (f *fakes) note(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.principal, _ = rpc.PrincipalFrom(ctx)
}

func (f *fakes) isReady(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.ready
}

var created = timestamppb.New(time.Date(2026, 5, 1, 12, 0, 0, 120_000_000, time.UTC))

func (f *fakes) CreateOrganization(ctx context.Context, r *routingv1.CreateOrganizationRequest) (*routingv1.CreateOrganizationResponse, error) {
	f.note(ctx)
	return &routingv1.CreateOrganizationResponse{Organization: &routingv1.Organization{OrganizationId: r.GetOrganizationId(), CreateTime: created}}, nil
}

func (f *fakes) GetOrganization(_ context.Context, r *routingv1.GetOrganizationRequest) (*routingv1.GetOrganizationResponse, error) {
	if r.GetOrganizationId() != "acme" {
		return nil, errs.New(errs.NotFound, rpc.ReasonOrganizationNotFound, "no such organization")
	}
	return &routingv1.GetOrganizationResponse{Organization: &routingv1.Organization{OrganizationId: "acme", CreateTime: created}}, nil
}

func (f *fakes) CreateConversation(_ context.Context, r *routingv1.CreateConversationRequest) (*routingv1.CreateConversationResponse, error) {
	f.mu.Lock()
	f.conversation = r
	f.mu.Unlock()
	return &routingv1.CreateConversationResponse{Conversation: &routingv1.Conversation{OrganizationId: r.GetOrganizationId(),
		ConversationId: r.GetConversationId(), SessionId: "20260501_120000_abcdef", SpecialistId: r.GetSpecialistId(), CreateTime: created}}, nil
}

func (f *fakes) GetConversation(_ context.Context, r *routingv1.GetConversationRequest) (*routingv1.GetConversationResponse, error) {
	if r.GetConversationId() != "c1" {
		return nil, errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation")
	}
	return &routingv1.GetConversationResponse{Conversation: &routingv1.Conversation{OrganizationId: "acme", ConversationId: "c1", SessionId: "s", CreateTime: created},
		Placement: &routingv1.Placement{CellId: "secret-cell"}}, nil
}

func (f *fakes) ListConversations(_ context.Context, r *routingv1.ListConversationsRequest) (*routingv1.ListConversationsResponse, error) {
	if r.GetPageToken() == "" && r.GetPageSize() == 1 {
		return &routingv1.ListConversationsResponse{NextPageToken: "next", Conversations: []*routingv1.Conversation{
			{OrganizationId: "acme", ConversationId: "c1", SessionId: "s", CreateTime: created}}}, nil
	}
	return &routingv1.ListConversationsResponse{}, nil
}

func (f *fakes) SubmitTurn(ctx context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
	f.note(ctx)
	return f.submit(ctx, r)
}

func (f *fakes) GetTurn(ctx context.Context, r *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
	return f.getTurn(ctx, r)
}

func (f *fakes) ListTurns(context.Context, *ingressv1.ListTurnsRequest) (*ingressv1.ListTurnsResponse, error) {
	return &ingressv1.ListTurnsResponse{Turns: []*ingressv1.Turn{repliedTurn()}, NextPageToken: "n"}, nil
}

func (f *fakes) CancelTurn(_ context.Context, r *ingressv1.CancelTurnRequest) (*ingressv1.CancelTurnResponse, error) {
	return &ingressv1.CancelTurnResponse{Turn: &ingressv1.Turn{TurnId: r.GetTurnId(), State: ingressv1.TurnState_TURN_STATE_CANCELLED, CreateTime: created, EndTime: created}}, nil
}

func (f *fakes) ListTranscript(ctx context.Context, r *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
	return f.transcript(ctx, r)
}

func (f *fakes) StreamEvents(r *ingressv1.StreamEventsRequest, s grpc.ServerStreamingServer[ingressv1.StreamEventsResponse]) error {
	return f.stream(r, s)
}

func repliedTurn() *ingressv1.Turn {
	ms := 12.5
	return &ingressv1.Turn{TurnId: "t1", State: ingressv1.TurnState_TURN_STATE_REPLIED, CreateTime: created, EndTime: created,
		Replies:  []*ingressv1.Reply{{Locator: &ingressv1.Locator{SessionId: "s", MessageId: 1<<53 + 1}, Text: " <b>&\u2028 "}},
		Messages: []*ingressv1.AcceptedMessage{{InboundId: "i1", Blocks: []*ingressv1.AcceptedBlock{{Type: "text", Sha256: "ab"}}}},
		Timings:  &ingressv1.TurnTimings{AcceptToAttachMs: &ms}}
}

// fake is one server in memory.
type fake struct {
	lis *bufconn.Listener
	srv *grpc.Server
}

// newFake serves what register adds, through the production chain and with health, until the test
// ends. Every method is open to administrators and members.
func newFake(t *testing.T, name string, signer *rpc.Signer, ready func(context.Context) error, register func(*grpc.Server)) fake {
	t.Helper()
	policy := rpc.Policy{}
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: name, Logger: zap.NewNop(), Signer: signer, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	register(srv)
	for service, info := range srv.GetServiceInfo() {
		for _, m := range info.Methods {
			policy.Allow([]string{rpc.RoleAdmin, rpc.RoleMember}, "/"+service+"/"+m.Name)
		}
	}
	lis := bufconn.Listen(1 << 16)
	component := app.GRPC(name, srv, lis, ready)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- component.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		srv.Stop()
		if err := <-done; err != nil {
			t.Logf("the test has stopped %s before: %v", name, err)
		}
	})
	return fake{lis, srv}
}

// world is a running gateway with its fakes.
type world struct {
	*fakes
	url     string
	stop    func() error
	routing *grpc.Server
}

func start(t *testing.T, f *fakes, options ...func(*gateway.Config)) *world {
	return startLogged(t, f, zap.NewNop(), options...)
}

func startLogged(t *testing.T, f *fakes, log *zap.Logger, options ...func(*gateway.Config)) *world {
	t.Helper()
	signer := testkit.Signer(t)
	routing := newFake(t, "routing", signer, f.isReady, func(s *grpc.Server) {
		routingv1.RegisterRoutingServiceServer(s, f)
		routingv1.RegisterRoutingReadServiceServer(s, f)
	})
	ingress := newFake(t, "ingress", signer, func(context.Context) error { return nil }, func(s *grpc.Server) {
		ingressv1.RegisterIngressServiceServer(s, f)
		ingressv1.RegisterIngressReadServiceServer(s, f)
	})
	f.agentfs.files = map[string]*fakeFile{}
	agentfs := newFake(t, "agentfs", signer, func(context.Context) error { return nil }, f.agentfs.register)
	dir := t.TempDir()
	for name, token := range map[string]string{"admin": adminToken, "member": memberToken} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := gateway.Config{Routing: "passthrough:///routing", Ingress: "passthrough:///ingress", AgentFS: "passthrough:///agentfs", Tokens: []gateway.Token{
		{TokenFile: "admin", Subject: "root", Roles: []string{rpc.RoleAdmin}},
		{TokenFile: "member", Subject: "mia", Organization: "acme", Roles: []string{rpc.RoleMember}},
	}}
	for _, o := range options {
		o(&cfg)
	}
	if err := cfg.Validate(dir); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewRegistry()
	svc, err := gateway.New(cfg, serve.Environment{Logger: log, Metrics: registry, Client: rpc.ClientConfig{Signer: signer,
		Dialer: func(ctx context.Context, target string) (net.Conn, error) {
			return map[string]*bufconn.Listener{"routing": routing.lis, "ingress": ingress.lis, "agentfs": agentfs.lis}[target].DialContext(ctx)
		}}}, registry)
	if err != nil {
		t.Fatal(err)
	}
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx, lis) }()
	var once sync.Once
	var result error
	stop := func() error {
		once.Do(func() { cancel(); result = <-done })
		return result
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("stop gateway: %v", err)
		}
	})
	return &world{fakes: f, url: "http://" + lis.Addr().String(), stop: stop, routing: routing.srv}
}

// answer is a whole response.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) json(t *testing.T) map[string]any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		t.Fatalf("answer is not JSON: %q: %v", a.body, err)
	}
	return m
}

// request changes what call sends.
type request func(*http.Request)

func header(name string, values ...string) request {
	return func(r *http.Request) { r.Header[http.CanonicalHeaderKey(name)] = values }
}

func (w *world) call(t *testing.T, method, path, body string, changes ...request) answer {
	t.Helper()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(t.Context(), method, w.url+path, in)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, c := range changes {
		c(req)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(raw)}
}

// wantProblem checks an error's whole shape.
func wantProblem(t *testing.T, got answer, status int, reason string) map[string]any {
	t.Helper()
	if got.status != status {
		t.Fatalf("got status %d, want %d: %s", got.status, status, got.body)
	}
	if ct := got.header.Get("Content-Type"); ct != "application/json" {
		t.Errorf("got Content-Type %q, want application/json", ct)
	}
	m := got.json(t)
	details, _ := m["details"].([]any)
	if len(m) != 3 || len(details) != 1 || m["message"] == "" || m["code"] == nil {
		t.Fatalf("got %s, want code, message and one detail", got.body)
	}
	info := details[0].(map[string]any)
	meta, ok := info["metadata"].(map[string]any)
	if info["@type"] != "type.googleapis.com/google.rpc.ErrorInfo" || info["domain"] != "humanwork" || !ok {
		t.Errorf("got detail %v, want an ErrorInfo of humanwork with metadata", info)
	}
	if info["reason"] != reason {
		t.Errorf("got reason %v (%v), want %s", info["reason"], m["message"], reason)
	}
	return meta
}
