package humanwork

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"humanwork.internal/integration/scriptedmodel"
	"humanwork.internal/pkg/app"
	"humanwork.internal/services/gateway"
	"humanwork.internal/services/humanwork/internal/hermes"
	"humanwork.internal/services/humanwork/internal/postgres"
	"humanwork.internal/services/humanwork/internal/sdks"
)

// database is the embedded server, or none when the person named an existing one.
type database struct{ server *postgres.Server }

func startDatabase(ctx context.Context, opt Options, dir *dataDir, secrets *secretFiles) (*database, error) {
	url := opt.PostgresURL
	db := &database{}
	if url == "" {
		server, err := postgres.Start(ctx, postgres.Config{DataDir: filepath.Join(dir.path, "postgres"), Logger: opt.Logger})
		if err != nil {
			return nil, fmt.Errorf("start Postgres: %w", err)
		}
		db.server, url = server, server.URL()
	}
	if _, err := keep(secrets.postgresURLFile, url); err != nil {
		return nil, errors.Join(err, db.stop())
	}
	return db, nil
}

// watch is a component that ends, and with it the instance, when the server ends by itself.
func (d *database) watch() app.Component {
	return app.Component{Name: "postgres", Run: func(ctx context.Context) error {
		if d.server == nil {
			<-ctx.Done()
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.server.Done():
			return fmt.Errorf("embedded Postgres ended: %w", d.server.Err())
		}
	}}
}

func (d *database) stop() error {
	if d.server == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), gracePeriod)
	defer cancel()
	d.server.Stop(ctx)
	return nil
}

// model is the endpoint new organizations are told of, and the demo model when that is it.
type model struct {
	baseURL, name, title string
	contextLength        int64
	cancel               context.CancelFunc
	done                 chan error
}

const (
	demoModelName     = "scripted-demo"
	demoContextLength = 200_000
)

func startModel(ctx context.Context, opt Options, dir *dataDir) (*model, error) {
	if opt.ModelBaseURL != "" {
		return &model{baseURL: opt.ModelBaseURL, name: opt.ModelName, title: opt.ModelName + " at " + opt.ModelBaseURL}, nil
	}
	lis, err := demoListener(ctx, opt.Logger, filepath.Join(dir.path, "demo-model.port"))
	if err != nil {
		return nil, err
	}
	// The demo model outlives ctx: the services' last turns end before it does.
	mctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	m := &model{
		baseURL: "http://" + lis.Addr().String() + "/v1", name: demoModelName, contextLength: demoContextLength,
		title:  "scripted demo model (no real model: set HUMANWORK_MODEL_BASE_URL for one)",
		cancel: cancel, done: make(chan error, 1),
	}
	srv := scriptedmodel.New(scriptedmodel.Config{ModelName: demoModelName, ContextLength: demoContextLength})
	go func() { m.done <- srv.Serve(mctx, lis) }()
	return m, nil
}

// demoListener listens where it did last time: organizations made then ask that address for ever.
func demoListener(ctx context.Context, log *zap.Logger, portFile string) (net.Listener, error) {
	var lc net.ListenConfig
	raw, err := os.ReadFile(portFile)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("read the demo model's port: %w", err)
	}
	if port, err := strconv.Atoi(strings.TrimSpace(string(raw))); err == nil {
		lis, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return lis, nil
		}
		log.Warn("The demo model's port is taken; organizations made before cannot reach it at the new one", zap.Int("port", port), zap.Error(err))
	}
	lis, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen for the demo model: %w", err)
	}
	if _, err := keep(portFile, strconv.Itoa(lis.Addr().(*net.TCPAddr).Port)); err != nil {
		return nil, errors.Join(err, lis.Close())
	}
	return lis, nil
}

func (m *model) stop() error {
	if m.cancel == nil {
		return nil
	}
	m.cancel()
	return <-m.done
}

// startLimit bounds how long the services may take to become ready.
const startLimit = time.Minute

// awaitReady returns when the gateway and all it watches are ready, or with what is missing.
func awaitReady(ctx context.Context, g *gateway.Service) error {
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	// The services become ready within milliseconds of each other and once only; asking them in
	// memory is simpler than a second way of telling.
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := g.Ready(limit)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		case <-limit.Done():
			return fmt.Errorf("not ready after %v:\n%w", startLimit, err)
		}
	}
}

// Setup installs Hermes below the data directory if it is not there, or checks the virtual
// environment that was named, and returns its version.
func Setup(ctx context.Context, s Settings, progress func(string)) (string, error) {
	installed, err := hermes.Ensure(ctx, hermes.Config{DataDir: s.DataDir, Venv: s.HermesVenv, Progress: progress})
	if err != nil {
		return "", fmt.Errorf("set up Hermes: %w", err)
	}
	return installed.Version(), nil
}

// TestEnvironment sets up what tests need and calls run with the environment variables that name
// it; all is stopped when run returns.
func TestEnvironment(ctx context.Context, s Settings, progress func(string), log *zap.Logger, run func(ctx context.Context, env []string) error) (err error) {
	installed, err := hermes.Ensure(ctx, hermes.Config{DataDir: s.DataDir, Venv: s.HermesVenv, Progress: progress})
	if err != nil {
		return fmt.Errorf("set up Hermes: %w", err)
	}
	env := []string{"HUMANWORK_TEST_HERMES=" + installed.Venv()}
	sdk, err := sdks.Ensure(ctx, s.DataDir, installed.Python(), progress)
	switch {
	case errors.Is(err, sdks.ErrPlatform):
		progress("without the AgentFS SDKs: " + err.Error())
	case err != nil:
		return err
	default:
		env = append(env, sdk.Environment()...)
	}
	server, err := postgres.Start(ctx, postgres.Config{DataDir: filepath.Join(s.DataDir, "test-postgres"), Logger: log})
	if err != nil {
		return fmt.Errorf("start Postgres: %w", err)
	}
	db := &database{server}
	defer func() { err = errors.Join(err, db.stop()) }()
	return run(ctx, append(env, "HUMANWORK_TEST_POSTGRES_URL="+server.URL()))
}
