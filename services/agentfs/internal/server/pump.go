package server

import (
	"context"
	"errors"
	"io"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

// pump calls each with the messages of a client's stream until the client closes its side. One that
// sends nothing for long must not keep what others wait for: hence a goroutine of its own for the
// stream, which ends with the call.
func pump[T any](ctx context.Context, stall time.Duration, recv func() (*T, error), each func(*T) error) error {
	type received struct {
		message *T
		err     error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	messages := make(chan received)
	go func() {
		for {
			m, err := recv()
			select {
			case messages <- received{m, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	stalled := time.NewTimer(stall)
	defer stalled.Stop()
	for {
		stalled.Reset(stall)
		select {
		case r := <-messages:
			switch {
			case errors.Is(r.err, io.EOF):
				return nil
			case r.err != nil && ctx.Err() != nil:
				return context.Cause(ctx)
			case r.err != nil:
				return r.err
			}
			if err := each(r.message); err != nil {
				return err
			}
		case <-stalled.C:
			return errs.New(errs.Timeout, fault.UploadStalled, "nothing came for %s", stall)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
