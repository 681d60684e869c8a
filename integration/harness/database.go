package harness

import (
	"context"
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/pkg/testkit"
)

// Database is a fresh Postgres database behind a forwarder that can be cut.
type Database struct {
	// URL is what the services are given; it leads through the forwarder.
	URL string
	// Direct is the same database without the forwarder.
	Direct string

	upstream string
	lis      net.Listener

	mu    sync.Mutex
	down  bool
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func openDatabase(t T) *Database {
	t.Helper()
	base := os.Getenv(testkit.PostgresVariable)
	if base == "" {
		t.Fatalf("%s is not set: run with `make test` or `make evidence`, or name a Postgres server", testkit.PostgresVariable)
	}
	u, err := url.Parse(base)
	if err != nil {
		t.Fatalf("parse %s: %v", testkit.PostgresVariable, err)
	}
	name := "hw_system_" + token(6)
	if err := execute(base, "CREATE DATABASE "+name); err != nil {
		t.Fatalf("create the system's database: %v", err)
	}
	t.Cleanup(func() {
		if err := execute(base, "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Errorf("drop the system's database: %v", err)
		}
	})
	d := &Database{upstream: u.Host, conns: map[net.Conn]bool{}}
	u.Path = "/" + name
	d.Direct = u.String()
	d.lis, err = Listen(0)
	if err != nil {
		t.Fatalf("listen for Postgres connections: %v", err)
	}
	u.Host = d.lis.Addr().String()
	d.URL = u.String()
	d.wg.Go(d.serve)
	t.Cleanup(func() {
		d.lis.Close()
		d.Cut()
		d.wg.Wait()
	})
	return d
}

func execute(target, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := pgx.Connect(ctx, target)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// Query returns one row's columns from the database itself.
func (d *Database) Query(ctx context.Context, sql string, into ...any) error {
	conn, err := pgx.Connect(ctx, d.Direct)
	if err != nil {
		return err
	}
	return errors.Join(conn.QueryRow(ctx, sql).Scan(into...), conn.Close(ctx))
}

// Cut breaks every connection and refuses new ones, as a server that was killed does.
func (d *Database) Cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = true
	for c := range d.conns {
		c.Close()
	}
}

// Restore ends Cut.
func (d *Database) Restore() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = false
}

func (d *Database) serve() {
	for {
		near, err := d.lis.Accept()
		if err != nil {
			return
		}
		if !d.keep(near) {
			near.Close()
			continue
		}
		d.wg.Go(func() { d.forward(near) })
	}
}

// keep registers a connection so that Cut finds it.
func (d *Database) keep(c net.Conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down {
		return false
	}
	d.conns[c] = true
	return true
}

func (d *Database) drop(c net.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
	c.Close()
}

func (d *Database) forward(near net.Conn) {
	defer d.drop(near)
	far, err := net.Dial("tcp", d.upstream)
	if err != nil {
		return
	}
	if !d.keep(far) {
		far.Close()
		return
	}
	defer d.drop(far)
	var half sync.WaitGroup
	half.Go(func() {
		_, _ = io.Copy(far, near)
		d.drop(far)
	})
	_, _ = io.Copy(near, far)
	d.drop(near)
	half.Wait()
}
