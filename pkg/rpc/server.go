// Package rpc is the one way services talk: servers and clients with the same interceptor chain,
// sizes, deadlines, identity and errors.
package rpc

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"buf.build/go/protovalidate"
	grpcprom "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/grpc-ecosystem/go-grpc-middleware/v2/interceptors/recovery"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"humanwork.internal/pkg/errs"
)

// MaxMessageBytes is the largest message either side sends or takes. gRPC's default of 4 MiB is
// below one turn.
const MaxMessageBytes = 64 << 20

// ServerConfig is what a server needs beside its services.
type ServerConfig struct {
	Service  string // name in logs
	Logger   *zap.Logger
	Signer   *Signer
	Policy   Policy
	Registry prometheus.Registerer // nil: no metrics
	TLS      *TLS                  // nil: plain text, for one process or one host
}

// interceptor is one named link of the chain.
type interceptor struct {
	name   string
	unary  grpc.UnaryServerInterceptor
	stream grpc.StreamServerInterceptor
}

// chain returns the links from the outermost inwards. The order matters: metrics and log see the
// final status; errors turns whatever comes from below, a recovered panic included, into that
// status; nothing is validated or run before the caller is known and allowed.
func chain(cfg ServerConfig, metrics *grpcprom.ServerMetrics) ([]interceptor, error) {
	validator, err := protovalidate.New()
	if err != nil {
		return nil, fmt.Errorf("build message validator: %w", err)
	}
	onPanic := recovery.WithRecoveryHandlerContext(func(_ context.Context, p any) error {
		cfg.Logger.Error("Recovered from a panic", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
		return errs.New(errs.Internal, ReasonInternal, "internal error; the service's log has the cause")
	})
	return []interceptor{
		{"metrics", metrics.UnaryServerInterceptor(), metrics.StreamServerInterceptor()},
		{"log", logUnary(cfg.Logger), logStream(cfg.Logger)},
		{"errors", errorsUnary, errorsStream},
		{"recover", recovery.UnaryServerInterceptor(onPanic), recovery.StreamServerInterceptor(onPanic)},
		{"authenticate", authenticateUnary(cfg.Signer), authenticateStream(cfg.Signer)},
		{"authorize", perRequestUnary(cfg.Policy.authorize), perRequestStream(cfg.Policy.authorize)},
		{"validate", perRequestUnary(validate(validator)), perRequestStream(validate(validator))},
	}, nil
}

// NewServer returns a server with the whole chain and no services yet.
func NewServer(cfg ServerConfig) (*grpc.Server, error) {
	metrics := grpcprom.NewServerMetrics(grpcprom.WithServerHandlingTimeHistogram())
	if cfg.Registry != nil {
		if err := cfg.Registry.Register(metrics); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	links, err := chain(cfg, metrics)
	if err != nil {
		return nil, err
	}
	var unary []grpc.UnaryServerInterceptor
	var stream []grpc.StreamServerInterceptor
	for _, l := range links {
		unary, stream = append(unary, l.unary), append(stream, l.stream)
	}
	creds, err := cfg.TLS.server()
	if err != nil {
		return nil, err
	}
	return grpc.NewServer(
		grpc.Creds(creds),
		grpc.ChainUnaryInterceptor(unary...),
		grpc.ChainStreamInterceptor(stream...),
		grpc.MaxRecvMsgSize(MaxMessageBytes), grpc.MaxSendMsgSize(MaxMessageBytes),
		grpc.StatsHandler(otelgrpc.NewServerHandler()),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}),
	), nil
}

const healthPrefix = "/grpc.health.v1.Health/"

func open(method string) bool {
	return len(method) > len(healthPrefix) && method[:len(healthPrefix)] == healthPrefix
}

func authenticated(ctx context.Context, s *Signer, method string) (context.Context, error) {
	if open(method) {
		return ctx, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	tokens := md.Get(principalHeader)
	if len(tokens) != 1 {
		return nil, errs.New(errs.Unauthenticated, ReasonUnauthenticated, "the call carries no principal")
	}
	p, err := s.verify(tokens[0])
	if err != nil {
		return nil, err
	}
	return WithPrincipal(ctx, p), nil
}

func authenticateUnary(s *Signer) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		ctx, err := authenticated(ctx, s, info.FullMethod)
		if err != nil {
			return nil, err
		}
		return next(ctx, req)
	}
}

func authenticateStream(s *Signer) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		ctx, err := authenticated(ss.Context(), s, info.FullMethod)
		if err != nil {
			return err
		}
		return next(srv, &contextStream{ss, ctx})
	}
}

type contextStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *contextStream) Context() context.Context { return s.ctx }

type requestCheck func(ctx context.Context, method string, req any) error

func validate(v protovalidate.Validator) requestCheck {
	return func(_ context.Context, _ string, req any) error {
		m, ok := req.(proto.Message)
		if !ok {
			return nil
		}
		if err := v.Validate(m); err != nil {
			return errs.Wrap(err, errs.Invalid, ReasonInvalidArgument, "%v", err)
		}
		return nil
	}
}

func perRequestUnary(check requestCheck) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		if !open(info.FullMethod) {
			if err := check(ctx, info.FullMethod, req); err != nil {
				return nil, err
			}
		}
		return next(ctx, req)
	}
}

// perRequestStream checks each message the client sends, before the handler sees it.
func perRequestStream(check requestCheck) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		if open(info.FullMethod) {
			return next(srv, ss)
		}
		return next(srv, &checkedStream{ss, info.FullMethod, check})
	}
}

type checkedStream struct {
	grpc.ServerStream
	method string
	check  requestCheck
}

func (s *checkedStream) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return err
	}
	return s.check(s.Context(), s.method, m)
}

func errorsUnary(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	resp, err := next(ctx, req)
	if err != nil {
		return nil, &wireError{ToStatus(err), err}
	}
	return resp, nil
}

func errorsStream(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
	if err := next(srv, ss); err != nil {
		return &wireError{ToStatus(err), err}
	}
	return nil
}
