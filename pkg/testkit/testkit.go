// Package testkit is what tests of several services share: real databases and servers behind the
// production chain.
package testkit

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"net/url"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	"humanwork.internal/pkg/rpc"
)

// PostgresVariable names the environment variable with the URL of a server on which tests may
// make databases. `make test` sets it.
const PostgresVariable = "HUMANWORK_TEST_POSTGRES_URL"

// Postgres returns the URL of a fresh, empty database that is dropped when the test ends.
func Postgres(t testing.TB) string {
	t.Helper()
	base := os.Getenv(PostgresVariable)
	if base == "" {
		t.Fatalf("%s is not set: run the tests with `make test`, or set it to the URL of a Postgres server whose user may create databases", PostgresVariable)
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("parse %s: %v", PostgresVariable, err)
	}
	var id [6]byte
	if _, err := rand.Read(id[:]); err != nil {
		t.Fatal(err)
	}
	name := "hw_test_" + hex.EncodeToString(id[:])
	exec := func(sql string) error {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, base)
		if err != nil {
			return err
		}
		_, err = conn.Exec(ctx, sql)
		return errors.Join(err, conn.Close(ctx))
	}
	if err := exec("CREATE DATABASE " + name); err != nil {
		t.Fatalf("create test database: %v", err)
	}
	t.Cleanup(func() {
		if err := exec("DROP DATABASE " + name + " WITH (FORCE)"); err != nil {
			t.Errorf("drop test database: %v", err)
		}
	})
	u.Path = "/" + name
	return u.String()
}

// Logger logs to the test's own output.
func Logger(t testing.TB) *zap.Logger { return zaptest.NewLogger(t, zaptest.Level(zap.InfoLevel)) }

// Signer returns the signer all test servers share.
func Signer(t testing.TB) *rpc.Signer {
	t.Helper()
	s, err := rpc.NewSigner([]byte("a key that only tests of this project use"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Serve serves the registered services through the production chain until the test ends, and
// returns how to connect to them as a principal. cfg.Signer and cfg.Logger are filled in if nil.
func Serve(t testing.TB, cfg rpc.ServerConfig, register ...func(grpc.ServiceRegistrar)) func(rpc.Principal) *grpc.ClientConn {
	t.Helper()
	if cfg.Signer == nil {
		cfg.Signer = Signer(t)
	}
	if cfg.Logger == nil {
		cfg.Logger = Logger(t)
	}
	srv, err := rpc.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range register {
		r(srv)
	}
	lis := bufconn.Listen(1 << 20)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := srv.Serve(lis); err != nil {
			t.Errorf("serve: %v", err)
		}
	}()
	t.Cleanup(func() { srv.Stop(); <-done })
	return func(p rpc.Principal) *grpc.ClientConn {
		conn, err := rpc.Dial("passthrough:///test", rpc.ClientConfig{Signer: cfg.Signer, Self: &p,
			Dialer: func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := conn.Close(); err != nil {
				t.Errorf("close connection: %v", err)
			}
		})
		return conn
	}
}
