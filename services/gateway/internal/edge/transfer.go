package edge

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/gateway/internal/problem"
)

// upload reads a body of any length. Its deadline goes on with each read that brought something, so
// that a slow body arrives and one that stands still does not.
type upload struct {
	rc    *http.ResponseController
	body  io.Reader
	limit time.Duration
	err   error
}

func newUpload(w http.ResponseWriter, r *http.Request, limit time.Duration) (io.Reader, error) {
	if enc := r.Header.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return nil, errs.New(errs.Invalid, problem.ReasonMediaType, "Content-Encoding is not supported; send the bytes as they are")
	}
	return &upload{rc: http.NewResponseController(w), body: r.Body, limit: limit}, nil
}

// Read returns io.EOF only for a body that arrived whole; every other error is an errs.Error.
func (u *upload) Read(p []byte) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if err := u.rc.SetReadDeadline(time.Now().Add(u.limit)); err != nil {
		return 0, fmt.Errorf("bound the reading of the body: %w", err)
	}
	n, err := u.body.Read(p)
	switch {
	case err == nil:
	case errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		u.err = io.EOF
		// The server watches the connection from here on; a deadline would look like a client that left.
		if err := u.rc.SetReadDeadline(time.Time{}); err != nil {
			u.err = fmt.Errorf("end the bound on reading: %w", err)
		}
	case errors.Is(err, os.ErrDeadlineExceeded):
		u.err = errs.Wrap(err, errs.Timeout, problem.ReasonBodyTimeout, "nothing of the body arrived within %v", u.limit)
	default:
		u.err = errs.Wrap(err, errs.Invalid, problem.ReasonBodyUnreadable, "the body ended early or is malformed")
	}
	return n, u.err
}
