// Package harness runs the whole system as its real binaries on loopback, for tests and for the
// evidence: every service from a strict configuration file, a scripted model in this process, a
// fresh Postgres database behind a connection that can be cut, processes that can be killed.
package harness

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"humanwork.internal/integration/scriptedmodel"
)

// HermesVariable names the environment variable with the virtual environment of the real Hermes.
// `make test` and `make evidence` set it.
const HermesVariable = "HUMANWORK_TEST_HERMES"

// T is what a check reports to: *testing.T, or the evidence runner's own.
type T interface {
	Helper()
	Name() string
	Context() context.Context
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
	Failed() bool
}

// Names of the services that a system has one of. Gateways and ingress replicas are numbered.
const (
	Routing    = "routing"
	AgentFS    = "agentfs"
	SessionDB  = "sessiondb"
	Supervisor = "supervisor"
)

// Gateway and Ingress name a replica.
func Gateway(i int) string { return fmt.Sprintf("gateway-%d", i) }

// Ingress names an ingress replica.
func Ingress(i int) string { return fmt.Sprintf("ingress-%d", i) }

const (
	readyTimeout = 60 * time.Second
	stopTimeout  = 45 * time.Second
)

// Options describe a system. The zero value has one process a service.
type Options struct {
	// Replicas of gateway and ingress; gateway i speaks to ingress i.
	Replicas int
	// Venv is the Hermes installation; empty: the one HermesVariable names.
	Venv string
	// Model is the scripted model's set-up.
	Model scriptedmodel.Config
	// ContextLength is written into Hermes's configuration, in tokens; 0 means 200000, because Hermes
	// would ask a host on the Internet for it.
	ContextLength int64
	// Configure may change a service's configuration before it is written.
	Configure func(service string, file map[string]any)
	// NotReady starts without waiting until every gateway is ready.
	NotReady bool
}

// System is a running system.
type System struct {
	// Dir is the root of everything on disk. Its name is unique on this host, so that it also tells
	// this system's processes and mounts from all others.
	Dir string
	// Model answers Hermes.
	Model *scriptedmodel.Model
	// ModelURL is the model's base URL, with /v1.
	ModelURL string
	// Database is the connection of the services to Postgres.
	Database *Database
	// Client speaks to the gateways as the administrator.
	Client *Client

	t       T
	opts    Options
	bin     string
	ports   map[string]int
	order   []string // of starting
	all     map[string]*Process
	stopped bool
}

// Start starts a system and stops it when the check ends.
func Start(t T, opts Options) *System {
	t.Helper()
	opts.Replicas = max(opts.Replicas, 1)
	if opts.ContextLength == 0 {
		opts.ContextLength = 200_000
	}
	if opts.Venv == "" {
		opts.Venv = os.Getenv(HermesVariable)
	}
	if opts.Venv == "" {
		t.Fatalf("%s is not set: run with `make test` or `make evidence`, or name a virtual environment with Hermes", HermesVariable)
	}
	bin, err := Binaries()
	if err != nil {
		t.Fatalf("build the services: %v", err)
	}
	dir, err := os.MkdirTemp("", "hwsys-"+token(4)+"-")
	if err != nil {
		t.Fatalf("make the system's directory: %v", err)
	}
	s := &System{Dir: dir, t: t, opts: opts, bin: bin, ports: map[string]int{}, all: map[string]*Process{}}
	s.Database = openDatabase(t)
	s.startModel()
	t.Cleanup(s.cleanup) // before the model's and the database's own
	s.order = []string{AgentFS, SessionDB, Supervisor, Routing}
	for i := range opts.Replicas {
		s.order = append(s.order, Ingress(i))
	}
	for i := range opts.Replicas {
		s.order = append(s.order, Gateway(i))
	}
	if err := s.configure(); err != nil {
		t.Fatalf("configure the system: %v", err)
	}
	for _, name := range s.order {
		s.Launch(name)
	}
	var bases []string
	for i := range opts.Replicas {
		bases = append(bases, "http://"+s.Address(Gateway(i)))
	}
	s.Client = NewClient(s.secret("admin.token"), bases...)
	if !opts.NotReady {
		s.AwaitReady(t.Context())
	}
	return s
}

func (s *System) startModel() {
	lis, err := Listen(0)
	if err != nil {
		s.t.Fatalf("listen for the scripted model: %v", err)
	}
	s.ModelURL = "http://" + lis.Addr().String() + "/v1"
	s.Model = scriptedmodel.New(s.opts.Model)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Model.Serve(ctx, lis) }()
	s.t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			s.t.Errorf("scripted model: %v", err)
		}
	})
}

// Address is where a service listens.
func (s *System) Address(name string) string {
	return fmt.Sprintf("127.0.0.1:%d", s.ports[name])
}

// Names are the processes in the order they start in.
func (s *System) Names() []string { return slices.Clone(s.order) }

// Process is the present or last process of a service.
func (s *System) Process(name string) *Process { return s.all[name] }

// Launch starts a service that is not running and returns once it listens, or fails.
func (s *System) Launch(name string) {
	s.t.Helper()
	p, err := startProcess(processSpec{
		Name: name, Path: filepath.Join(s.bin, binaryOf(name)),
		Args: []string{"-config", filepath.Join(s.Dir, "config", name+".yaml")}, Log: filepath.Join(s.Dir, "log", name),
	})
	if err != nil {
		s.t.Fatalf("start %s: %v", name, err)
	}
	s.all[name] = p
	ctx, cancel := context.WithTimeoutCause(s.t.Context(), readyTimeout, fmt.Errorf("%s did not listen within %v", name, readyTimeout))
	defer cancel()
	if err := p.AwaitLine(ctx, `"Serving"`); err != nil {
		s.t.Fatalf("start %s: %v", name, err)
	}
}

// Kill ends a service with SIGKILL and returns when the process is gone.
func (s *System) Kill(name string) {
	s.t.Helper()
	if err := s.all[name].Kill(); err != nil {
		s.t.Fatalf("kill %s: %v", name, err)
	}
}

// Restart kills a service if it runs and starts it again.
func (s *System) Restart(name string) {
	s.t.Helper()
	s.Kill(name)
	s.Launch(name)
}

// AwaitReady waits until every gateway and every service behind it says that it is ready.
func (s *System) AwaitReady(ctx context.Context) {
	s.t.Helper()
	ctx, cancel := context.WithTimeoutCause(ctx, readyTimeout, fmt.Errorf("not ready within %v", readyTimeout))
	defer cancel()
	for _, name := range s.order {
		if err := s.awaitReady(ctx, name); err != nil {
			s.t.Fatalf("%s: %v", name, err)
		}
	}
}

// awaitReady asks /readyz: readiness is state in a service's memory that no one announces.
func (s *System) awaitReady(ctx context.Context, name string) error {
	beat := time.NewTicker(20 * time.Millisecond)
	defer beat.Stop()
	last := ""
	for {
		status, body, err := get(ctx, s.readyURL(name))
		if err == nil && status == 200 {
			return nil
		}
		if err == nil {
			last = body
		}
		select {
		case <-beat.C:
		case <-s.all[name].Done():
			return fmt.Errorf("ended while starting: %s", s.all[name].State())
		case <-ctx.Done():
			return fmt.Errorf("%w: %s", context.Cause(ctx), last)
		}
	}
}

// Readiness returns the status and the text of a service's /readyz.
func (s *System) Readiness(ctx context.Context, name string) (int, string) {
	s.t.Helper()
	status, body, err := get(ctx, s.readyURL(name))
	if err != nil {
		s.t.Fatalf("ask %s whether it is ready: %v", name, err)
	}
	return status, body
}

// Stop ends every service with SIGTERM, in the order that a person would, and checks that each
// ends with exit code 0 and that nothing is left.
func (s *System) Stop() {
	s.t.Helper()
	if s.stopped {
		return
	}
	s.stopped = true
	s.StopAll()
}

// StopAll is Stop for a system that is started again.
func (s *System) StopAll() {
	s.t.Helper()
	for _, name := range slices.Backward(s.order) {
		p := s.all[name]
		if p == nil || p.Ended() {
			continue
		}
		if err := p.Stop(stopTimeout); err != nil {
			s.t.Errorf("stop %s: %v", name, err)
		}
	}
	for _, left := range s.Leftovers() {
		s.t.Errorf("left over after the stop: %s", left)
	}
}

func (s *System) cleanup() {
	s.Stop()
	for _, p := range s.all {
		_ = p.Kill() // what failed to stop must not outlive the check
	}
	if !s.t.Failed() {
		if err := os.RemoveAll(s.Dir); err != nil {
			s.t.Errorf("remove the system's directory: %v", err)
		}
		return
	}
	for _, name := range s.order {
		if p := s.all[name]; p != nil {
			s.t.Logf("last lines of %s (all in %s):\n%s", name, p.Log(), p.Tail(12))
		}
	}
}

func token(bytes int) string {
	raw := make([]byte, bytes)
	rand.Read(raw)
	return hex.EncodeToString(raw)
}
