// Package routing is the service that knows organizations, conversations and the cells they live
// on, and that establishes them.
package routing

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/establish"
	"humanwork.internal/services/routing/internal/server"
	"humanwork.internal/services/routing/internal/store/postgres"
	"humanwork.internal/services/routing/internal/upstream"
)

// Config is the service's part of its configuration file.
type Config struct {
	// PostgresURLFile holds the URL of the database; the service keeps to the schema "routing".
	PostgresURLFile string `yaml:"postgres_url_file"`
	// DigestKeyFile holds at least 32 bytes that key the digests of requests and page tokens.
	// With another key, creating a conversation that exists answers a conflict.
	DigestKeyFile string `yaml:"digest_key_file"`
	// MaxConnections bounds the connections for short statements; default 8.
	MaxConnections int32 `yaml:"max_connections"`
	// MaxEstablishing bounds how many organizations establish at once, a connection each; default 8.
	MaxEstablishing int32 `yaml:"max_establishing"`
	// AgentFS is the gRPC target of agentfs.
	AgentFS string `yaml:"agentfs"`
	// Cells are the cells organizations may live on. A cell that still has organizations must stay.
	Cells []Cell `yaml:"cells"`
}

// Cell names a cell and the gRPC targets of its supervisor and sessiondb.
type Cell = directory.Cell

const minDigestKey = 32

var validCell = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)

// Validate checks the configuration, fills in defaults and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("postgres_url_file", c.PostgresURLFile)
	p.Require("digest_key_file", c.DigestKeyFile)
	p.Require("agentfs", c.AgentFS)
	c.PostgresURLFile = config.Path(base, c.PostgresURLFile)
	c.DigestKeyFile = config.Path(base, c.DigestKeyFile)
	for _, n := range []struct {
		key   string
		value *int32
	}{{"max_connections", &c.MaxConnections}, {"max_establishing", &c.MaxEstablishing}} {
		switch {
		case *n.value == 0:
			*n.value = 8
		case *n.value < 0 || *n.value > 1000:
			p.Addf(n.key, "is %d, want 1 to 1000", *n.value)
		}
	}
	if len(c.Cells) == 0 {
		p.Addf("cells", "names no cell")
	}
	seen := map[string]bool{}
	for i, cell := range c.Cells {
		key := fmt.Sprintf("cells[%d]", i)
		if !validCell.MatchString(cell.ID) {
			p.Addf(key+".id", "is %q, want 1 to 63 of [a-z0-9-]", cell.ID)
		}
		if seen[cell.ID] {
			p.Addf(key+".id", "repeats %q", cell.ID)
		}
		seen[cell.ID] = true
		p.Require(key+".supervisor", cell.Supervisor)
		p.Require(key+".sessiondb", cell.SessionDB)
	}
	return p.Err()
}

// Policy is who may call the service's methods.
func Policy() rpc.Policy { return server.Policy() }

// Service is routing.
type Service struct {
	store    *postgres.Store
	upstream *upstream.Upstream
	server   *server.Server
}

// New builds the service from a validated configuration. It reads the secrets and opens nothing.
func New(cfg Config, env serve.Environment) (*Service, error) {
	url, err := config.Secret(cfg.PostgresURLFile)
	if err != nil {
		return nil, fmt.Errorf("postgres_url_file: %w", err)
	}
	key, err := config.Secret(cfg.DigestKeyFile)
	if err != nil {
		return nil, fmt.Errorf("digest_key_file: %w", err)
	}
	if len(key) < minDigestKey {
		return nil, fmt.Errorf("digest_key_file: holds %d bytes, want at least %d", len(key), minDigestKey)
	}
	client := env.Client
	client.Self = rpc.Service("routing")
	up, err := upstream.Dial(cfg.AgentFS, cfg.Cells, client)
	if err != nil {
		return nil, fmt.Errorf("prepare connections: %w", err)
	}
	store := postgres.New(postgres.Options{URL: url, MaxConnections: cfg.MaxConnections, MaxEstablishing: cfg.MaxEstablishing})
	return &Service{store: store, upstream: up, server: &server.Server{
		Rows:    store,
		Cells:   cfg.Cells,
		PageKey: []byte(key),
		Establish: &establish.Establisher{Store: store, Cells: cfg.Cells, DigestKey: []byte(key),
			Files: upstream.Files{Upstream: up}, Sessions: upstream.Sessions{Upstream: up}, Machines: upstream.Machines{Upstream: up}},
	}}, nil
}

// Register adds the service's methods to r.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.server.Register(r) }

// Run opens and migrates the database and serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	return errors.Join(s.store.Run(ctx), s.upstream.Close())
}

// Ready says whether the database was opened. It queries nothing.
func (s *Service) Ready(context.Context) error { return s.store.Ready() }
