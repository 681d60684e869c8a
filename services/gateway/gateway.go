// Package gateway is the service that products talk to: REST, Server-Sent Events and sign-in. It
// holds no state and forwards each call as the principal who made it.
package gateway

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/proto"
	"humanwork.internal/services/gateway/internal/apidoc"
	"humanwork.internal/services/gateway/internal/auth"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/problem"
	"humanwork.internal/services/gateway/internal/server"
)

const (
	readHeaderTimeout = 10 * time.Second
	idleTimeout       = 2 * time.Minute
	maxHeaderBytes    = 32 << 10
)

// Service is the gateway.
type Service struct {
	upstreams []upstream
	server    *http.Server
	stopping  context.Context
}

// New builds the service from a validated configuration. It reads the tokens and opens nothing.
// env.Client dials the services behind; metrics is what /metrics shows.
func New(cfg Config, env serve.Environment, metrics prometheus.Gatherer) (*Service, error) {
	var tokens auth.Tokens[rpc.Principal]
	for i, t := range cfg.Tokens {
		secret, err := config.Secret(t.TokenFile)
		if err != nil {
			return nil, fmt.Errorf("tokens[%d].token_file: %w", i, err)
		}
		if err := tokens.Add(secret, rpc.Principal{Organization: t.Organization, Subject: t.Subject, Roles: t.Roles}); err != nil {
			return nil, fmt.Errorf("tokens[%d].token_file: %w", i, err)
		}
	}
	client := env.Client
	client.Self = nil // each call is made as its caller
	routing, err := rpc.Dial(cfg.Routing, client)
	if err != nil {
		return nil, fmt.Errorf("routing: %w", err)
	}
	ingress, err := rpc.Dial(cfg.Ingress, client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ingress: %w", err), routing.Close())
	}
	s := &Service{upstreams: []upstream{{"routing", cfg.Routing, routing}, {"ingress", cfg.Ingress, ingress}}}
	agentfs, err := rpc.Dial(cfg.AgentFS, client)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("agentfs: %w", err), s.close())
	}
	s.upstreams = append(s.upstreams, upstream{"agentfs", cfg.AgentFS, agentfs})
	for _, w := range cfg.Watched {
		conn, err := rpc.Dial(w.Target, client)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watched service %s: %w", w.Name, err), s.close())
		}
		s.upstreams = append(s.upstreams, upstream{w.Name, w.Target, conn})
	}
	handler, stop, err := s.handler(cfg, env, metrics, &tokens, routing, ingress, agentfs)
	if err != nil {
		return nil, errors.Join(err, s.close())
	}
	quiet, err := zap.NewStdLogAt(env.Logger.Named("http"), zap.DebugLevel)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make server log: %w", err), s.close())
	}
	s.server = &http.Server{
		Handler: handler, ReadHeaderTimeout: readHeaderTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeaderBytes,
		// What net/http has to say is about connections that strangers broke.
		ErrorLog: quiet,
	}
	s.server.RegisterOnShutdown(func() {
		stop(errs.New(errs.Unavailable, problem.ReasonShuttingDown, "this gateway is shutting down; try again").WithRetryAfter(time.Second))
	})
	return s, nil
}

func (s *Service) handler(cfg Config, env serve.Environment, metrics prometheus.Gatherer, tokens *auth.Tokens[rpc.Principal],
	routing, ingress, agentfs grpc.ClientConnInterface) (http.Handler, context.CancelCauseFunc, error) {
	version := buildVersion()
	document, err := apidoc.Build(proto.OpenAPI, version)
	if err != nil {
		return nil, nil, err
	}
	routes, err := server.New(server.Config{
		Routing: routing, Ingress: ingress, AgentFS: agentfs, Gatherer: metrics, Registry: env.Metrics, Version: version,
		MaxBodyBytes: cfg.MaxBodyBytes, MaxFileBytes: cfg.MaxFileBytes, MaxAttachmentBytes: cfg.MaxAttachmentBytes,
		Stall: cfg.RequestTimeout, Maintenance: cfg.MaintenanceTimeout,
		Heartbeat: cfg.Heartbeat, EventWrite: cfg.WriteTimeout, Attach: cfg.AttachTimeout, Document: document, Ready: s.missing,
	})
	if err != nil {
		return nil, nil, err
	}
	stopping, stop := context.WithCancelCause(context.Background())
	s.stopping = stopping
	handler, err := edge.New(edge.Config{
		Logger: env.Logger, Registry: env.Metrics, Authenticate: tokens.Authenticate, MaxBodyBytes: cfg.MaxBodyBytes,
		BodyTimeout: cfg.BodyTimeout, WriteTimeout: cfg.WriteTimeout, RequestTimeout: cfg.RequestTimeout, Stopping: stopping,
	}, routes.Routes())
	return handler, stop, err
}

// Run serves HTTP on lis until ctx ends; then event streams and waiting requests end at once and
// the others may finish.
func (s *Service) Run(ctx context.Context, lis net.Listener) error {
	return errors.Join(app.HTTP("gateway", s.server, lis).Run(ctx), s.close())
}

// Handler returns what Run serves, for tests.
func (s *Service) Handler() http.Handler { return s.server.Handler }

func (s *Service) close() error {
	var problems []error
	for _, u := range s.upstreams {
		if err := u.conn.Close(); err != nil {
			problems = append(problems, fmt.Errorf("close connection to %s: %w", u.name, err))
		}
	}
	return errors.Join(problems...)
}

// buildVersion returns the version of the binary's main module, or the commit it was built from.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			return s.Value
		}
	}
	return info.Main.Version
}
