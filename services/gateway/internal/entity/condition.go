// Package entity is what HTTP says about a file beside its bytes: the conditions of a request and
// the name to save it under.
package entity

import (
	"net/http"
	"regexp"
	"strings"

	"humanwork.internal/pkg/errs"
)

// ReasonInvalidHeader is the reason of a header that is malformed or that a write cannot honour.
const ReasonInvalidHeader errs.Reason = "INVALID_HEADER"

// Condition is what must hold of a file for a write or a removal. The zero value always holds.
type Condition struct {
	// Match, unless nil, lists versions of which the file must have one; Exists: any will do.
	Match  []string
	Exists bool
	// NoneMatch lists versions of which the file must have none; Absent: it must not exist.
	NoneMatch []string
	Absent    bool
}

const (
	maxTags = 100
	// noVersion is the shape of a version, and no file's: it stands for tags that cannot match.
	noVersion = "0-0"
)

var versionPattern = regexp.MustCompile(`^[0-9]{1,19}-[0-9]{1,19}$`)

// Tag returns the entity tag of a version.
func Tag(version string) string { return `"` + version + `"` }

// ParseCondition reads If-Match and If-None-Match as RFC 9110 has them: the first compares strongly,
// so that a weak tag never matches, the second weakly. Headers that a write would have to honour and
// this one cannot are refused, since passing over them loses data.
func ParseCondition(h http.Header) (Condition, error) {
	for _, name := range []string{"If-Unmodified-Since", "If-Modified-Since", "If-Range"} {
		if len(h.Values(name)) > 0 {
			return Condition{}, invalid(name, "is not supported here; use If-Match with an ETag")
		}
	}
	if len(h.Values("Content-Range")) > 0 {
		return Condition{}, invalid("Content-Range", "is not supported; send the whole file")
	}
	var c Condition
	tags, any, err := parseTags(h, "If-Match")
	if err != nil {
		return Condition{}, err
	}
	c.Exists = any
	for _, t := range tags {
		if t.weak || !versionPattern.MatchString(t.opaque) {
			t.opaque = noVersion
		}
		c.Match = append(c.Match, t.opaque)
	}
	tags, any, err = parseTags(h, "If-None-Match")
	if err != nil {
		return Condition{}, err
	}
	c.Absent = any
	for _, t := range tags {
		if versionPattern.MatchString(t.opaque) {
			c.NoneMatch = append(c.NoneMatch, t.opaque)
		}
	}
	return c, nil
}

type tag struct {
	opaque string
	weak   bool
}

// parseTags reads a header that is "*" or a list of entity tags.
func parseTags(h http.Header, name string) (tags []tag, any bool, err error) {
	values := h.Values(name)
	if len(values) == 0 {
		return nil, false, nil
	}
	text := strings.Trim(strings.Join(values, ","), " \t")
	if text == "*" {
		return nil, true, nil
	}
	for {
		// Lists may have empty elements.
		if text = strings.TrimLeft(text, " \t,"); text == "" {
			break
		}
		var t tag
		if text, t.weak = strings.CutPrefix(text, "W/"); !strings.HasPrefix(text, `"`) {
			return nil, false, invalid(name, `must be * or ETags, each in double quotes`)
		}
		end := strings.IndexByte(text[1:], '"')
		if end < 0 {
			return nil, false, invalid(name, "has an ETag without its closing quote")
		}
		t.opaque, text = text[1:1+end], strings.TrimLeft(text[2+end:], " \t")
		if text != "" && text[0] != ',' {
			return nil, false, invalid(name, "has something between two ETags that is no comma")
		}
		if tags = append(tags, t); len(tags) > maxTags {
			return nil, false, invalid(name, "has more than 100 ETags")
		}
	}
	if len(tags) == 0 {
		return nil, false, invalid(name, "is empty")
	}
	return tags, false, nil
}

func invalid(name, why string) error {
	return errs.New(errs.Invalid, ReasonInvalidHeader, "the header %s %s", name, why).With("header", name)
}
