package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/app"
	"humanwork.internal/services/gateway/internal/server"
)

// upstream is a service behind the gateway.
type upstream struct {
	name, target string
	conn         *grpc.ClientConn
}

// readyTimeout is below what probes commonly allow.
const readyTimeout = 2 * time.Second

// Ready returns an error that names what is missing.
func (s *Service) Ready(ctx context.Context) error {
	var problems []error
	for _, m := range s.missing(ctx) {
		problems = append(problems, fmt.Errorf("%s: %s", m.Service, m.Detail))
	}
	return errors.Join(problems...)
}

// missing asks the services behind whether they are ready. They answer from state in memory:
// nothing is queried.
func (s *Service) missing(ctx context.Context) []server.Missing {
	if s.stopping.Err() != nil {
		return []server.Missing{{Service: "gateway", State: server.StateNotReady, Detail: "it is shutting down; use another instance"}}
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	found := make([]*server.Missing, len(s.upstreams))
	var wg sync.WaitGroup
	for i, u := range s.upstreams {
		wg.Go(func() { found[i] = u.missing(ctx) })
	}
	wg.Wait()
	var out []server.Missing
	for _, m := range found {
		if m != nil {
			out = append(out, *m)
		}
	}
	return out
}

func (u upstream) missing(ctx context.Context) *server.Missing {
	var header metadata.MD
	resp, err := healthpb.NewHealthClient(u.conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
	if err != nil {
		return &server.Missing{Service: u.name, State: server.StateUnreachable,
			Detail: fmt.Sprintf("no answer at %s: start the service, or correct %q in the gateway's configuration", u.target, u.name)}
	}
	if resp.GetStatus() == healthpb.HealthCheckResponse_SERVING {
		return nil
	}
	detail := "it is starting or stopping"
	if why, err := strconv.Unquote(strings.Join(header.Get(app.NotReadyHeader), "")); err == nil {
		detail = why
	}
	return &server.Missing{Service: u.name, State: server.StateNotReady, Detail: detail}
}
