package supervisor_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/supervisor"
)

func TestMain(m *testing.M) {
	supervisor.Hook()
	os.Exit(m.Run())
}

// homes is agentfs with one home for every conversation.
type homes struct {
	agentfsv1.UnimplementedEstablishmentServiceServer
	config string
}

func (h homes) GetConversationHome(context.Context, *agentfsv1.GetConversationHomeRequest) (*agentfsv1.GetConversationHomeResponse, error) {
	return &agentfsv1.GetConversationHomeResponse{Env: []byte("PLANTED=planted-credential\n"), Soul: []byte("You are a test.\n"), Config: []byte(h.config)}, nil
}

// serveHomes listens on loopback, because a service dials its own connections.
func serveHomes(t *testing.T, h homes) string {
	t.Helper()
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: "agentfs", Logger: testkit.Logger(t), Signer: testkit.Signer(t),
		Policy: rpc.Policy{}.Allow([]string{rpc.RoleService + "supervisor"}, agentfsv1.EstablishmentService_GetConversationHome_FullMethodName)})
	if err != nil {
		t.Fatal(err)
	}
	agentfsv1.RegisterEstablishmentServiceServer(srv, h)
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = srv.Serve(lis) }()
	t.Cleanup(srv.Stop)
	return lis.Addr().String()
}

// echoModel answers every chat completion with the last user text.
func echoModel(t *testing.T) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"fake-1","object":"model","context_length":200000}]}`)
			return
		}
		var body struct {
			Stream   bool
			Messages []struct {
				Role    string
				Content any
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("model request: %v", err)
		}
		content, _ := json.Marshal("echo: " + fmt.Sprint(body.Messages[len(body.Messages)-1].Content))
		if !body.Stream {
			_, _ = fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"fake-1","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, content)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		const chunk = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"fake-1","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}` + "\n\n"
		_, _ = fmt.Fprintf(w, chunk, `{"role":"assistant","content":`+string(content)+`}`, "null")
		_, _ = fmt.Fprintf(w, chunk+"data: [DONE]\n\n", "{}", `"stop"`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

type running struct {
	*supervisor.Service
	connect func(rpc.Principal) *grpc.ClientConn
	stop    func() error
}

// start runs the production service, with its real process tree, on a cell.
func start(t *testing.T, cfg supervisor.Config) running {
	t.Helper()
	if err := cfg.Validate("/"); err != nil {
		t.Fatal(err)
	}
	svc, err := supervisor.New(cfg, serve.Environment{Client: rpc.ClientConfig{Signer: testkit.Signer(t)}, Logger: testkit.Logger(t), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- svc.Run(ctx) }()
	stop := sync.OnceValue(func() error { cancel(); return <-ended })
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	connect := testkit.Serve(t, rpc.ServerConfig{Service: "supervisor", Policy: supervisor.Policy()}, svc.Register)
	return running{Service: svc, connect: connect, stop: stop}
}

func hermesVenv(t *testing.T) string {
	t.Helper()
	venv := os.Getenv("HUMANWORK_TEST_HERMES")
	if venv == "" {
		t.Skip("HUMANWORK_TEST_HERMES is not set: run the tests with make test")
	}
	return venv
}

// provision stands in for sessiondb, which makes the organization's directory.
func provision(t *testing.T, cell, organization string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Join(cell, "sessions", organization), 0o700); err != nil {
		t.Fatal(err)
	}
}

func ready(t *testing.T, svc running) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for err := svc.Ready(t.Context()); err != nil; err = svc.Ready(t.Context()) {
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func TestTurnsThroughTheRealProcessTree(t *testing.T) {
	venv := hermesVenv(t)
	cell := filepath.Join(t.TempDir(), "cell")
	provision(t, cell, "acme")
	agentfs := serveHomes(t, homes{config: fmt.Sprintf("model: {default: fake-1, provider: custom, base_url: %q, api_key: sk-planted}\n", echoModel(t))})
	svc := start(t, supervisor.Config{CellDir: cell, HermesVenv: venv, AgentFS: agentfs})
	ready(t, svc)

	routing := supervisorv1.NewTurnServiceClient(svc.connect(*rpc.Service("routing")))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	session, err := routing.EstablishSession(ctx, &supervisorv1.EstablishSessionRequest{OrganizationId: "acme", ConversationId: "c1", Epoch: 1})
	if err != nil {
		t.Fatal(err)
	}
	again, err := routing.GetEstablishment(ctx, &supervisorv1.GetEstablishmentRequest{OrganizationId: "acme", ConversationId: "c1", Epoch: 1})
	if err != nil || again.GetSessionId() != session.GetSessionId() {
		t.Errorf("GetEstablishment = %v, %v, want %s", again, err, session.GetSessionId())
	}

	ingress := supervisorv1.NewTurnServiceClient(svc.connect(*rpc.Service("ingress")))
	for i, text := range []string{"hello", "and again"} {
		r, streamed := prompt(t, ingress, &supervisorv1.PromptRequest{
			Attempt:   &supervisorv1.Attempt{OrganizationId: "acme", ConversationId: "c1", TurnId: fmt.Sprintf("t%d", i), Attempt: 1, Epoch: 1},
			SessionId: session.GetSessionId(), Blocks: [][]byte{fmt.Appendf(nil, `{"type":"text","text":%q}`, text)},
		})
		if r.GetEnd() != supervisorv1.TurnResult_END_ANSWERED || r.GetStopReason() != "end_turn" || !strings.Contains(streamed, "echo: "+text) {
			t.Errorf("turn %d = %v with %q", i, r, streamed)
		}
		t.Logf("turn %d: %v", i, r.GetTimings())
	}
	if err := svc.stop(); err != nil {
		t.Errorf("Run: %v", err)
	}
}

func prompt(t *testing.T, c supervisorv1.TurnServiceClient, r *supervisorv1.PromptRequest) (*supervisorv1.TurnResult, string) {
	t.Helper()
	stream, err := c.Prompt(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("Prompt: %v", err)
		}
		text.WriteString(m.GetUpdate().GetText())
		if m.GetResult() != nil {
			return m.GetResult(), text.String()
		}
	}
}

func TestNativeClientSpeaksToAChildOfItsOwn(t *testing.T) {
	venv := hermesVenv(t)
	cell := filepath.Join(t.TempDir(), "cell")
	provision(t, cell, "acme")
	agentfs := serveHomes(t, homes{config: "model: {default: fake-1, provider: custom, base_url: \"http://127.0.0.1:1/v1\", api_key: sk-planted}\n"})
	svc := start(t, supervisor.Config{CellDir: cell, HermesVenv: venv, AgentFS: agentfs})
	ready(t, svc)
	stream, err := supervisorv1.NewRelayServiceClient(svc.connect(*rpc.Service("gateway"))).Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	first := &supervisorv1.AttachRequest{OrganizationId: "acme", ConversationId: "c1", Epoch: 1}
	line := `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1,"clientCapabilities":{}}}` + "\n"
	for _, m := range []*supervisorv1.AttachRequest{first, {Data: []byte(line[:30])}, {Data: []byte(line[30:])}} {
		if err := stream.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	answer, err := bufio.NewReader(receiver{stream}).ReadString('\n')
	if err != nil || !strings.Contains(answer, `"protocolVersion":1`) {
		t.Fatalf("initialize answered %q, %v", answer, err)
	}
	_, err = supervisorv1.NewTurnServiceClient(svc.connect(*rpc.Service("routing"))).EstablishSession(t.Context(),
		&supervisorv1.EstablishSessionRequest{OrganizationId: "acme", ConversationId: "c1", Epoch: 1})
	if !errors.Is(err, errs.Reason("CONVERSATION_BUSY")) {
		t.Errorf("EstablishSession while a native client is attached = %v, want CONVERSATION_BUSY", err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, receiver{stream}); err != nil {
		t.Errorf("the stream ended with %v, want a clean end", err)
	}
}

type receiver struct {
	stream grpc.BidiStreamingClient[supervisorv1.AttachRequest, supervisorv1.AttachResponse]
}

// Read drops what does not fit, which these tests never send.
func (r receiver) Read(p []byte) (int, error) {
	m, err := r.stream.Recv()
	if err != nil {
		return 0, err
	}
	return copy(p, m.GetData()), nil
}

func TestHermesMissingIsNamedWithTheRemedy(t *testing.T) {
	cell := filepath.Join(t.TempDir(), "cell")
	provision(t, cell, "acme")
	svc := start(t, supervisor.Config{CellDir: cell, HermesVenv: t.TempDir(), AgentFS: serveHomes(t, homes{})})
	err := svc.Ready(t.Context())
	if err == nil || !strings.Contains(err.Error(), "hermes-acp is missing") || !strings.Contains(err.Error(), "humanwork setup") {
		t.Errorf("Ready = %v, want the missing program and the remedy", err)
	}
	routing := supervisorv1.NewTurnServiceClient(svc.connect(*rpc.Service("routing")))
	for {
		_, err = routing.EstablishSession(t.Context(), &supervisorv1.EstablishSessionRequest{OrganizationId: "acme", ConversationId: "c1", Epoch: 1})
		if !errors.Is(err, errs.Reason("SUPERVISOR_STARTING")) {
			break
		}
	}
	if !errors.Is(err, errs.Precondition) || !errors.Is(err, errs.Reason("HERMES_UNAVAILABLE")) || !strings.Contains(err.Error(), "humanwork setup") {
		t.Errorf("EstablishSession = %v, want HERMES_UNAVAILABLE with the remedy", err)
	}
}

func TestConfigReportsEveryProblem(t *testing.T) {
	var cfg supervisor.Config
	err := config.Parse([]byte("cell_dir: cell\nmax_children: -1\ncancel_timeout: -1s\nunknown: 1\n"), "/base", &cfg)
	for _, want := range []string{"unknown", "max_children", "cancel_timeout", "hermes_venv", "agentfs"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to name %s", err, want)
		}
	}
	cfg = supervisor.Config{}
	if err := config.Parse([]byte("cell_dir: cell\nhermes_venv: /venv\nagentfs: 127.0.0.1:1\nwatchdog_timeout: 1m30s\n"), "/base", &cfg); err != nil {
		t.Fatal(err)
	}
	if cfg.CellDir != "/base/cell" || cfg.MaxChildren != 32 || cfg.WatchdogTimeout != 90*time.Second || cfg.CancelTimeout != 10*time.Second {
		t.Errorf("configuration = %+v", cfg)
	}
}
