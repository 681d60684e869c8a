package errs_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"humanwork.internal/pkg/errs"
)

func TestIsMatchesKindReasonAndCause(t *testing.T) {
	cause := errors.New("disk on fire")
	err := fmt.Errorf("read turn: %w", errs.Wrap(cause, errs.NotFound, "TURN_NOT_FOUND", "no turn %q", "t1"))
	for _, target := range []error{errs.NotFound, errs.Reason("TURN_NOT_FOUND"), cause} {
		if !errors.Is(err, target) {
			t.Errorf("errors.Is(%v, %v) = false, want true", err, target)
		}
	}
	for _, target := range []error{errs.Internal, errs.Invalid, errs.Reason("OTHER")} {
		if errors.Is(err, target) {
			t.Errorf("errors.Is(%v, %v) = true, want false", err, target)
		}
	}
}

func TestKindOf(t *testing.T) {
	for _, tc := range []struct {
		err  error
		want errs.Kind
	}{
		{errors.New("x"), errs.Internal},
		{context.Canceled, errs.Canceled},
		{fmt.Errorf("a: %w", context.DeadlineExceeded), errs.Timeout},
		{errs.Wrap(context.Canceled, errs.Unavailable, "R", "m"), errs.Unavailable},
	} {
		if got := errs.KindOf(tc.err); got != tc.want {
			t.Errorf("KindOf(%v) = %v, want %v", tc.err, got, tc.want)
		}
	}
}

func TestWithDoesNotChangeTheOriginal(t *testing.T) {
	base := errs.New(errs.Invalid, "R", "m").With("a", "1")
	more := base.With("b", "2")
	if got := len(base.Metadata()); got != 1 {
		t.Errorf("base has %d entries, want 1", got)
	}
	if got := more.Metadata()["a"] + more.Metadata()["b"]; got != "12" {
		t.Errorf("metadata = %q, want 12", got)
	}
}
