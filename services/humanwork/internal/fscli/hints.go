package fscli

import (
	"context"
	"errors"
	"strings"

	"humanwork.internal/services/humanwork/internal/restapi"
)

// hints say what a person can do about a reason.
var hints = map[string]string{
	"TOKEN_MISSING":              "set HUMANWORK_TOKEN; humanwork run prints the token",
	"TOKEN_INVALID":              "set HUMANWORK_TOKEN to a token this server knows; humanwork run prints it",
	"PERMISSION_DENIED":          "use an administrator's token",
	"ORGANIZATION_NOT_FOUND":     "check --organization; a token sees its own organization only",
	"CONVERSATION_NOT_FOUND":     "check --organization and --conversation; a token sees its own organization only",
	"INVALID_ID":                 "ids are 1 to 63 of a-z, 0-9 and -",
	"INVALID_PATH":               "write workspace/..., artifacts/inbound/... or artifacts/outbound/...",
	"FILE_NOT_FOUND":             "see what is there: humanwork fs ls -R",
	"NOT_A_FILE":                 "name a regular file: humanwork fs ls -R shows them",
	"SYMLINK_REFUSED":            "links are never followed; name the file itself",
	"VERSION_MISMATCH":           "it changed, or is not there any more, or was there already: humanwork fs ls --json shows its version",
	"FILE_CHANGED":               "it was changed while it was read; run the command again",
	"FILE_HELD":                  "a turn that waits needs it; try again when the turn has begun, or cancel the turn",
	"FILE_TOO_LARGE":             "the server's configuration has the limit: max_file_bytes, max_attachment_bytes",
	"BODY_TOO_LARGE":             "the server's configuration has the limit",
	"QUOTA_EXCEEDED":             "remove files with humanwork fs rm, or raise the quota in the server's configuration",
	"STORAGE_FULL":               "the server's disk is full and nothing was changed; make room there",
	"LEDGER_POSITION_UNKNOWN":    "humanwork fs timeline shows the positions",
	"SNAPSHOT_EXISTS":            "choose another name, or none for one made from the time",
	"SNAPSHOT_NOT_FOUND":         "humanwork fs snapshots lists them",
	"AGENTFS_REMOTE":             "the database lies on a libSQL server; copy it with that server's own means",
	"AGENTFS_FOREIGN":            "restore what humanwork fs export wrote, or another AgentFS 0.4 database; nothing was changed",
	"AGENTFS_SCHEMA_UNSUPPORTED": "restore a database of AgentFS 0.4; nothing was changed",
	"AGENTFS_DAMAGED":            "restore another copy: humanwork fs snapshots lists those kept; nothing was changed",
	"AGENTFS_BUSY":               "try again",
	"UNAVAILABLE":                "try again",
	"ROUTE_NOT_FOUND":            "the server is older than this command, or --addr is not the REST API's",
}

// explainedError is what happened, and what to do about it.
type explainedError struct {
	err  error
	hint string
}

func (e *explainedError) Error() string { return harmless(e.err.Error()) + "\n  to fix it: " + e.hint }
func (e *explainedError) Unwrap() error { return e.err }

// harmlessError is an error whose text a terminal shows and does not act on.
type harmlessError struct{ error }

func (e harmlessError) Error() string { return harmless(e.error.Error()) }
func (e harmlessError) Unwrap() error { return e.error }

// explain adds to an error what to do about it, where that is known.
func explain(err error) error {
	var (
		done        *explainedError
		several     joinedError
		refused     *restapi.Error
		unreachable *restapi.UnreachableError
	)
	switch {
	case err == nil || errors.Is(err, context.Canceled) || errors.As(err, &done) || errors.As(err, &several):
		return err
	case errors.As(err, &refused) && hints[refused.Reason] != "":
		hint := hints[refused.Reason]
		if turn := refused.Metadata["turnId"]; turn != "" {
			hint = strings.Replace(hint, "a turn that waits", "turn "+harmless(turn)+", which waits,", 1)
		}
		return &explainedError{err, hint}
	case errors.As(err, &unreachable):
		return &explainedError{err, "start it with humanwork run, or name another with --addr or HUMANWORK_HTTP_ADDR"}
	}
	return harmlessError{err}
}
