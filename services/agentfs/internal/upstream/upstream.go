// Package upstream asks routing and ingress, as agentfs itself.
package upstream

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	routingv1 "humanwork.internal/proto/gen/humanwork/routing/v1"
	"humanwork.internal/services/agentfs/internal/announce"
	"humanwork.internal/services/agentfs/internal/authority"
)

// Directory is routing's.
type Directory struct {
	routing routingv1.RoutingReadServiceClient
}

// NewDirectory asks over conn.
func NewDirectory(conn grpc.ClientConnInterface) Directory {
	return Directory{routingv1.NewRoutingReadServiceClient(conn)}
}

// Organization implements authority.Directory.
func (d Directory) Organization(ctx context.Context, organization string) error {
	_, err := d.routing.GetOrganization(ctx, &routingv1.GetOrganizationRequest{OrganizationId: organization})
	return err
}

// Conversation implements authority.Directory.
func (d Directory) Conversation(ctx context.Context, c authority.Conversation) error {
	_, err := d.routing.GetConversation(ctx, &routingv1.GetConversationRequest{OrganizationId: c.Organization, ConversationId: c.ID})
	return err
}

// Turns are ingress's.
type Turns struct {
	ingress ingressv1.IngressReadServiceClient
}

// NewTurns asks over conn.
func NewTurns(conn grpc.ClientConnInterface) Turns {
	return Turns{ingressv1.NewIngressReadServiceClient(conn)}
}

// Waiting implements files.Turns.
func (t Turns) Waiting(ctx context.Context, c authority.Conversation, turn string) (bool, error) {
	m, err := t.ingress.GetTurn(ctx, &ingressv1.GetTurnRequest{OrganizationId: c.Organization, ConversationId: c.ID, TurnId: turn})
	if errors.Is(err, errs.NotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask for turn %s: %w", turn, err)
	}
	return m.GetTurn().GetState() == ingressv1.TurnState_TURN_STATE_ACCEPTED, nil
}

// Events are ingress's.
type Events struct {
	ingress ingressv1.FileEventServiceClient
}

// NewEvents appends over conn.
func NewEvents(conn grpc.ClientConnInterface) Events {
	return Events{ingressv1.NewFileEventServiceClient(conn)}
}

// Append implements announce.Events.
func (e Events) Append(ctx context.Context, c authority.Conversation, generation string, changes []announce.Change) error {
	r := &ingressv1.AppendFileChangesRequest{OrganizationId: c.Organization, ConversationId: c.ID, Generation: generation}
	for _, one := range changes {
		m := &ingressv1.FileChange{Position: one.Position, Uri: one.Path.URI(), Change: one.Kind, Version: one.Version}
		if one.Kind == announce.Renamed {
			m.PreviousUri = one.Previous.URI()
		}
		r.Changes = append(r.Changes, m)
	}
	_, err := e.ingress.AppendFileChanges(ctx, r)
	return err
}
