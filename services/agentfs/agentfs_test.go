package agentfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/tree"
)

const keyText = "sk-'\"test"

func testConfig(t *testing.T) Config {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "key"), []byte(keyText+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := Config{DataDir: "data", Soul: "You are ours.\n", Model: Model{BaseURL: "http://127.0.0.1:9/v1", Name: "demo", APIKeyFile: "key"}}
	if err := cfg.Validate(dir); err != nil {
		t.Fatal(err)
	}
	return cfg
}

func serveAgentFS(t *testing.T, cfg Config) func(rpc.Principal) *grpc.ClientConn {
	t.Helper()
	svc, err := New(cfg, serve.Environment{Logger: testkit.Logger(t)})
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
	return testkit.Serve(t, rpc.ServerConfig{Service: "agentfs", Policy: Policy()}, svc.Register)
}

func want(t *testing.T, what string, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, reason) {
		t.Errorf("%s: got %v, want %s %s", what, err, kind, reason)
	}
}

func TestEstablishment(t *testing.T) {
	dial := serveAgentFS(t, testConfig(t))
	routing := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("routing")))
	supervisor := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("supervisor")))
	ctx := t.Context()
	conversation := &agentfsv1.EstablishConversationRequest{OrganizationId: "acme", ConversationId: "c1",
		Persona: "You are Ada.", Environment: map[string]string{"TOKEN": "a'b\n\"c\" $X", "A": "1"}}
	home := &agentfsv1.GetConversationHomeRequest{OrganizationId: "acme", ConversationId: "c1"}

	_, err := routing.EstablishConversation(ctx, conversation)
	want(t, "conversation before organization", err, errs.NotFound, tree.ReasonNotProvisioned)
	for range 2 {
		if _, err := routing.ProvisionOrganization(ctx, &agentfsv1.ProvisionOrganizationRequest{OrganizationId: "acme"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = supervisor.GetConversationHome(ctx, home)
	want(t, "home before conversation", err, errs.NotFound, tree.ReasonConversationNotFound)
	if _, err := routing.EstablishConversation(ctx, conversation); err != nil {
		t.Fatal(err)
	}
	first, err := supervisor.GetConversationHome(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(first.GetEnv()), "A=1\nTOKEN=\"a'b\\n\\\"c\\\" $X\"\n"; got != want {
		t.Errorf(".env = %q, want %q", got, want)
	}
	if got := string(first.GetSoul()); got != "You are Ada." {
		t.Errorf("SOUL.md = %q", got)
	}
	for _, part := range []string{"base_url: http://127.0.0.1:9/v1", "in_place: true", "provider: custom", "mode: manual"} {
		if !strings.Contains(string(first.GetConfig()), part) {
			t.Errorf("config.yaml has no %q:\n%s", part, first.GetConfig())
		}
	}
	conversation.Persona, conversation.Environment = "other", map[string]string{"B": "2"}
	if _, err := routing.EstablishConversation(ctx, conversation); err != nil {
		t.Fatal(err)
	}
	again, err := supervisor.GetConversationHome(ctx, home)
	if err != nil {
		t.Fatal(err)
	}
	if again.String() != first.String() {
		t.Errorf("a second call changed the home to %v", again)
	}
	conversation.ConversationId, conversation.Persona = "c2", ""
	if _, err := routing.EstablishConversation(ctx, conversation); err != nil {
		t.Fatal(err)
	}
	home.ConversationId = "c2"
	other, err := supervisor.GetConversationHome(ctx, home)
	if err != nil || string(other.GetSoul()) != "You are ours.\n" || string(other.GetEnv()) != "B=2\n" {
		t.Errorf("second conversation: got %v, %v, want the organization's persona and its own environment", other, err)
	}
	conversation.ConversationId, conversation.Environment = "c3", map[string]string{"HERMES_HOME": "/"}
	_, err = routing.EstablishConversation(ctx, conversation)
	want(t, "reserved variable", err, errs.Invalid, tree.ReasonInvalidEnvironment)
}

func TestConcurrentEstablishmentHasOneWinner(t *testing.T) {
	dial := serveAgentFS(t, testConfig(t))
	routing := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("routing")))
	supervisor := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("supervisor")))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := routing.ProvisionOrganization(t.Context(), &agentfsv1.ProvisionOrganizationRequest{OrganizationId: "acme"}); err != nil {
				t.Errorf("provision: %v", err)
			}
			v := fmt.Sprint(i)
			if _, err := routing.EstablishConversation(t.Context(), &agentfsv1.EstablishConversationRequest{OrganizationId: "acme",
				ConversationId: "c", Persona: v, Environment: map[string]string{"V": v}}); err != nil {
				t.Errorf("establish: %v", err)
			}
		})
	}
	wg.Wait()
	got, err := supervisor.GetConversationHome(t.Context(), &agentfsv1.GetConversationHomeRequest{OrganizationId: "acme", ConversationId: "c"})
	if err != nil {
		t.Fatal(err)
	}
	if want := "V=" + string(got.GetSoul()) + "\n"; string(got.GetEnv()) != want {
		t.Errorf(".env = %q, want %q: the files of one call", got.GetEnv(), want)
	}
}

func TestOnlyServicesCall(t *testing.T) {
	dial := serveAgentFS(t, testConfig(t))
	for _, p := range []rpc.Principal{
		{Organization: "acme", Subject: "u", Roles: []string{rpc.RoleMember}}, {Subject: "root", Roles: []string{rpc.RoleAdmin}},
		*rpc.Service("ingress"), *rpc.Service("routing"),
	} {
		_, err := agentfsv1.NewEstablishmentServiceClient(dial(p)).GetConversationHome(t.Context(),
			&agentfsv1.GetConversationHomeRequest{OrganizationId: "acme", ConversationId: "c"})
		want(t, "GetConversationHome as "+p.Roles[0], err, errs.Denied, rpc.ReasonDenied)
	}
	_, err := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("routing"))).ProvisionOrganization(t.Context(),
		&agentfsv1.ProvisionOrganizationRequest{OrganizationId: "../etc"})
	want(t, "id that is a path", err, errs.Invalid, rpc.ReasonInvalidArgument)
}

func TestConfigReportsEveryProblem(t *testing.T) {
	var cfg Config
	err := config.Parse([]byte("data_dir: x\nsoul: \"a\\0b\"\nmodule: {}\nmodel: {base_url: 'ftp://x', name: m}\n"), "/base", &cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"module", "model.api_key_file", "model: base URL", "soul"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in:\n%v", part, err)
		}
	}
	good := testConfig(t)
	if err := os.WriteFile(good.Model.APIKeyFile, []byte("${SECRET}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(good, serve.Environment{}); err == nil || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("New with a key Hermes would expand: got %v, want an error without the key", err)
	}
}
