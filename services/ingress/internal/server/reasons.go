package server

import (
	"context"
	"errors"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/store"
)

// Reasons of errors this service answers with; package turn has those of turns.
const (
	ReasonTurnNotFound     errs.Reason = "TURN_NOT_FOUND"
	ReasonKeyReused        errs.Reason = "IDEMPOTENCY_KEY_REUSED"
	ReasonKeyMalformed     errs.Reason = "IDEMPOTENCY_KEY_MALFORMED"
	ReasonQueueFull        errs.Reason = "QUEUE_FULL"
	ReasonBusy             errs.Reason = "CONVERSATION_BUSY"
	ReasonInvalidBlock     errs.Reason = "INVALID_CONTENT_BLOCK"
	ReasonInvalidFileURI   errs.Reason = "INVALID_FILE_URI"
	ReasonTooLarge         errs.Reason = "CONTENT_TOO_LARGE"
	ReasonEmptyTurn        errs.Reason = "EMPTY_TURN"
	ReasonPageToken        errs.Reason = "INVALID_PAGE_TOKEN"
	ReasonSequenceUnknown  errs.Reason = "EVENTS_SEQUENCE_UNKNOWN"
	ReasonGap              errs.Reason = "EVENTS_GAP"
	ReasonStoreUnavailable errs.Reason = "STORE_UNAVAILABLE"
	ReasonStopping         errs.Reason = "SERVICE_STOPPING"
)

// queueFullRetry is what a caller beyond the limit of waiting turns is told to wait.
const queueFullRetry = 5 * time.Second

// fromStore makes the errors of the contract. suspect is told of a store that failed.
func (s *Server) fromStore(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, store.ErrNotFound):
		return errs.New(errs.NotFound, ReasonTurnNotFound, "no such turn in this conversation")
	case errors.Is(err, store.ErrKeyReused):
		return errs.New(errs.Conflict, ReasonKeyReused, "the idempotency key was used with another body")
	case errors.Is(err, store.ErrQueueFull):
		return errs.New(errs.Exhausted, ReasonQueueFull, "%d turns wait in this conversation already", s.cfg.MaxWaiting).WithRetryAfter(queueFullRetry)
	case errors.Is(err, store.ErrBusy):
		return errs.New(errs.Precondition, ReasonBusy, "the conversation has an open turn")
	case errors.Is(err, store.ErrUnknownSequence):
		return errs.New(errs.OutOfRange, ReasonSequenceUnknown, "the conversation has no event with that sequence yet")
	case errors.Is(err, store.ErrUnavailable):
		s.cfg.Suspect()
		return errs.Wrap(err, errs.Unavailable, ReasonStoreUnavailable, "the database cannot be reached; try again").WithRetryAfter(time.Second)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	}
	return err
}

func fromBlock(err error) error {
	var e *block.Error
	if !errors.As(err, &e) {
		return err
	}
	reason := map[block.Code]errs.Reason{block.Malformed: ReasonInvalidBlock, block.FileURI: ReasonInvalidFileURI,
		block.TooLarge: ReasonTooLarge, block.Empty: ReasonEmptyTurn}[e.Code]
	return errs.New(errs.Invalid, reason, "%s", e.Error()).With("field", e.Path)
}
