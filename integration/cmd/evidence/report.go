package main

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"humanwork.internal/integration/checks"
	"humanwork.internal/integration/harness"
)

// report is the harness.T of one check.
type report struct {
	name   string
	ctx    context.Context
	cancel context.CancelFunc
	log    io.Writer

	mu       sync.Mutex
	failures []string
	cleanups []func()
}

var _ harness.T = (*report)(nil)

func newReport(ctx context.Context, name string, log io.Writer) *report {
	ctx, cancel := context.WithCancel(ctx)
	return &report{name: name, ctx: ctx, cancel: cancel, log: log}
}

// run runs a check to its end and then its cleanups, newest first, as testing does.
func (r *report) run(check checks.Check) (figures string) {
	done := make(chan struct{})
	go func() { // of its own, because Fatalf ends it
		defer close(done)
		defer r.clean()
		defer r.guard()
		figures = check(r)
	}()
	<-done
	return figures
}

func (r *report) clean() {
	r.cancel()
	for {
		r.mu.Lock()
		if len(r.cleanups) == 0 {
			r.mu.Unlock()
			return
		}
		f := r.cleanups[len(r.cleanups)-1]
		r.cleanups = r.cleanups[:len(r.cleanups)-1]
		r.mu.Unlock()
		func() {
			defer r.guard()
			f()
		}()
	}
}

// guard makes a panic a failure, so that what the check started is still ended.
func (r *report) guard() {
	if p := recover(); p != nil {
		r.Errorf("panic: %v\n%s", p, debug.Stack())
	}
}

// Helper implements harness.T; no line numbers are shown.
func (r *report) Helper() {}

// Name implements harness.T.
func (r *report) Name() string { return r.name }

// Context implements harness.T.
func (r *report) Context() context.Context { return r.ctx }

// Logf implements harness.T.
func (r *report) Logf(format string, args ...any) {
	fmt.Fprintf(r.log, "%s: %s\n", r.name, fmt.Sprintf(format, args...))
}

// Errorf implements harness.T.
func (r *report) Errorf(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	r.mu.Lock()
	r.failures = append(r.failures, text)
	r.mu.Unlock()
	fmt.Fprintf(r.log, "%s: FAIL %s\n", r.name, text)
}

// Fatalf implements harness.T.
func (r *report) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

// Cleanup implements harness.T.
func (r *report) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// Failed implements harness.T.
func (r *report) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(slices.Clone(r.failures)) > 0
}
