// Package problem renders errors as the public contract has them: an HTTP status and
// {"code", "message", "details": [ErrorInfo]}.
package problem

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc/codes"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
)

// Reasons that are HTTP's own and no service gives.
const (
	ReasonRouteNotFound    errs.Reason = "ROUTE_NOT_FOUND"
	ReasonMethodNotAllowed errs.Reason = "METHOD_NOT_ALLOWED"
	ReasonNotAcceptable    errs.Reason = "NOT_ACCEPTABLE"
	ReasonMediaType        errs.Reason = "UNSUPPORTED_MEDIA_TYPE"
	ReasonBodyTooLarge     errs.Reason = "BODY_TOO_LARGE"
	ReasonBodyTimeout      errs.Reason = "BODY_TIMEOUT"
	ReasonBodyUnreadable   errs.Reason = "BODY_UNREADABLE"
	ReasonShuttingDown     errs.Reason = "SHUTTING_DOWN"
	ReasonRange            errs.Reason = "RANGE_NOT_SATISFIABLE"
)

// Reasons of agentfs that have a status of their own.
const (
	ReasonVersionMismatch errs.Reason = "VERSION_MISMATCH"
	ReasonFileTooLarge    errs.Reason = "FILE_TOO_LARGE"
	ReasonQuotaExceeded   errs.Reason = "QUOTA_EXCEEDED"
	ReasonStorageFull     errs.Reason = "STORAGE_FULL"
	ReasonUploadStalled   errs.Reason = "UPLOAD_STALLED"
)

// statusByReason holds the statuses that a kind alone cannot tell.
var statusByReason = map[errs.Reason]int{
	ReasonMethodNotAllowed: http.StatusMethodNotAllowed,
	ReasonNotAcceptable:    http.StatusNotAcceptable,
	ReasonMediaType:        http.StatusUnsupportedMediaType,
	ReasonBodyTooLarge:     http.StatusRequestEntityTooLarge,
	ReasonBodyTimeout:      http.StatusRequestTimeout,
	ReasonUploadStalled:    http.StatusRequestTimeout,
	ReasonRange:            http.StatusRequestedRangeNotSatisfiable,
	ReasonVersionMismatch:  http.StatusPreconditionFailed,
	ReasonFileTooLarge:     http.StatusRequestEntityTooLarge,
	ReasonQuotaExceeded:    http.StatusInsufficientStorage,
	ReasonStorageFull:      http.StatusInsufficientStorage,
}

// defaultRetry is how long a caller waits for a service that is away and did not say.
const defaultRetry = time.Second

// Problem is an error ready to be sent.
type Problem struct {
	Status     int
	Code       codes.Code
	Reason     errs.Reason
	Message    string
	Metadata   map[string]string
	RetryAfter time.Duration
}

// Of returns the problem of err. Messages that could name hosts or hold a cause are replaced.
func Of(err error) Problem {
	st := rpc.ToStatus(err)
	p := Problem{Code: st.Code(), Message: st.Message(), Reason: rpc.ReasonInternal}
	var e *errs.Error
	if errors.As(rpc.FromStatus(st.Err()), &e) {
		p.Reason, p.Metadata, p.RetryAfter = e.Reason(), e.Metadata(), e.RetryAfter()
	}
	// An error without a reason is none of ours: a fault of the deployment, not of the request.
	if p.Reason == "" {
		p.Code, p.Reason = codes.Internal, rpc.ReasonInternal
	}
	switch p.Code {
	case codes.Internal, codes.Unknown, codes.DataLoss:
		p.Code, p.Message, p.Metadata = codes.Internal, "internal error; the log has the cause under this request's X-Request-Id", nil
	case codes.Unavailable:
		if p.Reason == rpc.ReasonUnavailable {
			p.Message = "a service behind the gateway cannot be reached; try again"
		}
		if p.RetryAfter == 0 {
			p.RetryAfter = defaultRetry
		}
	}
	p.Status = status(p.Code, p.Reason)
	return p
}

func status(code codes.Code, reason errs.Reason) int {
	if s, ok := statusByReason[reason]; ok {
		return s
	}
	if code == codes.FailedPrecondition {
		// The request is well formed and the state is in its way: a conflict, not the 400 of the
		// usual table.
		return http.StatusConflict
	}
	return runtime.HTTPStatusFromCode(code)
}

type body struct {
	Code    codes.Code `json:"code"`
	Message string     `json:"message"`
	Details []detail   `json:"details"`
}

type detail struct {
	Type     string            `json:"@type"`
	Reason   errs.Reason       `json:"reason"`
	Domain   string            `json:"domain"`
	Metadata map[string]string `json:"metadata"`
}

// Write sends the problem. Headers that describe a success, such as a cache rule, stay the
// caller's business; nothing must have been sent before.
func (p Problem) Write(w http.ResponseWriter) error {
	meta := p.Metadata
	if meta == nil {
		meta = map[string]string{}
	}
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(body{p.Code, p.Message, []detail{{
		"type.googleapis.com/google.rpc.ErrorInfo", p.Reason, rpc.Domain, meta}}}); err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(buf.Len()))
	if p.RetryAfter > 0 && (p.Status == http.StatusTooManyRequests || p.Status == http.StatusServiceUnavailable) {
		h.Set("Retry-After", strconv.Itoa(int(math.Ceil(p.RetryAfter.Seconds()))))
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", `Bearer realm="humanwork"`)
	}
	w.WriteHeader(p.Status)
	_, err := w.Write(buf.Bytes())
	return err
}
