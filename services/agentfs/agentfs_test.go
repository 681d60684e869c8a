package agentfs

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
)

const keyText = "sk-'\"test"

var (
	member   = rpc.Principal{Organization: "acme", Subject: "ada", Roles: []string{rpc.RoleMember}}
	stranger = rpc.Principal{Organization: "other", Subject: "eve", Roles: []string{rpc.RoleMember}}
	admin    = rpc.Principal{Subject: "root", Roles: []string{rpc.RoleAdmin}}
)

func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(keyText+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{DataDir: "data", Routing: "passthrough:///routing", Ingress: "passthrough:///ingress", Soul: "You are ours.\n",
		Model: Model{BaseURL: "http://127.0.0.1:9/v1", Name: "demo", APIKeyFile: "key"}}
	if err := cfg.Validate(dir); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// others play routing and ingress.
type others struct {
	routingv1.UnimplementedRoutingReadServiceServer
	ingressv1.UnimplementedIngressReadServiceServer
	ingressv1.UnimplementedFileEventServiceServer

	mu            sync.Mutex
	organizations []string
	conversations []string // organization/conversation
	turns         map[string]ingressv1.TurnState
	refuse        error // what AppendFileChanges answers
	told          []*ingressv1.AppendFileChangesRequest
	changed       chan struct{} // closed and made anew at each call of AppendFileChanges
}

func newOthers() *others {
	return &others{organizations: []string{"acme", "other"}, conversations: []string{"acme/c1", "acme/c2", "other/c1"},
		turns: map[string]ingressv1.TurnState{}, changed: make(chan struct{})}
}

func (o *others) GetOrganization(_ context.Context, r *routingv1.GetOrganizationRequest) (*routingv1.GetOrganizationResponse, error) {
	if !slices.Contains(o.organizations, r.GetOrganizationId()) {
		return nil, errs.New(errs.NotFound, rpc.ReasonOrganizationNotFound, "no such organization")
	}
	return &routingv1.GetOrganizationResponse{}, nil
}

func (o *others) GetConversation(_ context.Context, r *routingv1.GetConversationRequest) (*routingv1.GetConversationResponse, error) {
	if !slices.Contains(o.conversations, r.GetOrganizationId()+"/"+r.GetConversationId()) {
		return nil, errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation")
	}
	return &routingv1.GetConversationResponse{}, nil
}

func (o *others) GetTurn(_ context.Context, r *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	state, ok := o.turns[r.GetConversationId()+"/"+r.GetTurnId()]
	if !ok {
		return nil, errs.New(errs.NotFound, "TURN_NOT_FOUND", "no such turn")
	}
	return &ingressv1.GetTurnResponse{Turn: &ingressv1.Turn{TurnId: r.GetTurnId(), State: state}}, nil
}

func (o *others) AppendFileChanges(_ context.Context, r *ingressv1.AppendFileChangesRequest) (*ingressv1.AppendFileChangesResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
	if o.refuse != nil {
		return nil, o.refuse
	}
	o.told = append(o.told, r)
	return &ingressv1.AppendFileChangesResponse{}, nil
}

func (o *others) setTurn(key string, state ingressv1.TurnState) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.turns[key] = state
}

// listen serves o as routing and as ingress to agentfs alone.
func (o *others) listen(t *testing.T) func(context.Context, string) (net.Conn, error) {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: "others", Logger: testkit.Logger(t), Signer: testkit.Signer(t),
		Policy: rpc.Policy{}.Allow([]string{rpc.RoleService + "agentfs"}, routingv1.RoutingReadService_GetOrganization_FullMethodName,
			routingv1.RoutingReadService_GetConversation_FullMethodName, ingressv1.IngressReadService_GetTurn_FullMethodName,
			ingressv1.FileEventService_AppendFileChanges_FullMethodName)})
	if err != nil {
		t.Fatal(err)
	}
	routingv1.RegisterRoutingReadServiceServer(srv, o)
	ingressv1.RegisterIngressReadServiceServer(srv, o)
	ingressv1.RegisterFileEventServiceServer(srv, o)
	lis := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve the others: %v", err)
		}
	})
	return func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }
}

func (o *others) environment(t *testing.T) serve.Environment {
	return serve.Environment{Logger: testkit.Logger(t), Client: rpc.ClientConfig{Signer: testkit.Signer(t), Dialer: o.listen(t)}}
}

// system is agentfs behind its production chain.
type system struct {
	*others
	svc  *Service
	dial func(rpc.Principal) *grpc.ClientConn
	// stop ends the service; the test's end does it too.
	stop func()
}

func start(t *testing.T, cfg Config) *system { return startBeside(t, cfg, newOthers()) }

func startBeside(t *testing.T, cfg Config, o *others) *system {
	t.Helper()
	svc, err := New(cfg, o.environment(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- svc.Run(ctx) }()
	select {
	case err := <-done:
		t.Fatalf("Run: %v", err)
	case <-svc.store.Opened():
	}
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return &system{others: o, svc: svc, stop: stop,
		dial: testkit.Serve(t, rpc.ServerConfig{Service: "agentfs", Policy: Policy()}, svc.Register)}
}

// established is a system with the organizations and conversations that the others know.
func established(t *testing.T, cfg Config) *system {
	t.Helper()
	s := start(t, cfg)
	routing := agentfsv1.NewEstablishmentServiceClient(s.dial(*rpc.Service("routing")))
	for _, o := range s.organizations {
		if _, err := routing.ProvisionOrganization(t.Context(), &agentfsv1.ProvisionOrganizationRequest{OrganizationId: o}); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range s.conversations {
		organization, id := filepath.Split(c)
		if _, err := routing.EstablishConversation(t.Context(), &agentfsv1.EstablishConversationRequest{OrganizationId: organization[:len(organization)-1],
			ConversationId: id}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// core runs fn with acme's database, as the machine of its agents would.
func (s *system) core(t *testing.T, fn func(*core.FS) error) {
	t.Helper()
	if err := s.svc.store.With(t.Context(), "acme", fn); err != nil {
		t.Fatal(err)
	}
}

func (s *system) files(p rpc.Principal) client {
	return client{agentfsv1.NewFileServiceClient(s.dial(p)), "acme", "c1"}
}

// client works on one conversation's files.
type client struct {
	agentfsv1.FileServiceClient
	organization, conversation string
}

func (c client) write(ctx context.Context, h *agentfsv1.WriteFileHeader, parts ...string) (*agentfsv1.WriteFileResponse, error) {
	stream, err := c.WriteFile(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: c.organization, ConversationId: c.conversation, Header: h}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	for _, p := range parts {
		err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: c.organization, ConversationId: c.conversation, Data: []byte(p)})
		if errors.Is(err, io.EOF) {
			break // the answer says why
		}
		if err != nil {
			return nil, err
		}
	}
	return stream.CloseAndRecv()
}

func to(path string, p *agentfsv1.Precondition) *agentfsv1.WriteFileHeader {
	return &agentfsv1.WriteFileHeader{Destination: &agentfsv1.WriteFileHeader_Path{Path: path}, Precondition: p, Size: -1}
}

func attachment(name string) *agentfsv1.WriteFileHeader {
	return &agentfsv1.WriteFileHeader{Destination: &agentfsv1.WriteFileHeader_Attachment{Attachment: name}, Size: -1}
}

func (c client) put(t *testing.T, path string, parts ...string) *agentfsv1.WriteFileResponse {
	t.Helper()
	r, err := c.write(t.Context(), to(path, nil), parts...)
	if err != nil {
		t.Fatalf("put %s: %v", path, err)
	}
	return r
}

func (c client) read(ctx context.Context, path string, offset, length int64, version string) (*agentfsv1.File, []byte, error) {
	stream, err := c.ReadFile(ctx, &agentfsv1.ReadFileRequest{OrganizationId: c.organization, ConversationId: c.conversation,
		Path: path, Offset: offset, Length: length, Version: version})
	if err != nil {
		return nil, nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, nil, err
	}
	var content []byte
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return first.GetFile(), content, nil
		}
		if err != nil {
			return first.GetFile(), content, err
		}
		content = append(content, m.GetData()...)
	}
}

func (c client) get(t *testing.T, path string) string {
	t.Helper()
	_, content, err := c.read(t.Context(), path, 0, -1, "")
	if err != nil {
		t.Fatalf("get %s: %v", path, err)
	}
	return string(content)
}

func (c client) stat(ctx context.Context, path string) (*agentfsv1.StatFileResponse, error) {
	return c.StatFile(ctx, &agentfsv1.StatFileRequest{OrganizationId: c.organization, ConversationId: c.conversation, Path: path})
}

func (c client) remove(ctx context.Context, path string, p *agentfsv1.Precondition) error {
	_, err := c.DeleteFile(ctx, &agentfsv1.DeleteFileRequest{OrganizationId: c.organization, ConversationId: c.conversation, Path: path, Precondition: p})
	return err
}

func want(t *testing.T, what string, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, reason) {
		t.Errorf("%s: got %v (%s), want %s %s", what, err, errs.ReasonOf(err), kind, reason)
	}
}
