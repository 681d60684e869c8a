package edge

import (
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/gateway/internal/problem"
	"humanwork.internal/services/gateway/internal/strictjson"
)

// readBody reads a request's body under the rule, within the limit and the deadline.
func readBody(w http.ResponseWriter, r *http.Request, rule BodyRule, limit int64, deadline time.Duration) ([]byte, error) {
	if rule == NoBody {
		return nil, nil
	}
	if r.ContentLength > limit {
		return nil, tooLarge(limit)
	}
	// net/http's own ReadTimeout would go on over the handler and cut long polls.
	rc := http.NewResponseController(w)
	if err := rc.SetReadDeadline(time.Now().Add(deadline)); err != nil {
		return nil, fmt.Errorf("bound the reading of the body: %w", err)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	if err != nil {
		return nil, unreadable(err, limit, deadline)
	}
	if err := rc.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("end the bound on reading: %w", err)
	}
	if len(body) == 0 {
		switch rule {
		case AnyEmpty:
			return nil, nil
		case OptionalJSON:
			return []byte("{}"), nil
		}
	}
	if err := checkMedia(r.Header); err != nil {
		return nil, err
	}
	if rule == AnyEmpty {
		doc, err := strictjson.Parse(body)
		if err != nil {
			return nil, err
		}
		_, err = doc.Fields()
		return nil, err
	}
	return body, nil
}

func tooLarge(limit int64) error {
	return errs.New(errs.Invalid, problem.ReasonBodyTooLarge, "the body is larger than the limit of %d bytes", limit).
		With("limitBytes", strconv.FormatInt(limit, 10))
}

func unreadable(err error, limit int64, deadline time.Duration) error {
	var max *http.MaxBytesError
	switch {
	case errors.As(err, &max):
		return tooLarge(limit)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errs.Wrap(err, errs.Timeout, problem.ReasonBodyTimeout, "the body did not arrive within %v", deadline)
	}
	return errs.Wrap(err, errs.Invalid, problem.ReasonBodyUnreadable, "the body ended early or is malformed")
}

// checkMedia refuses bodies that are not plain JSON in UTF-8. A missing Content-Type counts as it.
func checkMedia(h http.Header) error {
	if enc := h.Get("Content-Encoding"); enc != "" && !strings.EqualFold(enc, "identity") {
		return errs.New(errs.Invalid, problem.ReasonMediaType, "Content-Encoding is not supported; send the JSON as it is")
	}
	types := h.Values("Content-Type")
	if len(types) == 0 {
		return nil
	}
	media, params, err := mime.ParseMediaType(types[0])
	charset := params["charset"]
	if err != nil || len(types) > 1 || media != MediaJSON || charset != "" && !strings.EqualFold(charset, "utf-8") {
		return errs.New(errs.Invalid, problem.ReasonMediaType, "Content-Type must be %s", MediaJSON)
	}
	return nil
}

// accepts reports whether the Accept header values allow the media type.
func accepts(values []string, media string) bool {
	if len(values) == 0 {
		return true
	}
	kind, _, _ := strings.Cut(media, "/")
	best, allowed := -1, false
	for part := range strings.SplitSeq(strings.Join(values, ","), ",") {
		name, params, err := mime.ParseMediaType(part)
		if err != nil {
			continue
		}
		// The most specific range decides, as RFC 9110 has it.
		rank := -1
		switch name {
		case "*/*":
			rank = 0
		case kind + "/*":
			rank = 1
		case media:
			rank = 2
		}
		if rank > best {
			q, err := strconv.ParseFloat(params["q"], 64)
			best, allowed = rank, err != nil || q > 0
		}
	}
	return allowed
}
