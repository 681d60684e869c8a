// Package server is sessiondb's gRPC surface: it checks, calls and converts.
package server

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	"humanwork.internal/services/sessiondb/internal/store"
	"humanwork.internal/services/sessiondb/internal/transcript"
)

// The reasons of this service beside the shared ones.
const (
	ReasonDamaged          errs.Reason = "SESSIONDB_DAMAGED"
	ReasonForeign          errs.Reason = "SESSIONDB_FOREIGN"
	ReasonBusy             errs.Reason = "SESSIONDB_BUSY"
	ReasonMessageNotFound  errs.Reason = "MESSAGE_NOT_FOUND"
	ReasonInvalidPageToken errs.Reason = "INVALID_PAGE_TOKEN"
	ReasonTooLarge         errs.Reason = "RESPONSE_TOO_LARGE"
)

const (
	defaultPageSize = 100
	// maxPageBytes ends a page early, well below what one gRPC message may hold.
	maxPageBytes = rpc.MaxMessageBytes / 4
	// maxBatchBytes refuses a batch that would not fit into one gRPC message.
	maxBatchBytes = rpc.MaxMessageBytes / 2
)

// Policy says who may call what. Sessions belong to an organization, not to a caller's
// conversation; only ingress and routing know which one a caller may see.
func Policy() rpc.Policy {
	ingress, routing := rpc.RoleService+"ingress", rpc.RoleService+"routing"
	return rpc.Policy{}.
		Allow([]string{rpc.RoleAdmin, ingress},
			sessiondbv1.SessionReadService_GetWatermark_FullMethodName,
			sessiondbv1.SessionReadService_ReadOutcome_FullMethodName,
			sessiondbv1.SessionReadService_ListMessages_FullMethodName,
			sessiondbv1.SessionReadService_BatchGetMessages_FullMethodName).
		Allow([]string{rpc.RoleAdmin, routing},
			sessiondbv1.SessionReadService_GetSessionWatermark_FullMethodName,
			sessiondbv1.SessionReadService_FindUnboundSessions_FullMethodName,
			sessiondbv1.SessionWriteService_ProvisionOrganization_FullMethodName)
}

// Server answers both services.
type Server struct {
	sessiondbv1.UnimplementedSessionReadServiceServer
	sessiondbv1.UnimplementedSessionWriteServiceServer
	Store store.Store
}

// Register adds both services to r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	sessiondbv1.RegisterSessionReadServiceServer(r, s)
	sessiondbv1.RegisterSessionWriteServiceServer(r, s)
}

// ProvisionOrganization implements sessiondbv1.SessionWriteServiceServer.
func (s *Server) ProvisionOrganization(ctx context.Context, r *sessiondbv1.ProvisionOrganizationRequest) (*sessiondbv1.ProvisionOrganizationResponse, error) {
	if err := s.Store.Provision(ctx, r.GetOrganizationId()); err != nil {
		return nil, convert(err)
	}
	return &sessiondbv1.ProvisionOrganizationResponse{}, nil
}

// GetWatermark implements sessiondbv1.SessionReadServiceServer.
func (s *Server) GetWatermark(ctx context.Context, r *sessiondbv1.GetWatermarkRequest) (*sessiondbv1.GetWatermarkResponse, error) {
	mark, err := s.Store.MessageWatermark(ctx, r.GetOrganizationId())
	if err != nil {
		return nil, convert(err)
	}
	return &sessiondbv1.GetWatermarkResponse{Watermark: mark}, nil
}

// GetSessionWatermark implements sessiondbv1.SessionReadServiceServer.
func (s *Server) GetSessionWatermark(ctx context.Context, r *sessiondbv1.GetSessionWatermarkRequest) (*sessiondbv1.GetSessionWatermarkResponse, error) {
	mark, err := s.Store.SessionWatermark(ctx, r.GetOrganizationId())
	if err != nil {
		return nil, convert(err)
	}
	return &sessiondbv1.GetSessionWatermarkResponse{Watermark: mark}, nil
}

// FindUnboundSessions implements sessiondbv1.SessionReadServiceServer.
func (s *Server) FindUnboundSessions(ctx context.Context, r *sessiondbv1.FindUnboundSessionsRequest) (*sessiondbv1.FindUnboundSessionsResponse, error) {
	ids, err := s.Store.UnboundSessions(ctx, r.GetOrganizationId(), r.GetAfterWatermark())
	if err != nil {
		return nil, convert(err)
	}
	return &sessiondbv1.FindUnboundSessionsResponse{SessionIds: ids}, nil
}

// ReadOutcome implements sessiondbv1.SessionReadServiceServer.
func (s *Server) ReadOutcome(ctx context.Context, r *sessiondbv1.ReadOutcomeRequest) (*sessiondbv1.ReadOutcomeResponse, error) {
	snap, err := s.Store.Above(ctx, r.GetOrganizationId(), r.GetSessionId(), r.GetWatermark())
	if err != nil {
		return nil, convert(err)
	}
	prompt := transcript.Prompt{Text: r.GetPromptText(), OtherBlocks: r.GetHasOtherBlocks()}
	out := transcript.New(snap.Rows, snap.Rewrites).Outcome(r.GetWatermark(), prompt)
	answer := &sessiondbv1.ReadOutcomeResponse{
		UserMessageId: out.UserID, UserMessageIds: out.UserIDs, EndWatermark: snap.Watermark,
	}
	for _, reply := range out.Replies {
		answer.Replies = append(answer.Replies, &sessiondbv1.ReplyRow{MessageId: reply.ID, FinishReason: reply.FinishReason})
	}
	return answer, nil
}

// ListMessages implements sessiondbv1.SessionReadServiceServer. A page may hold fewer messages
// than asked for although more follow: only an empty token ends the list.
func (s *Server) ListMessages(ctx context.Context, r *sessiondbv1.ListMessagesRequest) (*sessiondbv1.ListMessagesResponse, error) {
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultPageSize
	}
	after, err := decodeToken(r.GetPageToken(), r.GetSessionId())
	if err != nil {
		return nil, err
	}
	snap, err := s.Store.Window(ctx, r.GetOrganizationId(), r.GetSessionId(), after, size)
	if err != nil {
		return nil, convert(err)
	}
	answer := &sessiondbv1.ListMessagesResponse{}
	last, bytes := after, 0
	for _, m := range transcript.New(snap.Rows, snap.Rewrites).List() {
		if m.ID <= after || snap.UpTo != 0 && m.ID > snap.UpTo {
			continue
		}
		bytes += sizeOf(m)
		if len(answer.Messages) == size || bytes > maxPageBytes && len(answer.Messages) > 0 {
			answer.NextPageToken = encodeToken(last, r.GetSessionId())
			return answer, nil
		}
		answer.Messages = append(answer.Messages, message(m))
		last = m.ID
	}
	if snap.UpTo != 0 {
		answer.NextPageToken = encodeToken(snap.UpTo, r.GetSessionId())
	}
	return answer, nil
}

// BatchGetMessages implements sessiondbv1.SessionReadServiceServer.
func (s *Server) BatchGetMessages(ctx context.Context, r *sessiondbv1.BatchGetMessagesRequest) (*sessiondbv1.BatchGetMessagesResponse, error) {
	answer := &sessiondbv1.BatchGetMessagesResponse{}
	var whole *transcript.History
	bytes := 0
	for _, id := range r.GetMessageIds() {
		history := whole
		if history == nil {
			snap, err := s.Store.Window(ctx, r.GetOrganizationId(), r.GetSessionId(), id, 0)
			if err != nil {
				return nil, convert(err)
			}
			history = transcript.New(snap.Rows, snap.Rewrites)
			if snap.Whole {
				whole = history
			}
		}
		m, ok := history.Find(id)
		if !ok {
			return nil, errs.New(errs.NotFound, ReasonMessageNotFound, "the session has no message %d", id)
		}
		if bytes += sizeOf(m); bytes > maxBatchBytes {
			return nil, errs.New(errs.Exhausted, ReasonTooLarge, "the messages are larger than one answer can be: ask for fewer")
		}
		answer.Messages = append(answer.Messages, message(m))
	}
	return answer, nil
}

func message(m transcript.Message) *sessiondbv1.Message {
	out := &sessiondbv1.Message{
		MessageId: m.ID, Role: m.Role, Text: m.Text, Version: m.Version,
		CreateTime: timestamppb.New(m.CreateTime), FollowsLength: m.Doubtful,
	}
	for _, c := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, &sessiondbv1.ToolCall{Id: c.ID, Name: c.Name, Arguments: c.Arguments})
	}
	return out
}

// sizeOf is about what the message takes in an answer.
func sizeOf(m transcript.Message) int {
	n := len(m.Text) + 200
	for _, c := range m.ToolCalls {
		n += len(c.ID) + len(c.Name) + len(c.Arguments) + 20
	}
	return n
}

// Page tokens hold the last id seen and a mark of the session they belong to.
const tokenBytes = 16

func encodeToken(after int64, session string) string {
	b := binary.BigEndian.AppendUint64(nil, uint64(after))
	return base64.RawURLEncoding.EncodeToString(append(b, sessionMark(session)...))
}

func decodeToken(token, session string) (int64, error) {
	if token == "" {
		return 0, nil
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(b) != tokenBytes || string(b[8:]) != string(sessionMark(session)) || b[0]&0x80 != 0 {
		return 0, errs.New(errs.Invalid, ReasonInvalidPageToken, "page token was not given by this list")
	}
	return int64(binary.BigEndian.Uint64(b)), nil
}

func sessionMark(session string) []byte {
	sum := sha256.Sum256([]byte(session))
	return sum[:tokenBytes-8]
}

// convert gives the store's errors their kinds and reasons.
func convert(err error) error {
	switch {
	case errors.Is(err, store.ErrNotProvisioned):
		return errs.Wrap(err, errs.NotFound, rpc.ReasonOrganizationNotFound, "no such organization on this cell")
	case errors.Is(err, store.ErrDamaged):
		return errs.Wrap(err, errs.Precondition, ReasonDamaged, "the organization's session database is damaged; it was not changed")
	case errors.Is(err, store.ErrForeign):
		return errs.Wrap(err, errs.Precondition, ReasonForeign, "the organization's session database is not one that Hermes made; it was not changed")
	case errors.Is(err, store.ErrBusy):
		return errs.Wrap(err, errs.Unavailable, ReasonBusy, "the organization's session database is busy")
	case errors.Is(err, store.ErrClosed):
		return errs.Wrap(err, errs.Unavailable, rpc.ReasonUnavailable, "sessiondb is stopping")
	}
	return err
}
