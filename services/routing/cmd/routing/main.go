// Command routing serves the routing service: `routing -config routing.yaml`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/services/routing"
)

const gracePeriod = 20 * time.Second

type file struct {
	Listen           string         `yaml:"listen"`
	AdminAddr        string         `yaml:"admin_addr"`
	PrincipalKeyFile string         `yaml:"principal_key_file"`
	TLS              *rpc.TLS       `yaml:"tls"`
	Routing          routing.Config `yaml:",inline"`
}

func (f *file) Validate(base string) error {
	var p config.Problems
	p.Require("listen", f.Listen)
	p.Require("principal_key_file", f.PrincipalKeyFile)
	f.PrincipalKeyFile = config.Path(base, f.PrincipalKeyFile)
	f.TLS.Validate(&p, "tls", base)
	return errors.Join(p.Err(), f.Routing.Validate(base))
}

func main() {
	path := flag.String("config", "routing.yaml", "configuration file")
	flag.Parse()
	app.Main("routing", func(ctx context.Context, log *zap.Logger) error { return run(ctx, log, *path) })
}

func run(ctx context.Context, log *zap.Logger, path string) error {
	var cfg file
	if err := config.Load(path, &cfg); err != nil {
		return err
	}
	key, err := config.Secret(cfg.PrincipalKeyFile)
	if err != nil {
		return fmt.Errorf("principal_key_file: %w", err)
	}
	signer, err := rpc.NewSigner([]byte(key))
	if err != nil {
		return fmt.Errorf("principal_key_file: %w", err)
	}
	svc, err := routing.New(cfg.Routing, rpc.ClientConfig{Signer: signer, TLS: cfg.TLS})
	if err != nil {
		return err
	}
	metrics := prometheus.NewRegistry()
	srv, err := rpc.NewServer(rpc.ServerConfig{Service: "routing", Logger: log, Signer: signer, Policy: routing.Policy(), Registry: metrics, TLS: cfg.TLS})
	if err != nil {
		return err
	}
	svc.Register(srv)
	lis, err := net.Listen("tcp", cfg.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	return app.Run(ctx, log, gracePeriod,
		app.Component{Name: "routing", Run: svc.Run},
		app.Admin(cfg.AdminAddr, metrics, svc.Ready),
		app.GRPC("grpc", srv, lis, svc.Ready))
}
