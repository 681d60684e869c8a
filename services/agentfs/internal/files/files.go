// Package files works on the public files of one conversation: regular files, found without
// following a symbolic link, whose conditions are checked in the transaction that changes them.
package files

import (
	"context"
	"errors"
	"path"
	"slices"
	"strconv"
	"syscall"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/authority"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/namespace"
)

// What the API makes: as a shell with the usual umask would.
const (
	fileMode = 0o644
	dirMode  = 0o755
)

// Tree is the public files of one conversation, for one caller.
type Tree struct {
	FS           *agentfs.FS
	Conversation authority.Conversation
	By           agentfs.Caller
	Holds        *Holds
}

// File is one regular file.
type File struct {
	Path   fileuri.Path
	Attr   agentfs.Attr
	SHA256 []byte // of the content; nil: not known
}

// Version is the file's inode and content version.
func (f File) Version() string { return version(f.Attr) }

func version(a agentfs.Attr) string { return Version(a.Ino, a.Version) }

// Version is how a content version of an inode is spelled.
func Version(ino agentfs.Ino, version int64) string {
	return strconv.FormatInt(int64(ino), 10) + "-" + strconv.FormatInt(version, 10)
}

// regular refuses what is no regular file.
func regular(p fileuri.Path, a agentfs.Attr) error {
	switch a.Mode & agentfs.TypeMask {
	case agentfs.TypeFile:
		return nil
	case agentfs.TypeSymlink:
		return errs.New(errs.Precondition, fault.SymlinkRefused, "%s is a symbolic link, which is never followed", p)
	case agentfs.TypeDir:
		return errs.New(errs.Precondition, fault.NotAFile, "%s is a directory", p)
	}
	return errs.New(errs.Precondition, fault.NotAFile, "%s is not a regular file", p)
}

func (t Tree) private(p fileuri.Path) string { return namespace.Private(t.Conversation.ID, p) }

// Stat describes a file.
func (t Tree) Stat(ctx context.Context, p fileuri.Path) (File, error) {
	a, err := t.FS.Resolve(ctx, t.private(p))
	if err != nil {
		return File{}, fault.From(err, p.String())
	}
	return t.describe(ctx, p, a)
}

func (t Tree) describe(ctx context.Context, p fileuri.Path, a agentfs.Attr) (File, error) {
	if err := regular(p, a); err != nil {
		return File{}, err
	}
	sum, _, err := t.FS.Digest(ctx, a.Ino, a.Version)
	if err != nil {
		return File{}, fault.From(err, p.String())
	}
	return File{Path: p, Attr: a, SHA256: sum}, nil
}

// Condition must hold for a file to be written, removed or read; the zero Condition always does.
type Condition struct {
	Match     []string // the file has one of these versions; none: any
	Exists    bool
	NoneMatch []string // the file has none of these versions
	Absent    bool
}

// check returns errs.Precondition unless the condition holds for a file, nil if there is none.
func (c Condition) check(p fileuri.Path, old *agentfs.Attr) error {
	present := ""
	if old != nil {
		present = version(*old)
	}
	refuse := func(format string, args ...any) error {
		return errs.New(errs.Precondition, fault.VersionMismatch, format, args...).With("version", present)
	}
	switch {
	case old == nil && (c.Exists || len(c.Match) > 0):
		return refuse("%s does not exist", p)
	case old != nil && c.Absent:
		return refuse("%s exists already", p)
	case len(c.Match) > 0 && !slices.Contains(c.Match, present):
		return refuse("%s has version %s, which is none of those asked for", p, present)
	case old != nil && slices.Contains(c.NoneMatch, present):
		return refuse("%s has version %s, which was excluded", p, present)
	}
	return nil
}

// Remove removes a file's name.
func (t Tree) Remove(ctx context.Context, p fileuri.Path, c Condition) error {
	return t.unlessHeld(ctx, p, func() error {
		parent, err := t.FS.Resolve(ctx, path.Dir(t.private(p)))
		if errors.Is(err, syscall.ENOENT) {
			if err := c.check(p, nil); err != nil {
				return err
			}
		}
		if err != nil {
			return fault.From(err, p.String())
		}
		err = t.FS.Remove(ctx, t.By, parent.Ino, p.Name(), func(a agentfs.Attr) error {
			if err := regular(p, a); err != nil {
				return err
			}
			return c.check(p, &a)
		})
		if errors.Is(err, syscall.ENOENT) {
			if err := c.check(p, nil); err != nil {
				return err
			}
		}
		return fault.From(err, p.String())
	})
}
