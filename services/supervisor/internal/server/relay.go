package server

import (
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/supervisor/internal/relay"
)

// ReasonInvalidAttach means: the first message of a native client's stream does not name a conversation.
const ReasonInvalidAttach errs.Reason = "INVALID_ATTACH"

type attachStream = grpc.BidiStreamingServer[supervisorv1.AttachRequest, supervisorv1.AttachResponse]

// Attach implements supervisorv1.RelayServiceServer.
func (s *Server) Attach(stream attachStream) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	if first.GetOrganizationId() == "" || first.GetConversationId() == "" || first.GetEpoch() < 1 || len(first.GetData()) > 0 {
		return errs.New(errs.Invalid, ReasonInvalidAttach, "the first message must name an organization, a conversation and an epoch, and carry no bytes")
	}
	native, err := s.Holder.AttachNative(stream.Context(), first.GetOrganizationId(), first.GetConversationId(), first.GetEpoch())
	if err != nil {
		return err
	}
	child := native.Relay()
	// The client's side ends with the stream, which is when this function returns; it is not waited
	// for here. A client that closes its side closes the child's input, and the child answers that.
	go func() {
		_, _ = relay.Pump(child, &fromClient{stream: stream}, make([]byte, relay.BufferSize))
		_ = child.CloseWrite() // closed already when the child is ending
	}()
	toClient := make(chan error, 1)
	go func() {
		_, err := relay.Pump(clientWriter{stream}, child, make([]byte, relay.BufferSize))
		toClient <- err
	}()
	select {
	case err = <-toClient:
		native.Close()
	case <-stream.Context().Done():
		err = stream.Context().Err()
		native.Close()
		err = errors.Join(err, <-toClient)
	case <-native.Done():
		native.Close()
		err = <-toClient
	}
	if err != nil {
		return fmt.Errorf("relay the child's bytes: %w", err)
	}
	return nil
}

// fromClient reads the bytes of the client's messages.
type fromClient struct {
	stream attachStream
	rest   []byte
}

func (r *fromClient) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		m, err := r.stream.Recv()
		if err != nil {
			return 0, err // io.EOF when the client closed its side
		}
		r.rest = m.GetData()
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// clientWriter sends bytes as messages.
type clientWriter struct{ stream attachStream }

func (w clientWriter) Write(p []byte) (int, error) {
	if err := w.stream.Send(&supervisorv1.AttachResponse{Data: p}); err != nil {
		return 0, err
	}
	return len(p), nil
}
