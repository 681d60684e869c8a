// Package agentfs is the service that owns every organization's cloud AgentFS.
package agentfs

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/agentfs/internal/announce"
	"humanwork.internal/services/agentfs/internal/authority"
	"humanwork.internal/services/agentfs/internal/files"
	"humanwork.internal/services/agentfs/internal/home"
	"humanwork.internal/services/agentfs/internal/meter"
	"humanwork.internal/services/agentfs/internal/server"
	"humanwork.internal/services/agentfs/internal/store"
	"humanwork.internal/services/agentfs/internal/upstream"
)

// Policy is who may call the service's methods.
func Policy() rpc.Policy { return server.Policy() }

// Service is agentfs.
type Service struct {
	store     *store.Store
	holds     *files.Holds
	announcer *announce.Announcer
	server    *server.Server
	upstreams []*grpc.ClientConn
}

// New builds the service from a validated configuration. It reads secrets and opens nothing.
func New(cfg Config, env serve.Environment) (_ *Service, err error) {
	key, err := config.Secret(cfg.Model.APIKeyFile)
	if err != nil {
		return nil, fmt.Errorf("model.api_key_file: %w", err)
	}
	model := cfg.Model.home(key)
	if err := model.Check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	token := ""
	if cfg.Databases.TokenFile != "" {
		if token, err = config.Secret(cfg.Databases.TokenFile); err != nil {
			return nil, fmt.Errorf("databases.token_file: %w", err)
		}
	}
	client := env.Client
	client.Self = rpc.Service("agentfs")
	routing, err := rpc.Dial(cfg.Routing, client)
	if err != nil {
		return nil, fmt.Errorf("routing: %w", err)
	}
	ingress, err := rpc.Dial(cfg.Ingress, client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ingress: %w", err), routing.Close())
	}
	s := &Service{holds: &files.Holds{Turns: upstream.NewTurns(ingress), Grace: files.Grace}, upstreams: []*grpc.ClientConn{routing, ingress}}
	s.announcer = announce.New(upstream.NewEvents(ingress), func(organization string, err error) {
		env.Logger.Warn("Announcing file changes failed", zap.String("organization_id", organization), zap.Error(err))
	})
	s.store = store.New(store.Config{Dir: cfg.DataDir, URL: cfg.Databases.URL, Token: token,
		Organization: cfg.Quota.Organization.limits(), Project: cfg.Quota.Conversation.limits(), Changed: s.announcer.Wake})
	m, err := meter.New(env.Metrics, s.store.Databases)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("register metrics: %w", err), s.close())
	}
	s.server = server.New(server.Config{Store: s.store, Authority: authority.New(upstream.NewDirectory(routing), cfg.RememberedConversations),
		Holds: s.holds, Defaults: home.Defaults{Model: model, Soul: cfg.Soul}, Meter: m, MaxFile: cfg.MaxFileBytes,
		MaxAttachment: cfg.MaxAttachmentBytes, Transfers: cfg.MaxTransfers, Stall: cfg.StallTimeout})
	return s, nil
}

// Register adds the service's methods to r.
func (s *Service) Register(r grpc.ServiceRegistrar) { s.server.Register(r) }

// Run takes the data directory and serves until ctx ends.
func (s *Service) Run(ctx context.Context) error {
	// The announcer ends before the databases close.
	storeCtx, closeStore := context.WithCancel(context.WithoutCancel(ctx))
	defer closeStore()
	ended := make(chan error, 1)
	go func() { ended <- s.store.Run(storeCtx) }()
	select {
	case err := <-ended:
		return errors.Join(err, s.close())
	case <-s.store.Opened():
	}
	s.announcer.Run(ctx, s.store, s.store.Leftover())
	closeStore()
	return errors.Join(<-ended, s.close())
}

func (s *Service) close() error {
	var problems []error
	for _, c := range s.upstreams {
		problems = append(problems, c.Close())
	}
	return errors.Join(problems...)
}

// Ready says whether the data directory was taken. It touches no file.
func (s *Service) Ready(context.Context) error { return s.store.Ready() }
