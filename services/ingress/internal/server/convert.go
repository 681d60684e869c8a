package server

import (
	"context"
	"encoding/hex"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/ingress/internal/turn"
)

// maxIDs is how many messages one call to sessiondb may ask for.
const maxIDs = 500

// full converts a turn and reads the text of its replies.
func (s *Server) full(ctx context.Context, t turn.Turn) (*ingressv1.Turn, error) {
	out, err := s.withReplies(ctx, t.Conversation, []turn.Turn{t})
	if err != nil {
		return nil, err
	}
	return out[0], nil
}

// withReplies converts turns of one conversation and reads the text of their replies, which this
// service does not keep.
func (s *Server) withReplies(ctx context.Context, c turn.Conversation, turns []turn.Turn) ([]*ingressv1.Turn, error) {
	out := make([]*ingressv1.Turn, len(turns))
	wanted := make(map[string][]*ingressv1.Reply) // by session
	for i, t := range turns {
		out[i] = toTurn(t)
		for _, r := range out[i].GetReplies() {
			id := r.GetLocator().GetSessionId()
			wanted[id] = append(wanted[id], r)
		}
	}
	if len(wanted) == 0 {
		return out, nil
	}
	p, err := s.cfg.Directory.Lookup(ctx, c)
	if err != nil {
		return nil, err
	}
	for session, replies := range wanted {
		for len(replies) > 0 {
			batch := replies[:min(len(replies), maxIDs)]
			replies = replies[len(batch):]
			ids := make([]int64, len(batch))
			for i, r := range batch {
				ids[i] = r.GetLocator().GetMessageId()
			}
			messages, err := s.cfg.Sessions.Messages(ctx, p, c.Organization, session, ids)
			if err != nil {
				s.cfg.Directory.Forget(c)
				return nil, err
			}
			for i := range min(len(batch), len(messages)) {
				batch[i].Text = messages[i].GetText()
			}
		}
	}
	return out, nil
}

var states = map[turn.State]ingressv1.TurnState{
	turn.Accepted:      ingressv1.TurnState_TURN_STATE_ACCEPTED,
	turn.Running:       ingressv1.TurnState_TURN_STATE_RUNNING,
	turn.Replied:       ingressv1.TurnState_TURN_STATE_REPLIED,
	turn.NativeCommand: ingressv1.TurnState_TURN_STATE_NATIVE_COMMAND,
	turn.NoReply:       ingressv1.TurnState_TURN_STATE_NO_REPLY,
	turn.Failed:        ingressv1.TurnState_TURN_STATE_FAILED,
	turn.Cancelled:     ingressv1.TurnState_TURN_STATE_CANCELLED,
}

func toTurn(t turn.Turn) *ingressv1.Turn {
	out := &ingressv1.Turn{TurnId: t.ID, State: states[t.State], Error: toError(t.Error), CreateTime: timestamppb.New(t.Created), EndTime: toTime(t.Ended),
		Timings: &ingressv1.TurnTimings{AcceptToAttachMs: t.Timings.AcceptToAttach, ColdAdmissionMs: t.Timings.ColdAdmission,
			FirstModelRequestMs: t.Timings.FirstModelRequest, ModelToolLoopMs: t.Timings.ModelToolLoop, PersistDeliverMs: t.Timings.PersistDeliver}}
	if t.State == turn.Replied {
		for _, l := range t.Replies {
			out.Replies = append(out.Replies, &ingressv1.Reply{Locator: toLocator(&l)})
		}
	}
	for _, m := range t.Messages {
		am := &ingressv1.AcceptedMessage{InboundId: m.InboundID}
		for _, b := range m.Blocks {
			ab := &ingressv1.AcceptedBlock{Type: b.Type, Sha256: hex.EncodeToString(b.SHA256)}
			if b.File != nil {
				ab.Uri = b.File.URI
			}
			am.Blocks = append(am.Blocks, ab)
		}
		out.Messages = append(out.Messages, am)
	}
	return out
}

func toTime(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

func toError(e *turn.Error) *ingressv1.TurnError {
	if e == nil {
		return nil
	}
	return &ingressv1.TurnError{Reason: e.Reason, Message: e.Message, Retryable: e.Retryable}
}

func toLocator(l *turn.Locator) *ingressv1.Locator {
	if l == nil {
		return nil
	}
	return &ingressv1.Locator{SessionId: l.SessionID, MessageId: l.MessageID}
}

func toEvent(e *turn.Event) *ingressv1.Event {
	out := &ingressv1.Event{Sequence: e.Sequence, Type: e.Type, TurnId: e.TurnID, State: states[e.State], Locator: toLocator(e.Locator),
		Error: toError(e.Error), CreateTime: timestamppb.New(e.Created)}
	if f := e.File; f != nil {
		out.File = &ingressv1.FileChange{Uri: f.URI, Change: f.Change, PreviousUri: f.Previous, Version: f.Version}
	}
	return out
}

func toLive(turnID string, u *turn.Update) *ingressv1.Event {
	out := &ingressv1.Event{Type: "delta", TurnId: turnID, Text: u.Text, CreateTime: timestamppb.Now()}
	if u.Tool != nil {
		out.Type = "tool"
		out.Tool = &ingressv1.ToolEvent{ToolCallId: u.Tool.ID, Title: u.Tool.Title, Kind: u.Tool.Kind, Status: u.Tool.Status}
	}
	return out
}

func transcriptMessage(session string, m *sessiondbv1.Message) *ingressv1.TranscriptMessage {
	out := &ingressv1.TranscriptMessage{Locator: &ingressv1.Locator{SessionId: session, MessageId: m.GetMessageId()}, Role: m.GetRole(),
		Text: m.GetText(), Version: m.GetVersion(), CreateTime: m.GetCreateTime()}
	for _, t := range m.GetToolCalls() {
		out.ToolCalls = append(out.ToolCalls, &ingressv1.ToolCall{Id: t.GetId(), Name: t.GetName(), Arguments: t.GetArguments()})
	}
	return out
}
