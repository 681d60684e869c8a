package server

import (
	"context"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
)

// stall ends a call whose other side makes no progress for a time. Only the steps that wait for it
// count, so that a slow client is not taken for a slow service.
type stall struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
	limit  time.Duration
}

// newStall returns the context for the call, and what watches it. End must be called.
func newStall(ctx context.Context, limit time.Duration) (context.Context, *stall) {
	s := &stall{limit: limit}
	s.ctx, s.cancel = context.WithCancelCause(ctx)
	s.timer = time.AfterFunc(limit, func() {
		s.cancel(errs.New(errs.Timeout, rpc.ReasonTimeout, "agentfs made no progress for %v", limit))
	})
	s.timer.Stop()
	return s.ctx, s
}

// during runs one step of the call. Its error is the stall if there was one.
func (s *stall) during(step func() error) error {
	s.timer.Reset(s.limit)
	err := step()
	s.timer.Stop()
	if cause := context.Cause(s.ctx); err != nil && errs.ReasonOf(cause) != "" {
		return cause
	}
	return err
}

// end cancels the call; what the service holds for it is let go.
func (s *stall) end() {
	s.timer.Stop()
	s.cancel(nil)
}
