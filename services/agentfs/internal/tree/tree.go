// Package tree holds what an AgentFS consists of: nodes below absolute, canonical paths, and the
// reasons for which one is refused.
package tree

import (
	"fmt"
	"strings"

	"humanwork.internal/pkg/errs"
)

// Reasons agentfs gives.
const (
	ReasonNotProvisioned       errs.Reason = "ORGANIZATION_NOT_PROVISIONED"
	ReasonConversationNotFound errs.Reason = "CONVERSATION_NOT_FOUND"
	ReasonFileNotFound         errs.Reason = "FILE_NOT_FOUND"
	ReasonFileTooLarge         errs.Reason = "FILE_TOO_LARGE"
	ReasonNotAFile             errs.Reason = "NOT_A_FILE"
	ReasonInvalidEnvironment   errs.Reason = "INVALID_ENVIRONMENT"
	ReasonInvalidPersona       errs.Reason = "INVALID_PERSONA"
	// The database is not one of this version; it is never changed.
	ReasonSchemaUnsupported errs.Reason = "AGENTFS_SCHEMA_UNSUPPORTED"
	ReasonForeign           errs.Reason = "AGENTFS_FOREIGN"
	ReasonDamaged           errs.Reason = "AGENTFS_DAMAGED"
	ReasonBusy              errs.Reason = "AGENTFS_BUSY"
	ReasonStorage           errs.Reason = "AGENTFS_STORAGE"
	ReasonDataDirInUse      errs.Reason = "DATA_DIR_IN_USE"
	ReasonDataDir           errs.Reason = "DATA_DIR_UNUSABLE"
	ReasonStarting          errs.Reason = "SERVICE_STARTING"
)

// File types and permissions as fs_inode.mode holds them.
const (
	TypeMask  = 0o170000
	TypeDir   = 0o040000
	TypeFile  = 0o100000
	RootMode  = TypeDir | 0o755 // the AgentFS specification's
	DirMode   = TypeDir | 0o700
	FileMode  = TypeFile | 0o600
	RootInode = 1
)

// maxName is the longest name of one node in bytes.
const maxName = 255

// Node is a directory or a file with its whole content.
type Node struct {
	// Path is absolute and canonical, see Split.
	Path    string
	Dir     bool
	Content []byte
}

// Dir returns a directory of mode 0700.
func Dir(path string) Node { return Node{Path: path, Dir: true} }

// File returns a file of mode 0600.
func File(path string, content []byte) Node { return Node{Path: path, Content: content} }

// Split returns the names of an absolute, canonical path, none for "/".
func Split(path string) ([]string, error) {
	if path == "/" {
		return nil, nil
	}
	rest, ok := strings.CutPrefix(path, "/")
	if !ok {
		return nil, fmt.Errorf("path %q is not absolute", path)
	}
	names := strings.Split(rest, "/")
	for _, n := range names {
		if n == "" || n == "." || n == ".." || len(n) > maxName || strings.ContainsRune(n, 0) {
			return nil, fmt.Errorf("path %q is not canonical", path)
		}
	}
	return names, nil
}
