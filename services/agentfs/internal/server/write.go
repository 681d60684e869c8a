package server

import (
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/files"
)

// WriteFile implements the contract.
func (s *Server) WriteFile(stream grpc.ClientStreamingServer[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse]) error {
	first, err := stream.Recv()
	if errors.Is(err, io.EOF) {
		return invalid("the stream has no message")
	}
	if err != nil {
		return err
	}
	upload, err := s.upload(first)
	if err != nil {
		return err
	}
	leave, err := place(stream.Context(), s.uploads)
	if err != nil {
		return err
	}
	defer leave()
	var out *agentfsv1.WriteFileResponse
	err = s.streaming(stream.Context(), first, func(ctx context.Context, t files.Tree) (err error) {
		w, err := t.Begin(ctx, upload)
		if err != nil {
			return err
		}
		// What was not committed goes before the client is told.
		defer func() { err = errors.Join(err, w.Close()) }()
		// A client may wait for this before it sends what may be large.
		if err := stream.SendHeader(metadata.MD{}); err != nil {
			return err
		}
		if err := s.receive(ctx, stream, first, w); err != nil {
			return err
		}
		f, created, err := w.Commit(ctx)
		if err != nil {
			return err
		}
		out = &agentfsv1.WriteFileResponse{File: toFile(f), Created: created, MimeType: w.MIMEType(f)}
		return nil
	})
	if err != nil {
		return err
	}
	return stream.SendAndClose(out)
}

// upload reads the header.
func (s *Server) upload(first *agentfsv1.WriteFileRequest) (files.Upload, error) {
	h := first.GetHeader()
	u := files.Upload{Condition: fromPrecondition(h.GetPrecondition()), Size: h.GetSize(), Limit: s.cfg.MaxFile}
	switch d := h.GetDestination().(type) {
	case *agentfsv1.WriteFileHeader_Path:
		p, err := files.Parse(d.Path)
		if err != nil {
			return u, err
		}
		u.Path = p
	case *agentfsv1.WriteFileHeader_Attachment:
		switch {
		case d.Attachment == "":
			return u, errs.New(errs.Invalid, fault.InvalidPath, "the attachment has no name")
		case h.GetPrecondition() != nil:
			return u, invalid("an attachment takes no precondition: its path is made of its content")
		}
		u.Attachment, u.Limit = d.Attachment, s.cfg.MaxAttachment
	default:
		return u, invalid("the first message has no header")
	}
	return u, nil
}

// receive passes the stream's data on until the client closes its side.
func (s *Server) receive(ctx context.Context, stream grpc.ClientStreamingServer[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse],
	first *agentfsv1.WriteFileRequest, w *files.Writer) error {
	write := func(data []byte) error {
		s.cfg.Meter.Received(len(data))
		return w.Write(ctx, data)
	}
	if err := write(first.GetData()); err != nil {
		return err
	}
	return pump(ctx, s.cfg.Stall, stream.Recv, func(m *agentfsv1.WriteFileRequest) error {
		if named(m) != named(first) {
			return invalid("a message names another organization or conversation than the first one")
		}
		if m.GetHeader() != nil {
			return invalid("a message after the first one has a header")
		}
		return write(m.GetData())
	})
}
