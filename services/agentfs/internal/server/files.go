package server

import (
	"context"
	"encoding/hex"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/files"
)

const defaultPage = 100

func pageSize(asked int32) int {
	if asked == 0 {
		return defaultPage
	}
	return int(asked)
}

func toFile(f files.File) *agentfsv1.File {
	return &agentfsv1.File{Uri: f.Path.URI(), Path: f.Path.String(), Size: f.Attr.Size, Mode: f.Attr.Mode,
		ModifyTime: timestamppb.New(f.Attr.Mtime), Version: f.Version(), Sha256: hex.EncodeToString(f.SHA256)}
}

func fromPrecondition(p *agentfsv1.Precondition) files.Condition {
	return files.Condition{Match: p.GetIfMatch(), Exists: p.GetIfExists(), NoneMatch: p.GetIfNoneMatch(), Absent: p.GetIfAbsent()}
}

// StatFile implements the contract.
func (s *Server) StatFile(ctx context.Context, r *agentfsv1.StatFileRequest) (*agentfsv1.StatFileResponse, error) {
	out := &agentfsv1.StatFileResponse{}
	err := s.within(ctx, r, func(t files.Tree) error {
		p, err := files.Parse(r.GetPath())
		if err != nil {
			return err
		}
		f, err := t.Stat(ctx, p)
		if err != nil {
			return err
		}
		out.File = toFile(f)
		out.MimeType, err = t.MIMEType(ctx, f)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// DeleteFile implements the contract.
func (s *Server) DeleteFile(ctx context.Context, r *agentfsv1.DeleteFileRequest) (*agentfsv1.DeleteFileResponse, error) {
	err := s.within(ctx, r, func(t files.Tree) error {
		p, err := files.Parse(r.GetPath())
		if err != nil {
			return err
		}
		return t.Remove(ctx, p, fromPrecondition(r.GetPrecondition()))
	})
	if err != nil {
		return nil, err
	}
	return &agentfsv1.DeleteFileResponse{}, nil
}

// ListFiles implements the contract.
func (s *Server) ListFiles(ctx context.Context, r *agentfsv1.ListFilesRequest) (*agentfsv1.ListFilesResponse, error) {
	out := &agentfsv1.ListFilesResponse{}
	err := s.within(ctx, r, func(t files.Tree) error {
		page, err := t.List(ctx, files.Listing{Prefix: r.GetPrefix(), Shallow: r.GetShallow(),
			Size: pageSize(r.GetPageSize()), Token: r.GetPageToken()})
		if err != nil {
			return err
		}
		for _, f := range page.Files {
			out.Files = append(out.Files, toFile(f))
		}
		out.Directories, out.NextPageToken = page.Directories, page.Next
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ReadFile implements the contract.
func (s *Server) ReadFile(r *agentfsv1.ReadFileRequest, stream grpc.ServerStreamingServer[agentfsv1.ReadFileResponse]) error {
	leave, err := place(stream.Context(), s.downloads)
	if err != nil {
		return err
	}
	defer leave()
	return s.streaming(stream.Context(), r, func(ctx context.Context, t files.Tree) (err error) {
		p, err := files.Parse(r.GetPath())
		if err != nil {
			return err
		}
		f, err := t.Open(ctx, p, r.GetVersion())
		if err != nil {
			return err
		}
		defer f.CloseInto(&err)
		media, err := f.MIMEType(ctx)
		if err != nil {
			return err
		}
		if err := stream.Send(&agentfsv1.ReadFileResponse{File: toFile(f.File), MimeType: media}); err != nil {
			return err
		}
		return f.Copy(ctx, r.GetOffset(), r.GetLength(), func(data []byte) error {
			s.cfg.Meter.Sent(len(data))
			return stream.Send(&agentfsv1.ReadFileResponse{Data: data})
		})
	})
}
