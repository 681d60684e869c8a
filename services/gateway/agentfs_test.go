package gateway_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
)

// fakeFile is a file: content, or size bytes of zeros.
type fakeFile struct {
	content []byte
	size    int64
	version string
	media   string
}

func (f *fakeFile) describe(name string) *agentfsv1.File {
	sum := sha256.Sum256(f.content)
	return &agentfsv1.File{Uri: "file:///" + (&url.URL{Path: name}).EscapedPath(), Path: name, Size: f.size, Mode: 0o100644,
		ModifyTime: created, Version: f.version, Sha256: hex.EncodeToString(sum[:])}
}

// fakeAgentFS keeps files in memory, with versions of its own.
type fakeAgentFS struct {
	agentfsv1.UnimplementedFileServiceServer
	agentfsv1.UnimplementedAuditServiceServer
	agentfsv1.UnimplementedBackupServiceServer

	mu     sync.Mutex
	files  map[string]*fakeFile
	serial int
	calls  []string // of the methods, with the paths
	// admit is asked about the header of a write before its data is taken.
	admit func(*agentfsv1.WriteFileHeader) error
	// received is called with the data of each message of a write.
	received func([]byte)
	// sink swallows data instead of keeping it.
	sink bool
	// canceled is told what a write or a read that was not completed ended with.
	canceled chan error
	// reading is called before each message of a read.
	reading func(offset int64) error
	// ending is what a read ends with after its last byte.
	ending func() error
	// replacing is called after a stat.
	replacing func()
	restored  []byte
	exported  func(grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error
	seen      any // the last request of a listing
}

func (f *fakeAgentFS) register(s *grpc.Server) {
	agentfsv1.RegisterFileServiceServer(s, f)
	agentfsv1.RegisterAuditServiceServer(s, f)
	agentfsv1.RegisterBackupServiceServer(s, f)
}

func (f *fakeAgentFS) note(method, name string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, method+" "+name)
}

func (f *fakeAgentFS) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// put stores a file of the test's and returns its ETag.
func (f *fakeAgentFS) put(name string, file fakeFile) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serial++
	if file.size == 0 {
		file.size = int64(len(file.content))
	}
	file.version = fmt.Sprintf("%d-%d", 100+f.serial, f.serial)
	if file.media == "" {
		file.media = "text/plain; charset=utf-8"
	}
	f.files[name] = &file
	return `"` + file.version + `"`
}

func (f *fakeAgentFS) get(name string) *fakeFile {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.files[name]
}

func (f *fakeAgentFS) find(conversation, name string) (*fakeFile, error) {
	if conversation != "c1" {
		return nil, errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation")
	}
	if strings.HasSuffix(name, "/link") {
		return nil, errs.New(errs.Precondition, "SYMLINK_REFUSED", "a symbolic link")
	}
	file := f.get(name)
	if file == nil {
		return nil, errs.New(errs.NotFound, "FILE_NOT_FOUND", "no such file")
	}
	return file, nil
}

func check(file *fakeFile, p *agentfsv1.Precondition) error {
	version := ""
	if file != nil {
		version = file.version
	}
	if p.GetIfExists() && file == nil || p.GetIfAbsent() && file != nil ||
		len(p.GetIfMatch()) > 0 && !slices.Contains(p.GetIfMatch(), version) ||
		file != nil && slices.Contains(p.GetIfNoneMatch(), version) {
		return errs.New(errs.Precondition, "VERSION_MISMATCH", "another version")
	}
	return nil
}

func (f *fakeAgentFS) WriteFile(stream grpc.ClientStreamingServer[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse]) error {
	err := f.write(stream)
	if err != nil && f.canceled != nil {
		f.canceled <- err
	}
	return err
}

func (f *fakeAgentFS) write(stream grpc.ClientStreamingServer[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	h := first.GetHeader()
	name := h.GetPath()
	if a := h.GetAttachment(); a != "" {
		name = "artifacts/inbound/0123456789abcdef/" + a
	}
	f.note("WriteFile", name)
	old, err := f.find(first.GetConversationId(), name)
	if err != nil && !errors.Is(err, errs.Reason("FILE_NOT_FOUND")) {
		return err
	}
	if err := check(old, h.GetPrecondition()); err != nil {
		return err
	}
	if f.admit != nil {
		if err := f.admit(h); err != nil {
			return err
		}
	}
	if err := stream.SendHeader(metadata.MD{}); err != nil {
		return err
	}
	var content bytes.Buffer
	var size int64
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.GetHeader() != nil || len(m.GetData()) > 256<<10 || m.GetOrganizationId() != "acme" {
			return errs.New(errs.Invalid, "TEST", "got a message with a header, over 256 KiB or without ids")
		}
		if f.received != nil {
			f.received(m.GetData())
		}
		if size += int64(len(m.GetData())); !f.sink {
			content.Write(m.GetData())
		}
	}
	if h.GetSize() >= 0 && h.GetSize() != size {
		return errs.New(errs.Invalid, "SIZE_MISMATCH", "%d bytes, not %d", size, h.GetSize())
	}
	media := "application/octet-stream"
	if path.Ext(name) == ".txt" {
		media = "text/plain; charset=utf-8"
	}
	f.put(name, fakeFile{content: content.Bytes(), size: size, media: media})
	return stream.SendAndClose(&agentfsv1.WriteFileResponse{File: f.get(name).describe(name), Created: old == nil, MimeType: media})
}

func (f *fakeAgentFS) StatFile(_ context.Context, r *agentfsv1.StatFileRequest) (*agentfsv1.StatFileResponse, error) {
	f.note("StatFile", r.GetPath())
	file, err := f.find(r.GetConversationId(), r.GetPath())
	if err != nil {
		return nil, err
	}
	resp := &agentfsv1.StatFileResponse{File: file.describe(r.GetPath()), MimeType: file.media}
	if f.replacing != nil {
		f.replacing()
	}
	return resp, nil
}

func (f *fakeAgentFS) ReadFile(r *agentfsv1.ReadFileRequest, stream grpc.ServerStreamingServer[agentfsv1.ReadFileResponse]) error {
	err := f.send(r, stream)
	if err != nil && f.canceled != nil {
		f.canceled <- err
	}
	return err
}

func (f *fakeAgentFS) send(r *agentfsv1.ReadFileRequest, stream grpc.ServerStreamingServer[agentfsv1.ReadFileResponse]) error {
	f.note("ReadFile", fmt.Sprintf("%s %d+%d", r.GetPath(), r.GetOffset(), r.GetLength()))
	file, err := f.find(r.GetConversationId(), r.GetPath())
	if err != nil {
		return err
	}
	if r.GetVersion() != "" && r.GetVersion() != file.version {
		return errs.New(errs.Precondition, "VERSION_MISMATCH", "another version")
	}
	if err := stream.Send(&agentfsv1.ReadFileResponse{File: file.describe(r.GetPath()), MimeType: file.media}); err != nil {
		return err
	}
	end := file.size
	if r.GetLength() >= 0 {
		end = min(end, r.GetOffset()+r.GetLength())
	}
	zeros := make([]byte, 256<<10)
	for offset := r.GetOffset(); offset < end; {
		if f.reading != nil {
			if err := f.reading(offset); err != nil {
				return err
			}
		}
		n := min(end-offset, int64(len(zeros)))
		data := zeros[:n]
		if file.content != nil {
			data = file.content[offset : offset+n]
		}
		if err := stream.Send(&agentfsv1.ReadFileResponse{Data: data}); err != nil {
			return err
		}
		offset += n
	}
	if f.ending != nil {
		return f.ending()
	}
	return nil
}

func (f *fakeAgentFS) DeleteFile(_ context.Context, r *agentfsv1.DeleteFileRequest) (*agentfsv1.DeleteFileResponse, error) {
	f.note("DeleteFile", r.GetPath())
	file, err := f.find(r.GetConversationId(), r.GetPath())
	if err != nil {
		return nil, err
	}
	if err := check(file, r.GetPrecondition()); err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.files, r.GetPath())
	return &agentfsv1.DeleteFileResponse{}, nil
}

func (f *fakeAgentFS) ListFiles(_ context.Context, r *agentfsv1.ListFilesRequest) (*agentfsv1.ListFilesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seen = r
	resp := &agentfsv1.ListFilesResponse{}
	for name, file := range f.files {
		if strings.HasPrefix(name, r.GetPrefix()) {
			resp.Files = append(resp.Files, file.describe(name))
		}
	}
	if r.GetShallow() {
		resp.Directories, resp.NextPageToken = []string{"workspace/src/"}, "next"
	}
	return resp, nil
}

func (f *fakeAgentFS) ListTimeline(_ context.Context, r *agentfsv1.ListTimelineRequest) (*agentfsv1.ListTimelineResponse, error) {
	f.seen = r
	return &agentfsv1.ListTimelineResponse{Records: []*agentfsv1.LedgerRecord{{Position: 7, Time: created, Actor: "user:mia", Action: "write",
		Path: "workspace/a", Inode: 1<<53 + 1, Version: "1-2", Size: 3, Hash: "ab", Writer: 1, Sequence: 7}}}, nil
}

func (f *fakeAgentFS) DiffFiles(_ context.Context, r *agentfsv1.DiffFilesRequest) (*agentfsv1.DiffFilesResponse, error) {
	f.seen = r
	return &agentfsv1.DiffFilesResponse{From: r.GetFrom(), To: 9, Differences: []*agentfsv1.Difference{{Kind: agentfsv1.Difference_KIND_ADDED, Path: "workspace/a"}}}, nil
}

func (f *fakeAgentFS) ListToolCalls(_ context.Context, r *agentfsv1.ListToolCallsRequest) (*agentfsv1.ListToolCallsResponse, error) {
	f.seen = r
	return &agentfsv1.ListToolCallsResponse{ToolCalls: []*agentfsv1.ToolCall{{Id: 1, Name: "shell", Parameters: `{"a": 1}`, Status: "pending", StartTime: created}}}, nil
}

func (f *fakeAgentFS) CheckOrganization(_ context.Context, r *agentfsv1.CheckOrganizationRequest) (*agentfsv1.CheckOrganizationResponse, error) {
	f.seen = r
	return &agentfsv1.CheckOrganizationResponse{Inodes: 3}, nil
}

func snapshot(name string) *agentfsv1.Snapshot {
	return &agentfsv1.Snapshot{Name: name, CreateTime: created, Size: 4096}
}

func (f *fakeAgentFS) CreateSnapshot(_ context.Context, r *agentfsv1.CreateSnapshotRequest) (*agentfsv1.CreateSnapshotResponse, error) {
	if r.GetName() == "taken" {
		return nil, errs.New(errs.Conflict, "SNAPSHOT_EXISTS", "there is one")
	}
	return &agentfsv1.CreateSnapshotResponse{Snapshot: snapshot(r.GetName())}, nil
}

func (f *fakeAgentFS) ListSnapshots(context.Context, *agentfsv1.ListSnapshotsRequest) (*agentfsv1.ListSnapshotsResponse, error) {
	return &agentfsv1.ListSnapshotsResponse{Snapshots: []*agentfsv1.Snapshot{snapshot("a")}}, nil
}

func (f *fakeAgentFS) DeleteSnapshot(_ context.Context, r *agentfsv1.DeleteSnapshotRequest) (*agentfsv1.DeleteSnapshotResponse, error) {
	if r.GetName() != "a" {
		return nil, errs.New(errs.NotFound, "SNAPSHOT_NOT_FOUND", "no such snapshot")
	}
	return &agentfsv1.DeleteSnapshotResponse{}, nil
}

func (f *fakeAgentFS) ExportOrganization(_ *agentfsv1.ExportOrganizationRequest, s grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error {
	return f.exported(s)
}

func (f *fakeAgentFS) RestoreOrganization(s grpc.ClientStreamingServer[agentfsv1.RestoreOrganizationRequest, agentfsv1.RestoreOrganizationResponse]) error {
	var content []byte
	for n := 0; ; n++ {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if n == 0 {
			content = fmt.Appendf(nil, "%s:%d:", m.GetSnapshot(), m.GetSize())
		}
		content = append(content, m.GetData()...)
	}
	f.restored = content
	return s.SendAndClose(&agentfsv1.RestoreOrganizationResponse{Previous: snapshot("before")})
}
