package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
)

type routing struct {
	routingv1.UnimplementedRoutingReadServiceServer
	answer func(context.Context) error
}

func (r *routing) GetOrganization(ctx context.Context, req *routingv1.GetOrganizationRequest) (*routingv1.GetOrganizationResponse, error) {
	if r.answer != nil {
		if err := r.answer(ctx); err != nil {
			return nil, err
		}
	}
	return &routingv1.GetOrganizationResponse{Organization: &routingv1.Organization{OrganizationId: req.GetOrganizationId()}}, nil
}

type turns struct {
	supervisorv1.UnimplementedTurnServiceServer
	blocks chan int
}

func (s *turns) Prompt(req *supervisorv1.PromptRequest, _ grpc.ServerStreamingServer[supervisorv1.PromptResponse]) error {
	s.blocks <- len(req.GetBlocks()[0])
	return errs.New(errs.Precondition, "TURN_SETTLED", "too late")
}

func policy() rpc.Policy {
	return rpc.Policy{}.
		Allow([]string{rpc.RoleAdmin, rpc.RoleMember}, routingv1.RoutingReadService_GetOrganization_FullMethodName).
		Allow([]string{"service:ingress"}, supervisorv1.TurnService_Prompt_FullMethodName)
}

func serve(t *testing.T, r *routing, s *turns) func(rpc.Principal) *grpc.ClientConn {
	return testkit.Serve(t, rpc.ServerConfig{Policy: policy()}, func(reg grpc.ServiceRegistrar) {
		routingv1.RegisterRoutingReadServiceServer(reg, r)
		supervisorv1.RegisterTurnServiceServer(reg, s)
	})
}

func member(org string) rpc.Principal {
	return rpc.Principal{Organization: org, Subject: "m", Roles: []string{rpc.RoleMember}}
}

func TestErrorsCrossTheWire(t *testing.T) {
	for _, tc := range []struct {
		name   string
		answer error
		kind   errs.Kind
		reason errs.Reason
	}{
		{"with everything", errs.New(errs.Exhausted, "QUEUE_FULL", "full").With("limit", "100").WithRetryAfter(3 * time.Second), errs.Exhausted, "QUEUE_FULL"},
		{"wrapped", errs.Wrap(errors.New("secret cause"), errs.NotFound, "TURN_NOT_FOUND", "no turn"), errs.NotFound, "TURN_NOT_FOUND"},
		{"of no kind", errors.New("secret cause"), errs.Internal, rpc.ReasonInternal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := serve(t, &routing{answer: func(context.Context) error { return tc.answer }}, &turns{})(rpc.Principal{Subject: "a", Roles: []string{rpc.RoleAdmin}})
			_, err := routingv1.NewRoutingReadServiceClient(conn).GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: "o"})
			if !errors.Is(err, tc.kind) || !errors.Is(err, tc.reason) {
				t.Fatalf("error = %v, want kind %v and reason %v", err, tc.kind, tc.reason)
			}
			if bytes.Contains([]byte(err.Error()), []byte("secret")) {
				t.Errorf("error %q shows the cause to the caller", err)
			}
			var e *errs.Error
			if tc.reason == "QUEUE_FULL" && errors.As(err, &e) && (e.RetryAfter() != 3*time.Second || e.Metadata()["limit"] != "100") {
				t.Errorf("RetryAfter %v, metadata %v did not cross", e.RetryAfter(), e.Metadata())
			}
		})
	}
}

func TestPanicIsAnInternalError(t *testing.T) {
	conn := serve(t, &routing{answer: func(context.Context) error { panic("boom") }}, &turns{})(member("o"))
	_, err := routingv1.NewRoutingReadServiceClient(conn).GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: "o"})
	if !errors.Is(err, errs.Internal) {
		t.Errorf("error = %v, want internal", err)
	}
}

func TestAuthorization(t *testing.T) {
	for _, tc := range []struct {
		name string
		who  rpc.Principal
		org  string
		want error // nil: allowed
	}{
		{"member of the organization", member("o"), "o", nil},
		{"member of another", member("x"), "o", errs.NotFound},
		{"member of none", member(""), "o", errs.NotFound},
		{"admin", rpc.Principal{Subject: "a", Roles: []string{rpc.RoleAdmin}}, "o", nil},
		{"no role", rpc.Principal{Subject: "n", Organization: "o"}, "o", errs.Denied},
		{"service without a rule", *rpc.Service("agentfs"), "o", errs.Denied},
		{"bad id", member("o"), "Not An Id", errs.NotFound},
		{"bad id of an admin", rpc.Principal{Subject: "a", Roles: []string{rpc.RoleAdmin}}, "Not An Id", errs.Invalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			conn := serve(t, &routing{}, &turns{})(tc.who)
			_, err := routingv1.NewRoutingReadServiceClient(conn).GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: tc.org})
			if !errors.Is(err, tc.want) {
				t.Errorf("error = %v, want %v", err, tc.want)
			}
		})
	}
}

func TestStreamIsAuthorizedAndLargeMessagesPass(t *testing.T) {
	s := &turns{blocks: make(chan int, 1)}
	connect := serve(t, &routing{}, s)
	req := &supervisorv1.PromptRequest{
		Attempt:   &supervisorv1.Attempt{OrganizationId: "o", ConversationId: "c", TurnId: "t", Attempt: 1, Epoch: 1},
		SessionId: "s", Blocks: [][]byte{bytes.Repeat([]byte("x"), 20<<20)},
	}
	prompt := func(p rpc.Principal) error {
		stream, err := supervisorv1.NewTurnServiceClient(connect(p)).Prompt(t.Context(), req)
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	if err := prompt(member("o")); !errors.Is(err, errs.Denied) {
		t.Errorf("member: error = %v, want denied", err)
	}
	if err := prompt(*rpc.Service("ingress")); !errors.Is(err, errs.Reason("TURN_SETTLED")) {
		t.Errorf("ingress: error = %v, want TURN_SETTLED from the handler", err)
	}
	if got := <-s.blocks; got != 20<<20 {
		t.Errorf("handler saw %d bytes, want %d", got, 20<<20)
	}
	req.SessionId = ""
	if err := prompt(*rpc.Service("ingress")); !errors.Is(err, errs.Invalid) {
		t.Errorf("empty session: error = %v, want invalid", err)
	}
}
