package routing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/routing/internal/directory"
)

var admin = rpc.Principal{Subject: "root", Roles: []string{rpc.RoleAdmin}}

func want(t *testing.T, what string, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, reason) {
		t.Errorf("%s: got %v (%v %v), want %s %s", what, err, errs.KindOf(err), errs.ReasonOf(err), kind, reason)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func organization(org string) *routingv1.CreateOrganizationRequest {
	return &routingv1.CreateOrganizationRequest{OrganizationId: org}
}

func conversation(org, conv string) *routingv1.CreateConversationRequest {
	return &routingv1.CreateConversationRequest{OrganizationId: org, ConversationId: conv, SpecialistId: "spec", Persona: "Ada",
		Environment: map[string]string{"TOKEN": "hunter2-secret"}}
}

func TestCreateOrganization(t *testing.T) {
	w := newWorld(t)
	writes, reads := w.start(t, testkit.Postgres(t)).as(admin)
	_, err := reads.GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: "acme"})
	want(t, "unknown organization", err, errs.NotFound, directory.ReasonOrganizationNotFound)
	first, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	again, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	if again.String() != first.String() {
		t.Errorf("second call answered %v, want %v", again, first)
	}
	if w.calls["agentfs.provision"] != 1 || w.calls["sessiondb.provision"] != 1 {
		t.Errorf("a finished organization was provisioned again: %v", w.calls)
	}
	got, err := reads.GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: "acme"})
	must(t, err)
	if got.GetOrganization().String() != first.GetOrganization().String() {
		t.Errorf("GetOrganization = %v, want %v", got, first)
	}
	place, err := reads.GetPlacement(t.Context(), &routingv1.GetPlacementRequest{OrganizationId: "acme"})
	must(t, err)
	if p := place.GetPlacement(); p.GetCellId() != "cell-0" || p.GetEpoch() != 1 || p.GetSupervisorTarget() != "passthrough:///supervisor" || p.GetSessiondbTarget() != "passthrough:///sessiondb" {
		t.Errorf("GetPlacement = %v", p)
	}
}

func TestInterruptedOrganizationIsFinished(t *testing.T) {
	for _, at := range []string{"agentfs.provision", "agentfs.provision done", "sessiondb.provision", "sessiondb.provision done"} {
		t.Run(at, func(t *testing.T) {
			w := newWorld(t)
			writes, reads := w.start(t, testkit.Postgres(t)).as(admin)
			w.failOnce(at)
			_, err := writes.CreateOrganization(t.Context(), organization("acme"))
			want(t, "interrupted", err, errs.Unavailable, "UNAVAILABLE")
			_, err = reads.GetOrganization(t.Context(), &routingv1.GetOrganizationRequest{OrganizationId: "acme"})
			want(t, "before it is finished", err, errs.NotFound, directory.ReasonOrganizationNotFound)
			_, err = writes.CreateConversation(t.Context(), conversation("acme", "c"))
			want(t, "conversation before it is finished", err, errs.NotFound, directory.ReasonOrganizationNotFound)
			_, err = writes.CreateOrganization(t.Context(), organization("acme"))
			must(t, err)
			if _, ok := w.files["acme"]; !ok || !w.provided["acme"] {
				t.Error("an authority is missing")
			}
			_, err = writes.CreateConversation(t.Context(), conversation("acme", "c"))
			must(t, err)
		})
	}
}

func TestCreateConversation(t *testing.T) {
	w := newWorld(t)
	url := testkit.Postgres(t)
	writes, reads := w.start(t, url).as(admin)
	_, err := writes.CreateConversation(t.Context(), conversation("acme", "c1"))
	want(t, "unknown organization", err, errs.NotFound, directory.ReasonOrganizationNotFound)
	_, err = writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	first, err := writes.CreateConversation(t.Context(), conversation("acme", "c1"))
	must(t, err)
	c := first.GetConversation()
	if c.GetSessionId() != "acme-session-1" || c.GetConversationId() != "c1" || c.GetSpecialistId() != "spec" || c.GetCreateTime() == nil {
		t.Errorf("CreateConversation = %v", c)
	}
	again, err := writes.CreateConversation(t.Context(), conversation("acme", "c1"))
	must(t, err)
	if again.String() != first.String() {
		t.Errorf("repeated call answered %v, want %v", again, first)
	}
	if w.calls["agentfs.establish"] != 1 || w.calls["supervisor.establish"] != 1 || w.calls["supervisor.get"] != 0 {
		t.Errorf("calls = %v, want one establishment", w.calls)
	}
	for what, change := range map[string]func(*routingv1.CreateConversationRequest){
		"persona":    func(r *routingv1.CreateConversationRequest) { r.Persona = "Bob" },
		"specialist": func(r *routingv1.CreateConversationRequest) { r.SpecialistId = "" },
		"value":      func(r *routingv1.CreateConversationRequest) { r.Environment["TOKEN"] = "x" },
		"name": func(r *routingv1.CreateConversationRequest) {
			r.Environment = map[string]string{"TOKEM": "hunter2-secret"}
		},
		"environment": func(r *routingv1.CreateConversationRequest) { r.Environment = nil },
	} {
		r := conversation("acme", "c1")
		change(r)
		_, err := writes.CreateConversation(t.Context(), r)
		want(t, "another "+what, err, errs.Conflict, directory.ReasonConversationExists)
	}
	if got := w.files["acme/c1"]; got.GetPersona() != "Ada" || got.GetEnvironment()["TOKEN"] != "hunter2-secret" {
		t.Errorf("agentfs was given %v", got)
	}
	read, err := reads.GetConversation(t.Context(), &routingv1.GetConversationRequest{OrganizationId: "acme", ConversationId: "c1"})
	must(t, err)
	if read.GetConversation().String() != c.String() || read.GetPlacement().GetCellId() != "cell-0" {
		t.Errorf("GetConversation = %v, want %v", read, c)
	}
	r := conversation("acme", "")
	made, err := writes.CreateConversation(t.Context(), r)
	must(t, err)
	if id := made.GetConversation().GetConversationId(); len(id) != 16 || strings.Trim(id, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
		t.Errorf("made id %q, want 16 of [a-z0-9]", id)
	}
	noSecretIn(t, url)
}

// noSecretIn looks for what the conversations above were given in everything routing stores.
func noSecretIn(t *testing.T, url string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	must(t, err)
	defer func() { must(t, conn.Close(t.Context())) }()
	for _, table := range []string{"organization", "placement", "conversation"} {
		var all string
		must(t, conn.QueryRow(t.Context(), "SELECT coalesce(string_agg(x::text, ' '), '') FROM routing."+table+" x").Scan(&all))
		for _, secret := range []string{"hunter2", "TOKEN", "Ada"} {
			if strings.Contains(all, secret) {
				t.Errorf("%s holds %q: %s", table, secret, all)
			}
		}
	}
}

// TestCrashBetweenSteps interrupts an establishment before and after each of its steps, with the
// conversation's child alive or dead afterwards, and repeats the call on another replica.
func TestCrashBetweenSteps(t *testing.T) {
	url := testkit.Postgres(t)
	w := newWorld(t)
	replicas := []service{w.start(t, url), w.start(t, url)}
	i := 0
	for _, at := range []string{"sessiondb.watermark", "sessiondb.watermark done", "agentfs.establish", "agentfs.establish done",
		"supervisor.establish", "supervisor.establish done"} {
		for _, childDies := range []bool{false, true} {
			i++
			org := fmt.Sprintf("org-%d", i)
			t.Run(fmt.Sprintf("%s, child dies %t", at, childDies), func(t *testing.T) {
				writes, reads := replicas[i%2].as(admin)
				_, err := writes.CreateOrganization(t.Context(), organization(org))
				must(t, err)
				w.failOnce(at)
				_, err = writes.CreateConversation(t.Context(), conversation(org, "c"))
				want(t, "interrupted", err, errs.Unavailable, "UNAVAILABLE")
				_, err = reads.GetConversation(t.Context(), &routingv1.GetConversationRequest{OrganizationId: org, ConversationId: "c"})
				want(t, "before it is bound", err, errs.NotFound, directory.ReasonConversationNotFound)
				if childDies {
					w.set(func() { clear(w.children) })
				}
				// A recovery that is interrupted too leaves no more behind.
				for _, again := range []string{"supervisor.get", "sessiondb.unbound", "supervisor.establish done"} {
					w.failOnce(again)
					_, _ = writes.CreateConversation(t.Context(), conversation(org, "c"))
				}
				other, _ := replicas[(i+1)%2].as(admin)
				got, err := other.CreateConversation(t.Context(), conversation(org, "c"))
				must(t, err)
				if s := w.sessions[org]; len(s) != 1 || s[0] != got.GetConversation().GetSessionId() {
					t.Errorf("sessions %v, bound to %s: want exactly that one", s, got.GetConversation().GetSessionId())
				}
				r := conversation(org, "c")
				r.Persona = "other"
				_, err = other.CreateConversation(t.Context(), r)
				want(t, "another request for the id", err, errs.Conflict, directory.ReasonConversationExists)
			})
		}
	}
}

// TestCallerGoesAwayDuringEstablishment cancels the call while session/new runs: the session is
// made all the same, and adopted.
func TestCallerGoesAwayDuringEstablishment(t *testing.T) {
	w := newWorld(t)
	writes, _ := w.start(t, testkit.Postgres(t)).as(admin)
	_, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan struct{})
	w.set(func() {
		w.during = func(rctx context.Context) { cancel(); <-rctx.Done(); close(gone) }
	})
	_, err = writes.CreateConversation(ctx, conversation("acme", "c"))
	if !errors.Is(err, errs.Canceled) {
		t.Errorf("got %v, want canceled", err)
	}
	<-gone
	w.set(func() { w.during = nil })
	got, err := writes.CreateConversation(t.Context(), conversation("acme", "c"))
	must(t, err)
	if s := w.sessions["acme"]; len(s) != 1 || s[0] != got.GetConversation().GetSessionId() {
		t.Errorf("sessions %v, bound to %s: want exactly that one", s, got.GetConversation().GetSessionId())
	}
}

// TestRecoveryLeavesOthersTheirSession has two interrupted conversations: the first without a
// session, the second with one that its child still holds. Recovering the first must not take it.
func TestRecoveryLeavesOthersTheirSession(t *testing.T) {
	w := newWorld(t)
	writes, _ := w.start(t, testkit.Postgres(t)).as(admin)
	_, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	for _, c := range []struct{ conv, at string }{{"a", "supervisor.establish"}, {"b", "supervisor.establish done"}} {
		w.failOnce(c.at)
		_, err = writes.CreateConversation(t.Context(), conversation("acme", c.conv))
		want(t, "interrupted "+c.conv, err, errs.Unavailable, "UNAVAILABLE")
	}
	a, err := writes.CreateConversation(t.Context(), conversation("acme", "a"))
	must(t, err)
	b, err := writes.CreateConversation(t.Context(), conversation("acme", "b"))
	must(t, err)
	if got := []string{a.GetConversation().GetSessionId(), b.GetConversation().GetSessionId()}; got[0] != w.children["acme/a"] || got[1] != w.children["acme/b"] || got[0] == got[1] {
		t.Errorf("bound to %v, children hold %v", got, w.children)
	}
	if len(w.sessions["acme"]) != 2 {
		t.Errorf("sessions %v, want two", w.sessions["acme"])
	}
}

func TestRefusedRequestLeavesTheIdFree(t *testing.T) {
	w := newWorld(t)
	writes, _ := w.start(t, testkit.Postgres(t)).as(admin)
	_, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	r := conversation("acme", "c")
	r.Environment["HERMES_HOME"] = "/"
	_, err = writes.CreateConversation(t.Context(), r)
	want(t, "reserved variable", err, errs.Invalid, "INVALID_ENVIRONMENT")
	r.Persona = "a\x00b"
	_, err = writes.CreateConversation(t.Context(), r)
	want(t, "NUL in persona", err, errs.Invalid, directory.ReasonInvalidArgument)
	_, err = writes.CreateConversation(t.Context(), conversation("acme", "c"))
	must(t, err)
}

func TestConcurrentCreates(t *testing.T) {
	w := newWorld(t)
	url := testkit.Postgres(t)
	replicas := []service{w.start(t, url), w.start(t, url)}
	const orgs, convs, callers = 3, 5, 4
	bound := make([][]string, orgs*convs)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for n := range orgs * convs * callers {
		org, conv := fmt.Sprintf("org-%d", n%orgs), fmt.Sprintf("c%d", n/orgs%convs)
		wg.Go(func() {
			writes, _ := replicas[n%2].as(admin)
			if _, err := writes.CreateOrganization(t.Context(), organization(org)); err != nil {
				t.Errorf("CreateOrganization: %v", err)
			}
			got, err := writes.CreateConversation(t.Context(), conversation(org, conv))
			if err != nil {
				t.Errorf("CreateConversation: %v", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			at := n % (orgs * convs)
			bound[at] = append(bound[at], got.GetConversation().GetSessionId())
		})
	}
	wg.Wait()
	all := map[string]bool{}
	for i, ids := range bound {
		if len(ids) != callers || len(slices.Compact(ids)) != 1 {
			t.Errorf("conversation %d was answered %v, want one session %d times", i, ids, callers)
		}
		all[ids[0]] = true
	}
	if len(all) != orgs*convs {
		t.Errorf("%d distinct sessions, want %d", len(all), orgs*convs)
	}
	for org, s := range w.sessions {
		if len(s) != convs {
			t.Errorf("%s has sessions %v, want %d", org, s, convs)
		}
	}
	if w.most != 1 {
		t.Errorf("%d establishments of one organization at once, want 1", w.most)
	}
}

// TestBlockedOrganizationDoesNotBlockOthers holds one organization's establishment with more
// waiting callers than there are connections.
func TestBlockedOrganizationDoesNotBlockOthers(t *testing.T) {
	w := newWorld(t)
	writes, reads := w.start(t, testkit.Postgres(t)).as(admin)
	for _, org := range []string{"slow", "quick"} {
		_, err := writes.CreateOrganization(t.Context(), organization(org))
		must(t, err)
	}
	entered, release := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	w.set(func() {
		w.during = func(context.Context) {
			if first.CompareAndSwap(false, true) {
				close(entered)
				<-release
			}
		}
	})
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if _, err := writes.CreateConversation(t.Context(), conversation("slow", fmt.Sprintf("c%d", i))); err != nil {
				t.Errorf("slow: %v", err)
			}
		})
	}
	<-entered
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := writes.CreateConversation(ctx, conversation("quick", "c")); err != nil {
		t.Errorf("quick: %v", err)
	}
	if _, err := reads.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: "quick", ConversationId: "c"}); err != nil {
		t.Errorf("read: %v", err)
	}
	close(release)
	wg.Wait()
}

func TestListConversations(t *testing.T) {
	w := newWorld(t)
	writes, reads := w.start(t, testkit.Postgres(t)).as(admin)
	for _, org := range []string{"acme", "other"} {
		_, err := writes.CreateOrganization(t.Context(), organization(org))
		must(t, err)
	}
	order := []string{"z", "m", "a", "q", "b"}
	for _, id := range order {
		_, err := writes.CreateConversation(t.Context(), conversation("acme", id))
		must(t, err)
	}
	w.failOnce("supervisor.establish")
	_, err := writes.CreateConversation(t.Context(), conversation("acme", "open"))
	want(t, "interrupted", err, errs.Unavailable, "UNAVAILABLE")
	for size := int32(0); size < 7; size++ {
		var got []string
		token := ""
		for {
			page, err := reads.ListConversations(t.Context(), &routingv1.ListConversationsRequest{OrganizationId: "acme", PageSize: size, PageToken: token})
			must(t, err)
			for _, c := range page.GetConversations() {
				got = append(got, c.GetConversationId())
			}
			if token = page.GetNextPageToken(); token == "" {
				break
			}
			_, err = reads.ListConversations(t.Context(), &routingv1.ListConversationsRequest{OrganizationId: "other", PageToken: token})
			want(t, "another organization's token", err, errs.Invalid, directory.ReasonInvalidPageToken)
		}
		if !slices.Equal(got, order) {
			t.Errorf("pages of %d: %v, want %v", size, got, order)
		}
	}
	_, err = reads.ListConversations(t.Context(), &routingv1.ListConversationsRequest{OrganizationId: "none"})
	want(t, "unknown organization", err, errs.NotFound, directory.ReasonOrganizationNotFound)
}

func TestPrincipals(t *testing.T) {
	w := newWorld(t)
	svc := w.start(t, testkit.Postgres(t))
	writes, _ := svc.as(admin)
	_, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	_, err = writes.CreateConversation(t.Context(), conversation("acme", "c"))
	must(t, err)

	ctx := t.Context()
	read := func(reads routingv1.RoutingReadServiceClient) map[string]error {
		_, e1 := reads.GetOrganization(ctx, &routingv1.GetOrganizationRequest{OrganizationId: "acme"})
		_, e2 := reads.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: "acme", ConversationId: "c"})
		_, e3 := reads.ListConversations(ctx, &routingv1.ListConversationsRequest{OrganizationId: "acme"})
		return map[string]error{"GetOrganization": e1, "GetConversation": e2, "ListConversations": e3}
	}
	mineW, mine := svc.as(rpc.Principal{Organization: "acme", Subject: "u", Roles: []string{rpc.RoleMember}})
	for method, err := range read(mine) {
		if err != nil {
			t.Errorf("member, %s: %v", method, err)
		}
	}
	own, err := mine.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: "acme", ConversationId: "c"})
	must(t, err)
	if own.GetPlacement() != nil {
		t.Errorf("a member was told the placement %v", own.GetPlacement())
	}
	_, err = mineW.CreateConversation(ctx, conversation("acme", "c"))
	must(t, err)
	_, err = mineW.CreateOrganization(ctx, organization("acme"))
	want(t, "member, CreateOrganization", err, errs.Denied, rpc.ReasonDenied)
	_, err = mine.GetPlacement(ctx, &routingv1.GetPlacementRequest{OrganizationId: "acme"})
	want(t, "member, GetPlacement", err, errs.Denied, rpc.ReasonDenied)

	foreignW, foreign := svc.as(rpc.Principal{Organization: "other", Subject: "u", Roles: []string{rpc.RoleMember}})
	for method, err := range read(foreign) {
		want(t, "foreign member, "+method, err, errs.NotFound, directory.ReasonOrganizationNotFound)
	}
	_, err = foreignW.CreateConversation(ctx, conversation("acme", "d"))
	want(t, "foreign member, CreateConversation", err, errs.NotFound, directory.ReasonOrganizationNotFound)

	_, ingress := svc.as(*rpc.Service("ingress"))
	got, err := ingress.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: "acme", ConversationId: "c"})
	must(t, err)
	if got.GetPlacement().GetEpoch() != 1 {
		t.Errorf("ingress was told the placement %v", got.GetPlacement())
	}
	for _, id := range []string{"", "A", "a/b", "../x", "a b", strings.Repeat("a", 64)} {
		_, err := writes.CreateOrganization(ctx, organization(id))
		want(t, fmt.Sprintf("id %q", id), err, errs.Invalid, rpc.ReasonInvalidArgument)
	}
}

// TestAuthorityThatLostItsDataIsAFault checks that another service's NOT_FOUND is not passed on as
// if the caller's organization did not exist.
func TestAuthorityThatLostItsDataIsAFault(t *testing.T) {
	w := newWorld(t)
	writes, _ := w.start(t, testkit.Postgres(t)).as(admin)
	_, err := writes.CreateOrganization(t.Context(), organization("acme"))
	must(t, err)
	w.set(func() { clear(w.files) })
	_, err = writes.CreateConversation(t.Context(), conversation("acme", "c"))
	want(t, "lost AgentFS", err, errs.Internal, directory.ReasonAuthorityRefused)
}

func TestConfigReportsEveryProblem(t *testing.T) {
	var cfg Config
	err := config.Parse([]byte(`
max_connections: -1
agent_fs: x
cells: [{id: "A", supervisor: s, sessiondb: d}, {id: c, supervisor: s}, {id: c, supervisor: s, sessiondb: d}]
`), "/base", &cfg)
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"agent_fs", "postgres_url_file", "digest_key_file", "max_connections", "cells[0].id", "cells[1].sessiondb", "cells[2].id", "agentfs: is required"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("no %q in:\n%v", part, err)
		}
	}
}
