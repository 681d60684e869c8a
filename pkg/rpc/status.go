package rpc

import (
	"context"
	"errors"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"humanwork.internal/pkg/errs"
)

// Domain is the ErrorInfo domain of every error of ours.
const Domain = "humanwork"

// Reasons this package gives.
const (
	ReasonUnauthenticated      errs.Reason = "UNAUTHENTICATED"
	ReasonDenied               errs.Reason = "PERMISSION_DENIED"
	ReasonOrganizationNotFound errs.Reason = "ORGANIZATION_NOT_FOUND"
	ReasonInvalidArgument      errs.Reason = "INVALID_ARGUMENT"
	ReasonInternal             errs.Reason = "INTERNAL"
	ReasonUnavailable          errs.Reason = "UNAVAILABLE"
	ReasonTimeout              errs.Reason = "DEADLINE_EXCEEDED"
	ReasonCanceled             errs.Reason = "CANCELED"
)

var kindToCode = map[errs.Kind]codes.Code{
	errs.Internal:        codes.Internal,
	errs.Invalid:         codes.InvalidArgument,
	errs.NotFound:        codes.NotFound,
	errs.Conflict:        codes.AlreadyExists,
	errs.Precondition:    codes.FailedPrecondition,
	errs.Exhausted:       codes.ResourceExhausted,
	errs.OutOfRange:      codes.OutOfRange,
	errs.Unauthenticated: codes.Unauthenticated,
	errs.Denied:          codes.PermissionDenied,
	errs.Unavailable:     codes.Unavailable,
	errs.Timeout:         codes.DeadlineExceeded,
	errs.Canceled:        codes.Canceled,
}

var codeToKind = func() map[codes.Code]errs.Kind {
	m := make(map[codes.Code]errs.Kind, len(kindToCode)+2)
	for k, c := range kindToCode {
		m[c] = k
	}
	m[codes.Aborted] = errs.Unavailable
	m[codes.Unimplemented] = errs.Invalid
	return m
}()

// ToStatus makes the gRPC status of err. An error of no kind becomes INTERNAL with a fixed
// message: its text may hold what callers must not see, and is in the log.
func ToStatus(err error) *status.Status {
	if err == nil {
		return nil
	}
	var e *errs.Error
	if !errors.As(err, &e) {
		// Already a status: the gRPC library's own (for example a message over the size limit).
		if s, ok := status.FromError(err); ok && s.Code() != codes.Unknown {
			return s
		}
		switch errs.KindOf(err) {
		case errs.Canceled:
			e = errs.New(errs.Canceled, ReasonCanceled, "the caller gave up")
		case errs.Timeout:
			e = errs.New(errs.Timeout, ReasonTimeout, "the deadline passed")
		default:
			e = errs.New(errs.Internal, ReasonInternal, "internal error; the service's log has the cause")
		}
	}
	s := status.New(kindToCode[e.Kind()], e.Message())
	info := &errdetails.ErrorInfo{Reason: string(e.Reason()), Domain: Domain, Metadata: e.Metadata()}
	with, derr := s.WithDetails(info)
	if derr == nil && e.RetryAfter() > 0 {
		with, derr = s.WithDetails(info, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter())})
	}
	if derr != nil {
		return s
	}
	return with
}

// FromStatus reverses ToStatus for a client. Errors the gRPC library made itself get the kind of
// their code.
func FromStatus(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	kind, ok := codeToKind[s.Code()]
	if !ok {
		kind = errs.Internal
	}
	// The context errors keep their identity for callers that gave up themselves.
	var cause error
	switch kind {
	case errs.Canceled:
		cause = context.Canceled
	case errs.Timeout:
		cause = context.DeadlineExceeded
	}
	reason := map[errs.Kind]errs.Reason{
		errs.Unavailable: ReasonUnavailable, errs.Timeout: ReasonTimeout, errs.Canceled: ReasonCanceled,
		errs.Internal: ReasonInternal, errs.Invalid: ReasonInvalidArgument,
	}[kind]
	e := errs.Wrap(cause, kind, reason, "%s", s.Message())
	for _, d := range s.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			e = errs.Wrap(cause, kind, errs.Reason(d.GetReason()), "%s", s.Message()).WithRetryAfter(e.RetryAfter())
			for k, v := range d.GetMetadata() {
				e = e.With(k, v)
			}
		case *errdetails.RetryInfo:
			e = e.WithRetryAfter(d.GetRetryDelay().AsDuration())
		}
	}
	return e
}
