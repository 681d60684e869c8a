// Package upstream reads what the supervisor needs from other services.
package upstream

import (
	"context"

	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/supervisor/internal/holder"
)

// Homes reads conversations' private files from agentfs.
type Homes struct {
	Client agentfsv1.EstablishmentServiceClient
}

// ConversationHome implements holder.Homes.
func (h Homes) ConversationHome(ctx context.Context, organization, conversation string) (holder.Home, error) {
	r, err := h.Client.GetConversationHome(ctx, &agentfsv1.GetConversationHomeRequest{OrganizationId: organization, ConversationId: conversation})
	if err != nil {
		return nil, err
	}
	return holder.Home{".env": r.GetEnv(), "SOUL.md": r.GetSoul(), "config.yaml": r.GetConfig()}, nil
}
