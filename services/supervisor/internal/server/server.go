// Package server is the supervisor's gRPC surface: it checks, calls and converts.
package server

import (
	"context"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/rpc"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/supervisor/internal/holder"
)

// Policy says who may call what: turns are ingress's, establishment is routing's, and a native
// client comes through the gateway.
func Policy() rpc.Policy {
	return rpc.Policy{}.
		Allow([]string{rpc.RoleService + "ingress"},
			supervisorv1.TurnService_Prompt_FullMethodName,
			supervisorv1.TurnService_AttachTurn_FullMethodName,
			supervisorv1.TurnService_WatchTurn_FullMethodName,
			supervisorv1.TurnService_CancelTurn_FullMethodName,
			supervisorv1.TurnService_AcknowledgeTurn_FullMethodName).
		Allow([]string{rpc.RoleService + "routing"},
			supervisorv1.TurnService_EstablishSession_FullMethodName,
			supervisorv1.TurnService_GetEstablishment_FullMethodName).
		Allow([]string{rpc.RoleService + "gateway"},
			supervisorv1.RelayService_Attach_FullMethodName)
}

// Server answers both services.
type Server struct {
	supervisorv1.UnimplementedTurnServiceServer
	supervisorv1.UnimplementedRelayServiceServer
	Holder *holder.Holder
}

// Register adds both services to r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	supervisorv1.RegisterTurnServiceServer(r, s)
	supervisorv1.RegisterRelayServiceServer(r, s)
}

// EstablishSession implements supervisorv1.TurnServiceServer.
func (s *Server) EstablishSession(ctx context.Context, r *supervisorv1.EstablishSessionRequest) (*supervisorv1.EstablishSessionResponse, error) {
	id, err := s.Holder.Establish(ctx, r.GetOrganizationId(), r.GetConversationId(), r.GetEpoch())
	if err != nil {
		return nil, err
	}
	return &supervisorv1.EstablishSessionResponse{SessionId: id}, nil
}

// GetEstablishment implements supervisorv1.TurnServiceServer.
func (s *Server) GetEstablishment(ctx context.Context, r *supervisorv1.GetEstablishmentRequest) (*supervisorv1.GetEstablishmentResponse, error) {
	id, err := s.Holder.Establishment(ctx, r.GetOrganizationId(), r.GetConversationId(), r.GetEpoch())
	if err != nil {
		return nil, err
	}
	return &supervisorv1.GetEstablishmentResponse{SessionId: id}, nil
}

// Prompt implements supervisorv1.TurnServiceServer.
func (s *Server) Prompt(r *supervisorv1.PromptRequest, stream grpc.ServerStreamingServer[supervisorv1.PromptResponse]) error {
	sub, err := s.Holder.Prompt(attempt(r.GetAttempt()), r.GetSessionId(), r.GetBlocks())
	if err != nil {
		return err
	}
	defer sub.Close()
	err = follow(stream.Context(), sub, func(u *supervisorv1.Update) error {
		return stream.Send(&supervisorv1.PromptResponse{Event: &supervisorv1.PromptResponse_Update{Update: u}})
	})
	if err != nil {
		return err
	}
	return stream.Send(&supervisorv1.PromptResponse{Event: &supervisorv1.PromptResponse_Result{Result: result(sub.Result())}})
}

// AttachTurn implements supervisorv1.TurnServiceServer.
func (s *Server) AttachTurn(r *supervisorv1.AttachTurnRequest, stream grpc.ServerStreamingServer[supervisorv1.AttachTurnResponse]) error {
	sub, err := s.Holder.Attach(attempt(r.GetAttempt()))
	if err != nil {
		return err
	}
	if sub == nil {
		return stream.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Gone{Gone: &supervisorv1.Gone{}}})
	}
	defer sub.Close()
	err = follow(stream.Context(), sub, func(u *supervisorv1.Update) error {
		return stream.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Update{Update: u}})
	})
	if err != nil {
		return err
	}
	return stream.Send(&supervisorv1.AttachTurnResponse{Event: &supervisorv1.AttachTurnResponse_Result{Result: result(sub.Result())}})
}

// follow sends a turn's updates until it ends.
func follow(ctx context.Context, sub *holder.Subscription, send func(*supervisorv1.Update) error) error {
	for {
		d, ok, err := sub.Next(ctx)
		if err != nil || !ok {
			return err
		}
		if d.Update == nil {
			continue // only told of dropped ones
		}
		if err := send(update(d)); err != nil {
			return err
		}
	}
}

// WatchTurn implements supervisorv1.TurnServiceServer.
func (s *Server) WatchTurn(r *supervisorv1.WatchTurnRequest, stream grpc.ServerStreamingServer[supervisorv1.WatchTurnResponse]) error {
	sub, err := s.Holder.Watch(attempt(r.GetAttempt()))
	if err != nil {
		return err
	}
	defer sub.Close()
	for {
		d, ok, err := sub.Next(stream.Context())
		if err != nil || !ok {
			return err
		}
		if err := stream.Send(&supervisorv1.WatchTurnResponse{Update: update(d), Dropped: d.Dropped}); err != nil {
			return err
		}
	}
}

// CancelTurn implements supervisorv1.TurnServiceServer.
func (s *Server) CancelTurn(_ context.Context, r *supervisorv1.CancelTurnRequest) (*supervisorv1.CancelTurnResponse, error) {
	if err := s.Holder.Cancel(attempt(r.GetAttempt())); err != nil {
		return nil, err
	}
	return &supervisorv1.CancelTurnResponse{}, nil
}

// AcknowledgeTurn implements supervisorv1.TurnServiceServer.
func (s *Server) AcknowledgeTurn(_ context.Context, r *supervisorv1.AcknowledgeTurnRequest) (*supervisorv1.AcknowledgeTurnResponse, error) {
	if err := s.Holder.Acknowledge(attempt(r.GetAttempt()), r.GetEndChild()); err != nil {
		return nil, err
	}
	return &supervisorv1.AcknowledgeTurnResponse{}, nil
}

func attempt(a *supervisorv1.Attempt) holder.Attempt {
	return holder.Attempt{
		Organization: a.GetOrganizationId(), Conversation: a.GetConversationId(), Turn: a.GetTurnId(),
		Number: a.GetAttempt(), Epoch: a.GetEpoch(),
	}
}

// update converts a delta's update; nil stays nil.
func update(d holder.Delta) *supervisorv1.Update {
	switch {
	case d.Update == nil:
		return nil
	case d.Update.Tool != nil:
		t := d.Update.Tool
		return &supervisorv1.Update{Kind: &supervisorv1.Update_Tool{Tool: &supervisorv1.ToolUpdate{
			ToolCallId: t.ID, Title: t.Title, Kind: t.Kind, Status: t.Status,
		}}}
	}
	return &supervisorv1.Update{Kind: &supervisorv1.Update_Text{Text: d.Update.Text}}
}

var ends = map[holder.End]supervisorv1.TurnResult_End{
	holder.EndAnswered:      supervisorv1.TurnResult_END_ANSWERED,
	holder.EndError:         supervisorv1.TurnResult_END_ERROR,
	holder.EndChildExited:   supervisorv1.TurnResult_END_CHILD_EXITED,
	holder.EndNotDispatched: supervisorv1.TurnResult_END_NOT_DISPATCHED,
}

func result(r holder.Result) *supervisorv1.TurnResult {
	return &supervisorv1.TurnResult{
		End: ends[r.End], StopReason: r.StopReason, Reason: r.Reason, Message: r.Message,
		CancelSent: r.CancelSent, TextStreamed: r.TextStreamed, ChildEnded: r.ChildEnded,
		Timings: &supervisorv1.Timings{
			AttachUs:            r.Timings.Attach.Microseconds(),
			ColdAdmissionUs:     r.Timings.ColdAdmission.Microseconds(),
			FirstModelRequestUs: r.Timings.FirstModelRequest.Microseconds(),
			ModelToolLoopUs:     r.Timings.ModelToolLoop.Microseconds(),
		},
	}
}
