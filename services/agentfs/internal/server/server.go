// Package server is agentfs's gRPC surface: it checks, calls and converts.
package server

import (
	"context"
	"errors"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/home"
	"humanwork.internal/services/agentfs/internal/store"
	"humanwork.internal/services/agentfs/internal/tree"
)

// maxPrivateBytes bounds one private file; an answer carries three.
const maxPrivateBytes = 16 << 20

// Policy says who may call what: routing establishes, the supervisor reads. Private files hold
// credentials, so no one else does.
func Policy() rpc.Policy {
	return rpc.Policy{}.
		Allow([]string{rpc.RoleService + "routing"},
			agentfsv1.EstablishmentService_ProvisionOrganization_FullMethodName,
			agentfsv1.EstablishmentService_EstablishConversation_FullMethodName).
		Allow([]string{rpc.RoleService + "supervisor"},
			agentfsv1.EstablishmentService_GetConversationHome_FullMethodName)
}

// Server answers EstablishmentService.
type Server struct {
	agentfsv1.UnimplementedEstablishmentServiceServer
	Store    store.Store
	Defaults home.Defaults
}

// Register adds the service to r.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	agentfsv1.RegisterEstablishmentServiceServer(r, s)
}

// ProvisionOrganization implements agentfsv1.EstablishmentServiceServer.
func (s *Server) ProvisionOrganization(ctx context.Context, r *agentfsv1.ProvisionOrganizationRequest) (*agentfsv1.ProvisionOrganizationResponse, error) {
	nodes, err := home.Organization(s.Defaults)
	if err != nil {
		return nil, err
	}
	if err := s.Store.Provision(ctx, r.GetOrganizationId(), nodes); err != nil {
		return nil, err
	}
	return &agentfsv1.ProvisionOrganizationResponse{}, nil
}

// EstablishConversation implements agentfsv1.EstablishmentServiceServer.
func (s *Server) EstablishConversation(ctx context.Context, r *agentfsv1.EstablishConversationRequest) (*agentfsv1.EstablishConversationResponse, error) {
	base, err := s.private(ctx, r.GetOrganizationId(), "")
	if err != nil {
		return nil, err
	}
	effective, err := home.Effective(base, r.GetPersona(), r.GetEnvironment())
	if err != nil {
		return nil, err
	}
	if err := s.Store.Plant(ctx, r.GetOrganizationId(), home.Conversation(r.GetConversationId(), effective)); err != nil {
		return nil, err
	}
	return &agentfsv1.EstablishConversationResponse{}, nil
}

// GetConversationHome implements agentfsv1.EstablishmentServiceServer.
func (s *Server) GetConversationHome(ctx context.Context, r *agentfsv1.GetConversationHomeRequest) (*agentfsv1.GetConversationHomeResponse, error) {
	p, err := s.private(ctx, r.GetOrganizationId(), r.GetConversationId())
	if errors.Is(err, tree.ReasonFileNotFound) {
		return nil, errs.Wrap(err, errs.NotFound, tree.ReasonConversationNotFound, "conversation %s was not established", r.GetConversationId())
	}
	if err != nil {
		return nil, err
	}
	return &agentfsv1.GetConversationHomeResponse{Env: p.Env, Soul: p.Soul, Config: p.Config}, nil
}

func (s *Server) private(ctx context.Context, organization, conversation string) (home.Private, error) {
	files, err := s.Store.ReadFiles(ctx, organization, home.Paths(conversation), maxPrivateBytes)
	if err != nil {
		return home.Private{}, err
	}
	return home.Private{Env: files[0], Soul: files[1], Config: files[2]}, nil
}
