package edge

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"humanwork.internal/pkg/rpc"
)

func serve(t *testing.T, log *zap.Logger, routes ...*Route) string {
	t.Helper()
	e, err := New(Config{Logger: log, Registry: prometheus.NewRegistry(), MaxBodyBytes: 1 << 10, BodyTimeout: time.Minute,
		WriteTimeout: time.Minute, RequestTimeout: 50 * time.Millisecond, Stopping: context.Background(),
		Authenticate: func([]string) (rpc.Principal, error) { return rpc.Principal{}, nil }}, routes)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(e)
	t.Cleanup(srv.Close)
	return srv.URL
}

func get(t *testing.T, url string) (*http.Response, string, error) {
	t.Helper()
	// A connection of its own: on a used one the client would try again by itself.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	return resp, string(raw), err
}

func TestPanics(t *testing.T) {
	core, logs := observer.New(zapcore.ErrorLevel)
	url := serve(t, zap.New(core),
		&Route{Method: "GET", Pattern: "/before", Handle: func(http.ResponseWriter, *Request) error { panic("secret") }},
		&Route{Method: "GET", Pattern: "/after", Handle: func(w http.ResponseWriter, _ *Request) error {
			w.Header().Set("Content-Length", "10")
			_, _ = w.Write([]byte("half"))
			panic("secret")
		}})
	resp, body, err := get(t, url+"/before")
	if err != nil || resp.StatusCode != http.StatusInternalServerError || !strings.Contains(body, `"reason":"INTERNAL"`) || strings.Contains(body, "secret") {
		t.Errorf("before an answer: got %v %s %v, want 500 INTERNAL without the cause", resp, body, err)
	}
	if _, body, err := get(t, url+"/after"); err == nil {
		t.Errorf("after half an answer: got %q whole, want a broken connection", body)
	}
	if n := logs.FilterMessage("Recovered from a panic").Len(); n != 2 {
		t.Errorf("got %d lines about panics, want 2", n)
	}
}

func TestRequestTimeout(t *testing.T) {
	url := serve(t, zap.NewNop(), &Route{Method: "GET", Pattern: "/slow", Handle: func(_ http.ResponseWriter, r *Request) error {
		<-r.Context().Done()
		return r.Context().Err()
	}})
	resp, body, err := get(t, url+"/slow")
	if err != nil || resp.StatusCode != http.StatusGatewayTimeout || !strings.Contains(body, "DEADLINE_EXCEEDED") {
		t.Errorf("got %v %s %v, want 504", resp, body, err)
	}
}

func TestUnexpectedErrorsShowNoCause(t *testing.T) {
	url := serve(t, zap.NewNop(), &Route{Method: "GET", Pattern: "/x", Handle: func(http.ResponseWriter, *Request) error {
		return errors.New("secret")
	}})
	resp, body, err := get(t, url+"/x")
	if err != nil || resp.StatusCode != http.StatusInternalServerError || strings.Contains(body, "secret") {
		t.Errorf("got %v %s %v, want 500 without the cause", resp, body, err)
	}
}

func TestAccepts(t *testing.T) {
	for _, c := range []struct {
		values []string
		media  string
		want   bool
	}{
		{nil, MediaJSON, true},
		{[]string{"*/*"}, MediaJSON, true},
		{[]string{"application/*"}, MediaJSON, true},
		{[]string{"application/*"}, MediaEventStream, false},
		{[]string{"text/html", "application/json;q=0.5"}, MediaJSON, true},
		{[]string{"application/json;q=0, */*"}, MediaJSON, false},
		{[]string{"*/*;q=0"}, MediaJSON, false},
		{[]string{"text/event-stream"}, MediaEventStream, true},
		{[]string{"text/html"}, MediaJSON, false},
		{[]string{"Application/JSON; charset=utf-8"}, MediaJSON, true},
	} {
		if got := accepts(c.values, c.media); got != c.want {
			t.Errorf("accepts(%q, %s): got %v, want %v", c.values, c.media, got, c.want)
		}
	}
}

func TestMalformedPatternsAreRefused(t *testing.T) {
	for _, pattern := range []string{"x", "/a/{b", "/{a}{b}", "/{a b}", "/{path...}/x"} {
		if _, err := New(Config{Registry: prometheus.NewRegistry()}, []*Route{{Method: "GET", Pattern: pattern}}); err == nil {
			t.Errorf("pattern %q: got no error", pattern)
		}
	}
}
