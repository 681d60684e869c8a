// Package upstream is how ingress calls other services: routing for where a conversation lives,
// and, at that place, a cell's supervisor and session database.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"

	"humanwork.internal/pkg/errs"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/queue"
	"humanwork.internal/services/ingress/internal/turn"
)

// Cell calls a cell's services. It implements queue.Agent and queue.Sessions.
type Cell struct{ cells *Cells }

// NewCell calls through cells.
func NewCell(cells *Cells) *Cell { return &Cell{cells} }

func (c *Cell) supervisor(p queue.Place) (supervisorv1.TurnServiceClient, error) {
	conn, err := c.cells.conn(p.SupervisorTarget)
	if err != nil {
		return nil, fmt.Errorf("connect to supervisor: %w", err)
	}
	return supervisorv1.NewTurnServiceClient(conn), nil
}

func (c *Cell) sessions(p queue.Place) (sessiondbv1.SessionReadServiceClient, error) {
	conn, err := c.cells.conn(p.SessionDBTarget)
	if err != nil {
		return nil, fmt.Errorf("connect to sessiondb: %w", err)
	}
	return sessiondbv1.NewSessionReadServiceClient(conn), nil
}

func (c *Cell) conns(p queue.Place) ([]*grpc.ClientConn, error) {
	supervisor, err := c.cells.conn(p.SupervisorTarget)
	if err != nil {
		return nil, fmt.Errorf("connect to supervisor: %w", err)
	}
	sessions, err := c.cells.conn(p.SessionDBTarget)
	if err != nil {
		return nil, fmt.Errorf("connect to sessiondb: %w", err)
	}
	return []*grpc.ClientConn{supervisor, sessions}, nil
}

// Reachable implements queue.Agent.
func (c *Cell) Reachable(p queue.Place) bool {
	conns, err := c.conns(p)
	for _, conn := range conns {
		if conn.GetState() != connectivity.Ready {
			return false
		}
	}
	return err == nil
}

// Reached implements queue.Agent: it waits for the connections' own state changes.
func (c *Cell) Reached(ctx context.Context, p queue.Place) error {
	conns, err := c.conns(p)
	if err != nil {
		return err
	}
	// A placement that changes meanwhile is found out by asking again once in a while.
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, conn := range conns {
		for state := conn.GetState(); state != connectivity.Ready; state = conn.GetState() {
			conn.Connect()
			if !conn.WaitForStateChange(ctx, state) {
				return errs.Wrap(ctx.Err(), errs.Unavailable, "UNAVAILABLE", "%s cannot be reached", conn.Target())
			}
		}
	}
	return nil
}

func attempt(r turn.Run) *supervisorv1.Attempt {
	return &supervisorv1.Attempt{OrganizationId: r.Conversation.Organization, ConversationId: r.Conversation.ID,
		TurnId: r.TurnID, Attempt: r.Attempt, Epoch: r.Epoch}
}

// Prompt implements queue.Agent.
func (c *Cell) Prompt(ctx context.Context, p queue.Place, r turn.Run, live func(turn.Update)) (queue.Result, error) {
	client, err := c.supervisor(p)
	if err != nil {
		return queue.Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	blocks := make([][]byte, len(r.Blocks))
	for i, b := range r.Blocks {
		blocks[i] = b.Raw
	}
	stream, err := client.Prompt(ctx, &supervisorv1.PromptRequest{Attempt: attempt(r), SessionId: r.SessionID, Blocks: blocks}, grpc.WaitForReady(true))
	if err != nil {
		return queue.Result{}, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return queue.Result{}, ended(err)
		}
		switch e := m.GetEvent().(type) {
		case *supervisorv1.PromptResponse_Update:
			update(e.Update, live)
		case *supervisorv1.PromptResponse_Result:
			return result(e.Result), nil
		}
	}
}

// Attach implements queue.Agent.
func (c *Cell) Attach(ctx context.Context, p queue.Place, r turn.Run, live func(turn.Update)) (queue.Result, error) {
	client, err := c.supervisor(p)
	if err != nil {
		return queue.Result{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.AttachTurn(ctx, &supervisorv1.AttachTurnRequest{Attempt: attempt(r)}, grpc.WaitForReady(true))
	if err != nil {
		return queue.Result{}, err
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return queue.Result{}, ended(err)
		}
		switch e := m.GetEvent().(type) {
		case *supervisorv1.AttachTurnResponse_Update:
			update(e.Update, live)
		case *supervisorv1.AttachTurnResponse_Result:
			return result(e.Result), nil
		case *supervisorv1.AttachTurnResponse_Gone:
			return queue.Result{Seen: outcome.Seen{End: outcome.Gone}}, nil
		}
	}
}

// ended makes an error of a stream that ended in good order without a last word.
func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return errs.New(errs.Unavailable, "UNAVAILABLE", "the supervisor's stream ended without a result")
	}
	return err
}

// Watch streams a running turn's updates until it ends.
func (c *Cell) Watch(ctx context.Context, p queue.Place, r turn.Run, live func(turn.Update)) error {
	client, err := c.supervisor(p)
	if err != nil {
		return err
	}
	stream, err := client.WatchTurn(ctx, &supervisorv1.WatchTurnRequest{Attempt: attempt(r)})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		update(m.GetUpdate(), live)
	}
}

func update(u *supervisorv1.Update, live func(turn.Update)) {
	switch k := u.GetKind().(type) {
	case *supervisorv1.Update_Text:
		live(turn.Update{Text: k.Text})
	case *supervisorv1.Update_Tool:
		live(turn.Update{Tool: &turn.Tool{ID: k.Tool.GetToolCallId(), Title: k.Tool.GetTitle(), Kind: k.Tool.GetKind(), Status: k.Tool.GetStatus()}})
	}
}

func result(r *supervisorv1.TurnResult) queue.Result {
	ends := map[supervisorv1.TurnResult_End]outcome.End{
		supervisorv1.TurnResult_END_ANSWERED:       outcome.Answered,
		supervisorv1.TurnResult_END_ERROR:          outcome.PromptError,
		supervisorv1.TurnResult_END_CHILD_EXITED:   outcome.ChildExited,
		supervisorv1.TurnResult_END_NOT_DISPATCHED: outcome.NotDispatched,
	}
	us := func(n int64) time.Duration { return time.Duration(n) * time.Microsecond }
	t := r.GetTimings()
	return queue.Result{
		// An end of a newer contract counts as an error: the child is replaced and the rows decide.
		Seen: outcome.Seen{End: orError(ends, r.GetEnd()), StopReason: r.GetStopReason(), Reason: r.GetReason(), Message: r.GetMessage(),
			CancelSent: r.GetCancelSent(), TextStreamed: r.GetTextStreamed()},
		Attach: us(t.GetAttachUs()), ColdAdmission: us(t.GetColdAdmissionUs()),
		FirstModelRequest: us(t.GetFirstModelRequestUs()), ModelToolLoop: us(t.GetModelToolLoopUs()),
	}
}

func orError(ends map[supervisorv1.TurnResult_End]outcome.End, e supervisorv1.TurnResult_End) outcome.End {
	if end, ok := ends[e]; ok {
		return end
	}
	return outcome.PromptError
}

// Cancel implements queue.Agent.
func (c *Cell) Cancel(ctx context.Context, p queue.Place, r turn.Run) error {
	client, err := c.supervisor(p)
	if err != nil {
		return err
	}
	_, err = client.CancelTurn(ctx, &supervisorv1.CancelTurnRequest{Attempt: attempt(r)}, grpc.WaitForReady(true))
	return err
}

// Acknowledge implements queue.Agent.
func (c *Cell) Acknowledge(ctx context.Context, p queue.Place, r turn.Run, endChild bool) error {
	client, err := c.supervisor(p)
	if err != nil {
		return err
	}
	_, err = client.AcknowledgeTurn(ctx, &supervisorv1.AcknowledgeTurnRequest{Attempt: attempt(r), EndChild: endChild}, grpc.WaitForReady(true))
	return err
}

// Watermark implements queue.Sessions.
func (c *Cell) Watermark(ctx context.Context, p queue.Place, conv turn.Conversation) (int64, error) {
	client, err := c.sessions(p)
	if err != nil {
		return 0, err
	}
	m, err := client.GetWatermark(ctx, &sessiondbv1.GetWatermarkRequest{OrganizationId: conv.Organization})
	return m.GetWatermark(), err
}

// Outcome implements queue.Sessions.
func (c *Cell) Outcome(ctx context.Context, p queue.Place, r turn.Run, prompt string, others bool) (outcome.Rows, error) {
	client, err := c.sessions(p)
	if err != nil {
		return outcome.Rows{}, err
	}
	m, err := client.ReadOutcome(ctx, &sessiondbv1.ReadOutcomeRequest{OrganizationId: r.Conversation.Organization, SessionId: r.SessionID,
		Watermark: r.Watermark, PromptText: prompt, HasOtherBlocks: others}, grpc.WaitForReady(true))
	if err != nil {
		return outcome.Rows{}, err
	}
	rows := outcome.Rows{User: m.GetUserMessageId(), Users: m.GetUserMessageIds(), End: m.GetEndWatermark()}
	for _, row := range m.GetReplies() {
		rows.Replies = append(rows.Replies, outcome.Row{ID: row.GetMessageId(), FinishReason: row.GetFinishReason()})
	}
	return rows, nil
}

// Messages returns canonical messages by id.
func (c *Cell) Messages(ctx context.Context, p queue.Place, organization, session string, ids []int64) ([]*sessiondbv1.Message, error) {
	client, err := c.sessions(p)
	if err != nil {
		return nil, err
	}
	m, err := client.BatchGetMessages(ctx, &sessiondbv1.BatchGetMessagesRequest{OrganizationId: organization, SessionId: session, MessageIds: ids})
	return m.GetMessages(), err
}

// Transcript returns a page of a session's canonical messages.
func (c *Cell) Transcript(ctx context.Context, p queue.Place, organization string, size int32, token string) (*sessiondbv1.ListMessagesResponse, error) {
	client, err := c.sessions(p)
	if err != nil {
		return nil, err
	}
	return client.ListMessages(ctx, &sessiondbv1.ListMessagesRequest{OrganizationId: organization, SessionId: p.SessionID, PageSize: size, PageToken: token})
}

// Judge implements queue.Config.Judge.
func Judge(err error) queue.Verdict {
	switch errs.ReasonOf(err) {
	case "SUPERVISOR_STARTING", "SUPERVISOR_STOPPING":
		return queue.NotStarted
	case "TURN_SETTLED":
		return queue.Settled
	case "PLACEMENT_MOVED":
		return queue.Moved
	case "SESSIONDB_DAMAGED", "SESSIONDB_FOREIGN":
		return queue.Damaged
	}
	switch errs.KindOf(err) {
	case errs.Unauthenticated: // the call's principal expired while it waited for a connection
		return queue.NotStarted
	case errs.Invalid, errs.Precondition, errs.Exhausted, errs.Denied, errs.OutOfRange, errs.Conflict:
		return queue.Refused
	}
	return queue.TryAgain
}
