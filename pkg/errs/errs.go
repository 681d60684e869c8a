// Package errs is the one error of all services: a kind that decides what callers may do, a stable
// reason from a documented list, and a message for people. Kinds and reasons survive the wire:
// errors.Is(err, errs.NotFound) and errors.Is(err, errs.Reason("TURN_NOT_FOUND")) hold in the
// calling service as they do in the answering one (package rpc converts).
package errs

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Kind says what a caller may do about an error. Each kind is itself an error, for errors.Is.
type Kind uint8

// The kinds. Internal is what an error without a kind counts as.
const (
	Internal        Kind = iota // a fault of ours
	Invalid                     // the request can never succeed as it is
	NotFound                    // no such thing, or not for this caller
	Conflict                    // exists already with other content
	Precondition                // not in the present state
	Exhausted                   // a limit; see RetryAfter
	OutOfRange                  // a position that does not exist
	Unauthenticated             // who is calling is unknown
	Denied                      // who is calling may not
	Unavailable                 // try again
	Timeout                     // the deadline passed
	Canceled                    // the caller gave up
)

var kindNames = [...]string{"internal", "invalid", "not found", "conflict", "precondition failed", "exhausted",
	"out of range", "unauthenticated", "denied", "unavailable", "timeout", "canceled"}

// Error returns the kind's name.
func (k Kind) Error() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Reason is a stable machine-readable cause, in capitals with underscores. Each reason is itself
// an error, for errors.Is.
type Reason string

// Error returns the reason.
func (r Reason) Error() string { return string(r) }

// Error carries a kind, a reason and what to tell people.
type Error struct {
	kind     Kind
	reason   Reason
	message  string
	metadata map[string]string
	retry    time.Duration
	cause    error
}

// New makes an error. Neither the message nor the arguments may hold secrets or transcript text.
func New(k Kind, r Reason, format string, args ...any) *Error {
	return &Error{kind: k, reason: r, message: fmt.Sprintf(format, args...)}
}

// Wrap is New with a cause, which errors.Is and errors.As still find but which never crosses the
// wire.
func Wrap(cause error, k Kind, r Reason, format string, args ...any) *Error {
	e := New(k, r, format, args...)
	e.cause = cause
	return e
}

// With returns a copy with one more metadata entry.
func (e *Error) With(key, value string) *Error {
	c := *e
	c.metadata = make(map[string]string, len(e.metadata)+1)
	for k, v := range e.metadata {
		c.metadata[k] = v
	}
	c.metadata[key] = value
	return &c
}

// WithRetryAfter returns a copy that tells the caller how long to wait.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.retry = d
	return &c
}

// Error returns the message, and the cause for logs.
func (e *Error) Error() string {
	if e.cause != nil {
		return e.message + ": " + e.cause.Error()
	}
	return e.message
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.cause }

// Is matches a Kind or a Reason.
func (e *Error) Is(target error) bool {
	switch t := target.(type) {
	case Kind:
		return e.kind == t
	case Reason:
		return e.reason == t
	}
	return false
}

// Kind returns what the caller may do.
func (e *Error) Kind() Kind { return e.kind }

// Reason returns the stable cause.
func (e *Error) Reason() Reason { return e.reason }

// Message returns the text for people, without the cause.
func (e *Error) Message() string { return e.message }

// Metadata returns the details; callers must not change the map.
func (e *Error) Metadata() map[string]string { return e.metadata }

// RetryAfter returns how long to wait, 0 if unknown.
func (e *Error) RetryAfter() time.Duration { return e.retry }

// KindOf returns the kind of the outermost Error in err's chain; context errors count as Canceled
// and Timeout, anything else as Internal.
func KindOf(err error) Kind {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e.kind
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	}
	return Internal
}

// ReasonOf returns the reason of the outermost Error in err's chain, or "".
func ReasonOf(err error) Reason {
	var e *Error
	if errors.As(err, &e) {
		return e.reason
	}
	return ""
}
