// Package directory holds what routing knows: organizations, the cells they live on, and the
// binding of a conversation to its native session.
package directory

import (
	"crypto/sha256"
	"encoding/binary"
	"slices"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
)

// Reasons routing gives.
const (
	ReasonOrganizationNotFound errs.Reason = "ORGANIZATION_NOT_FOUND"
	ReasonConversationNotFound errs.Reason = "CONVERSATION_NOT_FOUND"
	ReasonConversationExists   errs.Reason = "CONVERSATION_EXISTS"
	ReasonInvalidArgument      errs.Reason = "INVALID_ARGUMENT"
	ReasonInvalidPageToken     errs.Reason = "INVALID_PAGE_TOKEN"
	ReasonCellUnknown          errs.Reason = "CELL_UNKNOWN"
	ReasonEstablishmentLost    errs.Reason = "ESTABLISHMENT_LOST"
	ReasonSessionBound         errs.Reason = "SESSION_ALREADY_BOUND"
	ReasonAuthorityRefused     errs.Reason = "AUTHORITY_REFUSED"
	ReasonDatabaseUnavailable  errs.Reason = "DATABASE_UNAVAILABLE"
	ReasonStarting             errs.Reason = "SERVICE_STARTING"
)

// Organization is the boundary of trust, of files and of transcripts.
type Organization struct {
	ID         string
	CreateTime time.Time
	// Provisioned says that both authorities, AgentFS and SessionDB, were provisioned.
	Provisioned bool
}

// Conversation is an organization's conversation; it exists for others once it has a session.
type Conversation struct {
	Organization string
	ID           string
	Specialist   string
	// Session is Hermes's own session id; empty until bound, then for ever the same.
	Session    string
	CreateTime time.Time
}

// Bound says that the conversation has its session.
func (c Conversation) Bound() bool { return c.Session != "" }

// Intent is a conversation as recorded before its native session is made.
type Intent struct {
	Conversation
	// Digest identifies what the conversation was asked to be.
	Digest []byte
	// SessionWatermark is SessionDB's largest session row id before session/new: a session above
	// it may be this conversation's.
	SessionWatermark int64
}

// Placement says which cell an organization lives on.
type Placement struct {
	Cell string
	// Epoch starts at 1 and grows each time the organization is placed anew.
	Epoch int64
}

// Cell is one host of a supervisor and a sessiondb that share a directory.
type Cell struct {
	ID string `yaml:"id"`
	// Supervisor and SessionDB are gRPC targets.
	Supervisor string `yaml:"supervisor"`
	SessionDB  string `yaml:"sessiondb"`
}

// Choose returns the cell on which a new organization is placed: the one with the highest
// rendezvous weight, so that a cell added or removed changes the choice for its own share of the
// organizations only. cells must not be empty; their order does not matter.
func Choose(cells []Cell, organization string) Cell {
	weigh := func(c Cell) uint64 {
		// The separator cannot occur in an id, so no two pairs share an input.
		sum := sha256.Sum256([]byte(c.ID + "\x00" + organization))
		return binary.BigEndian.Uint64(sum[:8])
	}
	return slices.MaxFunc(cells, func(a, b Cell) int {
		if wa, wb := weigh(a), weigh(b); wa != wb {
			if wa < wb {
				return -1
			}
			return 1
		}
		return strings.Compare(a.ID, b.ID)
	})
}
