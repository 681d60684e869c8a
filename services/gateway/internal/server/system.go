package server

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/gateway/internal/apidoc"
	"humanwork.internal/services/gateway/internal/edge"
)

// Missing is one thing the gateway cannot work without at present.
type Missing struct {
	Service string `json:"service"`
	// State is UNREACHABLE or NOT_READY.
	State string `json:"state"`
	// Detail says what is wrong and what to do.
	Detail string `json:"detail"`
}

// States of a service that is missing.
const (
	StateUnreachable = "UNREACHABLE"
	StateNotReady    = "NOT_READY"
)

type readiness struct {
	Ready   bool      `json:"ready"`
	Missing []Missing `json:"missing"`
}

func (s *Server) readyz(w http.ResponseWriter, r *edge.Request) error {
	missing := s.cfg.Ready(r.Context())
	if len(missing) > 0 {
		return writeJSON(w, http.StatusServiceUnavailable, readiness{false, missing})
	}
	return writeJSON(w, http.StatusOK, readiness{true, []Missing{}})
}

func (s *Server) healthz(w http.ResponseWriter, _ *edge.Request) error {
	return writeJSON(w, http.StatusOK, map[string]bool{"alive": true})
}

func (s *Server) metrics() func(http.ResponseWriter, *edge.Request) error {
	h := promhttp.HandlerFor(s.cfg.Gatherer, promhttp.HandlerOpts{})
	return func(w http.ResponseWriter, r *edge.Request) error {
		h.ServeHTTP(w, r.Request)
		return nil
	}
}

func (s *Server) openapi(w http.ResponseWriter, _ *edge.Request) error {
	send(w, http.StatusOK, edge.MediaJSON, s.cfg.Document)
	return nil
}

// docsPolicy lets the page load its own script and style and the description, and nothing else.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'"

func (s *Server) docs(name, media string) func(http.ResponseWriter, *edge.Request) error {
	return func(w http.ResponseWriter, _ *edge.Request) error {
		page, err := apidoc.Page(name)
		if err != nil {
			return err
		}
		w.Header().Set("Content-Security-Policy", docsPolicy)
		send(w, http.StatusOK, media, page)
		return nil
	}
}

type capabilities struct {
	APIVersion        string           `json:"apiVersion"`
	Version           string           `json:"version"`
	ContentBlockTypes []string         `json:"contentBlockTypes"`
	BusyPolicies      []string         `json:"busyPolicies"`
	TurnStates        []string         `json:"turnStates"`
	EventTypes        []string         `json:"eventTypes"`
	LiveEventTypes    []string         `json:"liveEventTypes"`
	Limits            capabilityLimits `json:"limits"`
}

type capabilityLimits struct {
	JSONBodyBytes       int64   `json:"jsonBodyBytes,string"`
	FileBytes           int64   `json:"fileBytes,string"`
	AttachmentBytes     int64   `json:"attachmentBytes,string"`
	FilePathBytes       int     `json:"filePathBytes"`
	FileNameBytes       int     `json:"fileNameBytes"`
	IdempotencyKeyBytes int     `json:"idempotencyKeyBytes"`
	WaitSeconds         float64 `json:"waitSeconds"`
	HeartbeatSeconds    float64 `json:"heartbeatSeconds"`
}

func (s *Server) capabilities(w http.ResponseWriter, _ *edge.Request) error {
	return writeJSON(w, http.StatusOK, capabilities{
		APIVersion:        "v1",
		Version:           s.cfg.Version,
		ContentBlockTypes: []string{"text", "image", "audio", "resource_link", "resource"},
		BusyPolicies:      []string{"ENQUEUE", "REJECT"},
		TurnStates:        []string{"ACCEPTED", "RUNNING", "REPLIED", "NATIVE_COMMAND", "NO_REPLY", "FAILED", "CANCELLED"},
		EventTypes:        []string{"turn.accepted", "turn.started", "turn.ended", "message.delivered", "file.changed", "gap"},
		LiveEventTypes:    []string{"delta", "tool"},
		Limits: capabilityLimits{s.cfg.MaxBodyBytes, s.cfg.MaxFileBytes, s.cfg.MaxAttachmentBytes, fileuri.MaxPath, fileuri.MaxName, maxIdempotencyKey, maxWait.Seconds(),
			s.cfg.Heartbeat.Seconds()},
	})
}
