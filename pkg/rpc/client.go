package rpc

import (
	"context"
	"errors"
	"io"
	"net"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/errs"
)

// defaultDeadline bounds a unary call whose caller set none.
const defaultDeadline = 30 * time.Second

// ClientConfig is what a connection needs.
type ClientConfig struct {
	Signer *Signer
	// Self is who the calls are made as; nil: as the principal in each call's context.
	Self   *Principal
	TLS    *TLS
	Dialer func(ctx context.Context, target string) (net.Conn, error) // nil: the network
}

// Dial returns a connection that is made on first use and made again when it breaks. Errors of its
// calls are errs.Errors.
func Dial(target string, cfg ClientConfig) (*grpc.ClientConn, error) {
	creds, err := cfg.TLS.client()
	if err != nil {
		return nil, err
	}
	opts := []grpc.DialOption{
		grpc.WithTransportCredentials(creds),
		grpc.WithChainUnaryInterceptor(deadlineUnary, cfg.identifyUnary, fromStatusUnary),
		grpc.WithChainStreamInterceptor(cfg.identifyStream, fromStatusStream),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(MaxMessageBytes), grpc.MaxCallSendMsgSize(MaxMessageBytes)),
		grpc.WithStatsHandler(otelgrpc.NewClientHandler()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		// A turn cannot wait two minutes for a service that came back; one second is gentle enough.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoffConfig, MinConnectTimeout: 5 * time.Second}),
		// An idle connection costs nothing and a warm turn must not pay for dialing.
		grpc.WithIdleTimeout(0),
	}
	if cfg.Dialer != nil {
		opts = append(opts, grpc.WithContextDialer(cfg.Dialer))
	}
	conn, err := grpc.NewClient(target, opts...)
	if err != nil {
		return nil, errs.Wrap(err, errs.Invalid, ReasonInvalidArgument, "gRPC target %q is not valid", target)
	}
	return conn, nil
}

func deadlineUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultDeadline)
		defer cancel()
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (cfg ClientConfig) identify(ctx context.Context, method string) (context.Context, error) {
	if open(method) {
		return ctx, nil
	}
	p, ok := PrincipalFrom(ctx)
	if cfg.Self != nil {
		p, ok = *cfg.Self, true
	}
	if !ok {
		return nil, errs.New(errs.Unauthenticated, ReasonUnauthenticated, "the call to %s has no principal", method)
	}
	token, err := cfg.Signer.sign(p)
	if err != nil {
		return nil, err
	}
	return metadata.AppendToOutgoingContext(ctx, principalHeader, token), nil
}

func (cfg ClientConfig) identifyUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	ctx, err := cfg.identify(ctx, method)
	if err != nil {
		return err
	}
	return invoke(ctx, method, req, reply, cc, opts...)
}

func (cfg ClientConfig) identifyStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, newStream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	ctx, err := cfg.identify(ctx, method)
	if err != nil {
		return nil, err
	}
	return newStream(ctx, desc, cc, method, opts...)
}

func fromStatusUnary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return FromStatus(invoke(ctx, method, req, reply, cc, opts...))
}

func fromStatusStream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, newStream grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	s, err := newStream(ctx, desc, cc, method, opts...)
	if err != nil {
		return nil, FromStatus(err)
	}
	return &fromStatusClientStream{s}, nil
}

type fromStatusClientStream struct{ grpc.ClientStream }

func (s *fromStatusClientStream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return FromStatus(err)
}
