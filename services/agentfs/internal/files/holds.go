package files

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/authority"
	"humanwork.internal/services/agentfs/internal/fault"
)

// Grace is how old a hold is before anybody asks whether its turn still waits: a hold is made
// before its turn is accepted.
const Grace = time.Minute

// Turns knows turns.
type Turns interface {
	// Waiting says whether a turn was accepted and not dispatched yet; false for an unknown one.
	Waiting(ctx context.Context, c authority.Conversation, turn string) (bool, error)
}

// Holds decides which holds still count. One that was never released costs nothing until it
// would refuse somebody.
type Holds struct {
	Turns Turns
	Grace time.Duration
}

// attempts bounds how often an operation is tried anew after others came in between.
const attempts = 8

// unlessHeld runs op, again after a hold that refused it turned out to be stale.
func (t Tree) unlessHeld(ctx context.Context, p fileuri.Path, op func() error) error {
	err := op()
	for range attempts {
		if !errors.Is(err, fault.FileHeld) {
			return err
		}
		a, rerr := t.FS.Resolve(ctx, t.private(p))
		if rerr != nil {
			return err
		}
		dropped, derr := t.dropStale(ctx, a.Ino)
		if derr != nil {
			return errors.Join(err, derr)
		}
		if !dropped {
			return err
		}
		err = op()
	}
	return err
}

// dropStale ends the holds on an inode whose turns do not wait any more, and says whether all are.
func (t Tree) dropStale(ctx context.Context, ino agentfs.Ino) (bool, error) {
	list, err := t.FS.Holders(ctx, ino)
	if err != nil {
		return false, fault.From(err, "the file")
	}
	for _, h := range list {
		if time.Since(h.Created) < t.Holds.Grace {
			return false, nil
		}
		conversation, turn := fault.Holding(h.Holder)
		waiting, err := t.Holds.Turns.Waiting(ctx, authority.Conversation{Organization: t.Conversation.Organization, ID: conversation}, turn)
		if waiting || err != nil { // who cannot be asked may still need it
			return false, nil
		}
		if err := t.FS.Release(ctx, h.Holder); err != nil {
			return false, fault.From(err, "the file")
		}
	}
	return true, nil
}

// Hold checks that each URI names a regular file and holds them all for a turn; one that does not
// holds none, and its index is in the error's metadata.
func (t Tree) Hold(ctx context.Context, turn string, uris []string) ([]File, error) {
	paths := make([]fileuri.Path, len(uris))
	for i, u := range uris {
		p, err := fileuri.ParseURI(u)
		if err != nil {
			return nil, notHeld(i, err)
		}
		paths[i] = p
	}
	holder := fault.Holder(t.Conversation.ID, turn)
	held, err := t.statAll(ctx, paths)
	for range attempts {
		if err != nil {
			return nil, err
		}
		inos := make([]agentfs.Ino, len(held))
		for i, f := range held {
			inos[i] = f.Attr.Ino
		}
		// ENOENT: one was removed since, which the next look will say.
		herr := t.FS.Hold(ctx, holder, inos)
		if herr != nil && !errors.Is(herr, syscall.ENOENT) {
			return nil, fault.From(herr, "a file of the turn")
		}
		// A name may have gone to another file before the hold: then that one is to be held.
		now, serr := t.statAll(ctx, paths)
		if serr == nil && herr == nil && same(held, now) {
			return now, nil
		}
		if err := t.Release(ctx, turn); err != nil {
			return nil, err
		}
		held, err = now, serr
	}
	return nil, errs.New(errs.Unavailable, fault.Busy, "the files of the turn are replaced faster than they can be held; try again")
}

func same(a, b []File) bool {
	for i := range a {
		if a[i].Attr.Ino != b[i].Attr.Ino {
			return false
		}
	}
	return true
}

func (t Tree) statAll(ctx context.Context, paths []fileuri.Path) ([]File, error) {
	list := make([]File, len(paths))
	for i, p := range paths {
		f, err := t.Stat(ctx, p)
		switch errs.KindOf(err) {
		case errs.NotFound, errs.Precondition:
			if reason := errs.ReasonOf(err); reason == fault.FileNotFound || reason == fault.NotAFile || reason == fault.SymlinkRefused {
				return nil, notHeld(i, err)
			}
		}
		if err != nil {
			return nil, err
		}
		list[i] = f
	}
	return list, nil
}

func notHeld(index int, err error) error {
	return errs.Wrap(err, errs.Invalid, fault.InvalidFileURI, "%v", err).With("index", fmt.Sprint(index))
}

// Release ends all holds of a turn.
func (t Tree) Release(ctx context.Context, turn string) error {
	return fault.From(t.FS.Release(ctx, fault.Holder(t.Conversation.ID, turn)), "the files of the turn")
}
