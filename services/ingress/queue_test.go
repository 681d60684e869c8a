package ingress_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/ingress"
)

const (
	accepted  = ingressv1.TurnState_TURN_STATE_ACCEPTED
	running   = ingressv1.TurnState_TURN_STATE_RUNNING
	cancelled = ingressv1.TurnState_TURN_STATE_CANCELLED
)

// once checks that no attempt was prompted twice, no two turns of a conversation ran at once, and
// each of the texts was written once.
func (w *world) once(t *testing.T, want []string) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	var got []string
	for _, r := range w.rows {
		if r.role == "user" {
			got = append(got, r.text)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("Hermes was given %q, want %q", got, want)
	}
	for k, a := range w.attempts {
		if a.prompts != 1 {
			t.Errorf("attempt %s was prompted %d times", k, a.prompts)
		}
	}
	if w.overlaps > 0 {
		t.Errorf("%d turns ran beside another of their conversation", w.overlaps)
	}
}

func TestFIFO(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w)
	var ids, texts []string
	for i := range 20 {
		texts = append(texts, fmt.Sprint("message ", i))
		ids = append(ids, r.submit(t, "c1", texts[i]).GetTurnId())
	}
	for i, id := range ids {
		wantReply(t, r.wait(t, "c1", id), "echo: "+texts[i])
	}
	w.once(t, texts)
	page, err := r.ListTurns(t.Context(), &ingressv1.ListTurnsRequest{OrganizationId: org, ConversationId: "c1", PageSize: 15})
	if err != nil {
		t.Fatal(err)
	}
	rest, err := r.ListTurns(t.Context(), &ingressv1.ListTurnsRequest{OrganizationId: org, ConversationId: "c1", PageToken: page.GetNextPageToken()})
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, turn := range append(page.GetTurns(), rest.GetTurns()...) {
		listed = append(listed, turn.GetTurnId())
	}
	if !slices.Equal(listed, ids) || rest.GetNextPageToken() != "" {
		t.Errorf("ListTurns = %v, then %q, want %v", listed, rest.GetNextPageToken(), ids)
	}
}

// Two replicas take one conversation's messages in turn, at once, and the order they were accepted
// in is the order Hermes gets them in.
func TestClaimRaces(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	replicas := []*replica{start(t, url, w), start(t, url, w)}
	const each = 15
	var mu sync.Mutex
	var ids []string
	var wg sync.WaitGroup
	barrier := make(chan struct{})
	for i, r := range replicas {
		wg.Go(func() {
			<-barrier
			for n := range each {
				m, err := r.SubmitTurn(t.Context(), request("c1", fmt.Sprint(i, "/", n), ""))
				if err != nil {
					t.Errorf("SubmitTurn: %v", err)
					return
				}
				mu.Lock()
				ids = append(ids, m.GetTurn().GetTurnId())
				mu.Unlock()
			}
		})
	}
	close(barrier)
	wg.Wait()
	for i, id := range ids {
		if got := replicas[i%2].wait(t, "c1", id); len(got.GetReplies()) != 1 {
			t.Errorf("turn = %v, want one reply", got)
		}
	}
	all, err := replicas[0].ListTurns(t.Context(), &ingressv1.ListTurnsRequest{OrganizationId: org, ConversationId: "c1", PageSize: 200})
	if err != nil {
		t.Fatal(err)
	}
	var order, texts []string
	for _, turn := range all.GetTurns() {
		order = append(order, turn.GetTurnId())
		texts = append(texts, turn.GetReplies()[0].GetText()[len("echo: "):])
	}
	w.mu.Lock()
	prompted := slices.Clone(w.order)
	w.mu.Unlock()
	if !slices.Equal(prompted, order) || len(order) != 2*each {
		t.Errorf("prompted in order %v, accepted in order %v", prompted, order)
	}
	w.once(t, texts)
}

func TestIdempotency(t *testing.T) {
	w := newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	r := start(t, testkit.Postgres(t), w, func(c *ingress.Config) { c.WaitingTurns = 2 })
	send := func(text, key string) (*ingressv1.SubmitTurnResponse, error) {
		return r.SubmitTurn(t.Context(), request("c1", text, key))
	}
	first, err := send("one", "k1")
	if err != nil || first.GetReplayed() {
		t.Fatalf("SubmitTurn = %v, %v", first, err)
	}
	<-began
	for range 2 {
		if _, err := send("more", ""); err != nil {
			t.Fatal(err)
		}
	}
	_, err = send("fourth", "k4")
	wantReason(t, err, errs.Exhausted, "QUEUE_FULL")
	// The replay comes before the limit, and shows the turn as it is now.
	again, err := send("one", "k1")
	if err != nil || !again.GetReplayed() || again.GetTurn().GetTurnId() != first.GetTurn().GetTurnId() || again.GetTurn().GetState() != running {
		t.Errorf("replay = %v, %v, want the first turn, running", again, err)
	}
	_, err = send("another", "k1")
	wantReason(t, err, errs.Conflict, "IDEMPOTENCY_KEY_REUSED")
	reject := request("c1", "x", "")
	reject.BusyPolicy = ingressv1.BusyPolicy_BUSY_POLICY_REJECT
	_, err = r.SubmitTurn(t.Context(), reject)
	wantReason(t, err, errs.Precondition, "CONVERSATION_BUSY")
	for _, key := range []string{"a b", "é", string(make([]byte, 256)), "\x7f"} {
		_, err = send("x", key)
		wantReason(t, err, errs.Invalid, "IDEMPOTENCY_KEY_MALFORMED")
	}
	// Another conversation has keys of its own.
	other, err := r.SubmitTurn(t.Context(), request("c2", "another", "k1"))
	if err != nil || other.GetReplayed() {
		t.Errorf("SubmitTurn in another conversation = %v, %v", other, err)
	}
	release()
	wantReply(t, r.wait(t, "c1", first.GetTurn().GetTurnId()), "echo: one")
	// A refusal was not kept under its key.
	eventually(t, "room in the queue", func() error { _, err := send("fourth", "k4"); return err })
}

// Calls with one key at once make one turn.
func TestIdempotencyRace(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	replicas := []*replica{start(t, url, w), start(t, url, w)}
	ids := make([]string, 16)
	var wg sync.WaitGroup
	barrier := make(chan struct{})
	for i := range ids {
		wg.Go(func() {
			<-barrier
			m, err := replicas[i%2].SubmitTurn(t.Context(), request("c1", "once", "key"))
			if err != nil {
				t.Errorf("SubmitTurn: %v", err)
			}
			ids[i] = m.GetTurn().GetTurnId()
		})
	}
	close(barrier)
	wg.Wait()
	if ids = slices.Compact(ids); len(ids) != 1 {
		t.Fatalf("one key made turns %v", ids)
	}
	wantReply(t, replicas[0].wait(t, "c1", ids[0]), "echo: once")
	w.once(t, []string{"once"})
}

func TestCancel(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	r := start(t, url, w)
	cancel := func(id string) (*ingressv1.Turn, error) {
		m, err := r.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: id})
		return m.GetTurn(), err
	}
	first, second, third := r.submit(t, "c1", "one"), r.submit(t, "c1", "two"), r.submit(t, "c1", "three")
	<-began
	got, err := cancel(second.GetTurnId())
	if err != nil || got.GetState() != cancelled || got.GetEndTime() == nil {
		t.Errorf("cancel of a waiting turn = %v, %v", got, err)
	}
	if n := query[int](t, url, "SELECT count(*) FROM ingress.block WHERE raw IS NOT NULL AND turn_id = $1", second.GetTurnId()); n != 0 {
		t.Error("the withdrawn turn's blocks are kept")
	}
	for range 2 { // idempotent
		if got, err = cancel(first.GetTurnId()); err != nil {
			t.Errorf("cancel of a running turn = %v, %v", got, err)
		}
	}
	// The partial text is a row without a finish reason: not a reply.
	if got := r.wait(t, "c1", first.GetTurnId()); got.GetState() != cancelled || len(got.GetReplies()) != 0 {
		t.Errorf("cancelled turn = %v", got)
	}
	if id := <-began; id != third.GetTurnId() {
		t.Errorf("turn %s runs after the cancel, want the third", id)
	}
	release()
	wantReply(t, r.wait(t, "c1", third.GetTurnId()), "echo: three")
	if got, err = cancel(third.GetTurnId()); err != nil || got.GetState() != ingressv1.TurnState_TURN_STATE_REPLIED {
		t.Errorf("cancel of an ended turn = %v, %v", got, err)
	}
	_, err = cancel("nothing")
	wantReason(t, err, errs.NotFound, "TURN_NOT_FOUND")
	w.once(t, []string{"one", "three"})
}

// A cancel that races with the claim and the end leaves exactly one outcome, and the next turn runs.
func TestCancelRaces(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	for i := range 20 {
		id := r.submit(t, "c1", fmt.Sprint(i)).GetTurnId()
		next := r.submit(t, "c1", fmt.Sprint(i, " next")).GetTurnId()
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if _, err := r.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: id}); err != nil {
					t.Errorf("CancelTurn: %v", err)
				}
			})
		}
		wg.Wait()
		if got := r.wait(t, "c1", id); len(got.GetReplies()) == 0 && got.GetState() != cancelled {
			t.Errorf("turn = %v, want replied or cancelled", got)
		}
		wantReply(t, r.wait(t, "c1", next), fmt.Sprint("echo: ", i, " next"))
	}
	for _, q := range []string{
		"SELECT count(*) FROM ingress.conversation WHERE waiting <> 0 OR running",
		"SELECT count(*) FROM (SELECT turn_id FROM ingress.event WHERE type = 'turn.ended' GROUP BY turn_id HAVING count(*) > 1) x",
		"SELECT 40 - count(*) FROM ingress.event WHERE type = 'turn.ended'",
	} {
		if n := query[int](t, url, q); n != 0 {
			t.Errorf("%s = %d, want 0", q, n)
		}
	}
}

func TestOutcomes(t *testing.T) {
	type hermes = func(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult
	userRow := func(then *supervisorv1.TurnResult) hermes {
		return func(w *world, r *supervisorv1.PromptRequest, _ *attempt) *supervisorv1.TurnResult {
			w.write(r.GetSessionId(), "user", promptText(r), "")
			return then
		}
	}
	nothing := func(then *supervisorv1.TurnResult) hermes {
		return func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult { return then }
	}
	for name, c := range map[string]struct {
		block      string
		hermes     hermes
		state      ingressv1.TurnState
		reason     string
		kept, ends bool
	}{
		"model outage":      {"", userRow(answered("end_turn", true)), ingressv1.TurnState_TURN_STATE_FAILED, "MODEL_UNAVAILABLE", false, false},
		"child exited":      {"", userRow(&supervisorv1.TurnResult{End: supervisorv1.TurnResult_END_CHILD_EXITED, Reason: "CHILD_EXITED"}), ingressv1.TurnState_TURN_STATE_FAILED, "INTERRUPTED", false, false},
		"not dispatched":    {"", nothing(&supervisorv1.TurnResult{End: supervisorv1.TurnResult_END_NOT_DISPATCHED, Reason: "HERMES_UNAVAILABLE"}), ingressv1.TurnState_TURN_STATE_FAILED, "HERMES_UNAVAILABLE", true, false},
		"refusal":           {"", nothing(answered("refusal", false)), ingressv1.TurnState_TURN_STATE_FAILED, "SESSION_UNKNOWN", true, false},
		"wedged":            {"", nothing(answered("end_turn", true)), ingressv1.TurnState_TURN_STATE_FAILED, "HERMES_WEDGED", true, true},
		"prompt error":      {"", nothing(&supervisorv1.TurnResult{End: supervisorv1.TurnResult_END_ERROR}), ingressv1.TurnState_TURN_STATE_FAILED, "PROMPT_ERROR", true, true},
		"native command":    {`{"type":"text","text":" /help"}`, nothing(answered("end_turn", true)), ingressv1.TurnState_TURN_STATE_NATIVE_COMMAND, "", false, false},
		"nothing to answer": {`{"type":"audio","data":"aGk=","mimeType":"audio/wav"}`, nothing(answered("end_turn", false)), ingressv1.TurnState_TURN_STATE_NO_REPLY, "NOTHING_READABLE", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, w := testkit.Postgres(t), newWorld(t)
			w.hermes = c.hermes
			r := start(t, url, w)
			req := request("c1", "hello", "")
			if c.block != "" {
				req.Messages[0].Blocks[0] = []byte(c.block)
			}
			m, err := r.SubmitTurn(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			got := r.wait(t, "c1", m.GetTurn().GetTurnId())
			if got.GetState() != c.state || got.GetError().GetReason() != c.reason || len(got.GetReplies()) != 0 {
				t.Errorf("turn = %v, want %v %s", got, c.state, c.reason)
			}
			if kept := query[int](t, url, "SELECT count(*) FROM ingress.block WHERE raw IS NOT NULL") == 1; kept != c.kept {
				t.Errorf("blocks kept: %v, want %v", kept, c.kept)
			}
			eventually(t, "the acknowledgement", func() error {
				w.mu.Lock()
				defer w.mu.Unlock()
				if a := w.attempts[m.GetTurn().GetTurnId()+"/1"]; !a.acked || a.ended != c.ends {
					return fmt.Errorf("acknowledged %v, child ended %v, want %v", a.acked, a.ended, c.ends)
				}
				return nil
			})
		})
	}
}
