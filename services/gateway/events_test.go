package gateway_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/gateway"
)

type eventStream = grpc.ServerStreamingServer[ingressv1.StreamEventsResponse]

func attached(s eventStream) error { return s.SendHeader(metadata.MD{}) }

func event(seq int64, kind string) *ingressv1.StreamEventsResponse {
	return &ingressv1.StreamEventsResponse{Event: &ingressv1.Event{Sequence: seq, Type: kind, TurnId: "t1", CreateTime: created}}
}

// sse is an open event stream.
type sse struct {
	resp  *http.Response
	lines *bufio.Reader
}

func (w *world) open(ctx context.Context, t *testing.T, path string, changes ...request) *sse {
	t.Helper()
	return w.openWith(t, http.DefaultClient, path, append(changes, func(r *http.Request) {
		bounded, cancel := context.WithCancel(r.Context())
		stop := context.AfterFunc(ctx, cancel)
		t.Cleanup(func() { stop() })
		*r = *r.WithContext(bounded)
	})...)
}

func (w *world) openWith(t *testing.T, client *http.Client, path string, changes ...request) *sse {
	t.Helper()
	// A stream that stands still must fail its test and not the whole run.
	bounded, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(bounded, http.MethodGet, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	req.Header.Set("Accept", "text/event-stream")
	for _, c := range changes {
		c(req)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		raw, _ := io.ReadAll(resp.Body)
		t.Fatalf("got %d %s, want 200", resp.StatusCode, raw)
	}
	return &sse{resp, bufio.NewReader(resp.Body)}
}

// next returns the next block: an event or a comment, without its blank line.
func (s *sse) next(t *testing.T) string {
	t.Helper()
	var b strings.Builder
	for {
		line, err := s.lines.ReadString('\n')
		if errors.Is(err, io.EOF) && b.Len() == 0 && line == "" {
			return "EOF"
		}
		if err != nil {
			t.Fatalf("read stream: %v after %q", err, b.String()+line)
		}
		if line == "\n" {
			return strings.TrimSuffix(b.String(), "\n")
		}
		b.WriteString(line)
	}
}

func TestEventShapes(t *testing.T) {
	events := []*ingressv1.Event{
		{Sequence: 8, Type: "turn.accepted", TurnId: "t1", CreateTime: created},
		{Type: "delta", TurnId: "t1", Text: "a\n<b>\r\n"},
		{Type: "delta", TurnId: "t1"},
		{Type: "tool", TurnId: "t1", Tool: &ingressv1.ToolEvent{ToolCallId: "x", Title: "ls", Kind: "execute", Status: "pending"}},
		{Sequence: 9, Type: "message.delivered", TurnId: "t1", Locator: &ingressv1.Locator{SessionId: "s", MessageId: 1<<53 + 1}, CreateTime: created},
		{Sequence: 10, Type: "turn.ended", TurnId: "t1", State: ingressv1.TurnState_TURN_STATE_FAILED, CreateTime: created,
			Error: &ingressv1.TurnError{Reason: "MODEL_UNAVAILABLE", Message: "m", Retryable: true}},
	}
	var after int64
	w := start(t, &fakes{stream: func(r *ingressv1.StreamEventsRequest, s eventStream) error {
		after = r.GetAfterSequence()
		if err := attached(s); err != nil {
			return err
		}
		for _, e := range events {
			if err := s.Send(&ingressv1.StreamEventsResponse{Event: e}); err != nil {
				return err
			}
		}
		return nil
	}})
	s := w.open(t.Context(), t, chat+"/events?after=3", header("Last-Event-ID", "7"))
	if after != 7 {
		t.Errorf("got after %d, want 7: Last-Event-ID wins", after)
	}
	for name, want := range map[string]string{"Content-Type": "text/event-stream", "X-Accel-Buffering": "no", "Cache-Control": "no-store"} {
		if got := s.resp.Header.Get(name); got != want {
			t.Errorf("got %s %q, want %q", name, got, want)
		}
	}
	for _, want := range []string{
		": attached",
		"id: 8\nevent: turn.accepted\ndata: " + `{"sequence":"8","type":"turn.accepted","turnId":"t1","createTime":"2026-05-01T12:00:00.12Z"}`,
		"event: delta\ndata: " + `{"type":"delta","turnId":"t1","text":"a\n<b>\r\n"}`,
		"event: delta\ndata: " + `{"type":"delta","turnId":"t1","text":""}`,
		"event: tool\ndata: " + `{"type":"tool","turnId":"t1","tool":{"toolCallId":"x","title":"ls","kind":"execute","status":"pending"}}`,
		"id: 9\nevent: message.delivered\ndata: " + `{"sequence":"9","type":"message.delivered","turnId":"t1","locator":{"sessionId":"s","messageId":"9007199254740993"},"createTime":"2026-05-01T12:00:00.12Z"}`,
		"id: 10\nevent: turn.ended\ndata: " + `{"sequence":"10","type":"turn.ended","turnId":"t1","state":"FAILED","error":{"reason":"MODEL_UNAVAILABLE","message":"m","retryable":true},"createTime":"2026-05-01T12:00:00.12Z"}`,
		"EOF",
	} {
		if got := s.next(t); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
	w.open(t.Context(), t, chat+"/events?after=3")
	if after != 3 {
		t.Errorf("got after %d, want 3", after)
	}
	w.open(t.Context(), t, chat+"/events")
	if after != 0 {
		t.Errorf("got after %d, want 0", after)
	}
}

func TestEventsBeforeAttachHaveAStatus(t *testing.T) {
	var fail error
	w := start(t, &fakes{stream: func(*ingressv1.StreamEventsRequest, eventStream) error { return fail }})
	for _, c := range []struct {
		err    error
		status int
		reason string
	}{
		{errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation"), 404, "CONVERSATION_NOT_FOUND"},
		{errs.New(errs.OutOfRange, "EVENTS_SEQUENCE_UNKNOWN", "never given"), 400, "EVENTS_SEQUENCE_UNKNOWN"},
	} {
		fail = c.err
		wantProblem(t, w.call(t, "GET", chat+"/events", "", header("Accept", "text/event-stream")), c.status, c.reason)
	}
}

func TestEventsThatDoNotAttach(t *testing.T) {
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		<-s.Context().Done()
		return s.Context().Err()
	}}, func(c *gateway.Config) { c.AttachTimeout = 30 * time.Millisecond })
	wantProblem(t, w.call(t, "GET", chat+"/events", ""), http.StatusGatewayTimeout, "DEADLINE_EXCEEDED")
}

func TestGapIsToldAndEndsTheStream(t *testing.T) {
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		if err := attached(s); err != nil {
			return err
		}
		if err := s.Send(event(41, "turn.started")); err != nil {
			return err
		}
		if err := s.Send(&ingressv1.StreamEventsResponse{Event: &ingressv1.Event{Type: "gap", LastSequence: 41}}); err != nil {
			return err
		}
		return errs.New(errs.OutOfRange, "EVENTS_GAP", "too slow")
	}})
	s := w.open(t.Context(), t, chat+"/events")
	s.next(t)
	s.next(t)
	if got, want := s.next(t), "event: gap\ndata: "+`{"type":"gap","lastSequence":"41"}`; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := s.next(t); got != "EOF" {
		t.Errorf("got %q after the gap, want the end", got)
	}
}

func TestHeartbeat(t *testing.T) {
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		if err := attached(s); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}}, func(c *gateway.Config) { c.Heartbeat = 20 * time.Millisecond })
	s := w.open(t.Context(), t, chat+"/events")
	for _, want := range []string{": attached", ": heartbeat", ": heartbeat"} {
		if got := s.next(t); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestEachEventIsFlushed sends the next event only when the one before was read, with no heartbeat
// that would fill a buffer.
func TestEachEventIsFlushed(t *testing.T) {
	send := make(chan int64)
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		if err := attached(s); err != nil {
			return err
		}
		for {
			select {
			case seq, more := <-send:
				if !more {
					return nil
				}
				if err := s.Send(event(seq, "turn.accepted")); err != nil {
					return err
				}
			case <-s.Context().Done():
				return nil
			}
		}
	}}, func(c *gateway.Config) { c.Heartbeat = time.Hour })
	s := w.open(t.Context(), t, chat+"/events")
	if got := s.next(t); got != ": attached" {
		t.Errorf("got %q, want the stream to begin at once", got)
	}
	for seq := int64(1); seq <= 3; seq++ {
		send <- seq
		if got := s.next(t); !strings.HasPrefix(got, fmt.Sprintf("id: %d\n", seq)) {
			t.Errorf("got %q, want event %d", got, seq)
		}
	}
	close(send)
	if got := s.next(t); got != "EOF" {
		t.Errorf("got %q, want the end", got)
	}
}

func TestClientThatGoesEndsTheUpstream(t *testing.T) {
	ended := make(chan struct{})
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		defer close(ended)
		if err := attached(s); err != nil {
			return err
		}
		<-s.Context().Done()
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	s := w.open(ctx, t, chat+"/events")
	s.next(t)
	cancel()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the stream from ingress is still open")
	}
}

// TestClientThatNeverReadsIsCut floods a client whose window is full: the write deadline ends the
// stream and frees ingress.
func TestClientThatNeverReadsIsCut(t *testing.T) {
	ended := make(chan struct{})
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		defer close(ended)
		if err := attached(s); err != nil {
			return err
		}
		big := strings.Repeat("x", 1<<18)
		for {
			if err := s.Send(&ingressv1.StreamEventsResponse{Event: &ingressv1.Event{Type: "delta", Text: big}}); err != nil {
				return nil
			}
		}
	}}, func(c *gateway.Config) { c.WriteTimeout = 100 * time.Millisecond })
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	fmt.Fprintf(conn, "GET %s/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", chat, adminToken)
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the stream is still open")
	}
}

func TestShutdownEndsStreamsAndWaits(t *testing.T) {
	waiting := make(chan struct{})
	w := start(t, &fakes{
		stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
			if err := attached(s); err != nil {
				return err
			}
			<-s.Context().Done()
			return nil
		},
		getTurn: func(ctx context.Context, _ *ingressv1.GetTurnRequest) (*ingressv1.GetTurnResponse, error) {
			close(waiting)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	s := w.open(t.Context(), t, chat+"/events")
	s.next(t)
	result := make(chan answer, 1)
	go func() { result <- w.call(t, "GET", chat+"/turns/t1?wait=60s", "") }()
	<-waiting
	begin := time.Now()
	if err := w.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("stopping took %v, want it prompt", took)
	}
	if got := s.next(t); got != "EOF" {
		t.Errorf("got %q, want the stream's end", got)
	}
	got := <-result
	wantProblem(t, got, http.StatusServiceUnavailable, "SHUTTING_DOWN")
	if got.header.Get("Retry-After") == "" {
		t.Error("got no Retry-After")
	}
	if _, err := net.DialTimeout("tcp", strings.TrimPrefix(w.url, "http://"), time.Second); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("dial after the end: got %v, want refused", err)
	}
}
