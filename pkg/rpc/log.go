package rpc

import (
	"context"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wireError keeps the cause beside the status, for the log only.
type wireError struct {
	status *status.Status
	cause  error
}

func (e *wireError) Error() string              { return e.cause.Error() }
func (e *wireError) GRPCStatus() *status.Status { return e.status }

// logged writes one line per RPC: faults of ours as errors, the rest at debug, because refused
// and canceled calls are their callers' business.
func logged(log *zap.Logger, method string, start time.Time, err error) {
	code := status.Code(err)
	fields := []zap.Field{zap.String("method", method), zap.String("code", code.String()), zap.Duration("duration", time.Since(start))}
	if err != nil {
		fields = append(fields, zap.Error(err))
	}
	switch code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		log.Error("Call failed", fields...)
	default:
		log.Debug("Call ended", fields...)
	}
}

func logUnary(log *zap.Logger) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		start := time.Now()
		resp, err := next(ctx, req)
		logged(log, info.FullMethod, start, err)
		return resp, err
	}
}

func logStream(log *zap.Logger) grpc.StreamServerInterceptor {
	return func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		start := time.Now()
		err := next(srv, ss)
		logged(log, info.FullMethod, start, err)
		return err
	}
}
