// Command gateway serves the gateway: `gateway -config gateway.yaml`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/gateway"
)

// gracePeriod is how long the process has to stop. A service manager should wait longer.
const gracePeriod = 30 * time.Second

// file is the configuration file.
type file struct {
	Listen           string         `yaml:"listen"`             // address of the HTTP server
	PrincipalKeyFile string         `yaml:"principal_key_file"` // the key all services share, at least 32 bytes
	TLS              *rpc.TLS       `yaml:"tls"`                // towards the services behind
	Gateway          gateway.Config `yaml:",inline"`
}

// Validate checks the keys of the file and the service's own.
func (f *file) Validate(base string) error {
	var p config.Problems
	p.Require("listen", f.Listen)
	p.Require("principal_key_file", f.PrincipalKeyFile)
	f.PrincipalKeyFile = config.Path(base, f.PrincipalKeyFile)
	f.TLS.Validate(&p, "tls", base)
	return errors.Join(p.Err(), f.Gateway.Validate(base))
}

func main() {
	path := flag.String("config", "gateway.yaml", "configuration `file`")
	flag.Parse()
	app.Main("gateway", func(ctx context.Context, log *zap.Logger) error { return run(ctx, log, *path) })
}

func run(ctx context.Context, log *zap.Logger, path string) error {
	var f file
	if err := config.Load(path, &f); err != nil {
		return err
	}
	key, err := config.Secret(f.PrincipalKeyFile)
	if err != nil {
		return fmt.Errorf("principal_key_file: %w", err)
	}
	signer, err := rpc.NewSigner([]byte(key))
	if err != nil {
		return fmt.Errorf("principal_key_file: %w", err)
	}
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	svc, err := gateway.New(f.Gateway, serve.Environment{Client: rpc.ClientConfig{Signer: signer, TLS: f.TLS}, Logger: log, Metrics: metrics}, metrics)
	if err != nil {
		return err
	}
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", f.Listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", f.Listen, err)
	}
	log.Info("Serving", zap.String("address", lis.Addr().String()))
	return app.Run(ctx, log, gracePeriod, app.Component{Name: "gateway", Run: func(ctx context.Context) error { return svc.Run(ctx, lis) }})
}
