// Package fault holds the reasons agentfs gives, and turns the file core's failures into them.
package fault

import (
	"context"
	"errors"
	"syscall"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
)

// Reasons agentfs gives.
const (
	NotProvisioned       errs.Reason = "ORGANIZATION_NOT_PROVISIONED"
	ConversationNotFound errs.Reason = "CONVERSATION_NOT_FOUND"
	FileNotFound         errs.Reason = "FILE_NOT_FOUND"
	FileTooLarge         errs.Reason = "FILE_TOO_LARGE"
	FileHeld             errs.Reason = "FILE_HELD"
	FileChanged          errs.Reason = "FILE_CHANGED"
	NotAFile             errs.Reason = "NOT_A_FILE"
	SymlinkRefused       errs.Reason = "SYMLINK_REFUSED"
	InvalidPath          errs.Reason = "INVALID_PATH"
	InvalidFileURI       errs.Reason = "INVALID_FILE_URI"
	InvalidPageToken     errs.Reason = "INVALID_PAGE_TOKEN"
	VersionMismatch      errs.Reason = "VERSION_MISMATCH"
	SizeMismatch         errs.Reason = "SIZE_MISMATCH"
	UploadStalled        errs.Reason = "UPLOAD_STALLED"
	QuotaExceeded        errs.Reason = "QUOTA_EXCEEDED"
	StorageFull          errs.Reason = "STORAGE_FULL"
	InvalidEnvironment   errs.Reason = "INVALID_ENVIRONMENT"
	InvalidPersona       errs.Reason = "INVALID_PERSONA"
	LedgerPosition       errs.Reason = "LEDGER_POSITION_UNKNOWN"
	SnapshotExists       errs.Reason = "SNAPSHOT_EXISTS"
	SnapshotNotFound     errs.Reason = "SNAPSHOT_NOT_FOUND"
	// The database is not one of this version; it is never changed.
	SchemaUnsupported errs.Reason = "AGENTFS_SCHEMA_UNSUPPORTED"
	Foreign           errs.Reason = "AGENTFS_FOREIGN"
	Damaged           errs.Reason = "AGENTFS_DAMAGED"
	Busy              errs.Reason = "AGENTFS_BUSY"
	Storage           errs.Reason = "AGENTFS_STORAGE"
	Remote            errs.Reason = "AGENTFS_REMOTE"
	Replaced          errs.Reason = "AGENTFS_REPLACED"
	DataDirInUse      errs.Reason = "DATA_DIR_IN_USE"
	DataDir           errs.Reason = "DATA_DIR_UNUSABLE"
	Starting          errs.Reason = "SERVICE_STARTING"
	Stopping          errs.Reason = "SERVICE_STOPPING"
)

// databases are the core's failures of a whole database.
var databases = []struct {
	is      error
	kind    errs.Kind
	reason  errs.Reason
	message string
}{
	{agentfs.ErrNotExist, errs.NotFound, NotProvisioned, "the organization has no AgentFS"},
	{agentfs.ErrSchema, errs.Precondition, SchemaUnsupported, "the AgentFS is of a version this service does not write; it was not changed"},
	{agentfs.ErrForeign, errs.Precondition, Foreign, "the database is not an AgentFS; it was not changed"},
	{agentfs.ErrDamaged, errs.Precondition, Damaged, "the AgentFS is damaged; restore it from a snapshot or an export"},
	{agentfs.ErrBusy, errs.Unavailable, Busy, "another process has the AgentFS; try again"},
	{agentfs.ErrPosition, errs.OutOfRange, LedgerPosition, "the ledger has no such position, or the points are in the wrong order"},
	{agentfs.ErrRemote, errs.Precondition, Remote, "the AgentFS is a remote database, which its own server copies"},
}

// files are the core's errnos. %s is the subject.
var files = map[syscall.Errno]struct {
	kind    errs.Kind
	reason  errs.Reason
	message string
}{
	syscall.ENOENT:       {errs.NotFound, FileNotFound, "%s does not exist"},
	syscall.ELOOP:        {errs.Precondition, SymlinkRefused, "%s is, or lies behind, a symbolic link, which is never followed"},
	syscall.ENOTDIR:      {errs.Precondition, NotAFile, "%s lies below something that is no directory"},
	syscall.EISDIR:       {errs.Precondition, NotAFile, "%s is a directory"},
	syscall.EBUSY:        {errs.Precondition, FileHeld, "%s is needed by a turn that was not dispatched yet"},
	syscall.EDQUOT:       {errs.Exhausted, QuotaExceeded, "%s exceeds the quota of the conversation or the organization"},
	syscall.ENOSPC:       {errs.Exhausted, StorageFull, "there is no space for %s on the disk of agentfs"},
	syscall.EFBIG:        {errs.Exhausted, FileTooLarge, "%s is too large"},
	syscall.EIO:          {errs.Unavailable, Storage, "%s cannot be read or written: the storage of agentfs failed"},
	syscall.EROFS:        {errs.Unavailable, Storage, "%s cannot be written: the storage of agentfs is read-only"},
	syscall.EINVAL:       {errs.Invalid, InvalidPath, "%s is not a valid name"},
	syscall.EILSEQ:       {errs.Invalid, InvalidPath, "%s is not valid UTF-8"},
	syscall.ENAMETOOLONG: {errs.Invalid, InvalidPath, "%s is too long"},
	syscall.EXDEV:        {errs.Precondition, NotAFile, "%s is not the conversation's"},
}

// From gives an error of the file core its kind and reason. subject is a public path, or words for
// what was worked on. Errors that have a kind stay as they are.
func From(err error, subject string) error {
	var known *errs.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	for _, d := range databases {
		if errors.Is(err, d.is) {
			return errs.Wrap(err, d.kind, d.reason, "%s", d.message)
		}
	}
	var e *agentfs.Error
	if !errors.As(err, &e) {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return errs.Wrap(err, errs.Exhausted, StorageFull, files[syscall.ENOSPC].message, subject)
		}
		return err
	}
	f, ok := files[e.Errno]
	if !ok {
		return err
	}
	out := errs.Wrap(err, f.kind, f.reason, f.message, subject)
	if f.reason == FileHeld && e.Holder != "" {
		_, turn := Holding(e.Holder)
		out = out.With("turnId", turn)
	}
	return out
}
