// Package establish makes organizations and conversations exactly once, over authorities that do
// not share a transaction: Postgres, AgentFS, SessionDB and a Hermes process. Each step is
// idempotent and the intent is recorded before the one step that is not (session/new), so that
// whoever calls again after a crash finishes what was left.
package establish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

// Files is the cloud AgentFS; both calls are idempotent.
type Files interface {
	ProvisionOrganization(ctx context.Context, organization string) error
	EstablishConversation(ctx context.Context, organization, conversation, persona string, environment map[string]string) error
}

// Sessions is the SessionDB of a cell.
type Sessions interface {
	ProvisionOrganization(ctx context.Context, cell, organization string) error
	// Watermark returns the largest session row id of the organization.
	Watermark(ctx context.Context, cell, organization string) (int64, error)
	// Unbound returns the empty root sessions above the watermark, oldest first.
	Unbound(ctx context.Context, cell, organization string, after int64) ([]string, error)
}

// Machines is the supervisor of a cell.
type Machines interface {
	// Establish makes the conversation's native session, or joins the one being made.
	Establish(ctx context.Context, place directory.Placement, organization, conversation string) (session string, err error)
	// Establishment returns the session of a conversation whose child lives or is being started,
	// after waiting for it, and errs.NotFound if there is none.
	Establishment(ctx context.Context, place directory.Placement, organization, conversation string) (session string, err error)
}

// Establisher creates organizations and conversations.
type Establisher struct {
	Store    store.Store
	Cells    []directory.Cell
	Files    Files
	Sessions Sessions
	Machines Machines
	// DigestKey keys the fingerprint of requests.
	DigestKey []byte
}

// Request asks for a conversation.
type Request struct {
	Organization string
	Conversation string // empty: made here
	Specialist   string
	Persona      string
	Environment  map[string]string
}

// CreateOrganization records the organization, places it and provisions its authorities. A
// repeated call returns the same organization and finishes what an interrupted one left open.
func (e *Establisher) CreateOrganization(ctx context.Context, id string) (directory.Organization, error) {
	org, place, err := e.Store.AddOrganization(ctx, id, directory.Choose(e.Cells, id).ID)
	if err != nil {
		return directory.Organization{}, fmt.Errorf("record organization: %w", err)
	}
	if org.Provisioned {
		return org, nil
	}
	if err := e.Files.ProvisionOrganization(ctx, id); err != nil {
		return directory.Organization{}, refused(err, "provision AgentFS")
	}
	if err := e.Sessions.ProvisionOrganization(ctx, place.Cell, id); err != nil {
		return directory.Organization{}, refused(err, "provision SessionDB")
	}
	if err := e.Store.MarkProvisioned(ctx, id); err != nil {
		return directory.Organization{}, fmt.Errorf("record provisioning: %w", err)
	}
	org.Provisioned = true
	return org, nil
}

// CreateConversation makes the conversation and its native session exactly once. The same request
// for an id that exists returns it; another answers CONVERSATION_EXISTS.
func (e *Establisher) CreateConversation(ctx context.Context, r Request) (directory.Conversation, error) {
	if err := check(r); err != nil {
		return directory.Conversation{}, err
	}
	place, err := e.Store.Placement(ctx, r.Organization)
	if err != nil {
		return directory.Conversation{}, fmt.Errorf("find placement: %w", err)
	}
	if r.Conversation == "" {
		if r.Conversation, err = newID(); err != nil {
			return directory.Conversation{}, err
		}
	}
	digest := fingerprint(e.DigestKey, r)
	// A conversation that is bound never changes, so the common repeat needs no lock.
	known, err := existing(ctx, e.Store, r, digest)
	if err != nil || known.Bound() {
		return known.Conversation, err
	}
	var made directory.Conversation
	err = e.Store.Establish(ctx, r.Organization, func(ctx context.Context, tx store.Establishment) error {
		made, err = e.establish(ctx, tx, place, r, digest)
		return err
	})
	if err != nil {
		return directory.Conversation{}, err
	}
	return made, nil
}

// establish runs with the organization's establishments locked out.
func (e *Establisher) establish(ctx context.Context, tx store.Establishment, place directory.Placement, r Request, digest []byte) (directory.Conversation, error) {
	var none directory.Conversation
	intent, err := existing(ctx, tx, r, digest)
	if err != nil || intent.Bound() {
		return intent.Conversation, err
	}
	fresh := intent.ID == ""
	if fresh {
		if intent, err = e.record(ctx, tx, place, r, digest); err != nil {
			return none, err
		}
	}
	if err := e.Files.EstablishConversation(ctx, r.Organization, r.Conversation, r.Persona, r.Environment); err != nil {
		if fresh && errors.Is(err, errs.Invalid) {
			// Nothing was made and never can be from this request: the id stays free for another.
			if werr := tx.Withdraw(ctx, r.Conversation); werr != nil {
				return none, errors.Join(err, werr)
			}
		}
		return none, refused(err, "establish the conversation's files")
	}
	session := ""
	if !fresh {
		if session, err = e.recover(ctx, tx, place, intent); err != nil {
			return none, err
		}
	}
	if session == "" {
		// The lock lives as long as its database connection; do not start what a new holder may
		// be starting too.
		if err := tx.Held(ctx); err != nil {
			return none, err
		}
		if session, err = e.Machines.Establish(ctx, place, r.Organization, r.Conversation); err != nil {
			return none, refused(err, "make the native session")
		}
	}
	bound, err := tx.Bind(ctx, r.Conversation, session)
	if err != nil {
		return none, fmt.Errorf("bind session: %w", err)
	}
	return bound, nil
}

func (e *Establisher) record(ctx context.Context, tx store.Establishment, place directory.Placement, r Request, digest []byte) (directory.Intent, error) {
	watermark, err := e.Sessions.Watermark(ctx, place.Cell, r.Organization)
	if err != nil {
		return directory.Intent{}, refused(err, "read the session watermark")
	}
	intent, err := tx.Record(ctx, directory.Intent{
		Conversation: directory.Conversation{Organization: r.Organization, ID: r.Conversation, Specialist: r.Specialist},
		Digest:       digest, SessionWatermark: watermark,
	})
	if err != nil {
		return directory.Intent{}, fmt.Errorf("record intent: %w", err)
	}
	return intent, nil
}

// recover looks for the session an interrupted establishment made; empty if there is none.
//
// A session that lives in a child belongs to that child's conversation, so every conversation of
// the organization that is still open is asked for first, and bound. Only then is an empty
// session without an owner free, and it does not matter which interrupted call made it.
func (e *Establisher) recover(ctx context.Context, tx store.Establishment, place directory.Placement, intent directory.Intent) (string, error) {
	pending, err := tx.Pending(ctx)
	if err != nil {
		return "", fmt.Errorf("list open establishments: %w", err)
	}
	for _, p := range pending {
		session, err := e.Machines.Establishment(ctx, place, p.Organization, p.ID)
		switch {
		case errors.Is(err, errs.NotFound):
			continue
		case err != nil:
			return "", refused(err, "ask for the establishment in flight")
		case p.ID == intent.ID:
			return session, nil
		}
		if _, err := tx.Bind(ctx, p.ID, session); err != nil {
			return "", fmt.Errorf("bind the session of conversation %s: %w", p.ID, err)
		}
	}
	unbound, err := e.Sessions.Unbound(ctx, place.Cell, intent.Organization, intent.SessionWatermark)
	if err != nil {
		return "", refused(err, "find unbound sessions")
	}
	free, err := tx.Free(ctx, unbound)
	if err != nil {
		return "", fmt.Errorf("tell bound sessions: %w", err)
	}
	if len(free) == 0 {
		return "", nil
	}
	return free[0], nil
}

type intents interface {
	Intent(ctx context.Context, organization, conversation string) (directory.Intent, error)
}

// existing returns the recorded intent, the zero Intent if there is none.
func existing(ctx context.Context, from intents, r Request, digest []byte) (directory.Intent, error) {
	intent, err := from.Intent(ctx, r.Organization, r.Conversation)
	switch {
	case errors.Is(err, errs.NotFound):
		return directory.Intent{}, nil
	case err != nil:
		return directory.Intent{}, fmt.Errorf("read conversation: %w", err)
	case !bytes.Equal(intent.Digest, digest):
		return directory.Intent{}, errs.New(errs.Conflict, directory.ReasonConversationExists,
			"conversation %s exists with another specialist, persona or environment", r.Conversation)
	}
	return intent, nil
}

// check refuses text that no file or process environment can carry.
func check(r Request) error {
	bad := func(s string) bool { return strings.ContainsRune(s, 0) || !utf8.ValidString(s) }
	if bad(r.Persona) {
		return errs.New(errs.Invalid, directory.ReasonInvalidArgument, "persona holds a NUL or is not valid UTF-8")
	}
	for name, value := range r.Environment {
		if bad(name) || bad(value) {
			return errs.New(errs.Invalid, directory.ReasonInvalidArgument, "environment %q holds a NUL or is not valid UTF-8", name)
		}
	}
	return nil
}

// refused passes on what a caller can act on. Answers that speak about routing's own standing
// with another service would read as if they spoke about the caller's request.
func refused(err error, action string) error {
	switch errs.KindOf(err) {
	case errs.NotFound, errs.Denied, errs.Unauthenticated, errs.Conflict, errs.OutOfRange:
		return errs.Wrap(err, errs.Internal, directory.ReasonAuthorityRefused, "could not %s", action)
	}
	return fmt.Errorf("%s: %w", action, err)
}
