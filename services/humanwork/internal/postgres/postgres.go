// Package postgres runs the PostgreSQL server of one data directory, for the development command and for tests: it finds
// or fetches the programs, makes the cluster once, and leaves no process behind however this process ends. The server
// never runs as root and listens on 127.0.0.1 only.
//
// The data directory holds:
//
//	owner.lock, server.lock  who may start a server (see Start)
//	password, port           the server's password, and the port it had last
//	server.log               what the server printed, bounded, with one predecessor
//	base/                    the part of the server's user, with the cluster
package postgres

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap"

	"humanwork.internal/services/humanwork/internal/filelock"
)

const (
	leftoverLimit  = 10 * time.Second // for the processes of a killed instance to be gone
	fastLimit      = 15 * time.Second // for a fast shutdown, which writes a checkpoint
	immediateLimit = 5 * time.Second  // for an immediate one, which doesn't
	portAttempts   = 5
)

// Config says where the server lives.
type Config struct {
	// DataDir is made when missing. It may lie below directories that only its owner can enter.
	DataDir string
	// Port on 127.0.0.1; 0 takes the one of the last start, or a free one when there is none or it is taken.
	Port int
	// CacheDir keeps a fetched PostgreSQL for all data directories; "" is the user's cache directory, or one below DataDir.
	CacheDir string
	// Logger is told of start and stop. The server's own lines go to server.log.
	Logger *zap.Logger
}

// A Server is one running PostgreSQL server.
type Server struct {
	dir     string
	url     string
	process *process
	log     *boundedLog
	owner   *filelock.Lock
	lock    *filelock.Lock
	logger  *zap.Logger

	stop    sync.Once
	stopped chan struct{} // closed when Stop has finished
	asked   chan struct{} // closed when Stop has begun
}

// Start starts the server of the data directory and returns when it accepts connections. ctx bounds the start only. Errors
// that the user can mend have the types ErrInUse, ErrNotWritable, ErrDiskFull, ErrPortTaken, ErrVersion, ErrNoBinaries,
// ErrPassword and ErrNamespaces.
//
// Two locks guard the directory. owner.lock is held by this process alone: another living instance is an error at once.
// server.lock is inherited by every process of the server: after a kill it is free only when the last of them is gone,
// and then the cluster can't be in use.
func Start(ctx context.Context, cfg Config) (*Server, error) {
	dir, err := filepath.Abs(cfg.DataDir)
	if err != nil {
		return nil, fmt.Errorf("find the data directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fileError(dir, fmt.Errorf("make the data directory: %w", err))
	}
	s := &Server{dir: dir, logger: cfg.Logger, stopped: make(chan struct{}), asked: make(chan struct{})}
	if s.logger == nil {
		s.logger = zap.NewNop()
	}
	begun := time.Now()
	if err := s.takeLocks(ctx); err != nil {
		return nil, fileError(dir, err)
	}
	version, err := s.start(ctx, cfg)
	if err != nil {
		s.release()
		return nil, fileError(dir, err)
	}
	s.logger.Info("Postgres started", zap.String("dir", dir), zap.String("version", version), zap.Duration("took", time.Since(begun)))
	return s, nil
}

func (s *Server) takeLocks(ctx context.Context) error {
	path := filepath.Join(s.dir, "owner.lock")
	owner, err := filelock.Try(path)
	if errors.Is(err, filelock.ErrHeld) {
		holder, _ := os.ReadFile(path) // empty for a moment after the lock was taken
		return &ErrInUse{Dir: s.dir, Holder: "process " + string(trimLine(holder))}
	}
	if err != nil {
		return err
	}
	self := fmt.Sprintf("%d (%s)\n", os.Getpid(), filepath.Base(os.Args[0]))
	if err := errors.Join(owner.File().Truncate(0), writeAt(owner.File(), self)); err != nil {
		owner.Unlock()
		return fmt.Errorf("name the holder of the lock: %w", err)
	}
	limited, cancel := context.WithTimeout(ctx, leftoverLimit)
	defer cancel()
	lock, err := filelock.Wait(limited, filepath.Join(s.dir, "server.lock"))
	if err != nil {
		owner.Unlock()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			return &ErrInUse{Dir: s.dir, Holder: "processes of a server whose owner has ended"}
		}
		return err
	}
	s.owner, s.lock = owner, lock
	return nil
}

// start returns the server's version.
func (s *Server) start(ctx context.Context, cfg Config) (string, error) {
	account, err := programsAccount()
	if err != nil {
		return "", err
	}
	r := &runner{dir: s.dir, base: filepath.Join(s.dir, "base"), lock: s.lock.File(), account: account}
	if err := os.MkdirAll(r.base, 0o700); err != nil {
		return "", fmt.Errorf("make the data directory: %w", err)
	}
	// The programs' user can write below base: what we do there as root must not follow its links out of it.
	base, err := os.OpenRoot(r.base)
	if err != nil {
		return "", fmt.Errorf("open the data directory: %w", err)
	}
	defer func() { _ = base.Close() }()
	made, err := majorOf(base)
	if err != nil {
		return "", err
	}
	if r.programs, err = choose(ctx, s.dir, cacheDir(cfg), made); err != nil {
		return "", err
	}
	secret, err := password(s.dir, made != 0)
	if err != nil {
		return "", err
	}
	if err := r.own(base); err != nil {
		return "", err
	}
	if made == 0 {
		if err := r.initialize(ctx, base, secret); err != nil {
			return "", err
		}
	}
	if err := r.clearStale(base); err != nil {
		return "", err
	}
	if s.log, err = openLog(s.dir); err != nil {
		return "", fmt.Errorf("open the server's log: %w", err)
	}
	return r.programs.version, s.launch(ctx, r, cfg.Port, secret)
}

// launch starts the server, on another port as long as the chosen one turns out to be taken.
func (s *Server) launch(ctx context.Context, r *runner, wanted int, secret string) error {
	for attempt := 1; ; attempt++ {
		port := wanted
		if port == 0 {
			var err error
			if port, err = choosePort(ctx, s.dir); err != nil {
				return err
			}
		}
		err := s.serve(ctx, r, port, secret)
		switch {
		case err == nil:
			if err := replaceFile(filepath.Join(s.dir, "port"), strconv.Itoa(port)+"\n"); err != nil {
				s.end(context.Background())
				return fmt.Errorf("remember the port: %w", err)
			}
			return nil
		case !errors.Is(err, errPortTaken):
			return err
		case wanted != 0:
			return &ErrPortTaken{Port: wanted}
		case attempt == portAttempts:
			return fmt.Errorf("start postgres: %d free ports were taken before it had them", portAttempts)
		}
	}
}

// serve starts the server on port and waits until it has accepted a connection. On an error nothing of it runs.
func (s *Server) serve(ctx context.Context, r *runner, port int, secret string) error {
	out := newOutput(s.log)
	p, err := r.start(out, "postgres", serverArguments(r, port)...)
	if err != nil {
		return err
	}
	select {
	case <-out.ready:
	case <-p.done:
		return programError(s.dir, "postgres", p.err, out.tail())
	case <-ctx.Done():
		p.signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("wait for postgres to be ready: %w", context.Cause(ctx))
	}
	s.process = p
	s.url = (&url.URL{
		Scheme: "postgres", User: url.UserPassword(superuser, secret), Path: "/" + database,
		Host: "127.0.0.1:" + strconv.Itoa(port), RawQuery: "sslmode=disable",
	}).String()
	if err := s.connect(ctx); err != nil {
		s.end(context.Background())
		return err
	}
	return nil
}

// connect proves that the server takes the password that goes into the URL.
func (s *Server) connect(ctx context.Context) error {
	conn, err := pgconn.Connect(ctx, s.url)
	if err == nil {
		return conn.Close(ctx)
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "28P01" { // invalid_password
		return &ErrPassword{Dir: s.dir, Err: refused}
	}
	return fmt.Errorf("connect to postgres: %w", err)
}

// URL is the connection URL of the superuser, password included.
func (s *Server) URL() string { return s.url }

// Done is closed when the server has ended, whoever ended it. The directory stays locked until Stop.
func (s *Server) Done() <-chan struct{} { return s.process.done }

// Err tells, after Done, why the server ended; nil when Stop ended it.
func (s *Server) Err() error {
	select {
	case <-s.asked:
		return nil
	default:
	}
	err := s.process.err
	if err == nil {
		err = errors.New("exit status 0, asked for by nobody here")
	}
	return programError(s.dir, "postgres", err, s.process.output.tail())
}

// Stop ends the server and frees the directory: a fast shutdown, which rolls open transactions back; an immediate one when
// that takes too long or ctx ends, after which the next start recovers; a kill at the very last. When it returns, nothing
// of the server runs. It may be called again, and after Done.
func (s *Server) Stop(ctx context.Context) {
	s.stop.Do(func() {
		close(s.asked)
		begun := time.Now()
		how := s.end(ctx)
		s.release()
		s.logger.Info("Postgres stopped", zap.String("dir", s.dir), zap.String("shutdown", how), zap.Duration("took", time.Since(begun)))
		close(s.stopped)
	})
	<-s.stopped
}

// end brings the server to its end and says by which shutdown.
func (s *Server) end(ctx context.Context) string {
	fast, cancel := context.WithTimeout(ctx, fastLimit)
	defer cancel()
	s.process.signal(syscall.SIGINT)
	select {
	case <-s.process.done:
		return "fast"
	case <-fast.Done():
	}
	s.process.signal(syscall.SIGQUIT)
	limit := time.NewTimer(immediateLimit)
	defer limit.Stop()
	select {
	case <-s.process.done:
		return "immediate"
	case <-limit.C:
	}
	s.process.signal(syscall.SIGKILL)
	<-s.process.done
	return "kill"
}

func (s *Server) release() {
	if s.log != nil {
		s.log.close()
	}
	if s.lock != nil {
		s.lock.Drop()
		s.owner.Unlock()
	}
}

// serverArguments are the settings of the server, beside which the cluster's own configuration file holds none of ours.
func serverArguments(r *runner, port int) []string {
	settings := []string{
		"port=" + strconv.Itoa(port), "listen_addresses=127.0.0.1",
		"unix_socket_directories=", // a socket's path is limited to 107 bytes, and nobody needs one
		"max_connections=100", "shared_buffers=64MB", "max_wal_size=256MB", "jit=off", "huge_pages=off",
		"fsync=on", "wal_level=minimal", "max_wal_senders=0",
		"password_encryption=scram-sha-256", "timezone=UTC", "log_timezone=UTC",
		"logging_collector=off", "log_destination=stderr", "log_min_messages=warning", "log_checkpoints=off", "lc_messages=C",
		// The detail of an error may hold the values of a row, and those of an open turn are somebody's message.
		"log_error_verbosity=terse",
	}
	if r.programs.statements() {
		settings = append(settings, "shared_preload_libraries=pg_stat_statements")
	}
	args := []string{"-D", r.seen(clusterName)}
	for _, setting := range settings {
		args = append(args, "-c", setting)
	}
	return args
}

func cacheDir(cfg Config) string {
	if cfg.CacheDir != "" {
		return cfg.CacheDir
	}
	if user, err := os.UserCacheDir(); err == nil {
		return filepath.Join(user, "humanwork", "postgres")
	}
	return filepath.Join(cfg.DataDir, "programs")
}

func writeAt(w io.WriterAt, text string) error {
	_, err := w.WriteAt([]byte(text), 0)
	return err
}
