// Package sessiondb is the service that reads every organization's SessionDB (Hermes's state.db) on
// its cell: turn watermarks, the outcome of a turn, the canonical transcript.
package sessiondb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/sessiondb/internal/server"
	"humanwork.internal/services/sessiondb/internal/store/libsql"
)

// Config is the service's part of its configuration file.
type Config struct {
	// CellDir is the directory that supervisor and sessiondb of this cell share. The databases lie
	// at sessions/<organization>/state.db below it, on a file system of this kernel.
	CellDir string `yaml:"cell_dir"`
}

// Validate checks the configuration and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("cell_dir", c.CellDir)
	c.CellDir = config.Path(base, c.CellDir)
	return p.Err()
}

// Policy is who may call the service's methods.
func Policy() rpc.Policy { return server.Policy() }

// Service is sessiondb.
type Service struct {
	cellDir string
	store   *libsql.Store
	server  *server.Server
	running atomic.Bool
}

// New builds the service from a validated configuration. It opens nothing and calls no other
// service.
func New(cfg Config, _ serve.Environment) (*Service, error) {
	store := libsql.New(cfg.CellDir)
	return &Service{cellDir: cfg.CellDir, store: store, server: &server.Server{Store: store}}, nil
}

// Register adds the service's methods to r.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.server.Register(r) }

// Run makes sure that the cell's directory can be used, serves until ctx ends and then closes
// every database.
func (s *Service) Run(ctx context.Context) error {
	if err := os.MkdirAll(filepath.Join(s.cellDir, "sessions"), 0o700); err != nil {
		return errors.Join(fmt.Errorf("prepare cell_dir: %w", err), s.store.Close())
	}
	s.running.Store(true)
	<-ctx.Done()
	s.running.Store(false)
	if err := s.store.Close(); err != nil {
		return fmt.Errorf("close session databases: %w", err)
	}
	return nil
}

// Ready says whether Run is under way. It reads no file.
func (s *Service) Ready(context.Context) error {
	if !s.running.Load() {
		return errors.New("sessiondb is starting or stopping")
	}
	return nil
}
