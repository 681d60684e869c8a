package bench

import (
	"bufio"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/integration/harness"
)

const (
	systemStart = 2 * time.Minute
	systemStop  = time.Minute
	// waitLimit is how long a turn may be waited for.
	waitLimit = time.Minute

	organization = "bench"
)

// system is a whole system as `humanwork run` starts it, over a database of its own.
type system struct {
	process *process
	client  *harness.Client
	drop    func() error
}

// startSystem starts the system with its data in dir.
func startSystem(ctx context.Context, opt Options, dir, modelURL, key, name string) (_ *system, err error) {
	database, drop, err := makeDatabase(ctx, opt.PostgresURL)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(opt.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the system's log: %w", err), drop())
	}
	defer log.Close()
	token := rand.Text()
	cmd := exec.Command(opt.Humanwork, "run") //nolint:noctx // ended by stop, and by this process's own end
	cmd.Env = append(os.Environ(),
		"HUMANWORK_DATA_DIR="+filepath.Join(dir, "data"), "HUMANWORK_HTTP_ADDR=127.0.0.1:0", "HUMANWORK_TOKEN="+token,
		"HUMANWORK_MODEL_BASE_URL="+modelURL, "HUMANWORK_MODEL_NAME="+name, "HUMANWORK_MODEL_API_KEY="+key,
		"HUMANWORK_POSTGRES_URL="+database, "HUMANWORK_HERMES_VENV="+opt.HermesVenv)
	cmd.Stderr = log
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the system: %w", err), drop())
	}
	defer stdout.Close()
	cmd.Stdout = out
	p, err := start(cmd)
	out.Close()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", opt.Humanwork, err), drop())
	}
	s := &system{process: p, drop: drop}
	address, err := s.address(ctx, stdout)
	if err != nil {
		return nil, errors.Join(err, s.stop())
	}
	s.client = harness.NewClient(token, address)
	if err := s.client.CreateOrganization(ctx, organization); err != nil {
		return nil, errors.Join(fmt.Errorf("create the organization: %w", err), s.stop())
	}
	return s, nil
}

// address reads what `humanwork run` prints once it serves.
func (s *system) address(ctx context.Context, stdout *os.File) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, systemStart, fmt.Errorf("the system did not start within %v", systemStart))
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = stdout.SetReadDeadline(time.Unix(1, 0)) })()
	var base string
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if f := strings.Fields(lines.Text()); len(f) > 1 && f[0] == "API" {
			base = strings.TrimSuffix(f[1], "/v1")
		}
		if strings.HasPrefix(lines.Text(), "Serving") && base != "" {
			return base, nil
		}
	}
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	return "", errors.New("the system ended while it started")
}

// turn sends a text and returns the reply, the time to it, and the phases the system told.
func (s *system) turn(ctx context.Context, conversation harness.Conversation, key, text string) (reply string, took time.Duration, phases map[string]float64, err error) {
	began := time.Now()
	accepted, _, err := s.client.Submit(ctx, conversation, key, harness.TextTurn(text))
	if err != nil {
		return "", 0, nil, fmt.Errorf("submit turn: %w", err)
	}
	submitted := time.Since(began)
	turn, err := s.client.Turn(ctx, conversation, accepted.TurnID, waitLimit)
	took = time.Since(began)
	if err != nil {
		return "", 0, nil, fmt.Errorf("wait for turn %s: %w", accepted.TurnID, err)
	}
	if turn.State != "REPLIED" || len(turn.Replies) != 1 {
		return "", 0, nil, fmt.Errorf("turn %s is %s (%s) with %d replies, want REPLIED with one", turn.TurnID, turn.State, turn.Reason(), len(turn.Replies))
	}
	phases = map[string]float64{"submit": millis(submitted)}
	for name, ms := range turn.Timings {
		phases[strings.TrimSuffix(name, "Ms")] = ms
	}
	return turn.Replies[0].Text, took, phases, nil
}

func (s *system) stop() error {
	err := s.process.stop(s.process.terminate, systemStop)
	if err != nil {
		err = fmt.Errorf("stop the system: %w", err)
	}
	return errors.Join(err, s.drop())
}

// makeDatabase makes a database on the server and returns its URL and how to drop it.
func makeDatabase(ctx context.Context, server string) (string, func() error, error) {
	u, err := url.Parse(server)
	if err != nil {
		return "", nil, fmt.Errorf("parse the URL of Postgres: %w", err)
	}
	name := "hw_bench_" + strings.ToLower(rand.Text()[:12])
	if err := execute(ctx, server, "CREATE DATABASE "+name); err != nil {
		return "", nil, fmt.Errorf("create a database: %w", err)
	}
	u.Path = "/" + name
	return u.String(), func() error {
		// Also after an interrupt, which ended ctx.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), systemStop)
		defer cancel()
		if err := execute(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			return fmt.Errorf("drop the database: %w", err)
		}
		return nil
	}, nil
}

func execute(ctx context.Context, server, sql string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(context.WithoutCancel(ctx)))
}
