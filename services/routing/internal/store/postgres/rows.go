package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

var _ store.Store = (*Store)(nil)

// querier is a pool or the connection of an establishment.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

func noOrganization(id string) error {
	return errs.New(errs.NotFound, directory.ReasonOrganizationNotFound, "organization %s does not exist", id)
}

func noConversation(id string) error {
	return errs.New(errs.NotFound, directory.ReasonConversationNotFound, "conversation %s does not exist", id)
}

// found turns the absence of a row into missing.
func found(err, missing error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return missing
	}
	return translate(err)
}

// Organization implements store.Reader.
func (s *Store) Organization(ctx context.Context, id string) (directory.Organization, error) {
	p, err := s.open()
	if err != nil {
		return directory.Organization{}, err
	}
	o := directory.Organization{ID: id, Provisioned: true}
	err = p.rows.QueryRow(ctx, `SELECT create_time FROM routing.organization
		WHERE organization_id = $1 AND provision_time IS NOT NULL`, id).Scan(&o.CreateTime)
	return o, found(err, noOrganization(id))
}

// Placement implements store.Reader.
func (s *Store) Placement(ctx context.Context, organization string) (directory.Placement, error) {
	p, err := s.open()
	if err != nil {
		return directory.Placement{}, err
	}
	var place directory.Placement
	err = p.rows.QueryRow(ctx, `SELECT cell_id, epoch FROM routing.placement
		JOIN routing.organization USING (organization_id)
		WHERE organization_id = $1 AND provision_time IS NOT NULL`, organization).Scan(&place.Cell, &place.Epoch)
	return place, found(err, noOrganization(organization))
}

// Conversation implements store.Reader.
func (s *Store) Conversation(ctx context.Context, organization, conversation string) (directory.Conversation, directory.Placement, error) {
	p, err := s.open()
	if err != nil {
		return directory.Conversation{}, directory.Placement{}, err
	}
	c := directory.Conversation{Organization: organization, ID: conversation}
	var place directory.Placement
	err = p.rows.QueryRow(ctx, `SELECT specialist_id, session_id, c.create_time, cell_id, epoch
		FROM routing.conversation c JOIN routing.placement USING (organization_id)
		WHERE organization_id = $1 AND conversation_id = $2 AND session_id IS NOT NULL`, organization, conversation).
		Scan(&c.Specialist, &c.Session, &c.CreateTime, &place.Cell, &place.Epoch)
	return c, place, found(err, noConversation(conversation))
}

// Conversations implements store.Reader.
func (s *Store) Conversations(ctx context.Context, organization string, after store.Cursor, limit int) ([]directory.Conversation, error) {
	p, err := s.open()
	if err != nil {
		return nil, err
	}
	rows, err := p.rows.Query(ctx, `SELECT conversation_id, specialist_id, session_id, create_time FROM routing.conversation
		WHERE organization_id = $1 AND session_id IS NOT NULL AND (create_time, conversation_id) > ($2, $3)
		ORDER BY create_time, conversation_id LIMIT $4`, organization, after.CreateTime, after.ID, limit)
	if err != nil {
		return nil, translate(err)
	}
	list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (directory.Conversation, error) {
		c := directory.Conversation{Organization: organization}
		return c, row.Scan(&c.ID, &c.Specialist, &c.Session, &c.CreateTime)
	})
	return list, translate(err)
}

// AddOrganization implements store.Store.
func (s *Store) AddOrganization(ctx context.Context, id, cell string) (directory.Organization, directory.Placement, error) {
	var o directory.Organization
	var place directory.Placement
	p, err := s.open()
	if err != nil {
		return o, place, err
	}
	err = pgx.BeginFunc(ctx, p.rows, func(tx pgx.Tx) error {
		// The conflicting row of a concurrent call is awaited here, so the reads below see it.
		if _, err := tx.Exec(ctx, `INSERT INTO routing.organization (organization_id) VALUES ($1) ON CONFLICT DO NOTHING`, id); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, `INSERT INTO routing.placement (organization_id, cell_id, epoch) VALUES ($1, $2, 1) ON CONFLICT DO NOTHING`, id, cell); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT organization_id, create_time, provision_time IS NOT NULL, cell_id, epoch
			FROM routing.organization JOIN routing.placement USING (organization_id) WHERE organization_id = $1`, id).
			Scan(&o.ID, &o.CreateTime, &o.Provisioned, &place.Cell, &place.Epoch)
	})
	return o, place, translate(err)
}

// MarkProvisioned implements store.Store.
func (s *Store) MarkProvisioned(ctx context.Context, id string) error {
	p, err := s.open()
	if err != nil {
		return err
	}
	tag, err := p.rows.Exec(ctx, `UPDATE routing.organization
		SET provision_time = coalesce(provision_time, statement_timestamp()) WHERE organization_id = $1`, id)
	if err != nil {
		return translate(err)
	}
	if tag.RowsAffected() == 0 {
		return noOrganization(id)
	}
	return nil
}

// Intent implements store.Store.
func (s *Store) Intent(ctx context.Context, organization, conversation string) (directory.Intent, error) {
	p, err := s.open()
	if err != nil {
		return directory.Intent{}, err
	}
	return readIntent(ctx, p.rows, organization, conversation)
}

const intentColumns = `conversation_id, specialist_id, coalesce(session_id, ''), create_time, request_digest, session_watermark`

func scanIntent(row pgx.Row, organization string) (directory.Intent, error) {
	i := directory.Intent{Conversation: directory.Conversation{Organization: organization}}
	err := row.Scan(&i.ID, &i.Specialist, &i.Session, &i.CreateTime, &i.Digest, &i.SessionWatermark)
	return i, err
}

func readIntent(ctx context.Context, q querier, organization, conversation string) (directory.Intent, error) {
	row := q.QueryRow(ctx, `SELECT `+intentColumns+` FROM routing.conversation
		WHERE organization_id = $1 AND conversation_id = $2`, organization, conversation)
	i, err := scanIntent(row, organization)
	if err := found(err, noConversation(conversation)); err != nil {
		return directory.Intent{}, fmt.Errorf("read intent: %w", err)
	}
	return i, nil
}
