package routing

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
)

// world is agentfs and one cell as their contracts describe them, with faults.
type world struct {
	agentfsv1.UnimplementedEstablishmentServiceServer
	sessiondbv1.UnimplementedSessionReadServiceServer
	sessiondbv1.UnimplementedSessionWriteServiceServer
	supervisorv1.UnimplementedTurnServiceServer

	lis *bufconn.Listener

	mu       sync.Mutex
	files    map[string]*agentfsv1.EstablishConversationRequest // by organization/conversation; organizations alone: nil
	provided map[string]bool                                    // SessionDB organizations
	sessions map[string][]string                                // by organization, in row order; row ids count from 1
	children map[string]string                                  // session by organization/conversation of living children
	running  map[string]int                                     // EstablishSession calls by organization
	most     int                                                // most such calls of one organization at once
	calls    map[string]int
	fault    func(call string) error
	// during runs inside EstablishSession, before its effect and without the lock.
	during func(ctx context.Context)
}

func newWorld(t *testing.T) *world {
	w := &world{lis: bufconn.Listen(1 << 20), files: map[string]*agentfsv1.EstablishConversationRequest{}, provided: map[string]bool{},
		sessions: map[string][]string{}, children: map[string]string{}, running: map[string]int{}, calls: map[string]int{}}
	service := []string{rpc.RoleService + "routing"}
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: "world", Logger: testkit.Logger(t), Signer: testkit.Signer(t), Policy: rpc.Policy{}.Allow(service,
		agentfsv1.EstablishmentService_ProvisionOrganization_FullMethodName, agentfsv1.EstablishmentService_EstablishConversation_FullMethodName,
		sessiondbv1.SessionReadService_GetSessionWatermark_FullMethodName, sessiondbv1.SessionReadService_FindUnboundSessions_FullMethodName,
		sessiondbv1.SessionWriteService_ProvisionOrganization_FullMethodName,
		supervisorv1.TurnService_EstablishSession_FullMethodName, supervisorv1.TurnService_GetEstablishment_FullMethodName)})
	if err != nil {
		t.Fatal(err)
	}
	agentfsv1.RegisterEstablishmentServiceServer(srv, w)
	sessiondbv1.RegisterSessionReadServiceServer(srv, w)
	sessiondbv1.RegisterSessionWriteServiceServer(srv, sessionWrites{w: w})
	supervisorv1.RegisterTurnServiceServer(srv, w)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(w.lis) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return w
}

// step runs one call's effect between its two possible faults: "x" before and "x done" after it,
// when the answer is lost.
func (w *world) step(call string, effect func() error) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[call]++
	if w.fault != nil {
		if err := w.fault(call); err != nil {
			return err
		}
	}
	if err := effect(); err != nil {
		return err
	}
	if w.fault != nil {
		return w.fault(call + " done")
	}
	return nil
}

func (w *world) ProvisionOrganization(_ context.Context, r *agentfsv1.ProvisionOrganizationRequest) (*agentfsv1.ProvisionOrganizationResponse, error) {
	return &agentfsv1.ProvisionOrganizationResponse{}, w.step("agentfs.provision", func() error {
		w.files[r.GetOrganizationId()] = nil
		return nil
	})
}

func (w *world) EstablishConversation(_ context.Context, r *agentfsv1.EstablishConversationRequest) (*agentfsv1.EstablishConversationResponse, error) {
	return &agentfsv1.EstablishConversationResponse{}, w.step("agentfs.establish", func() error {
		if _, ok := r.GetEnvironment()["HERMES_HOME"]; ok {
			return errs.New(errs.Invalid, "INVALID_ENVIRONMENT", "reserved")
		}
		if _, ok := w.files[r.GetOrganizationId()]; !ok {
			return errs.New(errs.NotFound, "ORGANIZATION_NOT_PROVISIONED", "no AgentFS")
		}
		key := r.GetOrganizationId() + "/" + r.GetConversationId()
		if w.files[key] == nil {
			w.files[key] = r
		}
		return nil
	})
}

// sessionWrites is apart because two services have a ProvisionOrganization.
type sessionWrites struct {
	sessiondbv1.UnimplementedSessionWriteServiceServer
	w *world
}

func (s sessionWrites) ProvisionOrganization(_ context.Context, r *sessiondbv1.ProvisionOrganizationRequest) (*sessiondbv1.ProvisionOrganizationResponse, error) {
	return &sessiondbv1.ProvisionOrganizationResponse{}, s.w.step("sessiondb.provision", func() error {
		s.w.provided[r.GetOrganizationId()] = true
		return nil
	})
}

func (w *world) GetSessionWatermark(_ context.Context, r *sessiondbv1.GetSessionWatermarkRequest) (*sessiondbv1.GetSessionWatermarkResponse, error) {
	a := &sessiondbv1.GetSessionWatermarkResponse{}
	return a, w.step("sessiondb.watermark", func() error {
		a.Watermark = int64(len(w.sessions[r.GetOrganizationId()]))
		return nil
	})
}

func (w *world) FindUnboundSessions(_ context.Context, r *sessiondbv1.FindUnboundSessionsRequest) (*sessiondbv1.FindUnboundSessionsResponse, error) {
	a := &sessiondbv1.FindUnboundSessionsResponse{}
	return a, w.step("sessiondb.unbound", func() error {
		a.SessionIds = w.sessions[r.GetOrganizationId()][r.GetAfterWatermark():]
		return nil
	})
}

func (w *world) EstablishSession(ctx context.Context, r *supervisorv1.EstablishSessionRequest) (*supervisorv1.EstablishSessionResponse, error) {
	org := r.GetOrganizationId()
	w.mu.Lock()
	w.running[org]++
	w.most = max(w.most, w.running[org])
	during := w.during
	w.mu.Unlock()
	defer func() { w.mu.Lock(); w.running[org]--; w.mu.Unlock() }()
	if during != nil {
		during(ctx)
	}
	a := &supervisorv1.EstablishSessionResponse{}
	return a, w.step("supervisor.establish", func() error {
		key := org + "/" + r.GetConversationId()
		if r.GetEpoch() != 1 || w.files[key] == nil || !w.provided[org] {
			return errs.New(errs.Precondition, "HERMES_UNAVAILABLE", "the conversation has no home")
		}
		if w.children[key] == "" {
			w.children[key] = fmt.Sprintf("%s-session-%d", org, len(w.sessions[org])+1)
			w.sessions[org] = append(w.sessions[org], w.children[key])
		}
		a.SessionId = w.children[key]
		return nil
	})
}

func (w *world) GetEstablishment(_ context.Context, r *supervisorv1.GetEstablishmentRequest) (*supervisorv1.GetEstablishmentResponse, error) {
	a := &supervisorv1.GetEstablishmentResponse{}
	return a, w.step("supervisor.get", func() error {
		a.SessionId = w.children[r.GetOrganizationId()+"/"+r.GetConversationId()]
		if a.SessionId == "" {
			return errs.New(errs.NotFound, "ESTABLISHMENT_NOT_FOUND", "no child")
		}
		return nil
	})
}

// set changes the world between calls.
func (w *world) set(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// failOnce makes one call fail as if its process died, before or, with " done", after its effect.
func (w *world) failOnce(call string) {
	w.set(func() {
		failed := false
		w.fault = func(c string) error {
			if c != call || failed {
				return nil
			}
			failed = true
			return errs.New(errs.Unavailable, "UNAVAILABLE", "died at %s", c)
		}
	})
}

// service is one replica of routing behind its production chain.
type service struct {
	*Service
	dial func(rpc.Principal) *grpc.ClientConn
}

func (s service) as(p rpc.Principal) (routingv1.RoutingServiceClient, routingv1.RoutingReadServiceClient) {
	conn := s.dial(p)
	return routingv1.NewRoutingServiceClient(conn), routingv1.NewRoutingReadServiceClient(conn)
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// start runs a replica; it ends with the test.
func (w *world) start(t *testing.T, url string) service {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "url", url+"\n")
	write(t, dir, "key", "0123456789abcdef0123456789abcdef")
	cfg := Config{PostgresURLFile: "url", DigestKeyFile: "key", AgentFS: "passthrough:///agentfs", MaxEstablishing: 4,
		Cells: []Cell{{ID: "cell-0", Supervisor: "passthrough:///supervisor", SessionDB: "passthrough:///sessiondb"}}}
	if err := cfg.Validate(dir); err != nil {
		t.Fatal(err)
	}
	svc, err := New(cfg, serve.Environment{Logger: testkit.Logger(t), Client: rpc.ClientConfig{Signer: testkit.Signer(t),
		Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return w.lis.DialContext(ctx) }}})
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
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return service{svc, testkit.Serve(t, rpc.ServerConfig{Service: "routing", Policy: Policy()}, svc.Register)}
}
