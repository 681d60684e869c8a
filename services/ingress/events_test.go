package ingress_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/ingress"
)

type events = grpc.ServerStreamingClient[ingressv1.StreamEventsResponse]

// follow opens an event stream and returns once it is attached.
func (r *replica) follow(ctx context.Context, t testing.TB, conv string, after int64) events {
	t.Helper()
	s, err := r.StreamEvents(ctx, &ingressv1.StreamEventsRequest{OrganizationId: org, ConversationId: conv, AfterSequence: after})
	if err == nil {
		_, err = s.Header()
	}
	if err != nil {
		t.Fatalf("StreamEvents: %v", err)
	}
	return s
}

// until reads events up to the end of the turn, durable ones as "sequence type" and live ones as
// "type text".
func until(t testing.TB, s events, turnID string) (durable, live []string) {
	t.Helper()
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("Recv: %v", err)
		}
		e := m.GetEvent()
		if e.GetSequence() == 0 {
			live = append(live, e.GetType()+" "+e.GetText())
			continue
		}
		durable = append(durable, fmt.Sprint(e.GetSequence(), " ", e.GetType()))
		if e.GetType() == "turn.ended" && e.GetTurnId() == turnID {
			return durable, live
		}
	}
}

func TestEvents(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	runs, other := start(t, url, w), start(t, url, w)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	near, far := runs.follow(ctx, t, "c1", 0), other.follow(ctx, t, "c1", 0)
	id := runs.submit(t, "c1", "hello").GetTurnId()
	want := []string{"1 turn.accepted", "2 turn.started", "3 message.delivered", "4 turn.ended"}
	durable, live := until(t, near, id)
	if !slices.Equal(durable, want) || !slices.Equal(live, []string{"delta echo: ", "delta hello"}) {
		t.Errorf("events here = %q, live %q", durable, live)
	}
	if durable, _ := until(t, far, id); !slices.Equal(durable, want) {
		t.Errorf("events of the other replica = %q", durable)
	}
	// A replay is what was seen; from the middle, the rest.
	for after := range len(want) {
		if got, _ := until(t, other.follow(ctx, t, "c1", int64(after)), id); !slices.Equal(got, want[after:]) {
			t.Errorf("events after %d = %q", after, got)
		}
	}
	m, err := runs.StreamEvents(ctx, &ingressv1.StreamEventsRequest{OrganizationId: org, ConversationId: "c1", AfterSequence: 5})
	if err == nil {
		_, err = m.Recv()
	}
	wantReason(t, err, errs.OutOfRange, "EVENTS_SEQUENCE_UNKNOWN")
	// Nothing is kept for conversations nobody reads.
	cancel()
	next := other.submit(t, "c1", "unread").GetTurnId()
	wantReply(t, other.wait(t, "c1", next), "echo: unread")
}

func TestEventOfEnd(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w)
	id := r.submit(t, "c1", "hello").GetTurnId()
	turn := r.wait(t, "c1", id)
	s := r.follow(t.Context(), t, "c1", 2)
	for _, typ := range []string{"message.delivered", "turn.ended"} {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		e := m.GetEvent()
		if e.GetType() != typ || e.GetLocator().GetMessageId() != turn.GetReplies()[0].GetLocator().GetMessageId() || e.GetLocator().GetSessionId() != "s-c1" {
			t.Errorf("event = %v, want %s with the reply's locator", e, typ)
		}
		if typ == "turn.ended" && e.GetState() != turn.GetState() {
			t.Errorf("event's state = %v, want %v", e.GetState(), turn.GetState())
		}
	}
}

// Readers attach at any moment, on both replicas, while turns run: each sees every sequence once.
func TestAttachAtAnyMoment(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	replicas := []*replica{start(t, url, w), start(t, url, w)}
	const turns = 12
	sequences := make(chan error, 2*turns)
	last := int64(4 * turns)
	for i := range turns {
		for _, r := range replicas {
			s := r.follow(t.Context(), t, "c1", 0)
			go func() {
				for want := int64(1); want <= last; {
					m, err := s.Recv()
					if err != nil || m.GetEvent().GetSequence() != 0 && m.GetEvent().GetSequence() != want {
						sequences <- fmt.Errorf("got %v, %w, want sequence %d", m, err, want)
						return
					}
					if m.GetEvent().GetSequence() != 0 {
						want++
					}
				}
				sequences <- nil
			}()
		}
		replicas[i%2].submit(t, "c1", fmt.Sprint(i))
	}
	for range 2 * turns {
		if err := <-sequences; err != nil {
			t.Error(err)
		}
	}
}

// A replica that does not run the turn shows its live text too.
func TestLiveElsewhere(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	runs, other := start(t, url, w), start(t, url, w)
	s := other.follow(t.Context(), t, "c1", 0)
	id := runs.submit(t, "c1", "hello").GetTurnId()
	<-began
	for live := false; !live; {
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		live = m.GetEvent().GetType() == "delta" && m.GetEvent().GetText() == "working" && m.GetEvent().GetTurnId() == id
	}
	release()
	until(t, s, id)
}

func TestSlowReader(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w, func(c *ingress.Config) { c.SubscriberQueue = 4 })
	s := r.follow(t.Context(), t, "c1", 0)
	// Nothing is read while more is streamed than the connection and the queue hold.
	big := strings.Repeat("x", 200_000)
	id := ""
	for range 12 {
		id = r.submit(t, "c1", big).GetTurnId()
		r.wait(t, "c1", id)
	}
	last := int64(0)
	for {
		m, err := s.Recv()
		if err != nil {
			t.Fatalf("the stream ended without a gap: %v", err)
		}
		e := m.GetEvent()
		if e.GetType() == "gap" {
			if e.GetLastSequence() != last {
				t.Errorf("gap after %d, but %d was sent", e.GetLastSequence(), last)
			}
			break
		}
		if e.GetSequence() != 0 {
			if e.GetSequence() != last+1 {
				t.Errorf("sequence %d after %d", e.GetSequence(), last)
			}
			last = e.GetSequence()
		}
	}
	_, err := s.Recv()
	wantReason(t, err, errs.OutOfRange, "EVENTS_GAP")
	durable, _ := until(t, r.follow(t.Context(), t, "c1", last), id)
	if int64(len(durable)) != 48-last {
		t.Errorf("%d events after the gap at %d, want %d", len(durable), last, 48-last)
	}
}

func TestDrain(t *testing.T) {
	w := newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	r := start(t, testkit.Postgres(t), w)
	id := r.submit(t, "c1", "hello").GetTurnId()
	<-began
	s := r.follow(t.Context(), t, "c1", 2)
	waited := make(chan error, 1)
	go func() {
		m, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: id, WaitMs: 60_000})
		if err == nil && m.GetTurn().GetState() != running {
			err = fmt.Errorf("turn = %v, want running", m)
		}
		waited <- err
	}()
	r.svc.Drain()
	if err := <-waited; err != nil {
		t.Errorf("waiting call: %v", err)
	}
	err := error(nil)
	for err == nil {
		_, err = s.Recv()
	}
	if errors.Is(err, io.EOF) {
		t.Error("the stream ended as if it were complete")
	}
	wantReason(t, err, errs.Unavailable, "SERVICE_STOPPING")
}

func TestTranscript(t *testing.T) {
	w := newWorld(t)
	w.hermes = func(w *world, r *supervisorv1.PromptRequest, _ *attempt) *supervisorv1.TurnResult {
		// A broken stream that Hermes goes on from by itself.
		w.write(r.GetSessionId(), "user", promptText(r), "")
		w.write(r.GetSessionId(), "assistant", "one, ", "length")
		id := w.write(r.GetSessionId(), "user", "[System: go on]", "")
		w.mu.Lock()
		w.rows[len(w.rows)-1].followsLength = id > 0
		w.mu.Unlock()
		w.write(r.GetSessionId(), "assistant", "two", "stop")
		return answered("end_turn", true)
	}
	r := start(t, testkit.Postgres(t), w)
	r.wait(t, "c1", r.submit(t, "c1", "count").GetTurnId())
	// A native client's own message may follow such a row as well: no turn ran then.
	w.write("s-c1", "assistant", "cut", "length")
	w.write("s-c1", "user", "typed by hand", "")
	w.mu.Lock()
	w.rows[len(w.rows)-1].followsLength = true
	w.mu.Unlock()
	m, err := r.ListTranscript(t.Context(), &ingressv1.ListTranscriptRequest{OrganizationId: org, ConversationId: "c1"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, msg := range m.GetMessages() {
		got = append(got, msg.GetText())
	}
	if want := []string{"count", "one, ", "two", "cut", "typed by hand"}; !slices.Equal(got, want) {
		t.Errorf("transcript = %q, want %q", got, want)
	}
}

func TestRefusals(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w)
	block := func(raw string) *ingressv1.SubmitTurnRequest {
		q := request("c1", "x", "")
		q.Messages[0].Blocks[0] = []byte(raw)
		return q
	}
	for _, c := range []struct {
		request *ingressv1.SubmitTurnRequest
		kind    errs.Kind
		reason  errs.Reason
	}{
		{block(`{"type":"text","text":"x","foo":1}`), errs.Invalid, "INVALID_CONTENT_BLOCK"},
		{block(`{"type":"text","text":"\ud800"}`), errs.Invalid, "INVALID_CONTENT_BLOCK"},
		{block(`{"type":"text","text":"  "}`), errs.Invalid, "EMPTY_TURN"},
		{block(`{"type":"resource_link","uri":"file:///etc/passwd","name":"x"}`), errs.Invalid, "INVALID_FILE_URI"},
		{block(`{"type":"text","text":"` + strings.Repeat("x", 1<<20+1) + `"}`), errs.Invalid, "CONTENT_TOO_LARGE"},
		{&ingressv1.SubmitTurnRequest{OrganizationId: org, ConversationId: "c1"}, errs.Invalid, "EMPTY_TURN"},
		{request("no-such", "x", ""), errs.NotFound, "CONVERSATION_NOT_FOUND"},
		{request("NO", "x", ""), errs.Invalid, "INVALID_ARGUMENT"},
		{&ingressv1.SubmitTurnRequest{OrganizationId: "other", ConversationId: "c1"}, errs.NotFound, "ORGANIZATION_NOT_FOUND"},
	} {
		_, err := r.SubmitTurn(t.Context(), c.request)
		wantReason(t, err, c.kind, c.reason)
	}
	_, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: "x", WaitMs: 1000})
	wantReason(t, err, errs.NotFound, "TURN_NOT_FOUND")
	_, err = r.ListTurns(t.Context(), &ingressv1.ListTurnsRequest{OrganizationId: org, ConversationId: "c1", PageToken: "!"})
	wantReason(t, err, errs.Invalid, "INVALID_PAGE_TOKEN")
	nobody := ingressv1.NewIngressServiceClient(r.as(*rpc.Service("supervisor")))
	_, err = nobody.SubmitTurn(t.Context(), request("c1", "x", ""))
	wantReason(t, err, errs.Denied, "PERMISSION_DENIED")
	w.once(t, nil)
}
