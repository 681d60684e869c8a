// Package server is routing's gRPC surface: it checks, calls and converts.
package server

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/establish"
	"humanwork.internal/services/routing/internal/page"
	"humanwork.internal/services/routing/internal/store"
)

const defaultPageSize = 50

// Policy says who may call what. Creating an organization is for administrators; placements carry
// internal addresses and are for services.
func Policy() rpc.Policy {
	return rpc.Policy{}.
		Allow([]string{rpc.RoleAdmin},
			routingv1.RoutingService_CreateOrganization_FullMethodName).
		Allow([]string{rpc.RoleAdmin, rpc.RoleMember},
			routingv1.RoutingService_CreateConversation_FullMethodName).
		Allow([]string{rpc.RoleAdmin, rpc.RoleMember, rpc.RoleService + "ingress", rpc.RoleService + "gateway", rpc.RoleService + "agentfs"},
			routingv1.RoutingReadService_GetOrganization_FullMethodName,
			routingv1.RoutingReadService_GetConversation_FullMethodName).
		Allow([]string{rpc.RoleAdmin, rpc.RoleMember, rpc.RoleService + "ingress", rpc.RoleService + "gateway"},
			routingv1.RoutingReadService_ListConversations_FullMethodName).
		Allow([]string{rpc.RoleAdmin, rpc.RoleService + "ingress", rpc.RoleService + "gateway"},
			routingv1.RoutingReadService_GetPlacement_FullMethodName)
}

// Server answers both services.
type Server struct {
	routingv1.UnimplementedRoutingServiceServer
	routingv1.UnimplementedRoutingReadServiceServer
	Rows      store.Reader
	Establish *establish.Establisher
	Cells     []directory.Cell
	// PageKey signs page tokens.
	PageKey []byte
}

// Register adds both services to s.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	routingv1.RegisterRoutingServiceServer(r, s)
	routingv1.RegisterRoutingReadServiceServer(r, s)
}

// CreateOrganization implements routingv1.RoutingServiceServer.
func (s *Server) CreateOrganization(ctx context.Context, r *routingv1.CreateOrganizationRequest) (*routingv1.CreateOrganizationResponse, error) {
	o, err := s.Establish.CreateOrganization(ctx, r.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	return &routingv1.CreateOrganizationResponse{Organization: organization(o)}, nil
}

// CreateConversation implements routingv1.RoutingServiceServer.
func (s *Server) CreateConversation(ctx context.Context, r *routingv1.CreateConversationRequest) (*routingv1.CreateConversationResponse, error) {
	c, err := s.Establish.CreateConversation(ctx, establish.Request{
		Organization: r.GetOrganizationId(),
		Conversation: r.GetConversationId(),
		Specialist:   r.GetSpecialistId(),
		Persona:      r.GetPersona(),
		Environment:  r.GetEnvironment(),
	})
	if err != nil {
		return nil, err
	}
	return &routingv1.CreateConversationResponse{Conversation: conversation(c)}, nil
}

// GetOrganization implements routingv1.RoutingReadServiceServer.
func (s *Server) GetOrganization(ctx context.Context, r *routingv1.GetOrganizationRequest) (*routingv1.GetOrganizationResponse, error) {
	o, err := s.Rows.Organization(ctx, r.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	return &routingv1.GetOrganizationResponse{Organization: organization(o)}, nil
}

// GetConversation implements routingv1.RoutingReadServiceServer.
func (s *Server) GetConversation(ctx context.Context, r *routingv1.GetConversationRequest) (*routingv1.GetConversationResponse, error) {
	c, place, err := s.Rows.Conversation(ctx, r.GetOrganizationId(), r.GetConversationId())
	if err != nil {
		return nil, err
	}
	answer := &routingv1.GetConversationResponse{Conversation: conversation(c)}
	if who, ok := rpc.PrincipalFrom(ctx); ok && mayKnowPlacement(who) {
		if answer.Placement, err = s.placement(place); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

// ListConversations implements routingv1.RoutingReadServiceServer.
func (s *Server) ListConversations(ctx context.Context, r *routingv1.ListConversationsRequest) (*routingv1.ListConversationsResponse, error) {
	after, err := page.Decode(s.PageKey, r.GetOrganizationId(), r.GetPageToken())
	if err != nil {
		return nil, err
	}
	// An empty list would not tell an unknown organization from one without conversations.
	if _, err := s.Rows.Organization(ctx, r.GetOrganizationId()); err != nil {
		return nil, err
	}
	size := int(r.GetPageSize())
	if size == 0 {
		size = defaultPageSize
	}
	list, err := s.Rows.Conversations(ctx, r.GetOrganizationId(), after, size+1)
	if err != nil {
		return nil, err
	}
	answer := &routingv1.ListConversationsResponse{}
	if len(list) > size {
		list = list[:size]
		last := list[size-1]
		answer.NextPageToken = page.Encode(s.PageKey, r.GetOrganizationId(), store.Cursor{CreateTime: last.CreateTime, ID: last.ID})
	}
	for _, c := range list {
		answer.Conversations = append(answer.Conversations, conversation(c))
	}
	return answer, nil
}

// GetPlacement implements routingv1.RoutingReadServiceServer.
func (s *Server) GetPlacement(ctx context.Context, r *routingv1.GetPlacementRequest) (*routingv1.GetPlacementResponse, error) {
	place, err := s.Rows.Placement(ctx, r.GetOrganizationId())
	if err != nil {
		return nil, err
	}
	p, err := s.placement(place)
	if err != nil {
		return nil, err
	}
	return &routingv1.GetPlacementResponse{Placement: p}, nil
}

// mayKnowPlacement keeps internal addresses from members.
func mayKnowPlacement(who rpc.Principal) bool {
	for _, role := range who.Roles {
		if role != rpc.RoleMember {
			return true
		}
	}
	return false
}

func (s *Server) placement(p directory.Placement) (*routingv1.Placement, error) {
	for _, c := range s.Cells {
		if c.ID == p.Cell {
			return &routingv1.Placement{CellId: p.Cell, Epoch: p.Epoch, SupervisorTarget: c.Supervisor, SessiondbTarget: c.SessionDB}, nil
		}
	}
	return nil, errs.New(errs.Unavailable, directory.ReasonCellUnknown, "cell %s is not in routing's configuration", p.Cell)
}

func organization(o directory.Organization) *routingv1.Organization {
	return &routingv1.Organization{OrganizationId: o.ID, CreateTime: timestamppb.New(o.CreateTime)}
}

func conversation(c directory.Conversation) *routingv1.Conversation {
	return &routingv1.Conversation{OrganizationId: c.Organization, ConversationId: c.ID, SessionId: c.Session,
		SpecialistId: c.Specialist, CreateTime: timestamppb.New(c.CreateTime)}
}
