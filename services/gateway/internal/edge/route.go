// Package edge is everything about HTTP that is the same for every route: finding the route,
// signing in, refusing what a route does not take, reading bodies within limits, errors, logs and
// metrics.
package edge

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
)

// BodyRule says what body a route takes.
type BodyRule uint8

// The rules.
const (
	NoBody       BodyRule = iota // whatever is sent is not looked at
	JSONBody                     // one JSON document is needed
	AnyEmpty                     // nothing, or an empty JSON object
	OptionalJSON                 // nothing, which counts as an empty object, or one JSON document
	AnyBytes                     // bytes of any number, which the route reads from Upload
)

// Media types a route answers with.
const (
	MediaJSON        = "application/json"
	MediaEventStream = "text/event-stream"
)

// Route is one method of one path.
type Route struct {
	Method string
	// Pattern is the path, with {name} for an id; a segment may have a literal after it, as in
	// {turnId}:cancel, and the last one may be {path...}, which takes all segments that are left. It
	// is also the route's name in metrics and logs.
	Pattern string
	// Open routes need no token.
	Open bool
	Body BodyRule
	// Query lists the parameters the route takes, each at most once.
	Query []string
	// Produces is what the route answers with; "" skips the check of Accept.
	Produces string
	// Limit bounds the work; 0: the configured RequestTimeout.
	Limit time.Duration
	// Long routes bound their own time; they end when the server stops.
	Long bool
	// Transfer routes bound their own time by progress, may go on while the server stops, and cut
	// the connection when an answer that has begun cannot be completed.
	Transfer bool
	// NoHead routes of GET have no HEAD: it would do all the work for nothing.
	NoHead bool
	// Quiet routes are probes, logged at debug level.
	Quiet  bool
	Handle func(w http.ResponseWriter, r *Request) error

	segments []segment
	rest     bool
}

// Request is an HTTP request that passed the checks of its route.
type Request struct {
	*http.Request
	// IDs holds the path's ids by their names in the pattern.
	IDs map[string]string
	// Path is what {path...} stands for: names joined by slashes, each decoded once, none of them
	// empty, "." or "..", valid UTF-8 without NUL.
	Path string
	// Query holds the parameters; no name is there twice.
	Query url.Values
	// Body is what the client sent; nil for routes that take none.
	Body []byte
	// Upload is the body of a route that takes AnyBytes. io.EOF says that it arrived whole.
	Upload io.Reader
	// Principal is the caller; zero on open routes.
	Principal rpc.Principal
}

// Reasons of errors about the request line.
const (
	ReasonInvalidID        errs.Reason = "INVALID_ID"
	ReasonInvalidParameter errs.Reason = "INVALID_PARAMETER"
	ReasonUnknownParameter errs.Reason = "UNKNOWN_PARAMETER"
)

// OrganizationID is the name of the path's organization in every pattern.
const OrganizationID = "organizationId"

type segment struct {
	name    string // "" for a literal
	literal string // the whole segment, or what follows the id
}

var (
	idPattern      = regexp.MustCompile(`^[a-z0-9-]{1,63}$`)
	segmentPattern = regexp.MustCompile(`^\{([A-Za-z]+)\}(:[a-z]+)?$`)
)

const restPattern = "/{path...}"

func (r *Route) compile() error {
	if !strings.HasPrefix(r.Pattern, "/") {
		return fmt.Errorf("route pattern %q does not begin with a slash", r.Pattern)
	}
	r.segments = nil
	var pattern string
	pattern, r.rest = strings.CutSuffix(r.Pattern, restPattern)
	for part := range strings.SplitSeq(pattern[1:], "/") {
		switch m := segmentPattern.FindStringSubmatch(part); {
		case m != nil:
			r.segments = append(r.segments, segment{m[1], m[2]})
		case strings.ContainsAny(part, "{}"):
			return fmt.Errorf("route pattern %q: segment %q is malformed", r.Pattern, part)
		default:
			r.segments = append(r.segments, segment{"", part})
		}
	}
	return nil
}

// match is a route that a path belongs to.
type match struct {
	route *Route
	ids   map[string]string // by name; may still be malformed
	rest  []string          // escaped, for a route with {path...}
}

// match returns what path, the escaped segments, holds if it is one of this route's.
func (r *Route) match(path []string) (match, bool) {
	extra := len(path) - len(r.segments)
	if extra < 0 || r.rest && extra == 0 || !r.rest && extra > 0 {
		return match{}, false
	}
	m := match{route: r, ids: map[string]string{}, rest: path[len(r.segments):]}
	for i, s := range r.segments {
		text, ok := name(path[i])
		if !ok {
			return match{}, false
		}
		if s.name == "" {
			if text != s.literal {
				return match{}, false
			}
			continue
		}
		id, ok := strings.CutSuffix(text, s.literal)
		// A colon begins a verb, so that /turns/x:y is an unknown route and not a strange id.
		if !ok || strings.Contains(id, ":") {
			return match{}, false
		}
		m.ids[s.name] = id
	}
	return m, true
}

// find returns the route of a request, or the methods that its path has.
func find(routes []*Route, method string, path []string) (found match, allow []string) {
	for _, r := range routes {
		m, ok := r.match(path)
		if !ok {
			continue
		}
		head := r.Method == http.MethodGet && !r.NoHead
		if r.Method == method || head && method == http.MethodHead {
			return m, nil
		}
		allow = append(allow, r.Method)
		if head {
			allow = append(allow, http.MethodHead)
		}
	}
	slices.Sort(allow)
	return match{}, slices.Compact(allow)
}

func checkIDs(ids map[string]string) error {
	for name, id := range ids {
		if !idPattern.MatchString(id) {
			return errs.New(errs.Invalid, ReasonInvalidID, "%s: must be 1 to 63 of a-z, 0-9 and -", name).With("field", name)
		}
	}
	return nil
}

// parseQuery refuses unknown, repeated and malformed parameters by name.
func parseQuery(raw string, known []string) (url.Values, error) {
	q, err := url.ParseQuery(raw)
	if err != nil {
		return nil, errs.New(errs.Invalid, ReasonInvalidParameter, "the query string is malformed")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, errs.New(errs.Invalid, ReasonUnknownParameter, "unknown query parameter %q", strings.ToValidUTF8(name, "?")).
				With("parameter", strings.ToValidUTF8(name, "?"))
		}
		if len(values) > 1 {
			return nil, InvalidParameter(name, "is there twice")
		}
		if strings.ToValidUTF8(values[0], "") != values[0] {
			return nil, InvalidParameter(name, "is not valid UTF-8")
		}
	}
	return q, nil
}

// InvalidParameter is the error for a query parameter with a value it cannot have.
func InvalidParameter(name, format string, args ...any) error {
	return errs.New(errs.Invalid, ReasonInvalidParameter, "query parameter %s: %s", name, fmt.Sprintf(format, args...)).With("parameter", name)
}

// authorize refuses a member any other organization's paths with the answer of one that does not
// exist. The services decide; this only spares them the call.
func authorize(p rpc.Principal, organization string) error {
	if organization == "" || slices.Contains(p.Roles, rpc.RoleAdmin) || p.Organization == organization {
		return nil
	}
	return errs.New(errs.NotFound, rpc.ReasonOrganizationNotFound, "no such organization")
}
