package entity

import (
	"net/http"
	"strings"
)

// maxRanges bounds the parts of an answer: each is a read of its own.
const maxRanges = 16

// TrimRange drops the Range header where the whole file is the right answer, which RFC 9110 always
// allows: units other than bytes, many ranges, a method that has no ranges, and an If-Range that is a
// time, since an agent can set a file's time and two versions can share a second.
func TrimRange(method string, h http.Header) {
	ranges := h.Values("Range")
	condition := strings.TrimSpace(h.Get("If-Range"))
	switch {
	case len(ranges) == 0:
	case method != http.MethodGet, len(ranges) > 1,
		len(ranges[0]) < 6 || !strings.EqualFold(ranges[0][:6], "bytes="), strings.Count(ranges[0], ",") >= maxRanges,
		condition != "" && !strings.HasPrefix(condition, `"`):
		h.Del("Range")
	default:
		h.Set("Range", "bytes="+ranges[0][6:])
	}
}
