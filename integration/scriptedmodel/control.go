package scriptedmodel

import (
	"net/http"
	"strconv"
)

// controlState is what GET /_control/ answers.
type controlState struct {
	Down     bool  `json:"down"`
	Requests int64 `json:"requests"`
	Dropped  int64 `json:"dropped"`
}

type controlRequests struct {
	Requests []Request `json:"requests"`
	Dropped  int64     `json:"dropped"`
}

// controlRoutes adds the interface that Client speaks.
func (m *Model) controlRoutes(mux *http.ServeMux) {
	done := func(f func()) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			f()
			w.WriteHeader(http.StatusNoContent)
		}
	}
	gate := func(f func(*Gate)) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if g := m.controlGate(w, r); g != nil {
				f(g)
				w.WriteHeader(http.StatusNoContent)
			}
		}
	}
	mux.HandleFunc("GET /_control/{$}", func(w http.ResponseWriter, _ *http.Request) {
		total, dropped := m.rec.counts()
		writeJSON(w, http.StatusOK, controlState{Down: m.IsDown(), Requests: total, Dropped: dropped})
	})
	mux.HandleFunc("POST /_control/down", done(m.Down))
	mux.HandleFunc("POST /_control/up", done(m.Up))
	mux.HandleFunc("POST /_control/gates/{gate}/release", gate((*Gate).Release))
	mux.HandleFunc("POST /_control/gates/{gate}/step", gate((*Gate).Step))
	mux.HandleFunc("POST /_control/gates/{gate}/shut", gate((*Gate).Shut))
	mux.HandleFunc("GET /_control/gates/{gate}/arrived", m.controlArrived)
	mux.HandleFunc("GET /_control/requests", m.controlRequests)
}

func (m *Model) controlGate(w http.ResponseWriter, r *http.Request) *Gate {
	name := r.PathValue("gate")
	if !gateName.MatchString(name) {
		writeError(w, http.StatusBadRequest, "a gate's name matches "+gateName.String())
		return nil
	}
	return m.Gate(name)
}

// controlArrived holds the request until at least ?n= answers came to the gate, 1 when left out.
func (m *Model) controlArrived(w http.ResponseWriter, r *http.Request) {
	n, ok := number(w, r, "n", 1)
	if !ok {
		return
	}
	g := m.controlGate(w, r)
	if g == nil {
		return
	}
	if g.Arrived(r.Context(), int(n)) != nil {
		panic(http.ErrAbortHandler) // the client has gone, or the server ends
	}
	w.WriteHeader(http.StatusNoContent)
}

// controlRequests answers the requests with a number above ?after=. With ?wait=1 it holds until there is one.
func (m *Model) controlRequests(w http.ResponseWriter, r *http.Request) {
	after, ok := number(w, r, "after", 0)
	if !ok {
		return
	}
	wait, ok := number(w, r, "wait", 0)
	if !ok {
		return
	}
	for {
		changed := m.rec.changes() // before the look, or a request in between would be missed
		got := m.rec.after(after)
		if len(got) > 0 || wait == 0 {
			writeJSON(w, http.StatusOK, controlRequests{Requests: got, Dropped: m.Dropped()})
			return
		}
		select {
		case <-changed:
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
}

func number(w http.ResponseWriter, r *http.Request, name string, otherwise int64) (int64, bool) {
	s := r.URL.Query().Get(name)
	if s == "" {
		return otherwise, true
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < 0 {
		writeError(w, http.StatusBadRequest, name+" must be a whole number of at least 0")
		return 0, false
	}
	return n, true
}
