// Package supervisor runs the Hermes of one cell: a resident machine an organization, a child a
// conversation, turns on them, and the raw relay of native ACP clients.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/supervisor/internal/holder"
	"humanwork.internal/services/supervisor/internal/machine"
	"humanwork.internal/services/supervisor/internal/report"
	"humanwork.internal/services/supervisor/internal/server"
	"humanwork.internal/services/supervisor/internal/tree"
	"humanwork.internal/services/supervisor/internal/upstream"
)

// Config is the service's part of its configuration file. Durations are like "10s".
type Config struct {
	// CellDir is the directory this supervisor shares with its sessiondb; one supervisor at a time.
	CellDir string `yaml:"cell_dir"`
	// DataDir is what no child may see of this host's own data; it holds CellDir. Empty: the
	// directory CellDir lies in.
	DataDir string `yaml:"data_dir"`
	// HermesVenv is the Python virtual environment with Hermes.
	HermesVenv string `yaml:"hermes_venv"`
	// AgentFS is the gRPC target of agentfs.
	AgentFS string `yaml:"agentfs"`
	// MaxChildren bounds the Hermes processes of one organization, about 100 MB each; default 32.
	MaxChildren int `yaml:"max_children"`
	// AdmissionTimeout bounds the start of a child and the making of a session; default 2m.
	AdmissionTimeout time.Duration `yaml:"admission_timeout"`
	// CancelTimeout is how long Hermes may take to stop after a cancel; default 10s.
	CancelTimeout time.Duration `yaml:"cancel_timeout"`
	// WatchdogTimeout is the longest silence of a running turn; default 15m.
	WatchdogTimeout time.Duration `yaml:"watchdog_timeout"`
	// ExitGrace is how long a child may take to exit once its input is closed; default 5s.
	ExitGrace time.Duration `yaml:"exit_grace"`
	// DrainTimeout is how long running turns may go on when the supervisor stops; default 10s.
	DrainTimeout time.Duration `yaml:"drain_timeout"`
}

// Validate checks the configuration, fills in defaults and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("cell_dir", c.CellDir)
	p.Require("hermes_venv", c.HermesVenv)
	p.Require("agentfs", c.AgentFS)
	for _, path := range []*string{&c.CellDir, &c.DataDir, &c.HermesVenv} {
		*path = config.Path(base, *path)
	}
	switch {
	case c.MaxChildren == 0:
		c.MaxChildren = 32
	case c.MaxChildren < 0 || c.MaxChildren > 10_000:
		p.Addf("max_children", "is %d, want 1 to 10000", c.MaxChildren)
	}
	for _, d := range []struct {
		key   string
		value *time.Duration
		def   time.Duration
	}{
		{"admission_timeout", &c.AdmissionTimeout, 2 * time.Minute},
		{"cancel_timeout", &c.CancelTimeout, 10 * time.Second},
		{"watchdog_timeout", &c.WatchdogTimeout, 15 * time.Minute},
		{"exit_grace", &c.ExitGrace, 5 * time.Second},
		{"drain_timeout", &c.DrainTimeout, 10 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < 0 {
			p.Addf(d.key, "is %s, want a positive duration", *d.value)
		}
	}
	return p.Err()
}

// Policy is who may call the service's methods.
func Policy() rpc.Policy { return server.Policy() }

// Hook must be the first call of every main function that runs a supervisor: machines and their
// children are this program again, and Hook is where they begin. Anywhere else it does nothing.
func Hook() { machine.Hook() }

// Service is the supervisor.
type Service struct {
	tree    *tree.Tree
	holder  *holder.Holder
	server  *server.Server
	agentfs *grpc.ClientConn
}

// New builds the service from a validated configuration and opens nothing.
func New(cfg Config, env serve.Environment) (*Service, error) {
	env.Client.Self = rpc.Service("supervisor")
	conn, err := rpc.Dial(cfg.AgentFS, env.Client)
	if err != nil {
		return nil, fmt.Errorf("prepare the connection to agentfs: %w", err)
	}
	observer, err := report.New(env.Logger, env.Metrics)
	if err != nil {
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	t := &tree.Tree{Dir: cfg.CellDir, Data: cfg.DataDir, Venv: cfg.HermesVenv}
	h := holder.New(holder.Config{
		MaxChildren: cfg.MaxChildren, AdmissionTimeout: cfg.AdmissionTimeout, CancelTimeout: cfg.CancelTimeout,
		WatchdogTimeout: cfg.WatchdogTimeout, ExitGrace: cfg.ExitGrace, DrainTimeout: cfg.DrainTimeout,
	}, t, upstream.Homes{Client: agentfsv1.NewEstablishmentServiceClient(conn)}, observer)
	return &Service{tree: t, holder: h, server: &server.Server{Holder: h}, agentfs: conn}, nil
}

// Register adds the service's methods to r.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.server.Register(r) }

// Run takes the cell, once nothing of an earlier supervisor lives, and serves until ctx ends. It
// returns when every machine and child is gone.
func (s *Service) Run(ctx context.Context) error {
	defer s.agentfs.Close()
	if err := s.tree.Open(ctx); err != nil {
		return err
	}
	return errors.Join(s.holder.Run(ctx), s.tree.Close())
}

// Ready says what keeps turns from running here, and what to do about it.
func (s *Service) Ready(ctx context.Context) error { return s.tree.Ready(ctx) }
