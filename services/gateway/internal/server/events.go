package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/wire"
)

// ReasonInvalidEventID is the reason of a malformed Last-Event-ID or after.
const ReasonInvalidEventID errs.Reason = "INVALID_EVENT_ID"

// after returns the sequence to go on from. Last-Event-ID wins: a browser that reconnects sends it
// with the address, and so the after, of its first connection.
func after(r *edge.Request) (int64, error) {
	var sequence int64
	values := r.Header.Values("Last-Event-ID")
	if len(values) > 1 {
		return 0, errs.New(errs.Invalid, ReasonInvalidEventID, "the header Last-Event-ID is there more than once")
	}
	sources := make([]string, 0, 2)
	if r.Query.Has("after") {
		sources = append(sources, r.Query.Get("after"))
	}
	for _, text := range append(sources, values...) {
		n, err := strconv.ParseUint(text, 10, 63)
		if err != nil {
			return 0, errs.New(errs.Invalid, ReasonInvalidEventID, "Last-Event-ID and after must be the id of an event, or 0")
		}
		sequence = int64(n)
	}
	return sequence, nil
}

// received is one outcome of the stream from ingress.
type received struct {
	event *ingressv1.Event
	err   error
}

// streamEvents sends a conversation's events as Server-Sent Events until the client goes, ingress
// ends the stream, or the server stops.
//
// Ingress answers its header once the reader is attached; errors until then have an HTTP status.
// Later ones only end the stream: a client that reconnects with Last-Event-ID misses nothing.
func (s *Server) streamEvents(w http.ResponseWriter, r *edge.Request) error {
	sequence, err := after(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	attach := time.AfterFunc(s.cfg.Attach, func() {
		cancel(errs.New(errs.Timeout, rpc.ReasonTimeout, "the event stream could not be attached within %v", s.cfg.Attach))
	})
	defer attach.Stop()
	stream, err := s.read.StreamEvents(ctx, &ingressv1.StreamEventsRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], AfterSequence: sequence})
	if err != nil {
		return err
	}
	header, err := stream.Header()
	if err != nil || header == nil {
		// No header means that the stream has ended already; only Recv has the error.
		_, err := stream.Recv()
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		return err
	}
	if !attach.Stop() {
		return context.Cause(ctx)
	}

	in := make(chan received)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			resp, err := stream.Recv()
			select {
			case in <- received{resp.GetEvent(), err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	s.streams.Inc()
	defer func() {
		cancel(nil)
		<-done
		s.streams.Dec()
	}()
	out := newEventWriter(w, s.cfg.EventWrite)
	return s.pump(ctx, out, in)
}

func (s *Server) pump(ctx context.Context, out *eventWriter, in <-chan received) error {
	if err := out.comment("attached"); err != nil {
		return err
	}
	beat := time.NewTimer(s.cfg.Heartbeat)
	defer beat.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-beat.C:
			if err := out.comment("heartbeat"); err != nil {
				return err
			}
		case got := <-in:
			if got.err != nil {
				return ended(got.err)
			}
			if err := out.event(got.event); err != nil {
				return err
			}
			s.events.Inc()
		}
		beat.Reset(s.cfg.Heartbeat)
	}
}

// ended keeps the expected ends of a stream out of the log: a gap, which the client has been told,
// and a service or a client that went away.
func ended(err error) error {
	switch errs.KindOf(err) {
	case errs.OutOfRange, errs.Unavailable, errs.Canceled:
		return nil
	}
	return fmt.Errorf("read events: %w", err)
}

// eventWriter writes Server-Sent Events, each flushed, each within a deadline.
type eventWriter struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit time.Duration
	buf   bytes.Buffer
}

func newEventWriter(w http.ResponseWriter, limit time.Duration) *eventWriter {
	h := w.Header()
	h.Set("Content-Type", edge.MediaEventStream)
	// Proxies that buffer (nginx) would hold events back.
	h.Set("X-Accel-Buffering", "no")
	// A deadline that cut a write leaves the connection in an unknown state; it is used once.
	h.Set("Connection", "close")
	return &eventWriter{w: w, rc: http.NewResponseController(w), limit: limit}
}

var eventTypePattern = regexp.MustCompile(`^[a-z]+(\.[a-z]+)*$`)

var errEventType = errors.New("the event's type is not one that a line can carry")

func (e *eventWriter) event(ev *ingressv1.Event) error {
	data, err := wire.Marshal(wire.NewEvent(ev))
	if err != nil {
		return err
	}
	if !eventTypePattern.MatchString(ev.GetType()) {
		return errEventType
	}
	e.buf.Reset()
	if seq := ev.GetSequence(); seq > 0 {
		fmt.Fprintf(&e.buf, "id: %d\n", seq)
	}
	fmt.Fprintf(&e.buf, "event: %s\ndata: %s\n\n", ev.GetType(), data)
	return e.flush()
}

func (e *eventWriter) comment(text string) error {
	e.buf.Reset()
	fmt.Fprintf(&e.buf, ": %s\n\n", text)
	return e.flush()
}

func (e *eventWriter) flush() error {
	if err := e.rc.SetWriteDeadline(time.Now().Add(e.limit)); err != nil {
		return fmt.Errorf("bound the writing of an event: %w", err)
	}
	if _, err := e.w.Write(e.buf.Bytes()); err != nil {
		return fmt.Errorf("write event: %w", err)
	}
	if err := e.rc.Flush(); err != nil {
		return fmt.Errorf("flush event: %w", err)
	}
	return nil
}
