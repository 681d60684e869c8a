// Package upstream speaks to the services routing orchestrates: agentfs, and the supervisor and
// sessiondb of each cell.
package upstream

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	sessiondbv1 "humanwork.internal/proto/gen/humanwork/sessiondb/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
	"humanwork.internal/services/routing/internal/directory"
)

// maxSessionID is the longest session id the contracts carry.
const maxSessionID = 200

// Upstream holds one lazy connection a target.
type Upstream struct {
	conns []*grpc.ClientConn
	files agentfsv1.EstablishmentServiceClient
	cells map[string]cell
}

type cell struct {
	turns   supervisorv1.TurnServiceClient
	reads   sessiondbv1.SessionReadServiceClient
	changes sessiondbv1.SessionWriteServiceClient
}

// Dial prepares the connections; none is opened before its first call.
func Dial(agentfs string, cells []directory.Cell, cfg rpc.ClientConfig) (*Upstream, error) {
	u := &Upstream{cells: map[string]cell{}}
	dial := func(target string) (*grpc.ClientConn, error) {
		conn, err := rpc.Dial(target, cfg)
		if err != nil {
			return nil, errors.Join(err, u.Close())
		}
		u.conns = append(u.conns, conn)
		return conn, nil
	}
	conn, err := dial(agentfs)
	if err != nil {
		return nil, err
	}
	u.files = agentfsv1.NewEstablishmentServiceClient(conn)
	for _, c := range cells {
		supervisor, err := dial(c.Supervisor)
		if err != nil {
			return nil, err
		}
		sessiondb, err := dial(c.SessionDB)
		if err != nil {
			return nil, err
		}
		u.cells[c.ID] = cell{supervisorv1.NewTurnServiceClient(supervisor),
			sessiondbv1.NewSessionReadServiceClient(sessiondb), sessiondbv1.NewSessionWriteServiceClient(sessiondb)}
	}
	return u, nil
}

// Close closes the connections.
func (u *Upstream) Close() error {
	var problems []error
	for _, c := range u.conns {
		problems = append(problems, c.Close())
	}
	return errors.Join(problems...)
}

func (u *Upstream) cell(id string) (cell, error) {
	c, ok := u.cells[id]
	if !ok {
		return cell{}, errs.New(errs.Unavailable, directory.ReasonCellUnknown, "cell %s is not in routing's configuration", id)
	}
	return c, nil
}

// Files is agentfs.
type Files struct{ *Upstream }

// ProvisionOrganization implements establish.Files.
func (f Files) ProvisionOrganization(ctx context.Context, organization string) error {
	_, err := f.files.ProvisionOrganization(ctx, &agentfsv1.ProvisionOrganizationRequest{OrganizationId: organization})
	return err
}

// EstablishConversation implements establish.Files.
func (f Files) EstablishConversation(ctx context.Context, organization, conversation, persona string, environment map[string]string) error {
	_, err := f.files.EstablishConversation(ctx, &agentfsv1.EstablishConversationRequest{OrganizationId: organization,
		ConversationId: conversation, Persona: persona, Environment: environment})
	return err
}

// Sessions is the sessiondb of each cell.
type Sessions struct{ *Upstream }

// ProvisionOrganization implements establish.Sessions.
func (s Sessions) ProvisionOrganization(ctx context.Context, cell, organization string) error {
	c, err := s.cell(cell)
	if err != nil {
		return err
	}
	_, err = c.changes.ProvisionOrganization(ctx, &sessiondbv1.ProvisionOrganizationRequest{OrganizationId: organization})
	return err
}

// Watermark implements establish.Sessions.
func (s Sessions) Watermark(ctx context.Context, cell, organization string) (int64, error) {
	c, err := s.cell(cell)
	if err != nil {
		return 0, err
	}
	r, err := c.reads.GetSessionWatermark(ctx, &sessiondbv1.GetSessionWatermarkRequest{OrganizationId: organization})
	if err != nil {
		return 0, err
	}
	if r.GetWatermark() < 0 {
		return 0, fmt.Errorf("sessiondb answered the negative session watermark %d", r.GetWatermark())
	}
	return r.GetWatermark(), nil
}

// Unbound implements establish.Sessions.
func (s Sessions) Unbound(ctx context.Context, cell, organization string, after int64) ([]string, error) {
	c, err := s.cell(cell)
	if err != nil {
		return nil, err
	}
	r, err := c.reads.FindUnboundSessions(ctx, &sessiondbv1.FindUnboundSessionsRequest{OrganizationId: organization, AfterWatermark: after})
	if err != nil {
		return nil, err
	}
	for _, id := range r.GetSessionIds() {
		if err := checkSession("sessiondb", id); err != nil {
			return nil, err
		}
	}
	return r.GetSessionIds(), nil
}

// Machines is the supervisor of each cell.
type Machines struct{ *Upstream }

// Establish implements establish.Machines.
func (m Machines) Establish(ctx context.Context, place directory.Placement, organization, conversation string) (string, error) {
	c, err := m.cell(place.Cell)
	if err != nil {
		return "", err
	}
	r, err := c.turns.EstablishSession(ctx, &supervisorv1.EstablishSessionRequest{OrganizationId: organization, ConversationId: conversation, Epoch: place.Epoch})
	if err != nil {
		return "", err
	}
	return r.GetSessionId(), checkSession("supervisor", r.GetSessionId())
}

// Establishment implements establish.Machines.
func (m Machines) Establishment(ctx context.Context, place directory.Placement, organization, conversation string) (string, error) {
	c, err := m.cell(place.Cell)
	if err != nil {
		return "", err
	}
	r, err := c.turns.GetEstablishment(ctx, &supervisorv1.GetEstablishmentRequest{OrganizationId: organization, ConversationId: conversation, Epoch: place.Epoch})
	if err != nil {
		return "", err
	}
	return r.GetSessionId(), checkSession("supervisor", r.GetSessionId())
}

// checkSession refuses a session id that could not be carried further: it comes from Hermes.
func checkSession(from, id string) error {
	if id == "" || len(id) > maxSessionID {
		return fmt.Errorf("%s answered a session id of %d bytes, want 1 to %d", from, len(id), maxSessionID)
	}
	for _, r := range id {
		if r < 0x20 || r == 0x7f {
			return fmt.Errorf("%s answered a session id with the control character %U", from, r)
		}
	}
	return nil
}
