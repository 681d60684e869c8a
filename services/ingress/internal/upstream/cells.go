package upstream

import (
	"errors"
	"sync"

	"google.golang.org/grpc"
)

// Cells keeps one connection for each gRPC target, made on first use, until Close.
type Cells struct {
	dial func(target string) (*grpc.ClientConn, error)

	mu    sync.Mutex
	conns map[string]*grpc.ClientConn
}

// NewCells connects with dial.
func NewCells(dial func(target string) (*grpc.ClientConn, error)) *Cells {
	return &Cells{dial: dial, conns: make(map[string]*grpc.ClientConn)}
}

func (d *Cells) conn(target string) (*grpc.ClientConn, error) {
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
func (d *Cells) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	var problems []error
	for _, c := range d.conns {
		problems = append(problems, c.Close())
	}
	d.conns = make(map[string]*grpc.ClientConn)
	return errors.Join(problems...)
}
