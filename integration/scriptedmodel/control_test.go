package scriptedmodel

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

func TestControl(t *testing.T) {
	m, base := start(t, Config{Control: true})
	c, ctx := NewClient(base+"/"), bounded(t)

	got := make(chan result, 1)
	go func() { got <- ask(t, base, turnBody(true, user(t, "SLOW:g|a b"))) }()
	for n := range 2 {
		if err := c.Arrived(ctx, "g", n+1); err != nil {
			t.Fatal(err)
		}
		if err := c.Step(ctx, "g"); err != nil {
			t.Fatal(err)
		}
	}
	if r := <-got; r.text != "a b" {
		t.Errorf("answer = %+v", r)
	}
	if err := c.Release(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, base, turnBody(true, user(t, "SLOW:g|c d"))); r.text != "c d" {
		t.Errorf("answer = %+v", r)
	}
	if err := c.Shut(ctx, "g"); err != nil {
		t.Fatal(err)
	}

	if err := c.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if r := ask(t, base, turnBody(true, user(t, "x"))); r.err == nil {
		t.Errorf("while down: %+v", r)
	}
	if err := c.Up(ctx); err != nil {
		t.Fatal(err)
	}

	awaited := make(chan Request, 1)
	go func() {
		r, err := c.Await(ctx, 0, func(r Request) bool { return r.Prompt == "SAY:y" })
		if err != nil {
			t.Error(err)
		}
		awaited <- r
	}()
	ask(t, base, turnBody(true, user(t, "SAY:y")))
	if r := <-awaited; r.Seq != 3 || string(r.Tools) != someTools || len(r.Messages) != 2 {
		t.Errorf("awaited = %+v", r)
	}
	rs, dropped, err := c.Requests(ctx, 1)
	if err != nil || len(rs) != 2 || dropped != 0 || string(rs[1].Body) != string(m.Requests()[2].Body) {
		t.Errorf("requests = %d, dropped %d, %v; want 2 exact ones", len(rs), dropped, err)
	}
	if err := c.Release(ctx, "bad name"); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("error = %v, want 400 for a bad name", err)
	}
	for _, path := range []string{"/_control/requests?after=x", "/_control/requests?wait=-1", "/_control/gates/g/arrived?n=z"} {
		resp, err := http.Get(base + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusBadRequest {
			t.Errorf("%s: status = %d, want 400", path, resp.StatusCode)
		}
	}
}

func TestServeEndsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + l.Addr().String()
	ctx, cancel := context.WithCancel(t.Context())
	m := New(Config{Control: true})
	served := make(chan error, 1)
	go func() { served <- m.Serve(ctx, l) }()

	hung := make(chan result, 1)
	go func() { hung <- ask(t, base, turnBody(true, user(t, "HANG"))) }()
	waiting := make(chan error, 1)
	go func() { waiting <- NewClient(base).Arrived(bounded(t), "never", 1) }()
	if err := m.Gate(DefaultGate).Arrived(bounded(t), 1); err != nil {
		t.Fatal(err)
	}
	cancel()
	began := time.Now()
	if err := <-served; err != nil {
		t.Errorf("Serve = %v, want nil", err)
	}
	if took := time.Since(began); took >= drainTime {
		t.Errorf("Serve took %v to end: the answers in progress were not cut", took)
	}
	if got := <-hung; got.err == nil || errors.Is(got.err, context.DeadlineExceeded) {
		t.Errorf("the hanging answer = %+v, want its connection cut", got)
	}
	if err := <-waiting; err == nil {
		t.Error("the control call that waited came back without an error")
	}
	if _, err := net.Dial("tcp", l.Addr().String()); err == nil {
		t.Error("the address still accepts connections")
	}
	if err := m.Serve(context.Background(), l); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Serve on a closed listener = %v, want net.ErrClosed", err)
	}
}
