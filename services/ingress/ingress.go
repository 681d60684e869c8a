// Package ingress accepts messages into a durable queue of each conversation, runs their turns on
// the conversation's cell, and tells what came of them exactly once. README.md follows one turn.
package ingress

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/hub"
	"humanwork.internal/services/ingress/internal/instance"
	"humanwork.internal/services/ingress/internal/queue"
	"humanwork.internal/services/ingress/internal/server"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/store/postgres"
	"humanwork.internal/services/ingress/internal/turn"
	"humanwork.internal/services/ingress/internal/upstream"
	"humanwork.internal/services/ingress/internal/wake"
)

// Config is the service's part of its configuration file. A limit left out is the public contract's.
type Config struct {
	// PostgresURLFile holds the URL of the database; the service keeps to the schema "ingress".
	PostgresURLFile string `yaml:"postgres_url_file"`
	// Routing is the gRPC target of routing. Cells are found through it.
	Routing string `yaml:"routing"`
	// AgentFS is the gRPC target of agentfs, which has the files that messages name.
	AgentFS string `yaml:"agentfs"`
	// MaxConnections bounds the connections for short statements; default 16. Each instance uses
	// one more to listen, one for its own lock, and one for every other instance.
	MaxConnections int `yaml:"max_connections"`
	// WaitingTurns bounds the turns that wait in one conversation; default 100.
	WaitingTurns int `yaml:"waiting_turns"`
	// SubscriberQueue is how many events and updates a reader may be behind before it gets a gap;
	// default 1000.
	SubscriberQueue int `yaml:"subscriber_queue"`
	// TurnBlocks, TurnBytes, TextBytes and BlockDepth bound the blocks of a turn, their bytes, the
	// text of one block, and how deep a block nests; default 64, 16 MiB, 1 MiB, 64.
	TurnBlocks int `yaml:"turn_blocks"`
	TurnBytes  int `yaml:"turn_bytes"`
	TextBytes  int `yaml:"text_bytes"`
	BlockDepth int `yaml:"block_depth"`
	// RememberedConversations bounds the memory of where conversations live; default 100000.
	RememberedConversations int `yaml:"remembered_conversations"`
}

// maxTurnBlocks is what the store can number.
const maxTurnBlocks = 1 << 14

// Validate checks the configuration, fills in defaults and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("postgres_url_file", c.PostgresURLFile)
	p.Require("routing", c.Routing)
	p.Require("agentfs", c.AgentFS)
	c.PostgresURLFile = config.Path(base, c.PostgresURLFile)
	lim := block.DefaultLimits()
	for _, n := range []struct {
		key               string
		value             *int
		otherwise, atMost int
	}{
		{"max_connections", &c.MaxConnections, 16, 1000},
		{"waiting_turns", &c.WaitingTurns, 100, 1_000_000},
		{"subscriber_queue", &c.SubscriberQueue, 1000, 1_000_000},
		{"turn_blocks", &c.TurnBlocks, lim.Blocks, maxTurnBlocks},
		{"turn_bytes", &c.TurnBytes, lim.TotalBytes, rpc.MaxMessageBytes / 2},
		{"text_bytes", &c.TextBytes, lim.TextBytes, rpc.MaxMessageBytes / 2},
		{"block_depth", &c.BlockDepth, lim.Depth, 1000},
		{"remembered_conversations", &c.RememberedConversations, 100_000, 100_000_000},
	} {
		switch {
		case *n.value == 0:
			*n.value = n.otherwise
		case *n.value < 0 || *n.value > n.atMost:
			p.Addf(n.key, "is %d, want 1 to %d", *n.value, n.atMost)
		}
	}
	return p.Err()
}

// claimDeadline bounds how long a claim holds its conversation, and so the acceptance of its
// messages, while it asks sessiondb for the watermark.
const claimDeadline = 2 * time.Second

// Policy says who may call the service.
func Policy() rpc.Policy { return server.Policy() }

// Service is one instance.
type Service struct {
	log    *zap.Logger
	store  *postgres.Store
	conns  []*grpc.ClientConn // to routing and agentfs
	cells  *upstream.Cells
	queue  *queue.Queue
	hub    *hub.Hub
	keeper *instance.Keeper
	server *server.Server

	// work is the context of lanes and readers: it ends with Run.
	work    context.Context
	endWork context.CancelFunc

	drain    sync.Once
	stopping chan struct{}

	mu       sync.Mutex
	migrated bool
}

// New builds an instance from a validated configuration. It reads the secret and opens nothing.
func New(cfg Config, env serve.Environment) (*Service, error) {
	url, err := config.Secret(cfg.PostgresURLFile)
	if err != nil {
		return nil, fmt.Errorf("postgres_url_file: %w", err)
	}
	client, caller := env.Client, env.Client
	client.Self, caller.Self = rpc.Service("ingress"), nil
	var conns []*grpc.ClientConn
	for _, to := range []struct {
		key, target string
		as          rpc.ClientConfig
	}{{"routing", cfg.Routing, client}, {"agentfs", cfg.AgentFS, client}, {"agentfs", cfg.AgentFS, caller}} {
		conn, err := rpc.Dial(to.target, to.as)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", to.key, err), closeAll(conns))
		}
		conns = append(conns, conn)
	}
	routing, files := conns[0], upstream.NewFiles(conns[1], conns[2])
	pg, err := postgres.Open(url, int32(cfg.MaxConnections))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("postgres_url_file: %w", err), closeAll(conns))
	}
	log := env.Logger
	cells := upstream.NewCells(func(target string) (*grpc.ClientConn, error) { return rpc.Dial(target, client) })
	s := &Service{log: log, store: pg, conns: conns, cells: cells, stopping: make(chan struct{})}
	s.work, s.endWork = context.WithCancel(context.Background())
	directory := upstream.NewDirectory(routing, cfg.RememberedConversations)
	cell := upstream.NewCell(cells)
	s.hub = hub.New(s.work, pg, s.watch(directory, cell), cfg.SubscriberQueue, func(err error) {
		log.Warn("Could not read events", zap.Error(err))
		s.keeper.Suspect()
	})
	s.queue = queue.New(s.work, queue.Config{Store: pg, Directory: directory, Agent: cell, Sessions: cell, Files: files, Readers: s.hub,
		Judge: upstream.Judge, ClaimDeadline: claimDeadline,
		Suspect: func() { s.keeper.Suspect() }, Disowned: func() { s.keeper.Disowned() },
		Fault: func(action string, c turn.Conversation, turnID string, err error) {
			log.Warn("Could not "+action, zap.String("organization_id", c.Organization), zap.String("conversation_id", c.ID),
				zap.String("turn_id", turnID), zap.Error(err))
		}})
	s.keeper = instance.New(pg, s.queue, s.hub, func(action string, err error) {
		log.Warn("Lost the database", zap.String("action", action), zap.Error(err))
	})
	s.server = server.New(server.Config{Store: pg, Directory: directory, Sessions: cell, Files: files, Queue: s.queue, Hub: s.hub,
		Limits:     block.Limits{Blocks: cfg.TurnBlocks, TextBytes: cfg.TextBytes, TotalBytes: cfg.TurnBytes, Depth: cfg.BlockDepth},
		MaxWaiting: cfg.WaitingTurns, Suspect: s.keeper.Suspect, Stopping: s.stopping})
	return s, nil
}

// watch follows turns that other instances run, for the readers here.
func (s *Service) watch(d *upstream.Directory, cell *upstream.Cell) hub.Watch {
	return func(ctx context.Context, c turn.Conversation, emit func(string, turn.Update)) {
		run, err := s.store.Running(ctx, c)
		if err != nil {
			if !errors.Is(err, store.ErrNotFound) && ctx.Err() == nil {
				s.log.Warn("Could not look for a running turn", zap.Error(err))
			}
			return
		}
		if s.queue.Runs(c, run.TurnID) {
			return
		}
		p, err := d.Lookup(ctx, c)
		if err == nil && p.Epoch == run.Epoch {
			err = cell.Watch(ctx, p, run, func(u turn.Update) { emit(run.TurnID, u) })
		}
		// An attempt its supervisor does not know yet is announced when it streams. Live updates
		// that are lost otherwise are no loss of events.
		if err != nil && ctx.Err() == nil && !errors.Is(err, errs.NotFound) {
			s.log.Info("Could not follow a turn of another instance", zap.Error(err))
		}
	}
}

// Register adds the services.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	ingressv1.RegisterFileEventServiceServer(r, s.server)
	ingressv1.RegisterIngressServiceServer(r, s.server)
	ingressv1.RegisterIngressReadServiceServer(r, s.server)
}

// Drain ends waiting calls and event streams, so that a server that stops does not wait for them.
// Call it before the server is stopped.
func (s *Service) Drain() { s.drain.Do(func() { close(s.stopping) }) }

// Run works until ctx ends. Running turns are left to whoever takes them over.
func (s *Service) Run(ctx context.Context) error {
	err := s.run(ctx)
	s.Drain()
	s.endWork()
	s.queue.Wait()
	s.hub.Wait()
	s.store.Close()
	return errors.Join(err, s.cells.Close(), closeAll(s.conns))
}

func closeAll(conns []*grpc.ClientConn) error {
	var problems []error
	for _, c := range conns {
		problems = append(problems, c.Close())
	}
	return errors.Join(problems...)
}

func (s *Service) run(ctx context.Context) error {
	if err := s.migrate(ctx); err != nil {
		return err
	}
	s.keeper.Run(ctx)
	return nil
}

// migrate waits for the database as long as it takes, and fails for any other cause.
func (s *Service) migrate(ctx context.Context) error {
	var pause wake.Backoff
	for {
		err := s.store.Migrate(ctx)
		switch {
		case err == nil:
			s.mu.Lock()
			s.migrated = true
			s.mu.Unlock()
			return nil
		case ctx.Err() != nil:
			return nil
		case !errors.Is(err, store.ErrUnavailable):
			return err
		}
		s.log.Warn("Waiting for the database", zap.Error(err))
		_ = pause.Pause(ctx)
	}
}

// Ready says what is missing; it asks nothing of the database.
func (s *Service) Ready(context.Context) error {
	s.mu.Lock()
	migrated := s.migrated
	s.mu.Unlock()
	registered, listening := s.keeper.Ready()
	switch {
	case !migrated:
		return errors.New("ingress waits for its Postgres database; start it, or correct postgres_url_file")
	case !registered:
		return errors.New("ingress: not registered with the database")
	case !listening:
		return errors.New("ingress: not listening to the database")
	}
	return nil
}
