package edge

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/services/gateway/internal/problem"
)

// Config is what the edge needs.
type Config struct {
	Logger       *zap.Logger
	Registry     prometheus.Registerer
	Authenticate func(authorization []string) (rpc.Principal, error)
	// MaxBodyBytes bounds a JSON body.
	MaxBodyBytes int64
	// BodyTimeout bounds the arrival of a body, WriteTimeout the sending of an answer; of a Transfer,
	// the time without progress. RequestTimeout bounds the work of a route without a bound of its own.
	BodyTimeout, WriteTimeout, RequestTimeout time.Duration
	// Stopping ends when the server does; the cause is what the waiting requests answer.
	Stopping context.Context
}

// Edge is the http.Handler of all routes.
type Edge struct {
	cfg      Config
	routes   []*Route
	requests *prometheus.CounterVec
	duration *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec
}

// statusClientGone is what logs and metrics say of requests whose client left; nothing is sent.
const statusClientGone = 499

// New checks the routes and returns their handler.
func New(cfg Config, routes []*Route) (*Edge, error) {
	e := &Edge{cfg: cfg, routes: routes,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "humanwork_gateway_requests_total", Help: "Ended HTTP requests."}, []string{"route", "method", "code"}),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "humanwork_gateway_request_seconds", Help: "Duration of HTTP requests.",
			Buckets: []float64{.001, .005, .025, .1, .5, 1, 2.5, 5, 10, 30, 60, 300}}, []string{"route"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "humanwork_gateway_requests_in_flight", Help: "HTTP requests being answered."}, []string{"route"}),
	}
	for _, r := range routes {
		if err := r.compile(); err != nil {
			return nil, err
		}
	}
	for _, c := range []prometheus.Collector{e.requests, e.duration, e.inFlight} {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	return e, nil
}

// exchange is one request on its way through the edge.
type exchange struct {
	w  *recorder
	r  *http.Request
	id string
	match
	pattern string
	subject string
	err     error
}

// ServeHTTP answers one request, logs it in one line and counts it.
func (e *Edge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	x := &exchange{w: &recorder{ResponseWriter: w, deadline: e.cfg.WriteTimeout}, r: r, id: requestID(r.Header), pattern: "none"}
	// The deadline of the connection's last answer must not cut this one.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Time{})
	h := w.Header()
	h.Set("X-Request-Id", x.id)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	var allow []string
	if x.match, allow = find(e.routes, r.Method, split(r.URL)); x.route != nil {
		x.pattern, x.w.each = x.route.Pattern, x.route.Transfer
	}
	gauge := e.inFlight.WithLabelValues(x.pattern)
	gauge.Inc()
	defer func() {
		gauge.Dec()
		e.finish(x, time.Since(start))
	}()
	defer e.recover(x)
	if x.err = e.serve(x, allow); x.err != nil {
		e.refuse(x)
	}
}

// serve runs the checks in the order that tells a stranger least, then the route.
func (e *Edge) serve(x *exchange, allow []string) error {
	r := x.r
	if x.route == nil {
		if len(allow) == 0 {
			return errs.New(errs.NotFound, problem.ReasonRouteNotFound, "there is nothing at this path")
		}
		x.w.Header().Set("Allow", strings.Join(allow, ", "))
		return errs.New(errs.Invalid, problem.ReasonMethodNotAllowed, "this path takes %s", strings.Join(allow, ", "))
	}
	req := &Request{IDs: x.ids}
	if !x.route.Open {
		var err error
		if req.Principal, err = e.cfg.Authenticate(r.Header.Values("Authorization")); err != nil {
			return err
		}
		x.subject = req.Principal.Subject
	}
	if err := checkIDs(x.ids); err != nil {
		return err
	}
	if err := authorize(req.Principal, x.ids[OrganizationID]); !x.route.Open && err != nil {
		return err
	}
	var err error
	if x.route.rest {
		if req.Path, err = decodePath(x.rest); err != nil {
			return err
		}
	}
	if p := x.route.Produces; p != "" && !accepts(r.Header.Values("Accept"), p) {
		return errs.New(errs.Invalid, problem.ReasonNotAcceptable, "this answers with %s only", p)
	}
	if req.Query, err = parseQuery(r.URL.RawQuery, x.route.Query); err != nil {
		return err
	}
	if x.route.Body == AnyBytes {
		req.Upload, err = newUpload(x.w, r, e.cfg.BodyTimeout)
	} else {
		req.Body, err = readBody(x.w, r, x.route.Body, e.cfg.MaxBodyBytes, e.cfg.BodyTimeout)
	}
	if err != nil {
		return err
	}
	ctx := r.Context()
	if !x.route.Open {
		ctx = rpc.WithPrincipal(ctx, req.Principal)
	}
	switch {
	case x.route.Transfer:
	case x.route.Long:
		// Waiting requests end with the server instead of holding it up.
		wait, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		defer context.AfterFunc(e.cfg.Stopping, func() { cancel(context.Cause(e.cfg.Stopping)) })()
		ctx = wait
	default:
		limit := x.route.Limit
		if limit == 0 {
			limit = e.cfg.RequestTimeout
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	req.Request = r.WithContext(ctx)
	err = x.route.Handle(x.w, req)
	if cause := context.Cause(ctx); err != nil && errs.ReasonOf(cause) != "" {
		return cause
	}
	return err
}

// refuse sends the error, unless an answer has begun or nobody is there to read it.
func (e *Edge) refuse(x *exchange) {
	// A body that is late ends the request's context too, but its client is still there.
	if x.r.Context().Err() != nil && errs.ReasonOf(x.err) != problem.ReasonBodyTimeout {
		x.w.status = statusClientGone
		return
	}
	if x.w.status != 0 {
		if x.route.Transfer {
			// Half an answer must not look like a whole one.
			panic(http.ErrAbortHandler)
		}
		return
	}
	// What fails here is the connection, and the access log has the request already.
	_ = problem.Of(x.err).Write(x.w)
}

// recover answers a panic with an internal error; the connection's own abort goes on.
func (e *Edge) recover(x *exchange) {
	p := recover()
	if p == nil {
		return
	}
	if err, ok := p.(error); ok && errors.Is(err, http.ErrAbortHandler) {
		panic(p)
	}
	x.err = errs.New(errs.Internal, rpc.ReasonInternal, "panic: %v", p)
	e.cfg.Logger.Error("Recovered from a panic", zap.Any("panic", p), zap.String("request_id", x.id), zap.ByteString("stack", debug.Stack()))
	if x.w.status != 0 {
		// Half an answer must not look like a whole one.
		panic(http.ErrAbortHandler)
	}
	e.refuse(x)
}

// knownMethods bounds the label that a stranger chooses.
var knownMethods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}

func (e *Edge) finish(x *exchange, took time.Duration) {
	status := x.w.status
	if status == 0 {
		status = http.StatusOK // net/http's own answer to a handler that wrote nothing
	}
	method := x.r.Method
	if !slices.Contains(knownMethods, method) {
		method = "other"
	}
	e.requests.WithLabelValues(x.pattern, method, strconv.Itoa(status)).Inc()
	e.duration.WithLabelValues(x.pattern).Observe(took.Seconds())

	level := zapcore.InfoLevel
	switch {
	case status >= 500 && status != http.StatusServiceUnavailable:
		level = zapcore.ErrorLevel
	case x.route != nil && x.route.Quiet:
		level = zapcore.DebugLevel
	}
	fields := []zap.Field{
		zap.String("method", method), zap.String("route", x.pattern), zap.String("path", x.r.URL.Path),
		zap.Int("status", status), zap.Int64("bytes", x.w.bytes), zap.Duration("duration", took),
		zap.String("request_id", x.id), zap.String("remote", x.r.RemoteAddr),
	}
	if x.subject != "" {
		fields = append(fields, zap.String("subject", x.subject))
	}
	if x.err != nil && status != statusClientGone {
		fields = append(fields, zap.String("reason", string(problem.Of(x.err).Reason)), zap.Error(x.err))
	}
	e.cfg.Logger.Log(level, "Answered a request", fields...)
}

var requestIDPattern = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)

// requestID returns the caller's own id if it is harmless, or a new one.
func requestID(h http.Header) string {
	if id := h.Get("X-Request-Id"); requestIDPattern.MatchString(id) {
		return id
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails: it ends the process instead
	return hex.EncodeToString(b[:])
}
