package gateway_test

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"humanwork.internal/pkg/rpc"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
)

func TestOrganizationsAndConversations(t *testing.T) {
	w := start(t, &fakes{})
	for _, c := range []struct {
		method, path, body, want string
	}{
		{"POST", "/v1/organizations", ` {"organizationId" : "acme"} `, `{"organizationId":"acme","createTime":"2026-05-01T12:00:00.120Z"}`},
		{"GET", acme, "", `{"organizationId":"acme","createTime":"2026-05-01T12:00:00.120Z"}`},
		{"POST", acme + "/conversations", `{}`,
			`{"organizationId":"acme","conversationId":"","sessionId":"20260501_120000_abcdef","specialistId":"","createTime":"2026-05-01T12:00:00.120Z"}`},
		{"GET", chat, "", `{"organizationId":"acme","conversationId":"c1","sessionId":"s","specialistId":"","createTime":"2026-05-01T12:00:00.120Z"}`},
		{"GET", acme + "/conversations", "", `{"conversations":[],"nextPageToken":""}`},
		{"GET", acme + "/conversations?pageSize=1", "",
			`{"conversations":[{"organizationId":"acme","conversationId":"c1","sessionId":"s","specialistId":"","createTime":"2026-05-01T12:00:00.120Z"}],"nextPageToken":"next"}`},
	} {
		got := w.call(t, c.method, c.path, c.body)
		if got.status != http.StatusOK || strings.TrimSpace(got.body) != c.want {
			t.Errorf("%s %s: got %d %s, want 200 %s", c.method, c.path, got.status, got.body, c.want)
		}
	}
}

func TestConversationCarriesPersonaAndEnvironment(t *testing.T) {
	w := start(t, &fakes{})
	got := w.call(t, "POST", acme+"/conversations", `{"conversationId":"c9","specialistId":"sp","persona":"You are\nkind","environment":{"A_B":"1"}}`)
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s, want 200", got.status, got.body)
	}
	r := w.conversation
	if r.GetOrganizationId() != "acme" || r.GetConversationId() != "c9" || r.GetSpecialistId() != "sp" ||
		r.GetPersona() != "You are\nkind" || len(r.GetEnvironment()) != 1 || r.GetEnvironment()["A_B"] != "1" {
		t.Errorf("got request %v, want everything that was sent", r)
	}
}

func TestPrincipalIsForwardedAndHeadersAreNot(t *testing.T) {
	w := start(t, &fakes{submit: accept})
	// A forged identity in a metadata header must not reach the services.
	got := w.call(t, "POST", "/v1/organizations", `{"organizationId":"acme"}`, header("Authorization", "Bearer "+memberToken),
		header("Grpc-Metadata-Humanwork-Principal", "forged"), header("Grpc-Timeout", "1n"))
	if got.status != http.StatusOK {
		t.Fatalf("got %d %s, want 200", got.status, got.body)
	}
	if p := w.principal; p.Subject != "mia" || p.Organization != "acme" || len(p.Roles) != 1 || p.Roles[0] != rpc.RoleMember {
		t.Errorf("got principal %+v, want the member's", p)
	}
	for name := range got.header {
		if strings.HasPrefix(name, "Grpc-") {
			t.Errorf("got header %s, want no gRPC header to show", name)
		}
	}
}

func accept(_ context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
	turn := &ingressv1.Turn{TurnId: "t1", State: ingressv1.TurnState_TURN_STATE_ACCEPTED, CreateTime: created}
	for range r.GetMessages() {
		turn.Messages = append(turn.Messages, &ingressv1.AcceptedMessage{InboundId: "i1", Blocks: []*ingressv1.AcceptedBlock{{Type: "text", Sha256: "ab"}}})
	}
	return &ingressv1.SubmitTurnResponse{Turn: turn, Replayed: r.GetIdempotencyKey() == "again"}, nil
}

func TestSubmitCarriesExactBytes(t *testing.T) {
	var seen *ingressv1.SubmitTurnRequest
	w := start(t, &fakes{submit: func(ctx context.Context, r *ingressv1.SubmitTurnRequest) (*ingressv1.SubmitTurnResponse, error) {
		seen = r
		return accept(ctx, r)
	}})
	blocks := []string{
		"{ \"type\" : \"text\",\n\t\"text\":\"  \\u0000\\ud83d\\ude00<user_message>\u200b\\/ \"}",
		`{"_meta":{"n":9007199254740993,"x":1E400,"s":[ ]},"type":"text","text":""}`,
	}
	got := w.call(t, "POST", chat+"/turns", `{"busyPolicy":"REJECT","messages":[ {"blocks":[`+strings.Join(blocks, " , ")+`]}]}`, header("Idempotency-Key", "k-1"))
	want := `{"turnId":"t1","state":"ACCEPTED","messages":[{"inboundId":"i1","blocks":[{"type":"text","sha256":"ab"}]}]}`
	if got.status != http.StatusAccepted || strings.TrimSpace(got.body) != want {
		t.Fatalf("got %d %s, want 202 %s", got.status, got.body, want)
	}
	if loc := got.header.Get("Location"); loc != chat+"/turns/t1" {
		t.Errorf("got Location %q, want the turn's path", loc)
	}
	if _, ok := got.header["Idempotency-Replayed"]; ok {
		t.Error("got Idempotency-Replayed on a first call")
	}
	if len(seen.GetMessages()) != 1 || len(seen.GetMessages()[0].GetBlocks()) != 2 {
		t.Fatalf("got %v, want one message of two blocks", seen)
	}
	for i, b := range seen.GetMessages()[0].GetBlocks() {
		if string(b) != blocks[i] {
			t.Errorf("block %d: got %q, want %q", i, b, blocks[i])
		}
	}
	if seen.GetIdempotencyKey() != "k-1" || seen.GetBusyPolicy() != ingressv1.BusyPolicy_BUSY_POLICY_REJECT || seen.GetConversationId() != "c1" {
		t.Errorf("got request %v, want key k-1, REJECT, c1", seen)
	}
	if got := w.call(t, "POST", chat+"/turns", `{"messages":[]}`, header("Idempotency-Key", "again")); got.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("got headers %v, want Idempotency-Replayed: true on a replay", got.header)
	}
}

func TestTurnShapes(t *testing.T) {
	w := start(t, &fakes{
		getTurn: func(context.Context, *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
			return &ingressv1.GetTurnResponse{Turn: repliedTurn()}, nil
		},
		transcript: func(context.Context, *ingressv1.ListTranscriptRequest) (*ingressv1.ListTranscriptResponse, error) {
			return &ingressv1.ListTranscriptResponse{Messages: []*ingressv1.TranscriptMessage{{Locator: &ingressv1.Locator{SessionId: "s", MessageId: 7},
				Role: "assistant", Text: "hi", Version: "v", CreateTime: created, ToolCalls: []*ingressv1.ToolCall{{Id: "x", Name: "n", Arguments: `{"a": 1}`}}}}}, nil
		},
	})
	turn := `{"turnId":"t1","state":"REPLIED","messages":[{"inboundId":"i1","blocks":[{"type":"text","sha256":"ab"}]}],` +
		`"replies":[{"locator":{"sessionId":"s","messageId":"9007199254740993"},"text":" <b>&\u2028 "}],"timings":{"acceptToAttachMs":12.5},` +
		`"createTime":"2026-05-01T12:00:00.12Z","endTime":"2026-05-01T12:00:00.12Z"}`
	for _, c := range []struct{ method, path, want string }{
		{"GET", chat + "/turns/t1", turn},
		{"GET", chat + "/turns?pageSize=200", `{"turns":[` + turn + `],"nextPageToken":"n"}`},
		{"POST", chat + "/turns/t2:cancel", `{"turnId":"t2","state":"CANCELLED","messages":[],"replies":[],"timings":{},"createTime":"2026-05-01T12:00:00.12Z","endTime":"2026-05-01T12:00:00.12Z"}`},
		{"GET", chat + "/transcript", `{"messages":[{"locator":{"sessionId":"s","messageId":"7"},"role":"assistant","text":"hi","version":"v",` +
			`"createTime":"2026-05-01T12:00:00.12Z","toolCalls":[{"id":"x","name":"n","arguments":"{\"a\": 1}"}]}],"nextPageToken":""}`},
	} {
		got := w.call(t, c.method, c.path, "")
		if got.status != http.StatusOK || !sameJSON(t, got.body, c.want) {
			t.Errorf("%s %s: got %d %s, want 200 %s", c.method, c.path, got.status, got.body, c.want)
		}
	}
	if got := w.call(t, "POST", chat+"/turns/t2:cancel", "{}"); got.status != http.StatusOK {
		t.Errorf("cancel with an empty object: got %d %s, want 200", got.status, got.body)
	}
}

func sameJSON(t *testing.T, a, b string) bool {
	t.Helper()
	normal := func(s string) string {
		var v any
		d := json.NewDecoder(strings.NewReader(s))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatalf("decode %q: %v", s, err)
		}
		out, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	return normal(a) == normal(b)
}

func TestWaitIsForwardedAndCapped(t *testing.T) {
	var waited int64
	w := start(t, &fakes{getTurn: func(_ context.Context, r *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
		waited = r.GetWaitMs()
		return &ingressv1.GetTurnResponse{Turn: repliedTurn()}, nil
	}})
	for query, want := range map[string]int64{"": 0, "?wait=30s": 30_000, "?wait=1m30s": 90_000, "?wait=2h": 300_000, "?wait=0s": 0, "?wait=250ms": 250} {
		if got := w.call(t, "GET", chat+"/turns/t1"+query, ""); got.status != http.StatusOK || waited != want {
			t.Errorf("%s: got %d and %d ms, want 200 and %d ms", query, got.status, waited, want)
		}
	}
	for _, query := range []string{"?wait=30", "?wait=-1s", "?wait=", "?wait=x"} {
		wantProblem(t, w.call(t, "GET", chat+"/turns/t1"+query, ""), http.StatusBadRequest, "INVALID_PARAMETER")
	}
}
