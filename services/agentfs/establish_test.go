package agentfs

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

func TestEstablishment(t *testing.T) {
	dial := start(t, testConfig(t)).dial
	routing := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("routing")))
	supervisor := agentfsv1.NewEstablishmentServiceClient(dial(*rpc.Service("supervisor")))
	ctx := t.Context()
	conversation := &agentfsv1.EstablishConversationRequest{OrganizationId: "acme", ConversationId: "c1",
		Persona: "You are Ada.", Environment: map[string]string{"TOKEN": "a'b\n\"c\" $X", "A": "1"}}
	home := &agentfsv1.GetConversationHomeRequest{OrganizationId: "acme", ConversationId: "c1"}

	_, err := routing.EstablishConversation(ctx, conversation)
	want(t, "conversation before organization", err, errs.NotFound, fault.NotProvisioned)
	for range 2 {
		if _, err := routing.ProvisionOrganization(ctx, &agentfsv1.ProvisionOrganizationRequest{OrganizationId: "acme"}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = supervisor.GetConversationHome(ctx, home)
	want(t, "home before conversation", err, errs.NotFound, fault.ConversationNotFound)
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
	want(t, "reserved variable", err, errs.Invalid, fault.InvalidEnvironment)
}

func TestConcurrentEstablishmentHasOneWinner(t *testing.T) {
	dial := start(t, testConfig(t)).dial
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
	dial := start(t, testConfig(t)).dial
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
