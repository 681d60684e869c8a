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

// prepare makes a claimed turn that nobody has prompted ready for that: its files are there, and
// its inline data is back in its blocks. It waits for agentfs as long as that takes, and returns a
// decision instead if nothing is to be sent. waited: others may own the turn by now. Not ok: this
// instance has nothing more to do with the turn.
func (q *Queue) prepare(r *turn.Run, uris []string) (d *outcome.Decision, waited, ok bool) {
	var pause wake.Backoff
	for q.ctx.Err() == nil {
		blocks, problem, err := q.ready(*r, uris)
		switch {
		case err == nil && problem == nil:
			r.Blocks = blocks
			return nil, waited, true
		case err == nil:
			return &outcome.Decision{State: turn.Failed, KeepBlocks: true, Error: problem}, waited, true
		}
		q.fault("make the turn's files ready", r.Conversation, r.TurnID, err)
		_ = pause.Pause(q.ctx)
		waited = true
		moved := q.moves.C()
		now, err := q.cfg.Store.Running(q.ctx, r.Conversation)
		switch {
		case err == nil && now.TurnID != r.TurnID, errors.Is(err, store.ErrNotFound):
			return nil, waited, false // ended by whoever took it over
		case err != nil:
			q.fault("read running turn", r.Conversation, r.TurnID, err)
			q.cfg.Suspect()
			q.await(moved)
		case now.CancelRequested:
			return &outcome.Decision{State: turn.Cancelled}, waited, true
		}
	}
	return nil, waited, false
}

// ready tries prepare's work once.
func (q *Queue) ready(r turn.Run, uris []string) ([]turn.Block, *turn.Error, error) {
	ctx, cancel := context.WithTimeout(q.ctx, filesDeadline)
	defer cancel()
	c, files := r.Conversation, q.cfg.Files
	if err := files.Hold(ctx, c, r.TurnID, uris); err != nil {
		if files.Gone(err) {
			return nil, gone(r.Blocks), nil
		}
		return nil, nil, err
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
			return nil, gone(r.Blocks), nil
		case err != nil && files.Changed(err):
			return nil, changed(), nil
		case err != nil:
			return nil, nil, err
		}
		raw, err := inline.Join(b.Raw, b.Data.Cut, data)
		if sum := sha256.Sum256(raw); err != nil || !bytes.Equal(sum[:], b.SHA256) {
			return nil, changed(), nil
		}
		b.Raw, b.Data = raw, nil
	}
	return blocks, nil, nil
}

// gone: inline data that is sent again is written again, a file that is named has to be put back.
func gone(blocks []turn.Block) *turn.Error {
	named := slices.ContainsFunc(blocks, func(b turn.Block) bool { return b.File != nil && (b.Data == nil || b.Data.URI != b.File.URI) })
	return &turn.Error{Reason: turn.ReasonFileGone, Retryable: !named,
		Message: "a file of the message was removed, or is no regular file any more; the message was not given to Hermes"}
}

func changed() *turn.Error {
	return &turn.Error{Reason: turn.ReasonFileChanged, Retryable: true,
		Message: "the file that keeps the message's inline data was changed; the message was not given to Hermes"}
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
