package wire

import (
	"path"
	"strings"

	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
)

// StoredAttachment is the answer to an attachment.
type StoredAttachment struct {
	URI      string `json:"uri"`
	Size     int64  `json:"size,string"`
	MimeType string `json:"mimeType"`
	SHA256   string `json:"sha256"`
	// Block is the content block to send, ACP's own JSON.
	Block ResourceLink `json:"block"`
}

// ResourceLink is ACP's content block of that name; Size is a number there.
type ResourceLink struct {
	Type     string `json:"type"`
	URI      string `json:"uri"`
	Name     string `json:"name"`
	MimeType string `json:"mimeType,omitempty"`
	Size     int64  `json:"size"`
}

// NewStoredAttachment makes the answer to an attachment.
func NewStoredAttachment(r *agentfsv1.WriteFileResponse) StoredAttachment {
	f := r.GetFile()
	return StoredAttachment{f.GetUri(), f.GetSize(), r.GetMimeType(), f.GetSha256(),
		ResourceLink{"resource_link", f.GetUri(), path.Base(f.GetPath()), r.GetMimeType(), f.GetSize()}}
}

// Diff is a page of what differs between two points of a ledger; NextPageToken is empty on the last
// one.
type Diff struct {
	Differences   []Difference `json:"differences"`
	From          int64        `json:"from,string"`
	To            int64        `json:"to,string"`
	NextPageToken string       `json:"nextPageToken"`
}

// Difference is one file: ADDED, MODIFIED, REMOVED or RENAMED.
type Difference struct {
	Kind         string `json:"kind"`
	Path         string `json:"path"`
	PreviousPath string `json:"previousPath,omitempty"`
	Directory    bool   `json:"directory"`
}

// NewDiff makes a page of differences.
func NewDiff(r *agentfsv1.DiffFilesResponse) Diff {
	out := Diff{Differences: []Difference{}, From: r.GetFrom(), To: r.GetTo(), NextPageToken: r.GetNextPageToken()}
	for _, d := range r.GetDifferences() {
		out.Differences = append(out.Differences, Difference{strings.TrimPrefix(d.GetKind().String(), "KIND_"),
			d.GetPath(), d.GetPreviousPath(), d.GetDirectory()})
	}
	return out
}
