package edge

import (
	"net/url"
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
)

// ReasonInvalidPath is the reason of a path of a file that no file can have.
const ReasonInvalidPath errs.Reason = "INVALID_PATH"

// split returns the segments of a request's path as they were sent, each still escaped.
//
// RawPath and not EscapedPath is asked: for a path with bytes that should have been escaped
// EscapedPath escapes Path anew, and an escaped slash in it would have become a plain one.
func split(u *url.URL) []string {
	raw := u.RawPath
	if raw == "" {
		raw = u.EscapedPath()
	}
	return strings.Split(strings.TrimPrefix(raw, "/"), "/")
}

// name decodes one segment of a path, once. A segment that holds a slash is none of a route's.
func name(segment string) (string, bool) {
	text, err := url.PathUnescape(segment)
	return text, err == nil && !strings.Contains(text, "/")
}

// decodePath returns the file path that the segments spell: each decoded exactly once, none
// cleaned. Whatever a file system could read in another way than a URL's reader is refused.
func decodePath(segments []string) (string, error) {
	names := make([]string, len(segments))
	size := len(segments) - 1
	for i, s := range segments {
		text, err := url.PathUnescape(s)
		switch {
		case err != nil:
			return "", invalidPath("an escape is malformed")
		case text == "":
			return "", invalidPath("a name is empty: slashes stand between names only")
		case text == "." || text == "..":
			return "", invalidPath(`a name is "." or ".."`)
		case strings.Contains(text, "/"):
			return "", invalidPath("a name holds an escaped slash")
		case strings.Contains(text, "\x00"):
			return "", invalidPath("a name holds NUL")
		case !utf8.ValidString(text):
			return "", invalidPath("a name is not valid UTF-8")
		case len(text) > fileuri.MaxName:
			return "", invalidPath("a name is longer than 255 bytes")
		}
		names[i], size = text, size+len(text)
	}
	if size > fileuri.MaxPath {
		return "", invalidPath("it is longer than 4096 bytes")
	}
	return strings.Join(names, "/"), nil
}

func invalidPath(why string) error {
	return errs.New(errs.Invalid, ReasonInvalidPath, "the file's path: %s", why)
}
