package files

import (
	"context"
	"errors"
	"io"
	"net/http"
	"syscall"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/fault"
)

// window is how much is read in one transaction: others wait no longer than for this.
const window = 1 << 20

// Open opens a file for reading, which the ledger records. With a condition version it must have
// that one. What replaces or removes the name afterwards does not matter to the reader.
func (t Tree) Open(ctx context.Context, p fileuri.Path, version string) (*Reader, error) {
	var found agentfs.Attr
	x, err := t.FS.OpenPath(ctx, t.By, t.private(p), syscall.O_RDONLY, func(a agentfs.Attr) error {
		if err := regular(p, a); err != nil {
			return err
		}
		found = a
		if version == "" {
			return nil
		}
		return Condition{Match: []string{version}}.check(p, &a)
	})
	if err != nil {
		return nil, fault.From(err, p.String())
	}
	f, err := t.describe(ctx, p, found)
	if err != nil {
		return nil, errors.Join(err, x.Close())
	}
	return &Reader{File: f, open: x}, nil
}

// Reader reads one version of a file.
type Reader struct {
	File
	open *agentfs.File
}

// Copy calls send with the content from offset, in windows that are send's to keep; length -1: to
// the end. errs.Precondition with FILE_CHANGED when the content is another version's.
func (r *Reader) Copy(ctx context.Context, offset, length int64, send func([]byte) error) error {
	left := max(r.Attr.Size-offset, 0)
	if length >= 0 {
		left = min(left, length)
	}
	for left > 0 {
		buffer := make([]byte, min(window, left))
		n, version, err := r.open.ReadVersion(ctx, buffer, offset)
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.From(err, r.Path.String())
		}
		if version != r.Attr.Version || n == 0 {
			return errs.New(errs.Precondition, fault.FileChanged, "%s changed while it was read", r.Path)
		}
		if err := send(buffer[:n]); err != nil {
			return err
		}
		offset, left = offset+int64(n), left-int64(n)
	}
	return nil
}

// Close ends the reading.
func (r *Reader) Close() error { return fault.From(r.open.Close(), r.Path.String()) }

// CloseInto is Close for a defer: it joins the error to what err points to.
func (r *Reader) CloseInto(err *error) { *err = errors.Join(*err, r.Close()) }

// sniffed is how much of a content http.DetectContentType looks at.
const sniffed = 512

// MIMEType is that of the name, else what the first bytes look like.
func (r *Reader) MIMEType(ctx context.Context) (string, error) {
	if m := typeOf(r.Path.Name()); m != "" {
		return m, nil
	}
	head := make([]byte, sniffed)
	n, _, err := r.open.ReadVersion(ctx, head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fault.From(err, r.Path.String())
	}
	return http.DetectContentType(head[:n]), nil
}

// MIMEType is that of the name, else what the first bytes look like: then the file is opened.
func (t Tree) MIMEType(ctx context.Context, f File) (m string, err error) {
	if m := typeOf(f.Path.Name()); m != "" {
		return m, nil
	}
	// Whatever has the name by now: of what it had before nobody can read any more.
	r, err := t.Open(ctx, f.Path, "")
	if err != nil {
		return "", err
	}
	defer r.CloseInto(&err)
	return r.MIMEType(ctx)
}
