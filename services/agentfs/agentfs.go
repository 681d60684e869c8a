// Package agentfs is the service that owns every organization's cloud AgentFS.
package agentfs

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/agentfs/internal/home"
	"humanwork.internal/services/agentfs/internal/server"
	"humanwork.internal/services/agentfs/internal/store/libsql"
)

// Config is the service's part of its configuration file.
type Config struct {
	// DataDir holds the databases, <data_dir>/organizations/<id>.db, and the lock of this process.
	DataDir string `yaml:"data_dir"`
	// Model is written into the private configuration of new organizations.
	Model Model `yaml:"model"`
	// Soul is the SOUL.md of new organizations; empty: Hermes's own identity.
	Soul string `yaml:"soul"`
}

// Model is an OpenAI-compatible endpoint.
type Model struct {
	BaseURL string `yaml:"base_url"`
	Name    string `yaml:"name"`
	// APIKeyFile holds the key; read once, at start.
	APIKeyFile string `yaml:"api_key_file"`
	// ContextLength in tokens; 0: Hermes asks the endpoint, and openrouter.ai, when a session starts.
	ContextLength int64 `yaml:"context_length"`
}

// Validate checks the configuration and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("data_dir", c.DataDir)
	p.Require("model.api_key_file", c.Model.APIKeyFile)
	c.DataDir = config.Path(base, c.DataDir)
	c.Model.APIKeyFile = config.Path(base, c.Model.APIKeyFile)
	// The key is not read here: a file's absence is the start's to report.
	if err := c.Model.home("unread").Check(); err != nil {
		p.Addf("model", "%v", err)
	}
	if _, err := home.Effective(home.Private{}, c.Soul, nil); err != nil {
		p.Addf("soul", "holds a NUL or is not valid UTF-8")
	}
	return p.Err()
}

func (m Model) home(key string) home.Model {
	return home.Model{BaseURL: m.BaseURL, Name: m.Name, APIKey: key, ContextLength: m.ContextLength}
}

// Policy is who may call the service's methods.
func Policy() rpc.Policy { return server.Policy() }

// Service is agentfs.
type Service struct {
	store  *libsql.Store
	server *server.Server
}

// New builds the service from a validated configuration. It reads the model's key and opens
// nothing.
func New(cfg Config, _ serve.Environment) (*Service, error) {
	key, err := config.Secret(cfg.Model.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("model.api_key_file: %w", err)
	}
	model := cfg.Model.home(key)
	if err := model.Check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	store := libsql.New(cfg.DataDir)
	return &Service{store: store, server: &server.Server{Store: store, Defaults: home.Defaults{Model: model, Soul: cfg.Soul}}}, nil
}

// Register adds the service's methods to r.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.server.Register(r) }

// Run takes the data directory and serves until ctx ends.
func (s *Service) Run(ctx context.Context) error { return s.store.Run(ctx) }

// Ready says whether the data directory was taken. It touches no file.
func (s *Service) Ready(context.Context) error { return s.store.Ready() }
