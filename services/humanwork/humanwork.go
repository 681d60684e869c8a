// Package humanwork is the whole system in one process: the development command composes the
// services' own New functions, exactly as their own binaries do, over in-memory connections.
package humanwork

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/services/agentfs"
	"humanwork.internal/services/gateway"
	"humanwork.internal/services/humanwork/internal/hermes"
	"humanwork.internal/services/humanwork/internal/loopback"
	"humanwork.internal/services/humanwork/internal/postgres"
	"humanwork.internal/services/ingress"
	"humanwork.internal/services/routing"
	"humanwork.internal/services/sessiondb"
	"humanwork.internal/services/supervisor"
)

// Hook must be the first call of main: some processes of an instance are this program again.
func Hook() {
	supervisor.Hook()
	postgres.Hook()
}

// gracePeriod is how long an instance has to stop.
const gracePeriod = 40 * time.Second

// Options say what to run beside the person's Settings.
type Options struct {
	Settings
	// SharedDir holds DataDir, or is it: the virtual environment with Hermes lies in it, for all
	// instances below, and no agent sees anything else of it.
	SharedDir string
	// Progress is told, in short lines, of long work such as the installation of Hermes.
	Progress func(string)
	Logger   *zap.Logger
}

// Address tells how to reach a running instance.
type Address struct {
	BaseURL string // of the REST API
	Token   string // the development administrator's
	Model   string // for people: which model new organizations use
}

// Run sets up what is missing, serves until ctx ends, and leaves no process and no mount behind.
// started is called once, when the API answers.
func Run(ctx context.Context, opt Options, started func(Address)) (err error) {
	dir, err := openDataDir(opt.DataDir)
	if err != nil {
		return err
	}
	defer dir.close()
	lis, err := listen(ctx, opt.HTTPAddr)
	if err != nil {
		return err
	}
	defer lis.Close()
	python, err := hermes.Ensure(ctx, hermes.Config{DataDir: opt.SharedDir, Venv: opt.HermesVenv, Progress: opt.Progress})
	if err != nil {
		return fmt.Errorf("set up Hermes: %w", err)
	}
	secrets, err := dir.secrets(opt.Settings)
	if err != nil {
		return err
	}
	opt.Progress("Starting Postgres")
	database, err := startDatabase(ctx, opt, dir, secrets)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, database.stop()) }()
	model, err := startModel(ctx, opt, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.stop()) }()

	opt.Progress("Starting the services")
	c := &composition{log: opt.Logger, signer: secrets.signer, metrics: prometheus.NewRegistry()}
	c.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	cellDir := filepath.Join(dir.path, "cell")
	const cell = "cell-0"
	add(c, "agentfs", agentfs.Policy(), agentfs.New, agentfs.Config{
		DataDir: filepath.Join(dir.path, "agentfs"), Routing: loopback.Target("routing"), Ingress: loopback.Target("ingress"),
		Model: agentfs.Model{BaseURL: model.baseURL, Name: model.name, APIKeyFile: secrets.modelKeyFile, ContextLength: model.contextLength},
	})
	add(c, "sessiondb", sessiondb.Policy(), sessiondb.New, sessiondb.Config{CellDir: cellDir})
	add(c, "supervisor", supervisor.Policy(), supervisor.New, supervisor.Config{
		CellDir: cellDir, DataDir: opt.SharedDir, HermesVenv: python.Venv(), AgentFS: loopback.Target("agentfs"),
	})
	add(c, "routing", routing.Policy(), routing.New, routing.Config{
		PostgresURLFile: secrets.postgresURLFile, DigestKeyFile: secrets.digestKeyFile, AgentFS: loopback.Target("agentfs"),
		Cells: []routing.Cell{{ID: cell, Supervisor: loopback.Target("supervisor"), SessionDB: loopback.Target("sessiondb")}},
	})
	add(c, "ingress", ingress.Policy(), ingress.New, ingress.Config{
		PostgresURLFile: secrets.postgresURLFile, Routing: loopback.Target("routing"), AgentFS: loopback.Target("agentfs"),
	})
	c.addGateway(lis, gateway.Config{
		Routing: loopback.Target("routing"), Ingress: loopback.Target("ingress"), AgentFS: loopback.Target("agentfs"),
		Watched: []gateway.Watched{
			{Name: "sessiondb", Target: loopback.Target("sessiondb")},
			{Name: "supervisor", Target: loopback.Target("supervisor")},
		},
		Tokens: []gateway.Token{{TokenFile: secrets.tokenFile, Subject: "development-administrator", Roles: []string{rpc.RoleAdmin}}},
	})
	if c.err != nil {
		return c.err
	}
	address := Address{BaseURL: "http://" + lis.Addr().String(), Token: secrets.token, Model: model.title}
	c.components = append(c.components, app.Component{Name: "started", Run: func(ctx context.Context) error {
		if err := awaitReady(ctx, c.gateway); err != nil {
			return err
		}
		started(address)
		<-ctx.Done()
		return nil
	}}, database.watch())
	return app.Run(ctx, opt.Logger, gracePeriod, c.components...)
}

// listen takes the address first, before any long work: a taken port is told at once.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	lis, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w; choose another with --http-addr or HUMANWORK_HTTP_ADDR, for example 127.0.0.1:0 for a free port", addr, err)
	}
	return lis, nil
}

// composition collects the services; the first error stays.
type composition struct {
	log        *zap.Logger
	signer     *rpc.Signer
	network    loopback.Network
	metrics    *prometheus.Registry
	gateway    *gateway.Service
	components []app.Component
	err        error
}

func (c *composition) environment(name string) serve.Environment {
	return serve.Environment{
		Client:  rpc.ClientConfig{Signer: c.signer, Dialer: c.network.Dial},
		Logger:  c.log.Named(name),
		Metrics: prometheus.WrapRegistererWith(prometheus.Labels{"service": name}, c.metrics),
	}
}

type validated[C any] interface {
	*C
	Validate(base string) error
}

// add builds a service and its server on the in-memory network.
func add[C any, P validated[C], S serve.Service](c *composition, name string, policy rpc.Policy, build func(C, serve.Environment) (S, error), cfg C) {
	if c.err != nil {
		return
	}
	c.err = func() error {
		if err := P(&cfg).Validate("/"); err != nil {
			return fmt.Errorf("configure %s: %w", name, err)
		}
		env := c.environment(name)
		svc, err := build(cfg, env)
		if err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
		srv, err := rpc.NewServer(rpc.ServerConfig{Service: name, Logger: env.Logger, Signer: c.signer, Policy: policy, Registry: env.Metrics})
		if err != nil {
			return fmt.Errorf("build the server of %s: %w", name, err)
		}
		svc.Register(grpc.ServiceRegistrar(srv))
		c.components = append(c.components,
			app.Component{Name: name, Run: svc.Run},
			app.GRPC(name+" server", srv, c.network.Listen(name), svc.Ready),
			serve.Drain(svc))
		return nil
	}()
}

func (c *composition) addGateway(lis net.Listener, cfg gateway.Config) {
	if c.err != nil {
		return
	}
	if err := cfg.Validate("/"); err != nil {
		c.err = fmt.Errorf("configure gateway: %w", err)
		return
	}
	svc, err := gateway.New(cfg, c.environment("gateway"), c.metrics)
	if err != nil {
		c.err = fmt.Errorf("build gateway: %w", err)
		return
	}
	c.gateway = svc
	c.components = append(c.components, app.Component{Name: "gateway", Run: func(ctx context.Context) error { return svc.Run(ctx, lis) }})
}
