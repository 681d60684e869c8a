package ingress_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/ingress"
)

const org = "acme"

var member = rpc.Principal{Organization: org, Subject: "someone", Roles: []string{rpc.RoleMember}}

// replica is one running ingress instance.
type replica struct {
	ingressv1.IngressServiceClient
	ingressv1.IngressReadServiceClient
	as   func(rpc.Principal) *grpc.ClientConn
	svc  *ingress.Service
	stop func()
}

func start(t testing.TB, url string, w *world, change ...func(*ingress.Config)) *replica {
	t.Helper()
	file := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(file, []byte(url), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := ingress.Config{PostgresURLFile: file, Routing: "passthrough:///routing", AgentFS: "passthrough:///agentfs", MaxConnections: 6}
	for _, f := range change {
		f(&cfg)
	}
	if err := cfg.Validate("/"); err != nil {
		t.Fatal(err)
	}
	svc, err := ingress.New(cfg, serve.Environment{Logger: testkit.Logger(t), Client: rpc.ClientConfig{Signer: testkit.Signer(t), Dialer: w.dial}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := svc.Run(ctx); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	r := &replica{svc: svc, stop: func() { cancel(); <-done }}
	t.Cleanup(r.stop)
	eventually(t, "readiness", func() error { return svc.Ready(ctx) })
	r.as = testkit.Serve(t, rpc.ServerConfig{Service: "ingress", Policy: ingress.Policy()}, svc.Register)
	conn := r.as(member)
	r.IngressServiceClient, r.IngressReadServiceClient = ingressv1.NewIngressServiceClient(conn), ingressv1.NewIngressReadServiceClient(conn)
	return r
}

// eventually waits for what no call can wait for.
func eventually(t testing.TB, what string, check func() error) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited too long for %s: %v", what, err)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func textBlock(s string) []byte {
	raw, _ := json.Marshal(map[string]string{"type": "text", "text": s})
	return raw
}

func request(conv, text, key string) *ingressv1.SubmitTurnRequest {
	return &ingressv1.SubmitTurnRequest{OrganizationId: org, ConversationId: conv, IdempotencyKey: key,
		Messages: []*ingressv1.InboundMessage{{Blocks: [][]byte{textBlock(text)}}}}
}

func (r *replica) submit(t testing.TB, conv, text string) *ingressv1.Turn {
	t.Helper()
	m, err := r.SubmitTurn(t.Context(), request(conv, text, ""))
	if err != nil {
		t.Fatalf("SubmitTurn: %v", err)
	}
	return m.GetTurn()
}

// wait returns the turn once it has ended.
func (r *replica) wait(t testing.TB, conv, id string) *ingressv1.Turn {
	t.Helper()
	m, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: conv, TurnId: id, WaitMs: 20_000})
	if err != nil {
		t.Fatalf("GetTurn: %v", err)
	}
	if m.GetTurn().GetEndTime() == nil {
		t.Fatalf("turn %s is still %v", id, m.GetTurn().GetState())
	}
	// The answer to a wait may have been made from what was committed here, without reading it.
	stored, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: conv, TurnId: id})
	if err == nil && !proto.Equal(stored, m) { // a test may have taken the store away
		t.Errorf("the wait answered %v, the store has %v", m, stored)
	}
	return m.GetTurn()
}

func wantReply(t testing.TB, got *ingressv1.Turn, text string) {
	t.Helper()
	if got.GetState() != ingressv1.TurnState_TURN_STATE_REPLIED || len(got.GetReplies()) != 1 || got.GetReplies()[0].GetText() != text {
		t.Errorf("turn = %v, want one reply %q", got, text)
	}
}

func wantReason(t testing.TB, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if errs.KindOf(err) != kind || errs.ReasonOf(err) != reason {
		t.Errorf("error = %v (%v, %s), want %v, %s", err, errs.KindOf(err), errs.ReasonOf(err), kind, reason)
	}
}

// query runs one statement on the test's database and returns its first value.
func query[T any](t testing.TB, url, sql string, args ...any) T {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	var v T
	if err := conn.QueryRow(t.Context(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

func TestTurn(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	accepted := r.submit(t, "c1", " hello\r\n")
	if accepted.GetState() != ingressv1.TurnState_TURN_STATE_ACCEPTED || len(accepted.GetMessages()) != 1 {
		t.Errorf("accepted = %v", accepted)
	}
	got := r.wait(t, "c1", accepted.GetTurnId())
	wantReply(t, got, "echo:  hello\r\n")
	if got.GetTimings().AcceptToAttachMs == nil || got.GetTimings().PersistDeliverMs == nil || got.GetTimings().ColdAdmissionMs != nil {
		t.Errorf("timings = %v", got.GetTimings())
	}
	if n := query[int](t, url, "SELECT count(*) FROM ingress.block WHERE raw IS NOT NULL"); n != 0 {
		t.Errorf("%d blocks are kept after the turn", n)
	}
	for i := range 3 {
		next := r.wait(t, "c1", r.submit(t, "c1", fmt.Sprint("turn ", i)).GetTurnId())
		wantReply(t, next, fmt.Sprint("echo: turn ", i))
	}
	eventually(t, "acknowledgements", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		for k, a := range w.attempts {
			if !a.acked || a.prompts != 1 || a.ended {
				return fmt.Errorf("attempt %s: acknowledged %v, prompted %d, child ended %v", k, a.acked, a.prompts, a.ended)
			}
		}
		return nil
	})
}

func BenchmarkTurn(b *testing.B) {
	url, w := testkit.Postgres(b), newWorld(b)
	r := start(b, url, w)
	r.wait(b, "c1", r.submit(b, "c1", "warm").GetTurnId())
	for b.Loop() {
		wantReply(b, r.wait(b, "c1", r.submit(b, "c1", "hello").GetTurnId()), "echo: hello")
	}
}
