package server

import (
	"context"
	"errors"
	"io"
	"syscall"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/home"
)

// maxPrivateBytes bounds one private file; an answer carries three.
const maxPrivateBytes = 16 << 20

// ProvisionOrganization implements the contract.
func (s *Server) ProvisionOrganization(ctx context.Context, r *agentfsv1.ProvisionOrganizationRequest) (*agentfsv1.ProvisionOrganizationResponse, error) {
	nodes, err := home.Organization(s.cfg.Defaults)
	if err != nil {
		return nil, err
	}
	if err := s.cfg.Store.Provision(ctx, r.GetOrganizationId(), caller(ctx), nodes); err != nil {
		return nil, err
	}
	return &agentfsv1.ProvisionOrganizationResponse{}, nil
}

// EstablishConversation implements the contract.
func (s *Server) EstablishConversation(ctx context.Context, r *agentfsv1.EstablishConversationRequest) (*agentfsv1.EstablishConversationResponse, error) {
	err := s.cfg.Store.With(ctx, r.GetOrganizationId(), func(fs *agentfs.FS) error {
		base, err := private(ctx, fs, "")
		if err != nil {
			return err
		}
		effective, err := home.Effective(base, r.GetPersona(), r.GetEnvironment())
		if err != nil {
			return err
		}
		return fault.From(fs.Plant(ctx, caller(ctx), home.Conversation(r.GetConversationId(), effective)), "the conversation's directory")
	})
	if err != nil {
		return nil, err
	}
	return &agentfsv1.EstablishConversationResponse{}, nil
}

// GetConversationHome implements the contract.
func (s *Server) GetConversationHome(ctx context.Context, r *agentfsv1.GetConversationHomeRequest) (*agentfsv1.GetConversationHomeResponse, error) {
	var p home.Private
	err := s.cfg.Store.With(ctx, r.GetOrganizationId(), func(fs *agentfs.FS) (err error) {
		p, err = private(ctx, fs, r.GetConversationId())
		return err
	})
	if errors.Is(err, fault.FileNotFound) {
		return nil, errs.Wrap(err, errs.NotFound, fault.ConversationNotFound, "conversation %s was not established", r.GetConversationId())
	}
	if err != nil {
		return nil, err
	}
	return &agentfsv1.GetConversationHomeResponse{Env: p.Env, Soul: p.Soul, Config: p.Config}, nil
}

// private reads the private files of a conversation, or of the organization.
func private(ctx context.Context, fs *agentfs.FS, conversation string) (home.Private, error) {
	var contents [3][]byte
	for i, path := range home.Paths(conversation) {
		content, err := readWhole(ctx, fs, path)
		if err != nil {
			return home.Private{}, fault.From(err, path)
		}
		contents[i] = content
	}
	return home.Private{Env: contents[0], Soul: contents[1], Config: contents[2]}, nil
}

func readWhole(ctx context.Context, fs *agentfs.FS, path string) (content []byte, err error) {
	a, err := fs.Resolve(ctx, path)
	if err != nil {
		return nil, err
	}
	if a.Mode&agentfs.TypeMask != agentfs.TypeFile {
		return nil, errs.New(errs.Precondition, fault.NotAFile, "%s is not a regular file", path)
	}
	if a.Size > maxPrivateBytes {
		return nil, errs.New(errs.Exhausted, fault.FileTooLarge, "%s has %d bytes, want at most %d", path, a.Size, maxPrivateBytes)
	}
	f, err := fs.Open(ctx, caller(ctx), a.Ino, syscall.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	content = make([]byte, a.Size)
	n, err := f.ReadAt(content, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return content[:n], err
}
