// Package server holds the gateway's routes: it reads a request that the edge has let through,
// calls the service that owns the answer, and writes the answer's public shape.
package server

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/wire"
)

// Config is what the routes need.
type Config struct {
	Routing, Ingress, AgentFS grpc.ClientConnInterface
	Gatherer                  prometheus.Gatherer
	Registry                  prometheus.Registerer
	Version                   string
	// MaxBodyBytes bounds a JSON body, MaxFileBytes a file, MaxAttachmentBytes an attachment.
	MaxBodyBytes, MaxFileBytes, MaxAttachmentBytes int64
	// Stall is how long agentfs may make no progress in a transfer, Maintenance how long one step of
	// work on a whole database may take.
	Stall, Maintenance time.Duration
	// Heartbeat is the longest silence of an event stream, EventWrite how long a client may take
	// to accept one write, Attach how long ingress may take to attach a reader.
	Heartbeat, EventWrite, Attach time.Duration
	// Document is the OpenAPI description.
	Document []byte
	// Ready returns what is missing; nil when nothing is.
	Ready func(ctx context.Context) []Missing
}

// Server answers the routes.
type Server struct {
	cfg     Config
	read    ingressv1.IngressReadServiceClient
	write   ingressv1.IngressServiceClient
	files   agentfsv1.FileServiceClient
	records agentfsv1.AuditServiceClient
	backup  agentfsv1.BackupServiceClient
	proxy   *runtime.ServeMux
	streams prometheus.Gauge
	events  prometheus.Counter
}

// New returns the server. It opens nothing.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:  cfg,
		read: ingressv1.NewIngressReadServiceClient(cfg.Ingress), write: ingressv1.NewIngressServiceClient(cfg.Ingress),
		files: agentfsv1.NewFileServiceClient(cfg.AgentFS), records: agentfsv1.NewAuditServiceClient(cfg.AgentFS), backup: agentfsv1.NewBackupServiceClient(cfg.AgentFS),
		streams: prometheus.NewGauge(prometheus.GaugeOpts{Name: "humanwork_gateway_event_streams", Help: "Open event streams."}),
		events:  prometheus.NewCounter(prometheus.CounterOpts{Name: "humanwork_gateway_events_total", Help: "Events sent to clients."}),
	}
	for _, c := range []prometheus.Collector{s.streams, s.events} {
		if err := cfg.Registry.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	s.proxy = newProxy()
	ctx := context.Background() // the generated code keeps it for connections it makes, of which there are none
	if err := routingv1.RegisterRoutingServiceHandlerClient(ctx, s.proxy, routingv1.NewRoutingServiceClient(cfg.Routing)); err != nil {
		return nil, fmt.Errorf("register routing: %w", err)
	}
	if err := routingv1.RegisterRoutingReadServiceHandlerClient(ctx, s.proxy, routingv1.NewRoutingReadServiceClient(cfg.Routing)); err != nil {
		return nil, fmt.Errorf("register routing reads: %w", err)
	}
	if err := agentfsv1.RegisterFileServiceHandlerClient(ctx, s.proxy, s.files); err != nil {
		return nil, fmt.Errorf("register files: %w", err)
	}
	if err := agentfsv1.RegisterAuditServiceHandlerClient(ctx, s.proxy, s.records); err != nil {
		return nil, fmt.Errorf("register audit: %w", err)
	}
	if err := agentfsv1.RegisterBackupServiceHandlerClient(ctx, s.proxy, s.backup); err != nil {
		return nil, fmt.Errorf("register backup: %w", err)
	}
	return s, nil
}

const (
	organizations = "/v1/organizations"
	organization  = organizations + "/{organizationId}"
	conversations = organization + "/conversations"
	conversation  = conversations + "/{conversationId}"
	turns         = conversation + "/turns"
	files         = conversation + "/files"
	file          = files + "/{path...}"
	agentfs       = organization + "/agentfs"
)

// Routes returns the whole REST surface.
func (s *Server) Routes() []*edge.Route {
	page := []string{"pageSize", "pageToken"}
	routes := []*edge.Route{
		{Method: http.MethodPost, Pattern: organizations, Body: edge.JSONBody, Produces: edge.MediaJSON, Handle: s.proxied(organizationBody)},
		{Method: http.MethodGet, Pattern: organization, Produces: edge.MediaJSON, Handle: s.proxied(nil)},
		{Method: http.MethodPost, Pattern: conversations, Body: edge.JSONBody, Produces: edge.MediaJSON, Handle: s.proxied(conversationBody)},
		{Method: http.MethodGet, Pattern: conversations, Query: page, Produces: edge.MediaJSON, Handle: s.listConversations},
		{Method: http.MethodGet, Pattern: conversation, Produces: edge.MediaJSON, Handle: s.proxied(nil)},
		{Method: http.MethodPost, Pattern: turns, Body: edge.JSONBody, Produces: edge.MediaJSON, Handle: s.submitTurn},
		{Method: http.MethodGet, Pattern: turns, Query: page, Produces: edge.MediaJSON, Handle: s.listTurns},
		{Method: http.MethodGet, Pattern: turns + "/{turnId}", Query: []string{"wait"}, Produces: edge.MediaJSON, Long: true, Handle: s.getTurn},
		{Method: http.MethodPost, Pattern: turns + "/{turnId}:cancel", Body: edge.AnyEmpty, Produces: edge.MediaJSON, Handle: s.cancelTurn},
		{Method: http.MethodGet, Pattern: conversation + "/transcript", Query: page, Produces: edge.MediaJSON, Handle: s.listTranscript},
		{Method: http.MethodGet, Pattern: conversation + "/events", Query: []string{"after"}, Produces: edge.MediaEventStream, Long: true, NoHead: true, Handle: s.streamEvents},
		{Method: http.MethodGet, Pattern: files, Query: append([]string{"prefix", "shallow"}, page...), Produces: edge.MediaJSON, Handle: s.listFiles},
		{Method: http.MethodGet, Pattern: file, Transfer: true, Handle: s.getFile},
		{Method: http.MethodPut, Pattern: file, Body: edge.AnyBytes, Produces: edge.MediaJSON, Transfer: true, Handle: s.putFile},
		{Method: http.MethodDelete, Pattern: file, Handle: s.deleteFile},
		{Method: http.MethodPost, Pattern: conversation + "/attachments", Query: []string{"filename"}, Body: edge.AnyBytes, Produces: edge.MediaJSON,
			Transfer: true, Handle: s.addAttachment},
		{Method: http.MethodPost, Pattern: agentfs + ":check", Body: edge.OptionalJSON, Produces: edge.MediaJSON, Limit: s.cfg.Maintenance,
			Handle: s.proxied(checkBody)},
		{Method: http.MethodPost, Pattern: agentfs + "/snapshots", Body: edge.OptionalJSON, Produces: edge.MediaJSON, Limit: s.cfg.Maintenance,
			Handle: s.proxied(snapshotBody)},
		{Method: http.MethodGet, Pattern: agentfs + "/snapshots", Produces: edge.MediaJSON, Handle: s.proxied(nil)},
		{Method: http.MethodDelete, Pattern: agentfs + "/snapshots/{name}", Handle: s.deleteSnapshot},
		{Method: http.MethodGet, Pattern: agentfs + "/export", Query: []string{"snapshot"}, Produces: mediaSQLite, Transfer: true, NoHead: true, Handle: s.export},
		{Method: http.MethodPost, Pattern: agentfs + ":restore", Query: []string{"snapshot"}, Body: edge.AnyBytes, Produces: edge.MediaJSON,
			Transfer: true, Handle: s.restore},
		{Method: http.MethodGet, Pattern: "/v1/capabilities", Produces: edge.MediaJSON, Handle: s.capabilities},
		{Method: http.MethodGet, Pattern: "/healthz", Open: true, Quiet: true, Handle: s.healthz},
		{Method: http.MethodGet, Pattern: "/readyz", Open: true, Quiet: true, Handle: s.readyz},
		{Method: http.MethodGet, Pattern: "/metrics", Open: true, Quiet: true, Handle: s.metrics()},
		{Method: http.MethodGet, Pattern: "/openapi.json", Open: true, Handle: s.openapi},
		{Method: http.MethodGet, Pattern: "/docs", Open: true, Handle: s.docs("docs.html", "text/html; charset=utf-8")},
		{Method: http.MethodGet, Pattern: "/docs/docs.css", Open: true, Handle: s.docs("docs.css", "text/css; charset=utf-8")},
		{Method: http.MethodGet, Pattern: "/docs/docs.js", Open: true, Handle: s.docs("docs.js", "text/javascript; charset=utf-8")},
	}
	for _, owner := range []string{conversation, organization} {
		routes = append(routes,
			&edge.Route{Method: http.MethodGet, Pattern: owner + "/audit/timeline", Query: append([]string{"path", "after"}, page...),
				Produces: edge.MediaJSON, Handle: s.audit},
			&edge.Route{Method: http.MethodGet, Pattern: owner + "/audit/diff", Query: append([]string{"from", "to"}, page...),
				Produces: edge.MediaJSON, Handle: s.diff},
			&edge.Route{Method: http.MethodGet, Pattern: owner + "/audit/toolcalls", Query: page, Produces: edge.MediaJSON, Handle: s.audit})
	}
	return routes
}

// writeJSON sends v. A connection that breaks meanwhile is its client's business.
func writeJSON(w http.ResponseWriter, status int, v any) error {
	raw, err := wire.Marshal(v)
	if err != nil {
		return err
	}
	send(w, status, edge.MediaJSON, append(raw, '\n'))
	return nil
}

func send(w http.ResponseWriter, status int, media string, body []byte) {
	w.Header().Set("Content-Type", media)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// pageSize reads the parameter of that name; absent is 0, the service's default.
func pageSize(r *edge.Request, max int64) (int32, error) {
	if !r.Query.Has("pageSize") {
		return 0, nil
	}
	text := r.Query.Get("pageSize")
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil || n < 1 || n > max {
		return 0, edge.InvalidParameter("pageSize", "must be a number from 1 to %d", max)
	}
	return int32(n), nil
}

// maxPageToken is what the contracts take; no token of ours is longer.
const maxPageToken = 512

func pageToken(r *edge.Request) (string, error) {
	token := r.Query.Get("pageToken")
	if len(token) > maxPageToken {
		return "", edge.InvalidParameter("pageToken", "is none of ours")
	}
	return token, nil
}
