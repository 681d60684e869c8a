package server

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/pkg/rpc"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/inline"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

// filesDeadline bounds what agentfs may take before an acceptance.
const filesDeadline = time.Minute

func needsFile(b block.Block) bool { return b.URI != "" || b.Inline != nil }

func hasFiles(t turn.Turn) bool {
	for _, m := range t.Messages {
		if turn.FileURIs(m.Blocks) != nil {
			return true
		}
	}
	return false
}

// keepFiles writes the blocks' inline data to files, holds all files of the turn, and completes the
// submission: what it stores has no data. A call that is repeated after a crash writes nothing
// twice: the same bytes are the same file.
func (s *Server) keepFiles(ctx context.Context, sub store.Submission, blocks [][]block.Block) (err error) {
	ctx, cancel := context.WithTimeout(ctx, filesDeadline)
	defer cancel()
	c := sub.Conversation
	var uris, paths []string
	held := make(map[string]int)
	hold := func(uri, path string) {
		if _, ok := held[uri]; !ok {
			held[uri] = len(uris)
			uris, paths = append(uris, uri), append(paths, path)
		}
	}
	writes := false
	for i, list := range blocks {
		for j, b := range list {
			if b.URI != "" {
				hold(b.URI, b.FilePath)
				sub.Messages[i].Blocks[j].File = &turn.File{URI: b.URI}
			}
			writes = writes || b.Inline != nil
		}
	}
	if writes && len(uris) > 0 {
		// A turn that is refused for a file it names must not leave one of its own.
		if _, err := s.cfg.Files.HoldAll(ctx, c, sub.TurnID, uris); err != nil {
			return fromHold(err, paths)
		}
		defer func() {
			if err != nil {
				s.cfg.Queue.Release(c, sub.TurnID)
			}
		}()
	}
	for i, list := range blocks {
		for j, b := range list {
			out := &sub.Messages[i].Blocks[j]
			if b.Inline == nil {
				continue
			}
			rest, cut, data, err := inline.Split(b.Raw, b.Inline...)
			if err != nil {
				return err // acceptance has checked it
			}
			file, err := s.cfg.Files.Write(ctx, c, inline.FileName(b.MimeType), data)
			if err != nil {
				return fromFiles(err)
			}
			hold(file.URI, "messages["+strconv.Itoa(i)+"].blocks["+strconv.Itoa(j)+"]."+strings.Join(b.Inline, "."))
			out.Raw, out.Data = rest, &turn.Data{URI: file.URI, Cut: cut}
			if out.File == nil {
				out.File = &file
			}
		}
	}
	files, err := s.cfg.Files.HoldAll(ctx, c, sub.TurnID, uris)
	if err != nil {
		return fromHold(err, paths)
	}
	for i, list := range blocks {
		for j, b := range list {
			out := &sub.Messages[i].Blocks[j]
			if out.File == nil {
				continue
			}
			file := files[held[out.File.URI]]
			if file.MimeType = b.MimeType; b.URI != "" {
				file.Name = b.Name
			}
			out.File = &file
		}
	}
	return nil
}

// fromFiles keeps agentfs's own refusals, and makes its silence one that can be tried again.
func fromFiles(err error) error {
	if errs.KindOf(err) == errs.Timeout {
		return errs.Wrap(err, errs.Unavailable, rpc.ReasonUnavailable, "agentfs did not answer in time; nothing was accepted; try again").WithRetryAfter(time.Second)
	}
	return err
}

// fromHold names the block whose file was refused.
func fromHold(err error, paths []string) error {
	var e *errs.Error
	if !errors.As(err, &e) || e.Reason() != ReasonInvalidFileURI {
		return fromFiles(err)
	}
	if n, bad := strconv.Atoi(e.Metadata()["index"]); bad == nil && n >= 0 && n < len(paths) {
		return errs.New(errs.Invalid, ReasonInvalidFileURI, "%s: %s", paths[n], e.Message()).With("field", paths[n])
	}
	return err
}

// AppendFileChanges implements the contract.
func (s *Server) AppendFileChanges(ctx context.Context, r *ingressv1.AppendFileChangesRequest) (*ingressv1.AppendFileChangesResponse, error) {
	c := turn.Conversation{Organization: r.GetOrganizationId(), ID: r.GetConversationId()}
	changes := make([]turn.FileChange, len(r.GetChanges()))
	last := int64(0)
	for i, f := range r.GetChanges() {
		at := "changes[" + strconv.Itoa(i) + "]"
		if f.GetPosition() < last {
			return nil, errs.New(errs.Invalid, rpc.ReasonInvalidArgument, "%s.position: is below the one before it", at)
		}
		last = f.GetPosition()
		if _, err := fileuri.ParseURI(f.GetUri()); err != nil {
			return nil, errs.New(errs.Invalid, rpc.ReasonInvalidArgument, "%s.uri: %s", at, err)
		}
		if renamed := f.GetChange() == "renamed"; renamed || f.GetPreviousUri() != "" {
			if _, err := fileuri.ParseURI(f.GetPreviousUri()); err != nil || !renamed {
				return nil, errs.New(errs.Invalid, rpc.ReasonInvalidArgument, "%s.previous_uri: is a canonical file URI for renamed files, else empty", at)
			}
		}
		if strings.IndexByte(f.GetVersion(), 0) >= 0 {
			return nil, errs.New(errs.Invalid, rpc.ReasonInvalidArgument, "%s.version: holds NUL", at)
		}
		changes[i] = turn.FileChange{Position: f.GetPosition(), URI: f.GetUri(), Change: f.GetChange(), Previous: f.GetPreviousUri(), Version: f.GetVersion()}
	}
	events, err := s.cfg.Store.AppendFiles(ctx, c, r.GetGeneration(), changes)
	if err != nil {
		return nil, s.fromStore(err)
	}
	s.cfg.Hub.Publish(c, events...)
	return &ingressv1.AppendFileChangesResponse{}, nil
}
