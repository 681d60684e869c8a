package files

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"net/http"
	"path"
	"strings"
	"syscall"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/namespace"
)

const (
	// small content is written and placed in one transaction.
	small = 1 << 20
	// batch is how much of a larger one is written in a transaction, and what an upload holds in
	// memory at most.
	batch = 4 << 20
)

// Upload is what a client wants to write.
type Upload struct {
	// Path is where, or Attachment a name for a file below artifacts/inbound at a path made of its
	// content.
	Path       fileuri.Path
	Attachment string
	Condition  Condition
	// Size in bytes, -1 if it is not known. Limit bounds it.
	Size, Limit int64
}

// Writer takes the content of an upload. Nothing of it has a name before Commit.
type Writer struct {
	Upload
	tree   Tree
	sum    hash.Hash
	size   int64
	head   []byte // the beginning, for its type
	buffer []byte
	file   *agentfs.File // once the content is no longer small
	stored int64         // bytes in file
}

// Begin checks what can be checked without the content.
func (t Tree) Begin(ctx context.Context, u Upload) (*Writer, error) {
	if u.Size > u.Limit {
		return nil, tooLarge(u.Limit)
	}
	if u.Attachment != "" {
		// Which path it gets is not known yet; all have names of the same lengths.
		p, err := attachmentPath(strings.Repeat("0", 16), 1, u.Attachment)
		if err != nil {
			return nil, err
		}
		u.Path = p
	} else if err := t.unlessHeld(ctx, u.Path, func() error { return t.precheck(ctx, u) }); err != nil {
		return nil, err
	}
	if err := t.room(ctx, u); err != nil {
		return nil, err
	}
	return &Writer{Upload: u, tree: t, sum: sha256.New(), buffer: make([]byte, 0, min(max(u.Size, 0), batch))}, nil
}

func tooLarge(limit int64) error {
	return errs.New(errs.Exhausted, fault.FileTooLarge, "the file has more than %d bytes", limit).With("limit", fmt.Sprint(limit))
}

// precheck refuses early what the transaction at the end would refuse too.
func (t Tree) precheck(ctx context.Context, u Upload) error {
	a, err := t.FS.Resolve(ctx, t.private(u.Path))
	if errors.Is(err, syscall.ENOENT) {
		return u.Condition.check(u.Path, nil)
	}
	if err != nil {
		return fault.From(err, u.Path.String())
	}
	if err := errors.Join(regular(u.Path, a), u.Condition.check(u.Path, &a)); err != nil {
		return err
	}
	holders, err := t.FS.Holders(ctx, a.Ino)
	if err != nil {
		return fault.From(err, u.Path.String())
	}
	if len(holders) > 0 {
		return fault.From(&agentfs.Error{Op: "replace", Errno: syscall.EBUSY, Holder: holders[0].Holder}, u.Path.String())
	}
	return nil
}

// room refuses an upload of known size for which a quota has no room: while it is written it needs
// room beside what it replaces. What is placed in one transaction is judged there.
func (t Tree) room(ctx context.Context, u Upload) error {
	home, err := t.FS.Resolve(ctx, namespace.Home(t.Conversation.ID))
	if err != nil {
		return fault.From(err, "the conversation's directory")
	}
	whole, project, err := t.FS.Statfs(ctx, home.Ino)
	if err != nil {
		return fault.From(err, "the conversation's directory")
	}
	for _, q := range []agentfs.Usage{whole, project} {
		if q.Limit.Bytes > 0 && u.Size > small && q.Used.Bytes+u.Size > q.Limit.Bytes {
			return fault.From(&agentfs.Error{Op: "write", Errno: syscall.EDQUOT}, u.Path.String())
		}
	}
	return nil
}

// Write takes the next bytes.
func (w *Writer) Write(ctx context.Context, p []byte) error {
	w.size += int64(len(p))
	switch {
	case w.size > w.Limit:
		return tooLarge(w.Limit)
	case w.Size >= 0 && w.size > w.Size:
		return w.mismatch()
	}
	w.sum.Write(p)
	if missing := sniffed - len(w.head); missing > 0 {
		w.head = append(w.head, p[:min(missing, len(p))]...)
	}
	for len(p) > 0 {
		n := min(batch-len(w.buffer), len(p))
		w.buffer = append(w.buffer, p[:n]...)
		p = p[n:]
		if len(w.buffer) == batch {
			if err := w.flush(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (w *Writer) mismatch() error {
	return errs.New(errs.Invalid, fault.SizeMismatch, "%d bytes were announced, and others came", w.Size)
}

// flush moves the buffer into a file without a name, which goes with this process.
func (w *Writer) flush(ctx context.Context) error {
	if w.file == nil {
		home, err := w.tree.FS.Resolve(ctx, namespace.Home(w.tree.Conversation.ID))
		if err != nil {
			return fault.From(err, "the conversation's directory")
		}
		if w.file, err = w.tree.FS.Temp(ctx, w.tree.By, home.Ino, fileMode); err != nil {
			return fault.From(err, w.name())
		}
	}
	n, err := w.file.WriteAt(w.buffer, w.stored)
	w.stored += int64(n)
	w.buffer = w.buffer[:0]
	return fault.From(err, w.name())
}

func (w *Writer) name() string {
	if w.Attachment != "" {
		return "the attachment " + w.Attachment
	}
	return w.Path.String()
}

// Commit gives the content its name. It says whether the name was free before. An attachment that
// is there already is answered as it is.
func (w *Writer) Commit(ctx context.Context) (f File, created bool, err error) {
	if w.Size >= 0 && w.size != w.Size {
		return File{}, false, w.mismatch()
	}
	if w.file != nil || len(w.buffer) > small {
		if err := w.flush(ctx); err != nil {
			return File{}, false, err
		}
	}
	sum := w.sum.Sum(nil)
	if w.Attachment != "" {
		return w.commitAttachment(ctx, sum)
	}
	var a agentfs.Attr
	err = w.tree.unlessHeld(ctx, w.Path, func() (err error) {
		a, created, err = w.place(ctx, w.Path, sum, w.Condition)
		return fault.From(err, w.Path.String())
	})
	if err != nil {
		return File{}, false, err
	}
	return File{Path: w.Path, Attr: a, SHA256: sum}, created, nil
}

// place makes the directories and gives the file its name.
func (w *Writer) place(ctx context.Context, p fileuri.Path, sum []byte, c Condition) (a agentfs.Attr, created bool, err error) {
	for range attempts {
		var parent agentfs.Attr
		if parent, err = w.tree.FS.MkdirAll(ctx, w.tree.By, path.Dir(w.tree.private(p)), dirMode); err != nil {
			return a, false, err
		}
		where := agentfs.Placement{Parent: parent.Ino, Name: p.Name(), Replace: !c.Absent, Digest: sum, Check: func(old *agentfs.Attr) error {
			if old != nil {
				if err := regular(p, *old); err != nil {
					return err
				}
			}
			return c.check(p, old)
		}}
		if w.file != nil {
			a, created, err = w.tree.FS.Place(ctx, w.tree.By, w.file, where)
		} else {
			a, created, err = w.tree.FS.Put(ctx, w.tree.By, where, fileMode, w.buffer)
		}
		// Somebody removed the directory in between.
		if !errors.Is(err, syscall.ENOENT) {
			return a, created, err
		}
	}
	return a, created, err
}

// maxVariants bounds how often agents may have changed one attachment before its name is refused.
const maxVariants = 1000

func (w *Writer) commitAttachment(ctx context.Context, sum []byte) (File, bool, error) {
	prefix := hex.EncodeToString(sum)[:16]
	for n := 1; n <= maxVariants; n++ {
		p, err := attachmentPath(prefix, n, w.Attachment)
		if err != nil {
			return File{}, false, err
		}
		f, err := w.tree.Stat(ctx, p)
		if errors.Is(err, fault.FileNotFound) {
			var a agentfs.Attr
			a, _, err = w.place(ctx, p, sum, Condition{Absent: true})
			if err == nil {
				return File{Path: p, Attr: a, SHA256: sum}, true, nil
			}
			if !errors.Is(err, syscall.EEXIST) && !errors.Is(err, fault.VersionMismatch) {
				return File{}, false, fault.From(err, w.name())
			}
			// Another call made it first.
			f, err = w.tree.Stat(ctx, p)
		}
		switch {
		case errors.Is(err, fault.NotAFile), errors.Is(err, fault.SymlinkRefused), errors.Is(err, fault.FileNotFound):
			continue // an agent put something else there
		case err != nil:
			return File{}, false, err
		}
		equal, err := w.equals(ctx, f, sum)
		if err != nil {
			return File{}, false, err
		}
		if equal {
			f.SHA256 = sum
			return f, false, nil
		}
	}
	return File{}, false, errs.New(errs.Precondition, fault.VersionMismatch, "the attachment %s was changed %d times; give it another name", w.Attachment, maxVariants)
}

// equals says whether a file has the content that was uploaded.
func (w *Writer) equals(ctx context.Context, f File, sum []byte) (bool, error) {
	if f.Attr.Size != w.size {
		return false, nil
	}
	if f.SHA256 != nil {
		return bytes.Equal(f.SHA256, sum), nil
	}
	r, err := w.tree.Open(ctx, f.Path, f.Version())
	if errors.Is(err, fault.VersionMismatch) || errors.Is(err, fault.FileNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	found := sha256.New()
	err = r.Copy(ctx, 0, -1, func(p []byte) error { _, err := found.Write(p); return err })
	if errors.Is(err, fault.FileChanged) {
		return false, r.Close()
	}
	return bytes.Equal(found.Sum(nil), sum), errors.Join(err, r.Close())
}

// attachmentPath is artifacts/inbound/<prefix>/<name>, from the second variant on <prefix>-<n>.
func attachmentPath(prefix string, n int, name string) (fileuri.Path, error) {
	if strings.Contains(name, "/") {
		return fileuri.Path{}, errs.New(errs.Invalid, fault.InvalidPath, "the attachment's name holds a slash")
	}
	if n > 1 {
		prefix = fmt.Sprintf("%s-%d", prefix, n)
	}
	return Parse(fileuri.Inbound.String() + "/" + prefix + "/" + name)
}

// Parse reads a public path. errs.Invalid with INVALID_PATH.
func Parse(s string) (fileuri.Path, error) {
	p, err := fileuri.ParsePath(s)
	if err != nil {
		return p, errs.New(errs.Invalid, fault.InvalidPath, "%v", err)
	}
	return p, nil
}

// MIMEType is that of the name, else what the content looks like.
func (w *Writer) MIMEType(f File) string {
	if m := typeOf(f.Path.Name()); m != "" {
		return m
	}
	return http.DetectContentType(w.head)
}

// Close drops what was not committed. It is called in the end, always.
func (w *Writer) Close() error {
	if w.file == nil {
		return nil
	}
	return fault.From(w.file.Close(), w.name())
}
