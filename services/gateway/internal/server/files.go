package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/entity"
	"humanwork.internal/services/gateway/internal/problem"
	"humanwork.internal/services/gateway/internal/wire"
)

// filePolicy keeps a browser that shows a file from running anything in it.
const filePolicy = "sandbox; default-src 'none'; frame-ancestors 'none'"

// getFile looks at the file before it opens it where the answer may need no content, or a part. What
// was replaced in between is opened first instead, and sent as a whole.
func (s *Server) getFile(w http.ResponseWriter, r *edge.Request) error {
	if !mayNeedLess(r) {
		_, err := s.serveFile(w, r, s.openFirst)
		return err
	}
	begun, err := s.serveFile(w, r, s.statFirst)
	if !begun && errors.Is(err, errReplaced) {
		r.Header.Del("Range") // the whole file is always a right answer
		_, err = s.serveFile(w, r, s.openFirst)
	}
	return err
}

// mayNeedLess says whether the answer may be something else than the whole file.
func mayNeedLess(r *edge.Request) bool {
	return r.Method == http.MethodHead || slices.ContainsFunc(lessHeaders, func(name string) bool { return len(r.Header.Values(name)) > 0 })
}

var lessHeaders = []string{"Range", "If-Match", "If-None-Match", "If-Modified-Since", "If-Unmodified-Since"}

var errReplaced = errors.New("the file was replaced before it was open")

// opener begins the content of a file as it is now, and tells its media type.
type opener func(r *edge.Request, c *content) (media string, err error)

func (s *Server) statFirst(r *edge.Request, c *content) (string, error) {
	stat, err := s.files.StatFile(c.ctx, &agentfsv1.StatFileRequest{
		OrganizationId: r.IDs["organizationId"], ConversationId: r.IDs["conversationId"], Path: r.Path})
	c.file = stat.GetFile()
	return stat.GetMimeType(), err
}

func (s *Server) openFirst(_ *edge.Request, c *content) (string, error) {
	ctx, cancel := context.WithCancel(c.ctx)
	stream, err := c.read(ctx, 0, -1)
	if err != nil {
		cancel()
		return "", err
	}
	first, err := stream.Recv()
	if err != nil {
		cancel()
		return "", early(err)
	}
	c.file = first.GetFile()
	c.take(stream, cancel)
	return first.GetMimeType(), nil
}

// serveFile answers with the file as it is now, all of it of one version.
func (s *Server) serveFile(w http.ResponseWriter, r *edge.Request, open opener) (begun bool, err error) {
	ctx, stall := newStall(r.Context(), s.cfg.Stall)
	defer stall.end()
	c := &content{ctx: ctx, stall: stall}
	c.read = func(ctx context.Context, offset, length int64) (grpc.ServerStreamingClient[agentfsv1.ReadFileResponse], error) {
		return s.files.ReadFile(ctx, &agentfsv1.ReadFileRequest{OrganizationId: r.IDs["organizationId"],
			ConversationId: r.IDs["conversationId"], Path: r.Path, Offset: offset, Length: length, Version: c.file.GetVersion()})
	}
	var media string
	err = stall.during(func() error {
		media, err = open(r, c)
		return err
	})
	if err != nil {
		return false, err
	}
	restore := describe(w.Header(), media, c.file.GetVersion(), path.Base(r.Path))
	in := r.Clone(ctx)
	entity.TrimRange(in.Method, in.Header)
	a := &fileAnswer{ResponseWriter: w, content: c, head: in.Method == http.MethodHead}
	http.ServeContent(a, in, "", c.file.GetModifyTime().AsTime(), c)
	err = a.finish()
	if a.begun || err == nil {
		return a.begun, err
	}
	unsatisfied := w.Header().Get("Content-Range")
	restore()
	switch {
	case errs.ReasonOf(err) == problem.ReasonRange && unsatisfied != "":
		w.Header().Set("Content-Range", unsatisfied)
	case a.opening && errs.ReasonOf(err) == problem.ReasonVersionMismatch:
		return false, errReplaced
	}
	return false, err
}

// describe sets the headers of a file's content, and returns what takes them all back.
func describe(h http.Header, media, version, name string) (restore func()) {
	before := h.Clone()
	if media == "" {
		media = "application/octet-stream"
	}
	h.Set("Content-Type", media)
	h.Set("Content-Disposition", entity.Attachment(name))
	h.Set("Content-Security-Policy", filePolicy)
	h.Set("Cache-Control", "private, no-cache")
	h.Set("ETag", entity.Tag(version))
	return func() {
		clear(h)
		for k, v := range before {
			h[k] = v
		}
	}
}

func (s *Server) putFile(w http.ResponseWriter, r *edge.Request) error {
	condition, err := precondition(r.Header)
	if err != nil {
		return err
	}
	resp, err := s.writeFile(r, &agentfsv1.WriteFileHeader{Precondition: condition,
		Destination: &agentfsv1.WriteFileHeader_Path{Path: r.Path}}, s.cfg.MaxFileBytes)
	if err != nil {
		return err
	}
	file := resp.GetFile()
	w.Header().Set("ETag", entity.Tag(file.GetVersion()))
	status := http.StatusOK
	if resp.GetCreated() {
		w.Header().Set("Location", fileLocation(r, file.GetPath()))
		status = http.StatusCreated
	}
	return writeProto(w, status, file)
}

func (s *Server) deleteFile(w http.ResponseWriter, r *edge.Request) error {
	condition, err := precondition(r.Header)
	if err != nil {
		return err
	}
	if _, err := s.files.DeleteFile(r.Context(), &agentfsv1.DeleteFileRequest{OrganizationId: r.IDs["organizationId"],
		ConversationId: r.IDs["conversationId"], Path: r.Path, Precondition: condition}); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) listFiles(w http.ResponseWriter, r *edge.Request) error {
	if err := checkPage(r, maxFilePageToken); err != nil {
		return err
	}
	if r.Query.Has("shallow") {
		if v := r.Query.Get("shallow"); v != "true" && v != "false" {
			return edge.InvalidParameter("shallow", "must be true or false")
		}
	}
	if len(r.Query.Get("prefix")) > fileuri.MaxPath {
		return edge.InvalidParameter("prefix", "is longer than %d bytes", fileuri.MaxPath)
	}
	return s.proxied(nil)(w, r)
}

func (s *Server) addAttachment(w http.ResponseWriter, r *edge.Request) error {
	name := r.Query.Get("filename")
	if err := checkName(name); err != nil {
		return err
	}
	resp, err := s.writeFile(r, &agentfsv1.WriteFileHeader{
		Destination: &agentfsv1.WriteFileHeader_Attachment{Attachment: name}}, s.cfg.MaxAttachmentBytes)
	if err != nil {
		return err
	}
	w.Header().Set("Location", fileLocation(r, resp.GetFile().GetPath()))
	w.Header().Set("ETag", entity.Tag(resp.GetFile().GetVersion()))
	return writeJSON(w, http.StatusCreated, wire.NewStoredAttachment(resp))
}

// checkName refuses what no file's name can be; the query is valid UTF-8 already.
func checkName(name string) error {
	why := ""
	switch {
	case name == "":
		why = "is needed: the name to keep the attachment under"
	case name == "." || name == "..":
		why = `must not be "." or ".."`
	case strings.ContainsAny(name, "/\x00"):
		why = "must not hold a slash or NUL"
	case len(name) > fileuri.MaxName:
		why = fmt.Sprintf("is longer than %d bytes", fileuri.MaxName)
	default:
		return nil
	}
	return edge.InvalidParameter("filename", "%s", why)
}

func precondition(h http.Header) (*agentfsv1.Precondition, error) {
	c, err := entity.ParseCondition(h)
	if err != nil {
		return nil, err
	}
	return &agentfsv1.Precondition{IfMatch: c.Match, IfExists: c.Exists, IfNoneMatch: c.NoneMatch, IfAbsent: c.Absent}, nil
}

// fileLocation returns the path of a file's own address.
func fileLocation(r *edge.Request, file string) string {
	names := strings.Split(file, "/")
	for i, n := range names {
		names[i] = url.PathEscape(n)
	}
	return fmt.Sprintf("%s/%s/conversations/%s/files/%s", organizations, r.IDs["organizationId"], r.IDs["conversationId"], strings.Join(names, "/"))
}

// writeProto sends a message as the generated handlers would.
func writeProto(w http.ResponseWriter, status int, m proto.Message) error {
	raw, err := marshaler.Marshal(m)
	if err != nil {
		return err
	}
	send(w, status, edge.MediaJSON, raw)
	return nil
}
