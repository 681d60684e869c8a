// Package serve is the main function of every gRPC service: one strict configuration file, one
// server with the whole chain, health, metrics and an orderly end.
package serve

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
)

// gracePeriod is how long the whole process has to stop. A service manager should wait longer.
const gracePeriod = 30 * time.Second

// Service is what a service's New returns.
type Service interface {
	// Register adds the service's methods.
	Register(r grpc.ServiceRegistrar)
	// Run serves until ctx ends, and returns when all it started has ended.
	Run(ctx context.Context) error
	// Ready says what is missing, from state already in memory.
	Ready(ctx context.Context) error
}

// Drainer is a service with calls that wait or stream for long. Drain ends them in good order; a
// server that stops would wait for them, and then cut them.
type Drainer interface{ Drain() }

// Drain is the component that drains svc, if it needs that. It comes after the service's server,
// so that it stops before it.
func Drain(svc Service) app.Component {
	return app.Component{Name: "drain", Run: func(ctx context.Context) error {
		<-ctx.Done()
		if d, ok := svc.(Drainer); ok {
			d.Drain()
		}
		return nil
	}}
}

// Environment is what New gets beside its own configuration. It opens nothing.
type Environment struct {
	Client  rpc.ClientConfig // how to reach other services; Self is the service's to set
	Logger  *zap.Logger
	Metrics prometheus.Registerer
}

// File is a service's configuration file: the keys all services have, and its own beside them.
type File[C any, P interface {
	*C
	config.Validator
}] struct {
	Listen           string   `yaml:"listen"`             // address of the gRPC server
	AdminAddr        string   `yaml:"admin_addr"`         // address of /healthz, /readyz and /metrics; empty: none
	PrincipalKeyFile string   `yaml:"principal_key_file"` // the key all services share, at least 32 bytes
	TLS              *rpc.TLS `yaml:"tls"`
	Service          C        `yaml:",inline"`
}

// Validate checks the common keys and the service's own.
func (f *File[C, P]) Validate(base string) error {
	var p config.Problems
	p.Require("listen", f.Listen)
	p.Require("principal_key_file", f.PrincipalKeyFile)
	f.PrincipalKeyFile = config.Path(base, f.PrincipalKeyFile)
	f.TLS.Validate(&p, "tls", base)
	return errors.Join(p.Err(), P(&f.Service).Validate(base))
}

// Main runs the service named name until a signal ends it.
func Main[C any, P interface {
	*C
	config.Validator
}, S Service](name string, policy rpc.Policy, build func(C, Environment) (S, error)) {
	path := flag.String("config", name+".yaml", "configuration `file`")
	flag.Parse()
	app.Main(name, func(ctx context.Context, log *zap.Logger) error {
		var file File[C, P]
		if err := config.Load(*path, &file); err != nil {
			return err
		}
		key, err := config.Secret(file.PrincipalKeyFile)
		if err != nil {
			return fmt.Errorf("principal_key_file: %w", err)
		}
		signer, err := rpc.NewSigner([]byte(key))
		if err != nil {
			return fmt.Errorf("principal_key_file: %w", err)
		}
		metrics := prometheus.NewRegistry()
		svc, err := build(file.Service, Environment{Client: rpc.ClientConfig{Signer: signer, TLS: file.TLS}, Logger: log, Metrics: metrics})
		if err != nil {
			return err
		}
		srv, err := rpc.NewServer(rpc.ServerConfig{Service: name, Logger: log, Signer: signer, Policy: policy, Registry: metrics, TLS: file.TLS})
		if err != nil {
			return err
		}
		svc.Register(srv)
		var lc net.ListenConfig
		lis, err := lc.Listen(ctx, "tcp", file.Listen)
		if err != nil {
			return fmt.Errorf("listen: %w", err)
		}
		log.Info("Serving", zap.String("address", lis.Addr().String()))
		return app.Run(ctx, log, gracePeriod,
			app.Component{Name: name, Run: svc.Run},
			app.Admin(file.AdminAddr, metrics, svc.Ready),
			app.GRPC("grpc", srv, lis, svc.Ready),
			Drain(svc))
	})
}
