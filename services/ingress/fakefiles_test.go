package ingress_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
)

// disk is an agentfs with one conversation in it.
type disk struct {
	agentfsv1.UnimplementedFileServiceServer
	agentfsv1.UnimplementedHoldServiceServer

	mu       sync.Mutex
	files    map[string][]byte // by URI
	holds    map[string][]string
	calls    []string // "write", "hold t1", "read uri", "release t1"
	released map[string]int
	err      error // what every call answers; nil: nothing
	// before is called with each call's name; what it returns is the answer, unless nil.
	before func(call string) error
}

func newDisk() *disk {
	return &disk{files: map[string][]byte{}, holds: map[string][]string{}, released: map[string]int{}}
}

func (d *disk) enter(call string) error {
	d.mu.Lock()
	d.calls = append(d.calls, call)
	before, err := d.before, d.err
	d.mu.Unlock()
	if before != nil && err == nil {
		err = before(call)
	}
	return err
}

// count is how many calls have begun with the prefix.
func (d *disk) count(prefix string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.calls {
		if strings.HasPrefix(c, prefix) {
			n++
		}
	}
	return n
}

func (d *disk) fail(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err = err
}

func (d *disk) put(uri, content string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.files[uri] = []byte(content)
}

func (d *disk) remove(uri string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.files, uri)
}

func (d *disk) uris() (out []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for uri := range d.files {
		out = append(out, uri)
	}
	slices.Sort(out)
	return out
}

// releasedOnce checks that the turn's files were held, and were let go of once.
func (d *disk) releasedOnce(id string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.released[id]; n != 1 || d.holds[id] != nil {
		return fmt.Errorf("released %d times, held %q", n, d.holds[id])
	}
	if !slices.Contains(d.calls, "hold "+id) {
		return errors.New("was never held")
	}
	return nil
}

func describe(uri string, content []byte) *agentfsv1.File {
	sum := sha256.Sum256(content)
	p, _ := fileuri.ParseURI(uri)
	return &agentfsv1.File{Uri: uri, Path: p.String(), Size: int64(len(content)), Sha256: hex.EncodeToString(sum[:]), Version: "1-1"}
}

func (d *disk) HoldFiles(_ context.Context, r *agentfsv1.HoldFilesRequest) (*agentfsv1.HoldFilesResponse, error) {
	if err := d.enter("hold " + r.GetHolder()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	out := &agentfsv1.HoldFilesResponse{}
	for i, uri := range r.GetUris() {
		content, ok := d.files[uri]
		if !ok {
			return nil, errs.New(errs.Invalid, "INVALID_FILE_URI", "no such file in this conversation").With("index", fmt.Sprint(i))
		}
		out.Files = append(out.Files, describe(uri, content))
	}
	d.holds[r.GetHolder()] = r.GetUris()
	return out, nil
}

func (d *disk) ReleaseFiles(_ context.Context, r *agentfsv1.ReleaseFilesRequest) (*agentfsv1.ReleaseFilesResponse, error) {
	if err := d.enter("release " + r.GetHolder()); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.holds, r.GetHolder())
	d.released[r.GetHolder()]++
	return &agentfsv1.ReleaseFilesResponse{}, nil
}

func (d *disk) WriteFile(s grpc.ClientStreamingServer[agentfsv1.WriteFileRequest, agentfsv1.WriteFileResponse]) error {
	var header *agentfsv1.WriteFileHeader
	var content []byte
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		if m.GetOrganizationId() != org || m.GetConversationId() == "" {
			return errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "a message without ids")
		}
		if header == nil {
			header = m.GetHeader()
			if err := d.enter("write"); err != nil {
				return err
			}
		}
		content = append(content, m.GetData()...)
	}
	if header.GetSize() != int64(len(content)) {
		return errs.New(errs.Invalid, "SIZE_MISMATCH", "%d bytes were announced, %d came", header.GetSize(), len(content))
	}
	sum := sha256.Sum256(content)
	uri := "file:///artifacts/inbound/" + hex.EncodeToString(sum[:8]) + "/" + header.GetAttachment()
	d.put(uri, string(content))
	return s.SendAndClose(&agentfsv1.WriteFileResponse{File: describe(uri, content)})
}

func (d *disk) ReadFile(r *agentfsv1.ReadFileRequest, s grpc.ServerStreamingServer[agentfsv1.ReadFileResponse]) error {
	p, err := fileuri.ParsePath(r.GetPath())
	if err != nil {
		return errs.New(errs.Invalid, "INVALID_PATH", "%s", err)
	}
	if err := d.enter("read " + p.URI()); err != nil {
		return err
	}
	d.mu.Lock()
	content, ok := d.files[p.URI()]
	d.mu.Unlock()
	if !ok {
		return errs.New(errs.NotFound, "FILE_NOT_FOUND", "no such file")
	}
	if err := s.Send(&agentfsv1.ReadFileResponse{File: describe(p.URI(), content)}); err != nil {
		return err
	}
	for piece := range slices.Chunk(content, 1<<20) {
		if err := s.Send(&agentfsv1.ReadFileResponse{Data: piece}); err != nil {
			return err
		}
	}
	return nil
}
