// Package store is the interface of the AgentFS databases, one an organization.
package store

import (
	"context"

	"humanwork.internal/services/agentfs/internal/tree"
)

// Store keeps one AgentFS 0.4 database an organization. A database that is of another version
// (AGENTFS_SCHEMA_UNSUPPORTED), not an AgentFS (AGENTFS_FOREIGN) or damaged (AGENTFS_DAMAGED) is
// answered errs.Precondition and never changed. One locked beyond a bound answers errs.Unavailable
// with AGENTFS_BUSY.
type Store interface {
	// Provision creates the organization's database with the nodes in one transaction; of a
	// database that exists nothing is changed.
	Provision(ctx context.Context, organization string, nodes []tree.Node) error
	// Plant writes the nodes, whose first is the root of the others, in one transaction; if that
	// root exists already nothing is changed. Parents come before children and every other node's
	// path must be free. errs.NotFound with ORGANIZATION_NOT_PROVISIONED if there is no database.
	Plant(ctx context.Context, organization string, nodes []tree.Node) error
	// ReadFiles returns the whole contents of regular files from one snapshot, in order. errs.NotFound
	// with FILE_NOT_FOUND, or as in Plant; errs.Exhausted with FILE_TOO_LARGE above limit bytes each.
	ReadFiles(ctx context.Context, organization string, paths []string, limit int64) ([][]byte, error)
}
