package ingress_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
)

// row is one row of the fake state.db.
type row struct {
	id            int64
	session, role string
	text, finish  string
	followsLength bool
}

// attempt is one run the fake supervisor knows.
type attempt struct {
	updates  []*supervisorv1.Update
	result   *supervisorv1.TurnResult
	changed  chan struct{} // closed and replaced on every change
	prompts  int
	canceled bool
	acked    bool
	ended    bool // AcknowledgeTurn with end_child
}

// world is routing, one cell's supervisor and its sessiondb, with a fake Hermes inside.
type world struct {
	routingv1.UnimplementedRoutingReadServiceServer
	supervisorv1.UnimplementedTurnServiceServer
	sessiondbv1.UnimplementedSessionReadServiceServer

	mu       sync.Mutex
	rows     []row
	lastID   int64
	attempts map[string]*attempt
	tombs    map[string]bool
	order    []string // turn ids in the order they were prompted
	running  map[string]int
	overlaps int // turns of one conversation that ran at once
	// hermes runs a prompt; it must end by returning the result.
	hermes func(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult
	// breakStreams makes Prompt and AttachTurn streams end with UNAVAILABLE this many times.
	breakStreams int
	watermarkErr error
	watermarks   int
	work         sync.WaitGroup

	disk *disk // agentfs

	listen *bufconn.Listener
	cut    bool
	conns  []net.Conn
}

func newWorld(t testing.TB) *world {
	w := &world{attempts: map[string]*attempt{}, tombs: map[string]bool{}, running: map[string]int{}, hermes: echo, disk: newDisk()}
	w.serve(t)
	return w
}

// echo is a Hermes that answers every text with itself.
func echo(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult {
	text := promptText(r)
	w.write(r.GetSessionId(), "user", text, "")
	w.stream(a, "echo: ")
	w.stream(a, text)
	w.write(r.GetSessionId(), "assistant", "echo: "+text, "stop")
	return answered("end_turn", true)
}

// gated is an echo that waits for each turn, after its user row, until release is called.
func gated() (hermes func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult, started chan string, release func()) {
	gate := make(chan struct{})
	started = make(chan string, 100)
	var once sync.Once
	return func(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult {
		text := promptText(r)
		w.write(r.GetSessionId(), "user", text, "")
		w.stream(a, "working")
		started <- r.GetAttempt().GetTurnId()
		for {
			w.mu.Lock()
			changed, canceled := a.changed, a.canceled
			w.mu.Unlock()
			if canceled {
				w.write(r.GetSessionId(), "assistant", "worki", "")
				res := answered("cancelled", true)
				res.CancelSent = true
				return res
			}
			select {
			case <-gate:
				w.write(r.GetSessionId(), "assistant", "echo: "+text, "stop")
				return answered("end_turn", true)
			case <-changed:
			}
		}
	}, started, func() { once.Do(func() { close(gate) }) }
}

func answered(stop string, text bool) *supervisorv1.TurnResult {
	return &supervisorv1.TurnResult{End: supervisorv1.TurnResult_END_ANSWERED, StopReason: stop, TextStreamed: text,
		Timings: &supervisorv1.Timings{AttachUs: 100, FirstModelRequestUs: 200, ModelToolLoopUs: 300}}
}

func promptText(r *supervisorv1.PromptRequest) string {
	var texts []string
	for _, b := range r.GetBlocks() {
		var v struct{ Type, Text string }
		if json.Unmarshal(b, &v) == nil && v.Type == "text" {
			texts = append(texts, v.Text)
		}
	}
	return strings.Join(texts, "\n")
}

func (w *world) write(session, role, text, finish string) int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastID++
	w.rows = append(w.rows, row{id: w.lastID, session: session, role: role, text: text, finish: finish})
	return w.lastID
}

func (w *world) stream(a *attempt, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a.updates = append(a.updates, &supervisorv1.Update{Kind: &supervisorv1.Update_Text{Text: text}})
	a.change()
}

func (a *attempt) change() {
	close(a.changed)
	a.changed = make(chan struct{})
}

func name(a *supervisorv1.Attempt) string { return fmt.Sprintf("%s/%d", a.GetTurnId(), a.GetAttempt()) }

func (w *world) Prompt(r *supervisorv1.PromptRequest, s grpc.ServerStreamingServer[supervisorv1.PromptResponse]) error {
	w.mu.Lock()
	k := name(r.GetAttempt())
	if w.tombs[k] {
		w.mu.Unlock()
		return errs.New(errs.Precondition, "TURN_SETTLED", "settled")
	}
	a := w.attempts[k]
	if a == nil {
		a = &attempt{changed: make(chan struct{})}
		w.attempts[k] = a
		conv := r.GetAttempt().GetConversationId()
		w.order = append(w.order, r.GetAttempt().GetTurnId())
		w.running[conv]++
		if w.running[conv] > 1 {
			w.overlaps++
		}
		w.work.Go(func() {
			res := w.hermes(w, r, a)
			w.mu.Lock()
			w.running[conv]--
			a.result = res
			a.change()
			w.mu.Unlock()
		})
	}
	a.prompts++
	w.mu.Unlock()
	return w.follow(s.Context(), a, func(u *supervisorv1.Update, res *supervisorv1.TurnResult) error {
		if res != nil {
			return s.Send(&supervisorv1.PromptResponse{Event: &supervisorv1.PromptResponse_Result{Result: res}})
		}
		return s.Send(&supervisorv1.PromptResponse{Event: &supervisorv1.PromptResponse_Update{Update: u}})
	})
}

func (w *world) AttachTurn(r *supervisorv1.AttachTurnRequest, s grpc.ServerStreamingServer[supervisorv1.AttachTurnResponse]) error {
	w.mu.Lock()
	a := w.attempts[name(r.GetAttempt())]
	if a == nil || a.acked {
		w.tombs[name(r.GetAttempt())] = true
		w.mu.Unlock()
		return s.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Gone{Gone: &supervisorv1.Gone{}}})
	}
	w.mu.Unlock()
	return w.follow(s.Context(), a, func(u *supervisorv1.Update, res *supervisorv1.TurnResult) error {
		if res != nil {
			return s.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Result{Result: res}})
		}
		return s.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Update{Update: u}})
	})
}

func (w *world) follow(ctx context.Context, a *attempt, send func(*supervisorv1.Update, *supervisorv1.TurnResult) error) error {
	for sent := 0; ; {
		w.mu.Lock()
		updates, res, changed := a.updates[sent:], a.result, a.changed
		if w.breakStreams > 0 && len(a.updates) > 0 {
			w.breakStreams--
			w.mu.Unlock()
			return errs.New(errs.Unavailable, "UNAVAILABLE", "the stream broke")
		}
		w.mu.Unlock()
		for _, u := range updates {
			if err := send(u, nil); err != nil {
				return err
			}
		}
		sent += len(updates)
		if res != nil {
			return send(nil, res)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (w *world) WatchTurn(r *supervisorv1.WatchTurnRequest, s grpc.ServerStreamingServer[supervisorv1.WatchTurnResponse]) error {
	w.mu.Lock()
	a := w.attempts[name(r.GetAttempt())]
	w.mu.Unlock()
	if a == nil {
		return errs.New(errs.NotFound, "TURN_NOT_FOUND", "unknown")
	}
	return w.follow(s.Context(), a, func(u *supervisorv1.Update, res *supervisorv1.TurnResult) error {
		if res != nil {
			return nil
		}
		return s.Send(&supervisorv1.WatchTurnResponse{Update: u})
	})
}

func (w *world) CancelTurn(_ context.Context, r *supervisorv1.CancelTurnRequest) (*supervisorv1.CancelTurnResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attempts[name(r.GetAttempt())]; a != nil {
		a.canceled = true
		a.change()
	}
	return &supervisorv1.CancelTurnResponse{}, nil
}

func (w *world) AcknowledgeTurn(_ context.Context, r *supervisorv1.AcknowledgeTurnRequest) (*supervisorv1.AcknowledgeTurnResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if a := w.attempts[name(r.GetAttempt())]; a != nil {
		a.acked, a.ended = true, a.ended || r.GetEndChild()
	}
	return &supervisorv1.AcknowledgeTurnResponse{}, nil
}

func (w *world) GetWatermark(context.Context, *sessiondbv1.GetWatermarkRequest) (*sessiondbv1.GetWatermarkResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watermarks++
	return &sessiondbv1.GetWatermarkResponse{Watermark: w.lastID}, w.watermarkErr
}

func (w *world) ReadOutcome(_ context.Context, r *sessiondbv1.ReadOutcomeRequest) (*sessiondbv1.ReadOutcomeResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &sessiondbv1.ReadOutcomeResponse{EndWatermark: w.lastID}
	for _, row := range w.rows {
		switch {
		case row.session != r.GetSessionId() || row.id <= r.GetWatermark():
		case row.role == "user" && row.text == r.GetPromptText():
			out.UserMessageId, out.UserMessageIds, out.Replies = row.id, []int64{row.id}, nil
		case row.role == "assistant" && out.GetUserMessageId() > 0 && row.finish != "length":
			out.Replies = append(out.Replies, &sessiondbv1.ReplyRow{MessageId: row.id, FinishReason: row.finish})
		}
	}
	return out, nil
}

func (w *world) message(r row) *sessiondbv1.Message {
	return &sessiondbv1.Message{MessageId: r.id, Role: r.role, Text: r.text, FollowsLength: r.followsLength}
}

func (w *world) BatchGetMessages(_ context.Context, r *sessiondbv1.BatchGetMessagesRequest) (*sessiondbv1.BatchGetMessagesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &sessiondbv1.BatchGetMessagesResponse{}
	for _, id := range r.GetMessageIds() {
		i := slices.IndexFunc(w.rows, func(row row) bool { return row.id == id && row.session == r.GetSessionId() })
		if i < 0 {
			return nil, errs.New(errs.NotFound, "MESSAGE_NOT_FOUND", "no message %d", id)
		}
		out.Messages = append(out.Messages, w.message(w.rows[i]))
	}
	return out, nil
}

func (w *world) ListMessages(_ context.Context, r *sessiondbv1.ListMessagesRequest) (*sessiondbv1.ListMessagesResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := &sessiondbv1.ListMessagesResponse{}
	after, err := strconv.ParseInt("0"+r.GetPageToken(), 10, 64)
	if err != nil {
		return nil, errs.New(errs.Invalid, "INVALID_PAGE_TOKEN", "not a token of this list")
	}
	for _, row := range w.rows {
		if row.session != r.GetSessionId() || row.id <= after {
			continue
		}
		if len(out.Messages) == int(r.GetPageSize()) {
			out.NextPageToken = fmt.Sprint(out.Messages[len(out.Messages)-1].GetMessageId())
			break
		}
		out.Messages = append(out.Messages, w.message(row))
	}
	return out, nil
}

var placement = &routingv1.Placement{CellId: "c", Epoch: 1, SupervisorTarget: "passthrough:///supervisor", SessiondbTarget: "passthrough:///sessiondb"}

func (w *world) GetConversation(_ context.Context, r *routingv1.GetConversationRequest) (*routingv1.GetConversationResponse, error) {
	if strings.HasPrefix(r.GetConversationId(), "no-") {
		return nil, errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation")
	}
	return &routingv1.GetConversationResponse{Placement: placement, Conversation: &routingv1.Conversation{
		OrganizationId: r.GetOrganizationId(), ConversationId: r.GetConversationId(), SessionId: "s-" + r.GetConversationId()}}, nil
}

func (w *world) GetPlacement(context.Context, *routingv1.GetPlacementRequest) (*routingv1.GetPlacementResponse, error) {
	return &routingv1.GetPlacementResponse{Placement: placement}, nil
}

// serve serves the world until the test ends.
func (w *world) serve(t testing.TB) {
	policy := rpc.Policy{}
	for _, d := range []grpc.ServiceDesc{routingv1.RoutingReadService_ServiceDesc, supervisorv1.TurnService_ServiceDesc, sessiondbv1.SessionReadService_ServiceDesc,
		agentfsv1.FileService_ServiceDesc, agentfsv1.HoldService_ServiceDesc} {
		for _, m := range d.Methods {
			policy.Allow([]string{"service:ingress"}, "/"+d.ServiceName+"/"+m.MethodName)
		}
		for _, m := range d.Streams {
			policy.Allow([]string{"service:ingress"}, "/"+d.ServiceName+"/"+m.StreamName)
		}
	}
	// The caller's data is written as the caller.
	policy.Allow([]string{rpc.RoleMember}, agentfsv1.FileService_WriteFile_FullMethodName)
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: "world", Policy: policy, Signer: testkit.Signer(t), Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	routingv1.RegisterRoutingReadServiceServer(srv, w)
	supervisorv1.RegisterTurnServiceServer(srv, w)
	sessiondbv1.RegisterSessionReadServiceServer(srv, w)
	agentfsv1.RegisterFileServiceServer(srv, w.disk)
	agentfsv1.RegisterHoldServiceServer(srv, w.disk)
	lis := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(lis) }()
	t.Cleanup(func() {
		srv.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve the world: %v", err)
		}
		w.work.Wait()
	})
	w.listen = lis
}

// dial connects to any service of the world, unless it is cut off.
func (w *world) dial(ctx context.Context, _ string) (net.Conn, error) {
	w.mu.Lock()
	cut := w.cut
	w.mu.Unlock()
	if cut {
		return nil, errors.New("the world is cut off")
	}
	conn, err := w.listen.DialContext(ctx)
	if err == nil {
		w.mu.Lock()
		w.conns = append(w.conns, conn)
		w.mu.Unlock()
	}
	return conn, err
}

// cutOff breaks all connections and refuses new ones, or lets them be made again.
func (w *world) cutOff(yes bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = yes
	for _, c := range w.conns {
		_ = c.Close()
	}
	w.conns = nil
}
