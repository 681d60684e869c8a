// Package outcome decides what came of a turn: from what the supervisor saw and from the rows
// Hermes left, by structure and never by wording.
package outcome

import (
	"fmt"

	"humanwork.internal/services/ingress/internal/turn"
)

// Row is an assistant row that ends a run, after the turn's own user row.
type Row struct {
	ID           int64
	FinishReason string // Hermes's own; empty for NULL
}

// Rows is what the turn left above its watermark.
type Rows struct {
	User    int64   // the turn's own user row; 0: none
	Users   []int64 // User and those that Hermes queued into the turn
	Replies []Row
	End     int64 // watermark after the turn
}

// End says how an attempt ended.
type End uint8

// The ends. Gone: the supervisor does not know the attempt, and all that ran it has ended.
const (
	Gone End = iota
	Answered
	PromptError
	ChildExited
	NotDispatched
)

// ACP's stop reasons.
const (
	stopEndTurn     = "end_turn"
	stopCancelled   = "cancelled"
	stopRefusal     = "refusal"
	stopMaxTokens   = "max_tokens"
	stopMaxRequests = "max_turn_requests"
)

// Seen is what the supervisor saw.
type Seen struct {
	End          End
	StopReason   string // Answered only
	Reason       string // a reason of the documented list, for the other ends
	Message      string // for people
	CancelSent   bool   // Hermes was asked to stop, or may have been
	TextStreamed bool
}

// Shape is what the prompt was made of.
type Shape struct {
	// Readable: a text block that is not blank, or an image. Hermes ends a turn that has neither
	// at once, with no row.
	Readable bool
	// Command: nothing but text, beginning with a slash. Only such a prompt may be answered by
	// text alone, without a row.
	Command bool
}

// Decision is what becomes of the turn.
type Decision struct {
	State   turn.State
	Replies []int64 // in order; only with Replied
	Error   *turn.Error
	// KeepBlocks: the turn failed before Hermes took the message, which must not be lost.
	KeepBlocks bool
	// EndChild: the child is not to be trusted with another prompt.
	EndChild bool
}

// Decide applies rules 1 to 5 and 9 of the protocol.
func Decide(rows Rows, seen Seen, shape Shape) Decision {
	d := decide(rows, seen, shape)
	// Rule 3: an error in answer to a prompt may be the first sign of a wedge, whatever the rows say.
	d.EndChild = d.EndChild || seen.End == PromptError
	d.KeepBlocks = d.State == turn.Failed && rows.User == 0
	return d
}

func decide(rows Rows, seen Seen, shape Shape) Decision {
	cancelled := seen.CancelSent || seen.End == Answered && seen.StopReason == stopCancelled
	if ids := replies(rows, cancelled); len(ids) > 0 {
		return Decision{State: turn.Replied, Replies: ids}
	}
	if cancelled {
		return Decision{State: turn.Cancelled}
	}
	switch seen.End {
	case NotDispatched:
		return failed(or(seen.Reason, turn.ReasonNotDispatched), or(seen.Message, "the message was not given to Hermes"), true)
	case Gone:
		return failed(or(seen.Reason, turn.ReasonInterrupted), or(seen.Message, "the agent's process ended while the turn ran"), true)
	case ChildExited:
		return failed(childReason(seen.Reason), or(seen.Message, "the agent's process ended before it answered"), true)
	case PromptError:
		return failed(turn.ReasonPromptError, or(seen.Message, "Hermes answered the prompt with an error"), true)
	}
	switch seen.StopReason {
	case stopRefusal:
		if rows.User == 0 {
			return failed(turn.ReasonSessionUnknown, "Hermes does not know the conversation's session", false)
		}
		return failed(turn.ReasonRefused, "the model refused to answer", false)
	case stopMaxTokens, stopMaxRequests:
		if rows.User != 0 {
			return failed(turn.ReasonModelLimit, fmt.Sprintf("Hermes stopped at a limit (%s) before a reply", seen.StopReason), true)
		}
	case stopEndTurn:
		switch {
		case rows.User != 0 && seen.TextStreamed:
			// Text without a row is Hermes's own report that the model failed, never a reply.
			return failed(turn.ReasonModelUnavailable, "the model could not be reached or failed", true)
		case rows.User != 0:
			return failed(turn.ReasonNoAnswer, "Hermes ended the turn without a reply", true)
		case seen.TextStreamed && shape.Command:
			return Decision{State: turn.NativeCommand}
		case !seen.TextStreamed && !shape.Readable:
			return withoutReply(turn.NoReply, turn.ReasonNothingReadable, "Hermes does not answer a message that holds neither text nor an image", false)
		}
	}
	if rows.User != 0 { // a stop reason that is not known here
		return failed(turn.ReasonNoAnswer, "Hermes ended the turn without a reply", true)
	}
	d := failed(turn.ReasonWedged, "Hermes ended the turn without taking the message; its process is replaced", true)
	d.EndChild = true
	return d
}

// replies returns the rows that count. After a cancel the partial text of a turn is a row too, but
// without a finish reason (rule 2); without a user row of its own nothing is the turn's (rule 1).
func replies(rows Rows, cancelled bool) []int64 {
	if rows.User == 0 {
		return nil
	}
	var ids []int64
	for _, r := range rows.Replies {
		if r.ID > rows.User && (!cancelled || r.FinishReason != "") {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// childReason keeps the few causes that tell the caller more than that the turn was interrupted.
func childReason(reason string) string {
	switch reason {
	case "LINE_TOO_LONG", "HERMES_UNAVAILABLE":
		return reason
	}
	return turn.ReasonInterrupted
}

func failed(reason, message string, retryable bool) Decision {
	return withoutReply(turn.Failed, reason, message, retryable)
}

func withoutReply(s turn.State, reason, message string, retryable bool) Decision {
	return Decision{State: s, Error: &turn.Error{Reason: reason, Message: message, Retryable: retryable}}
}

func or(s, otherwise string) string {
	if s != "" {
		return s
	}
	return otherwise
}
