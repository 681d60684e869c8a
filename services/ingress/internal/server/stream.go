package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/ingress/internal/turn"
)

// replayPage is how many events one read of the log takes.
const replayPage = 500

// StreamEvents implements the contract. Replay and attach are one: the reader is subscribed before
// the log is read, and what is in both is sent once, because sequences have no holes.
func (s *Server) StreamEvents(r *ingressv1.StreamEventsRequest, stream grpc.ServerStreamingServer[ingressv1.StreamEventsResponse]) error {
	ctx := stream.Context()
	c, err := s.conversation(ctx, r)
	if err != nil {
		return err
	}
	sub, leave, err := s.cfg.Hub.Subscribe(ctx, c)
	if err != nil {
		return s.fromStore(err)
	}
	defer leave()
	last, err := s.replay(ctx, c, r.GetAfterSequence(), stream)
	if err != nil {
		return err
	}
	for {
		select {
		case it, ok := <-sub.Items():
			switch {
			case !ok && s.cfg.Hub.Overflowed(sub):
				gap := &ingressv1.Event{Type: "gap", LastSequence: last}
				if err := stream.Send(&ingressv1.StreamEventsResponse{Event: gap}); err != nil {
					return err
				}
				return errs.New(errs.OutOfRange, ReasonGap, "the reader was too slow; read on from sequence %d", last)
			case !ok:
				return nil
			case it.Event != nil && it.Event.Sequence <= last:
				continue
			}
			var ev *ingressv1.Event
			if it.Event != nil {
				ev = toEvent(it.Event)
				last = it.Event.Sequence
			} else {
				ev = toLive(it.TurnID, it.Update)
			}
			if err := stream.Send(&ingressv1.StreamEventsResponse{Event: ev}); err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Stopping:
			return errs.New(errs.Unavailable, ReasonStopping, "this instance is stopping; connect again and read on from sequence %d", last)
		}
	}
}

// replay sends the log above a sequence up to its present end, and returns the last one sent.
func (s *Server) replay(ctx context.Context, c turn.Conversation, last int64, stream grpc.ServerStreamingServer[ingressv1.StreamEventsResponse]) (int64, error) {
	for attached := false; ; attached = true {
		events, err := s.cfg.Store.Events(ctx, c, last, replayPage)
		if err != nil {
			return last, s.fromStore(err)
		}
		if !attached {
			// Without it a reader of a quiet conversation could not tell that it is attached.
			if err := stream.SendHeader(metadata.MD{}); err != nil {
				return last, err
			}
		}
		for i := range events {
			if err := stream.Send(&ingressv1.StreamEventsResponse{Event: toEvent(&events[i])}); err != nil {
				return last, err
			}
			last = events[i].Sequence
		}
		if len(events) < replayPage {
			return last, nil
		}
	}
}
