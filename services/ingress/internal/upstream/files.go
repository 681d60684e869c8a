package upstream

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/ingress/internal/turn"
)

// writePiece is how many bytes of a file one message carries at most.
const writePiece = 1 << 20

// Files are the conversations' files in agentfs. It implements queue.Files.
type Files struct {
	holds agentfsv1.HoldServiceClient
	reads agentfsv1.FileServiceClient
	// writes speaks for the caller whose message brought the data: its rights and its quota decide.
	writes agentfsv1.FileServiceClient
}

// NewFiles calls as this service through own, and as each call's principal through caller.
func NewFiles(own, caller grpc.ClientConnInterface) *Files {
	return &Files{holds: agentfsv1.NewHoldServiceClient(own), reads: agentfsv1.NewFileServiceClient(own), writes: agentfsv1.NewFileServiceClient(caller)}
}

// HoldAll is Hold that returns what is held: one for each URI, in order, without MIME types.
func (f *Files) HoldAll(ctx context.Context, c turn.Conversation, turnID string, uris []string) ([]turn.File, error) {
	m, err := f.holds.HoldFiles(ctx, &agentfsv1.HoldFilesRequest{OrganizationId: c.Organization, ConversationId: c.ID, Holder: turnID, Uris: uris})
	if err != nil {
		return nil, err
	}
	if len(m.GetFiles()) != len(uris) {
		return nil, fmt.Errorf("hold files: agentfs answered %d files for %d URIs", len(m.GetFiles()), len(uris))
	}
	out := make([]turn.File, len(uris))
	for i, uri := range uris {
		if out[i], err = toFile(m.GetFiles()[i]); err != nil {
			return nil, fmt.Errorf("hold files: %w", err)
		}
		if out[i].URI != uri {
			return nil, errors.New("hold files: agentfs answered with another URI than it was asked about")
		}
	}
	return out, nil
}

// Hold implements queue.Files.
func (f *Files) Hold(ctx context.Context, c turn.Conversation, turnID string, uris []string) error {
	_, err := f.HoldAll(ctx, c, turnID, uris)
	return err
}

// Release implements queue.Files.
func (f *Files) Release(ctx context.Context, c turn.Conversation, turnID string) error {
	_, err := f.holds.ReleaseFiles(ctx, &agentfsv1.ReleaseFilesRequest{OrganizationId: c.Organization, ConversationId: c.ID, Holder: turnID})
	return err
}

// errLarger: a file has more bytes than the data it was written with.
var errLarger = errors.New("the file is larger than what was written to it")

// Read implements queue.Files.
func (f *Files) Read(ctx context.Context, c turn.Conversation, uri string, limit int64) ([]byte, error) {
	p, err := fileuri.ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.reads.ReadFile(ctx, &agentfsv1.ReadFileRequest{OrganizationId: c.Organization, ConversationId: c.ID, Path: p.String(), Length: -1})
	if err != nil {
		return nil, err
	}
	first, err := stream.Recv()
	if err != nil {
		return nil, ended(err)
	}
	size := first.GetFile().GetSize()
	if size < 0 || size > limit {
		return nil, fmt.Errorf("read file: %w", errLarger)
	}
	data := make([]byte, 0, size)
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, err
		case int64(len(data)+len(m.GetData())) > limit:
			return nil, fmt.Errorf("read file: %w", errLarger)
		}
		data = append(data, m.GetData()...)
	}
}

// Write stores an attachment for the caller, once for its name and content.
func (f *Files) Write(ctx context.Context, c turn.Conversation, name string, data []byte) (turn.File, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := f.writes.WriteFile(ctx)
	if err != nil {
		return turn.File{}, err
	}
	m := &agentfsv1.WriteFileRequest{Header: &agentfsv1.WriteFileHeader{
		Destination: &agentfsv1.WriteFileHeader_Attachment{Attachment: name}, Size: int64(len(data))}}
	for first := true; first || len(data) > 0; first = false {
		piece := data[:min(len(data), writePiece)]
		data = data[len(piece):]
		m.OrganizationId, m.ConversationId, m.Data = c.Organization, c.ID, piece
		if err := stream.Send(m); err != nil {
			break // the answer says why
		}
		m = &agentfsv1.WriteFileRequest{}
	}
	answer, err := stream.CloseAndRecv()
	if err != nil {
		return turn.File{}, err
	}
	file, err := toFile(answer.GetFile())
	if err != nil {
		return turn.File{}, fmt.Errorf("write file: %w", err)
	}
	return file, nil
}

// Gone implements queue.Files.
func (f *Files) Gone(err error) bool {
	switch errs.ReasonOf(err) {
	case "INVALID_FILE_URI", "INVALID_PATH", "FILE_NOT_FOUND", "NOT_A_FILE", "SYMLINK_REFUSED":
		return true
	}
	return false
}

// Changed implements queue.Files.
func (f *Files) Changed(err error) bool { return errors.Is(err, errLarger) }

// toFile checks what agentfs says of a file: it is stored and shown to clients.
func toFile(m *agentfsv1.File) (turn.File, error) {
	p, err := fileuri.ParseURI(m.GetUri())
	if err != nil {
		return turn.File{}, fmt.Errorf("agentfs answered a file without a canonical URI: %w", err)
	}
	file := turn.File{URI: m.GetUri(), Name: p.Name(), Size: m.GetSize()}
	if sum, err := hex.DecodeString(m.GetSha256()); err == nil && len(sum) == 32 {
		file.SHA256 = sum
	}
	return file, nil
}
