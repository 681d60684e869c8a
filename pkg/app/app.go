// Package app is the life of a process: components start in order, stop in reverse, and nothing
// outlives Run.
package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Component is one part of a process. Run returns when ctx ends and all it started has ended;
// returning before that, with or without an error, stops the process.
type Component struct {
	Name string
	Run  func(ctx context.Context) error
}

// ErrForced says that a component had not stopped by the end of the grace period.
var ErrForced = errors.New("did not stop in time")

// Run runs the components until ctx ends or one of them returns, then stops them in reverse
// order, each awaited before the next; all together they have the grace period.
func Run(ctx context.Context, log *zap.Logger, grace time.Duration, components ...Component) error {
	type running struct {
		Component
		stop context.CancelFunc
		done chan error
	}
	ended := make(chan struct{}, len(components))
	all := make([]running, 0, len(components))
	for _, c := range components {
		// Not a child of ctx: the end of ctx must stop the last component first, not all at once.
		cctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		r := running{c, stop, make(chan error, 1)}
		all = append(all, r)
		go func() {
			r.done <- r.Run(cctx)
			ended <- struct{}{}
		}()
	}
	select {
	case <-ctx.Done():
	case <-ended:
	}
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	var problems []error
	for i := len(all) - 1; i >= 0; i-- {
		r := all[i]
		r.stop()
		select {
		case err := <-r.done:
			if err != nil && !errors.Is(err, context.Canceled) {
				problems = append(problems, fmt.Errorf("%s: %w", r.Name, err))
			}
		case <-deadline.C:
			problems = append(problems, fmt.Errorf("%s: %w", r.Name, ErrForced))
			// The rest gets no grace, but is told.
			deadline.Reset(0)
		}
		log.Debug("Stopped a component", zap.String("component", r.Name))
	}
	return errors.Join(problems...)
}

// Main runs a process: SIGINT and SIGTERM end ctx, a second one ends the process at once. It
// exits with 1 and the error on standard error when run fails.
func Main(name string, run func(ctx context.Context, log *zap.Logger) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	log := NewLogger(name)
	go func() {
		<-ctx.Done()
		stop() // back to the default: a second signal kills
	}()
	err := run(ctx, log)
	_ = log.Sync() // fails on terminals; there is nothing left to tell
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}

// NewLogger returns a logger of JSON lines on standard error, at the level of the environment
// variable HUMANWORK_LOG_LEVEL (debug, info, warn, error; default info).
func NewLogger(name string) *zap.Logger {
	level := zapcore.InfoLevel
	text := os.Getenv("HUMANWORK_LOG_LEVEL")
	bad := text != "" && level.Set(text) != nil
	enc := zap.NewProductionEncoderConfig()
	enc.EncodeTime = zapcore.RFC3339NanoTimeEncoder
	core := zapcore.NewCore(zapcore.NewJSONEncoder(enc), zapcore.Lock(os.Stderr), level)
	log := zap.New(core).Named(name)
	if bad {
		log.Warn("Unknown HUMANWORK_LOG_LEVEL, using info", zap.String("value", text))
	}
	return log
}
