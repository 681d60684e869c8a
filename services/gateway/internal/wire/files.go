package wire

import (
	"path"

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
