package scriptedmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// maxBody bounds one request: a context of some million tokens with images in it.
const maxBody = 256 << 20

// Handler serves the OpenAI-compatible interface below /v1, and the control interface when Config.Control is set.
func (m *Model) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", m.listModels)
	mux.HandleFunc("GET /v1/models/{id}", m.getModel)
	mux.HandleFunc("POST /v1/chat/completions", m.complete)
	if m.cfg.Control {
		m.controlRoutes(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		writeError(w, http.StatusNotFound, "there is no "+r.Method+" "+r.URL.Path+" here")
	})
	return mux
}

type modelObject struct {
	ID            string `json:"id"`
	Object        string `json:"object"`
	OwnedBy       string `json:"owned_by"`
	ContextLength int64  `json:"context_length"`
}

func (m *Model) object(id string) modelObject {
	return modelObject{ID: id, Object: "model", OwnedBy: "humanwork-scripted-demo", ContextLength: m.cfg.ContextLength}
}

func (m *Model) listModels(w http.ResponseWriter, _ *http.Request) {
	m.cutIfDown()
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []modelObject{m.object(m.cfg.ModelName)}})
}

func (m *Model) getModel(w http.ResponseWriter, r *http.Request) {
	m.cutIfDown()
	writeJSON(w, http.StatusOK, m.object(r.PathValue("id")))
}

func (m *Model) cutIfDown() {
	if m.IsDown() {
		panic(http.ErrAbortHandler)
	}
}

func (m *Model) complete(w http.ResponseWriter, hr *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, hr.Body, maxBody))
	if err != nil {
		if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
			writeError(w, http.StatusRequestEntityTooLarge, fmt.Sprintf("the body is larger than %d bytes", maxBody))
			return
		}
		panic(http.ErrAbortHandler) // the client went away
	}
	req, err := ParseRequest(body)
	if err != nil {
		m.cutIfDown()
		writeError(w, http.StatusBadRequest, err.Error())
		return
	}

	up := m.upContext()
	if up.Err() != nil {
		m.noteRefused(req)
		panic(http.ErrAbortHandler)
	}
	ctx, cancel := context.WithCancelCause(hr.Context())
	defer cancel(nil)
	defer context.AfterFunc(up, func() { cancel(errDown) })()

	req, reply, err := m.accept(req)
	if err != nil {
		writeError(w, http.StatusInternalServerError, err.Error())
		return
	}
	a := newAnswer(ctx, m, w, req, reply)
	defer a.unblockWrites()()
	err = a.send()
	if err == nil {
		m.noteAnswered(req)
		return
	}
	if !errors.Is(err, errNoCompletion) {
		// Also when the client has gone: a response that isn't whole must not end as if it were.
		panic(http.ErrAbortHandler)
	}
}

// unblockWrites ends a write to a client that stopped reading when the answer's context ends.
func (a *answer) unblockWrites() (stop func() bool) {
	return context.AfterFunc(a.ctx, func() {
		_ = a.out.SetWriteDeadline(time.Unix(1, 0))
	})
}

func writeError(w http.ResponseWriter, status int, message string) {
	kind := "invalid_request_error"
	if status >= http.StatusInternalServerError {
		kind = "server_error"
	}
	writeJSON(w, status, map[string]any{"error": map[string]any{"message": message, "type": kind, "code": nil, "param": nil}})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("scriptedmodel: marshal %T: %v", v, err)) // only this package's own types come here
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // a client that has gone is noticed by the server
}
