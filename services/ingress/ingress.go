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

// Config is one instance's. Zero values take the defaults of Defaults.
type Config struct {
	PostgresURL string `yaml:"-"`
	// PostgresConnections bounds the pool; each instance uses one more to listen, one for its own
	// lock, and one for every other instance.
	PostgresConnections int32 `yaml:"postgres_connections"`
	// WaitingTurns bounds the turns that wait in one conversation.
	WaitingTurns int `yaml:"waiting_turns"`
	// SubscriberQueue is how many events and updates a reader may be behind before it gets a gap.
	SubscriberQueue int `yaml:"subscriber_queue"`
	TurnBlocks      int `yaml:"turn_blocks"`
	TextBytes       int `yaml:"text_bytes"`
	TurnBytes       int `yaml:"turn_bytes"`
	BlockDepth      int `yaml:"block_depth"`
	// RememberedConversations bounds the memory of where conversations live.
	RememberedConversations int `yaml:"remembered_conversations"`
	// ClaimDeadline bounds how long a claim holds its conversation while it asks sessiondb.
	ClaimDeadline time.Duration `yaml:"claim_deadline"`
}

// Defaults are the limits of the public contract.
func Defaults() Config {
	l := block.DefaultLimits()
	return Config{PostgresConnections: 16, WaitingTurns: 100, SubscriberQueue: 1000, TurnBlocks: l.Blocks, TextBytes: l.TextBytes,
		TurnBytes: l.TotalBytes, BlockDepth: l.Depth, RememberedConversations: 100_000, ClaimDeadline: 2 * time.Second}
}

// Validate reports what is wrong below key.
func (c *Config) Validate(p *config.Problems, key string) {
	for name, n := range map[string]int64{"postgres_connections": int64(c.PostgresConnections), "waiting_turns": int64(c.WaitingTurns),
		"subscriber_queue": int64(c.SubscriberQueue), "turn_blocks": int64(c.TurnBlocks), "text_bytes": int64(c.TextBytes),
		"turn_bytes": int64(c.TurnBytes), "block_depth": int64(c.BlockDepth), "remembered_conversations": int64(c.RememberedConversations),
		"claim_deadline": int64(c.ClaimDeadline)} {
		if n < 1 {
			p.Addf(key+name, "must be positive")
		}
	}
	if c.TurnBlocks > 32767 {
		p.Addf(key+"turn_blocks", "must be at most 32767")
	}
	if c.TurnBytes > rpc.MaxMessageBytes/2 {
		p.Addf(key+"turn_bytes", "must be at most %d, half a message between services", rpc.MaxMessageBytes/2)
	}
}

// Cells connects to the services of cells by gRPC target.
type Cells = upstream.Cells

// DialedCells is the Cells of a process of its own: one connection a target, kept until Close.
type DialedCells = upstream.Dialed

// NewDialedCells connects with dial.
func NewDialedCells(dial func(target string) (*grpc.ClientConn, error)) *DialedCells {
	return upstream.NewDialed(dial)
}

// Policy says who may call the service.
func Policy() rpc.Policy { return server.Policy() }

// Service is one instance.
type Service struct {
	cfg    Config
	log    *zap.Logger
	store  *postgres.Store
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

// New makes an instance and opens nothing. routing's calls are made as this service.
func New(cfg Config, routing grpc.ClientConnInterface, cells Cells, log *zap.Logger) (*Service, error) {
	var p config.Problems
	p.Require("postgres_url", cfg.PostgresURL)
	cfg.Validate(&p, "")
	if err := p.Err(); err != nil {
		return nil, fmt.Errorf("ingress configuration: %w", err)
	}
	pg, err := postgres.Open(cfg.PostgresURL, cfg.PostgresConnections)
	if err != nil {
		return nil, err
	}
	s := &Service{cfg: cfg, log: log, store: pg, stopping: make(chan struct{})}
	s.work, s.endWork = context.WithCancel(context.Background())
	directory := upstream.NewDirectory(routing, cfg.RememberedConversations)
	cell := upstream.NewCell(cells)
	s.hub = hub.New(s.work, pg, s.watch(directory, cell), cfg.SubscriberQueue, func(err error) {
		log.Warn("Could not read events", zap.Error(err))
		s.keeper.Suspect()
	})
	s.queue = queue.New(s.work, queue.Config{Store: pg, Directory: directory, Agent: cell, Sessions: cell, Readers: s.hub,
		Judge: upstream.Judge, ClaimDeadline: cfg.ClaimDeadline,
		Suspect: func() { s.keeper.Suspect() }, Disowned: func() { s.keeper.Disowned() },
		Fault: func(action string, c turn.Conversation, turnID string, err error) {
			log.Warn("Could not "+action, zap.String("organization_id", c.Organization), zap.String("conversation_id", c.ID),
				zap.String("turn_id", turnID), zap.Error(err))
		}})
	s.keeper = instance.New(pg, s.queue, s.hub, func(action string, err error) {
		log.Warn("Lost the database", zap.String("action", action), zap.Error(err))
	})
	s.server = server.New(server.Config{Store: pg, Directory: directory, Sessions: cell, Queue: s.queue, Hub: s.hub,
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

// Register adds both services.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	ingressv1.RegisterIngressServiceServer(r, s.server)
	ingressv1.RegisterIngressReadServiceServer(r, s.server)
}

// Drain ends waiting calls and event streams, so that a server that stops does not wait for them.
// Call it before the server is stopped.
func (s *Service) Drain() { s.drain.Do(func() { close(s.stopping) }) }

// Run works until ctx ends. Running turns are left to whoever takes them over.
func (s *Service) Run(ctx context.Context) error {
	defer s.store.Close()
	defer func() {
		s.Drain()
		s.endWork()
		s.queue.Wait()
		s.hub.Wait()
	}()
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
		return errors.New("ingress: the database schema is not up to date yet")
	case !registered:
		return errors.New("ingress: not registered with the database")
	case !listening:
		return errors.New("ingress: not listening to the database")
	}
	return nil
}
