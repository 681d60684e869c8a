package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// drainDeadline is how long running calls have once a server stops.
const drainDeadline = 10 * time.Second

// NotReadyHeader carries, quoted, why a health Check is NOT_SERVING.
const NotReadyHeader = "humanwork-not-ready"

// health answers the standard health service from ready, asked at each Check. ready reads state
// already in memory and queries nothing.
type health struct {
	healthpb.UnimplementedHealthServer
	ready    func(context.Context) error
	stopping chan struct{}
}

func (h *health) status(ctx context.Context) *healthpb.HealthCheckResponse {
	st := healthpb.HealthCheckResponse_SERVING
	select {
	case <-h.stopping:
		st = healthpb.HealthCheckResponse_NOT_SERVING
	default:
		if h.ready(ctx) != nil {
			st = healthpb.HealthCheckResponse_NOT_SERVING
		}
	}
	return &healthpb.HealthCheckResponse{Status: st}
}

// Check answers the present state; what is missing goes into a header, which standard probes
// ignore and the gateway shows.
func (h *health) Check(ctx context.Context, _ *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	if err := h.ready(ctx); err != nil {
		// A header that cannot be sent any more leaves the state itself, which is enough.
		_ = grpc.SetHeader(ctx, metadata.Pairs(NotReadyHeader, strconv.Quote(err.Error())))
	}
	return h.status(ctx), nil
}

// Watch sends the present state, and NOT_SERVING when the server stops.
func (h *health) Watch(_ *healthpb.HealthCheckRequest, s grpc.ServerStreamingServer[healthpb.HealthCheckResponse]) error {
	if err := s.Send(h.status(s.Context())); err != nil {
		return err
	}
	select {
	case <-s.Context().Done():
		return nil
	case <-h.stopping:
		return s.Send(h.status(s.Context()))
	}
}

// GRPC serves srv on lis, with the standard health service answering from ready. At the end it
// says NOT_SERVING, lets running calls finish, and after a deadline ends them.
func GRPC(name string, srv *grpc.Server, lis net.Listener, ready func(context.Context) error) Component {
	h := &health{ready: ready, stopping: make(chan struct{})}
	healthpb.RegisterHealthServer(srv, h)
	return Component{Name: name, Run: func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- srv.Serve(lis) }()
		select {
		case err := <-failed:
			return fmt.Errorf("serve gRPC: %w", err)
		case <-ctx.Done():
		}
		close(h.stopping)
		drained := make(chan struct{})
		go func() { srv.GracefulStop(); close(drained) }()
		hard := time.NewTimer(drainDeadline)
		defer hard.Stop()
		select {
		case <-drained:
		case <-hard.C:
			srv.Stop()
			<-drained
		}
		return nil
	}}
}

// Admin serves /healthz (the process lives), /readyz (200, or 503 with what is missing) and
// /metrics on addr. An empty addr serves nothing.
func Admin(addr string, metrics prometheus.Gatherer, ready func(context.Context) error) Component {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, r *http.Request) {
		if err := ready(r.Context()); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ready\n")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	return Component{Name: "admin", Run: func(ctx context.Context) error {
		if addr == "" {
			<-ctx.Done()
			return nil
		}
		var lc net.ListenConfig
		lis, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			return fmt.Errorf("listen on admin_addr %s: %w", addr, err)
		}
		return HTTP("admin", srv, lis).Run(ctx)
	}}
}

// HTTP serves srv on lis. At the end running requests may finish; after a deadline they are cut.
func HTTP(name string, srv *http.Server, lis net.Listener) Component {
	return Component{Name: name, Run: func(ctx context.Context) error {
		failed := make(chan error, 1)
		go func() { failed <- srv.Serve(lis) }()
		select {
		case err := <-failed:
			return fmt.Errorf("serve HTTP: %w", err)
		case <-ctx.Done():
		}
		hard, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainDeadline)
		defer cancel()
		err := srv.Shutdown(hard)
		if errors.Is(err, context.DeadlineExceeded) {
			err = srv.Close()
		}
		return errors.Join(err, ignoreClosed(<-failed))
	}}
}

// ignoreClosed drops what Serve always returns after a shutdown.
func ignoreClosed(err error) error {
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
