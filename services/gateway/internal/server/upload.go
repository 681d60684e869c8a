package server

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/problem"
)

const (
	// messageBytes is the most data of one message to or from agentfs.
	messageBytes = 256 << 10
	// patience is how long bytes of a slow body wait for more: agentfs must see that it progresses.
	patience = 250 * time.Millisecond
)

// pipe sends a body on as the data of a stream's messages, one message's worth in memory.
type pipe[Req, Resp any] struct {
	stream grpc.ClientStreamingClient[Req, Resp]
	stall  *stall
	// data makes a message of some bytes.
	data func([]byte) *Req
	// limit is the most bytes, 0: any number.
	limit int64
}

// run sends first, then the body, and returns the answer. Only a body that arrived whole is
// completed: on any error the caller cancels the call, which agentfs cannot take for its end.
func (p *pipe[Req, Resp]) run(r *edge.Request, first *Req) (*Resp, error) {
	send := func(m *Req) error { return p.stall.during(func() error { return p.stream.Send(m) }) }
	if err := send(first); err != nil {
		return nil, p.refusal(err)
	}
	// A client that waits to be let in must not be before agentfs has agreed; the first Read lets it.
	if r.ContentLength != 0 && strings.EqualFold(r.Header.Get("Expect"), "100-continue") {
		if err := p.admitted(); err != nil {
			return nil, err
		}
	}
	buf := make([]byte, messageBytes)
	for total := int64(0); ; {
		n, err := fill(r.Upload, buf)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		if total += int64(n); p.limit > 0 && total > p.limit {
			return nil, tooLarge(p.limit)
		}
		if n > 0 {
			// gRPC has encoded the message when Send returns, and nothing here looks at it later.
			if err := send(p.data(buf[:n])); err != nil {
				return nil, p.refusal(err)
			}
		}
		if err != nil {
			return p.answer()
		}
	}
}

// fill reads until buf is full, or not empty and out of patience; an error says why there is no more.
func fill(r io.Reader, buf []byte) (n int, err error) {
	var began time.Time
	for n < len(buf) && err == nil {
		var k int
		if k, err = r.Read(buf[n:]); k == 0 {
			continue
		}
		if n += k; began.IsZero() {
			began = time.Now()
		} else if time.Since(began) > patience {
			break
		}
	}
	return n, err
}

// admitted waits for what agentfs says to the first message.
func (p *pipe[Req, Resp]) admitted() error {
	var header bool
	err := p.stall.during(func() error {
		md, err := p.stream.Header()
		header = md != nil
		return err
	})
	if err != nil || !header {
		return p.refusal(io.EOF) // the stream has ended; only its answer has the error
	}
	return nil
}

// refusal returns why agentfs ended the stream, which Send tells by io.EOF.
func (p *pipe[Req, Resp]) refusal(err error) error {
	if !errors.Is(err, io.EOF) {
		return err
	}
	if _, err := p.answer(); err != nil {
		return err
	}
	return errs.New(errs.Internal, "INTERNAL", "agentfs answered before the body was there")
}

func (p *pipe[Req, Resp]) answer() (resp *Resp, err error) {
	err = p.stall.during(func() error {
		resp, err = p.stream.CloseAndRecv()
		return err
	})
	return resp, err
}

func tooLarge(limit int64) error {
	return errs.New(errs.Exhausted, problem.ReasonFileTooLarge, "the file is larger than the limit of %d bytes", limit).
		With("limitBytes", strconv.FormatInt(limit, 10))
}

// writeFile streams a request's body into a file.
func (s *Server) writeFile(r *edge.Request, h *agentfsv1.WriteFileHeader, limit int64) (*agentfsv1.WriteFileResponse, error) {
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	ctx, stall := newStall(r.Context(), s.cfg.Stall)
	defer stall.end()
	stream, err := s.files.WriteFile(ctx)
	if err != nil {
		return nil, err
	}
	h.Size = r.ContentLength
	org, conv := r.IDs["organizationId"], r.IDs["conversationId"]
	p := &pipe[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse]{stream: stream, stall: stall, limit: limit,
		data: func(b []byte) *agentfsv1.WriteFileRequest {
			return &agentfsv1.WriteFileRequest{OrganizationId: org, ConversationId: conv, Data: b}
		}}
	return p.run(r, &agentfsv1.WriteFileRequest{OrganizationId: org, ConversationId: conv, Header: h})
}

// restore replaces an organization's AgentFS by a snapshot or by the body.
func (s *Server) restore(w http.ResponseWriter, r *edge.Request) error {
	snapshot := r.Query.Get("snapshot")
	switch {
	case r.Query.Has("snapshot") && !snapshotPattern.MatchString(snapshot):
		return edge.InvalidParameter("snapshot", "must be 1 to 63 of a-z, 0-9 and -")
	case snapshot != "" && r.ContentLength != 0:
		return edge.InvalidParameter("snapshot", "stands in place of a body, and there is one")
	case snapshot == "" && r.ContentLength == 0:
		return edge.InvalidParameter("snapshot", "is needed when there is no body")
	}
	// What agentfs checks after the last byte takes longer than any step before.
	ctx, stall := newStall(r.Context(), s.cfg.Maintenance)
	defer stall.end()
	stream, err := s.backup.RestoreOrganization(ctx)
	if err != nil {
		return err
	}
	org := r.IDs["organizationId"]
	p := &pipe[agentfsv1.RestoreOrganizationRequest, agentfsv1.RestoreOrganizationResponse]{stream: stream, stall: stall,
		data: func(b []byte) *agentfsv1.RestoreOrganizationRequest {
			return &agentfsv1.RestoreOrganizationRequest{OrganizationId: org, Data: b}
		}}
	resp, err := p.run(r, &agentfsv1.RestoreOrganizationRequest{OrganizationId: org, Snapshot: snapshot, Size: r.ContentLength})
	if err != nil {
		return err
	}
	return writeProto(w, http.StatusOK, resp)
}
