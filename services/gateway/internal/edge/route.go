// Package edge is everything about HTTP that is the same for every route: finding the route,
// signing in, refusing what a route does not take, reading bodies within limits, errors, logs and
// metrics.
package edge

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
)

// BodyRule says what body a route takes.
type BodyRule uint8

// The rules.
const (
	NoBody   BodyRule = iota // whatever is sent is not looked at
	JSONBody                 // one JSON document is needed
	AnyEmpty                 // nothing, or an empty JSON object
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
	// {turnId}:cancel. It is also the route's name in metrics and logs.
	Pattern string
	// Open routes need no token.
	Open bool
	Body BodyRule
	// Query lists the parameters the route takes, each at most once.
	Query []string
	// Produces is what the route answers with; "" skips the check of Accept.
	Produces string
	// Long routes bound their own time.
	Long bool
	// Quiet routes are probes, logged at debug level.
	Quiet  bool
	Handle func(w http.ResponseWriter, r *Request) error

	segments []segment
}

// Request is an HTTP request that passed the checks of its route.
type Request struct {
	*http.Request
	// IDs holds the path's ids by their names in the pattern.
	IDs map[string]string
	// Query holds the parameters; no name is there twice.
	Query url.Values
	// Body is what the client sent; nil for routes that take none.
	Body []byte
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

func (r *Route) compile() error {
	if !strings.HasPrefix(r.Pattern, "/") {
		return fmt.Errorf("route pattern %q does not begin with a slash", r.Pattern)
	}
	r.segments = nil
	for part := range strings.SplitSeq(r.Pattern[1:], "/") {
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

// match returns the ids of path, which may still be malformed, if path is one of this route's.
func (r *Route) match(path []string) (map[string]string, bool) {
	if len(path) != len(r.segments) {
		return nil, false
	}
	ids := map[string]string{}
	for i, s := range r.segments {
		if s.name == "" {
			if path[i] != s.literal {
				return nil, false
			}
			continue
		}
		id, ok := strings.CutSuffix(path[i], s.literal)
		// A colon begins a verb, so that /turns/x:y is an unknown route and not a strange id.
		if !ok || strings.Contains(id, ":") {
			return nil, false
		}
		ids[s.name] = id
	}
	return ids, true
}

// find returns the route of a request, or the methods that path has.
func find(routes []*Route, method, path string) (route *Route, ids map[string]string, allow []string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for _, r := range routes {
		got, ok := r.match(parts)
		if !ok {
			continue
		}
		// A HEAD of a stream would hold the connection for nothing.
		head := r.Method == http.MethodGet && r.Produces != MediaEventStream
		if r.Method == method || head && method == http.MethodHead {
			return r, got, nil
		}
		allow = append(allow, r.Method)
		if head {
			allow = append(allow, http.MethodHead)
		}
	}
	slices.Sort(allow)
	return nil, nil, slices.Compact(allow)
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
