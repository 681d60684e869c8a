// Package loopback is the network of services that share one process: listeners in memory, found
// by the service's name.
package loopback

import (
	"context"
	"fmt"
	"net"
	"sync"

	"google.golang.org/grpc/test/bufconn"
)

// buffer is the size of each direction of a connection, in bytes.
const buffer = 1 << 20

// Target returns the gRPC target of the service called name.
func Target(name string) string { return "passthrough:///" + name }

// Network is a set of listeners. The zero value is ready.
type Network struct {
	mu        sync.Mutex
	listeners map[string]*bufconn.Listener
}

// Listen adds the listener of the service called name.
func (n *Network) Listen(name string) net.Listener {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners == nil {
		n.listeners = map[string]*bufconn.Listener{}
	}
	lis := bufconn.Listen(buffer)
	n.listeners[name] = lis
	return lis
}

// Dial connects to the service called name; it fits rpc.ClientConfig.Dialer.
func (n *Network) Dial(ctx context.Context, name string) (net.Conn, error) {
	n.mu.Lock()
	lis := n.listeners[name]
	n.mu.Unlock()
	if lis == nil {
		return nil, fmt.Errorf("no service %q in this process", name)
	}
	return lis.DialContext(ctx)
}
