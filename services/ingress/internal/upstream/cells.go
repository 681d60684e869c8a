package upstream

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
)

// Dialed is a Cells that makes one connection a target on first use and keeps it until Close.
type Dialed struct {
	dial func(target string) (*grpc.ClientConn, error)

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// NewDialed connects with dial.
func NewDialed(dial func(target string) (*grpc.ClientConn, error)) *Dialed {
	return &Dialed{dial: dial, conns: make(map[string]*grpc.ClientConn)}
}

// Supervisor implements Cells.
func (d *Dialed) Supervisor(target string) (*grpc.ClientConn, error) { return d.conn(target) }

// SessionDB implements Cells.
func (d *Dialed) SessionDB(target string) (*grpc.ClientConn, error) { return d.conn(target) }

func (d *Dialed) conn(target string) (*grpc.ClientConn, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c, ok := d.conns[target]; ok {
		return c, nil
	}
	c, err := d.dial(target)
	if err != nil {
		return nil, err
	}
	d.conns[target] = c
	return c, nil
}

// Close closes all connections.
func (d *Dialed) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var problems []error
	for _, c := range d.conns {
		problems = append(problems, c.Close())
	}
	d.conns = make(map[string]*grpc.ClientConn)
	return errors.Join(problems...)
}
