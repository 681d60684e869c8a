package queue

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"slices"
	"time"

	"humanwork.internal/services/ingress/internal/inline"
	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
	"humanwork.internal/services/ingress/internal/wake"
)

// Files is the conversation's files, as this service itself reads them. Its calls fail rather than
// wait for the service.
type Files interface {
	// Hold checks that each URI names a regular file of the conversation, and keeps them in place for
	// the turn. Idempotent.
	Hold(ctx context.Context, c turn.Conversation, turnID string, uris []string) error
	// Release ends what Hold began. Idempotent.
	Release(ctx context.Context, c turn.Conversation, turnID string) error
	// Read returns a file's content, which must not be larger than limit bytes.
	Read(ctx context.Context, c turn.Conversation, uri string, limit int64) ([]byte, error)
	// Gone reports whether an error of the others means that the file is not there, or not a file
	// any more.
	Gone(err error) bool
	// Changed reports whether an error of Read means that the file is larger than the limit.
	Changed(err error) bool
}

const (
	// filesDeadline bounds one attempt to make a turn's files ready.
	filesDeadline = time.Minute
	// releaseDeadline bounds a release; a lost one costs nothing, because agentfs asks about turns
	// whose holds are in the way.
	releaseDeadline = 10 * time.Second
)

// prepare makes a claimed turn that nobody has prompted ready for that, or finds that it is to be
// cancelled. A claim does so before: what is left are turns whose claim was answered to nobody. It
// waits for agentfs as long as that takes. waited: others may own the turn by now. Not ok: this
// instance has nothing more to do with the turn.
func (q *Queue) prepare(r *turn.Run) (waited, ok bool) {
	var pause wake.Backoff
	for q.ctx.Err() == nil {
		err := q.ready(r)
		if err == nil {
			return waited, true
		}
		q.fault("make the turn's files ready", r.Conversation, r.TurnID, err)
		_ = pause.Pause(q.ctx)
		waited = true
		moved := q.moves.C()
		now, err := q.cfg.Store.Running(q.ctx, r.Conversation)
		switch {
		case err == nil && now.TurnID != r.TurnID, errors.Is(err, store.ErrNotFound):
			return waited, false // ended by whoever took it over
		case err != nil:
			q.fault("read running turn", r.Conversation, r.TurnID, err)
			q.cfg.Suspect()
			q.await(moved)
		case now.CancelRequested:
			r.CancelRequested = true
			return waited, true
		}
	}
	return waited, false
}

// unsent ends a turn that was not given to Hermes, because of its files or because it was cancelled
// while they were waited for.
func unsent(r turn.Run) store.Ending {
	d := outcome.Decision{State: turn.Failed, KeepBlocks: true, Error: r.Problem}
	if r.CancelRequested {
		d = outcome.Decision{State: turn.Cancelled}
	}
	return store.Ending{Run: r, Decision: d, Rows: outcome.Rows{End: r.Watermark}}
}

// ready checks and holds the turn's files and puts their data into its blocks, once.
func (q *Queue) ready(r *turn.Run) error {
	uris := turn.FileURIs(r.Blocks)
	if r.Ready || uris == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(q.ctx, filesDeadline)
	defer cancel()
	blocks, err := q.whole(ctx, *r, uris)
	var problem *unsendable
	switch {
	case errors.As(err, &problem):
		r.Problem = &problem.why
	case err != nil:
		return err
	default:
		r.Blocks = blocks
	}
	r.Ready = true
	return nil
}

// unsendable is why a turn is not to be sent.
type unsendable struct{ why turn.Error }

// Error returns the reason.
func (u *unsendable) Error() string { return u.why.Reason }

// whole returns the turn's blocks as they were accepted, or an unsendable error.
func (q *Queue) whole(ctx context.Context, r turn.Run, uris []string) ([]turn.Block, error) {
	c, files := r.Conversation, q.cfg.Files
	if err := files.Hold(ctx, c, r.TurnID, uris); err != nil {
		if files.Gone(err) {
			return nil, gone(r.Blocks)
		}
		return nil, err
	}
	blocks := slices.Clone(r.Blocks)
	for i := range blocks {
		b := &blocks[i]
		if b.Data == nil {
			continue
		}
		data, err := files.Read(ctx, c, b.Data.URI, b.Size)
		switch {
		case err != nil && files.Gone(err):
			return nil, gone(r.Blocks)
		case err != nil && files.Changed(err):
			return nil, changed()
		case err != nil:
			return nil, err
		}
		raw, err := inline.Join(b.Raw, b.Data.Cut, data)
		if sum := sha256.Sum256(raw); err != nil || !bytes.Equal(sum[:], b.SHA256) {
			return nil, changed()
		}
		b.Raw, b.Data = raw, nil
	}
	return blocks, nil
}

// gone: inline data that is sent again is written again, a file that is named has to be put back.
func gone(blocks []turn.Block) error {
	named := slices.ContainsFunc(blocks, func(b turn.Block) bool { return b.File != nil && (b.Data == nil || b.Data.URI != b.File.URI) })
	return &unsendable{turn.Error{Reason: turn.ReasonFileGone, Retryable: !named,
		Message: "a file of the message was removed, or is no regular file any more; the message was not given to Hermes"}}
}

func changed() error {
	return &unsendable{turn.Error{Reason: turn.ReasonFileChanged, Retryable: true,
		Message: "the file that keeps the message's inline data was changed; the message was not given to Hermes"}}
}

// Release lets go of the turn's files. Nothing waits for it.
func (q *Queue) Release(c turn.Conversation, turnID string) {
	q.aside(func() {
		ctx, cancel := context.WithTimeout(q.ctx, releaseDeadline)
		defer cancel()
		if err := q.cfg.Files.Release(ctx, c, turnID); err != nil {
			q.fault("release the turn's files", c, turnID, err)
		}
	})
}
