package scriptedmodel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"
)

// drainTime is how long Serve waits for answers in progress once their context has ended.
const drainTime = 5 * time.Second

// Serve serves the model on l until ctx ends, cuts the answers still in progress, and returns nil. It closes l.
func (m *Model) Serve(ctx context.Context, l net.Listener) error {
	requests, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	srv := &http.Server{
		Handler:           m.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		BaseContext:       func(net.Listener) context.Context { return requests },
	}
	failed := make(chan error, 1)
	go func() { failed <- srv.Serve(l) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve scripted model: %w", err)
	case <-ctx.Done():
	}
	end()
	drain, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTime)
	defer cancel()
	if err := srv.Shutdown(drain); err != nil {
		err = srv.Close() // a client that keeps sending its body holds Shutdown up
		if err != nil {
			return fmt.Errorf("close scripted model: %w", err)
		}
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve scripted model: %w", err)
	}
	return nil
}
