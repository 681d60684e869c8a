package server

import (
	"context"

	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/files"
)

// HoldFiles implements the contract.
func (s *Server) HoldFiles(ctx context.Context, r *agentfsv1.HoldFilesRequest) (*agentfsv1.HoldFilesResponse, error) {
	out := &agentfsv1.HoldFilesResponse{}
	err := s.within(ctx, r, func(t files.Tree) error {
		held, err := t.Hold(ctx, r.GetHolder(), r.GetUris())
		for _, f := range held {
			out.Files = append(out.Files, toFile(f))
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// ReleaseFiles implements the contract.
func (s *Server) ReleaseFiles(ctx context.Context, r *agentfsv1.ReleaseFilesRequest) (*agentfsv1.ReleaseFilesResponse, error) {
	err := s.within(ctx, r, func(t files.Tree) error { return t.Release(ctx, r.GetHolder()) })
	if err != nil {
		return nil, err
	}
	return &agentfsv1.ReleaseFilesResponse{}, nil
}
