package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/encoding/protojson"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/gateway/internal/edge"
	"humanwork.internal/services/gateway/internal/strictjson"
)

// Bodies of the routes that the generated code answers. protojson would take proto names, null and
// ids that contradict the path; the public contract does not.
var (
	stringValues     = strictjson.String
	organizationBody = []strictjson.Field{{Name: "organizationId", Kind: strictjson.String, Required: true}}
	conversationBody = []strictjson.Field{
		{Name: "conversationId", Kind: strictjson.String},
		{Name: "specialistId", Kind: strictjson.String},
		{Name: "persona", Kind: strictjson.String},
		{Name: "environment", Kind: strictjson.Object, Values: &stringValues},
	}
)

// marshaler makes the JSON of messages.
var marshaler = &compactJSON{runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{EmitDefaultValues: true}}}

// newProxy returns the mux of the generated handlers. It forwards no header of the client's: the
// default lets Grpc-Metadata-* set any metadata, an identity among it.
func newProxy() *runtime.ServeMux {
	none := func(string) (string, bool) { return "", false }
	return runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, marshaler),
		runtime.WithIncomingHeaderMatcher(none), runtime.WithOutgoingHeaderMatcher(none), runtime.WithOutgoingTrailerMatcher(none),
		runtime.WithDisablePathLengthFallback(), runtime.WithDisableHTTPMethodOverride(), runtime.WithWriteContentLength(),
		runtime.WithErrorHandler(func(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, _ http.ResponseWriter, _ *http.Request, err error) {
			failure(ctx, err)
		}),
		runtime.WithRoutingErrorHandler(func(ctx context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, _ http.ResponseWriter, r *http.Request, status int) {
			failure(ctx, fmt.Errorf("the generated handlers have no %s %s (%d)", r.Method, r.URL.Path, status))
		}),
	)
}

type failureKey struct{}

// failure hands an error of a generated handler to proxied, so that all errors take one way out.
func failure(ctx context.Context, err error) {
	if p, ok := ctx.Value(failureKey{}).(*error); ok {
		*p = err
	}
}

// proxied answers with the generated handler of the same path, after checking the body's fields.
func (s *Server) proxied(fields []strictjson.Field) func(http.ResponseWriter, *edge.Request) error {
	return func(w http.ResponseWriter, r *edge.Request) error {
		if fields != nil {
			doc, err := strictjson.Parse(r.Body)
			if err != nil {
				return err
			}
			if _, err := doc.Fields(fields...); err != nil {
				return err
			}
		}
		var failed error
		in := r.WithContext(context.WithValue(r.Context(), failureKey{}, &failed))
		// Authorization, Grpc-Timeout and X-Forwarded-* would be forwarded whatever the matchers say.
		in.Header = http.Header{"Content-Type": {edge.MediaJSON}}
		in.Body = io.NopCloser(bytes.NewReader(r.Body))
		if in.Method == http.MethodHead {
			in.Method = http.MethodGet
		}
		s.proxy.ServeHTTP(w, in)
		return failed
	}
}

func (s *Server) listConversations(w http.ResponseWriter, r *edge.Request) error {
	if _, err := pageSize(r, 200); err != nil {
		return err
	}
	if _, err := pageToken(r); err != nil {
		return err
	}
	return s.proxied(nil)(w, r)
}

// compactJSON is protojson without the spaces it puts in at random.
type compactJSON struct{ runtime.JSONPb }

// Marshal returns one line.
func (m *compactJSON) Marshal(v any) ([]byte, error) {
	raw, err := m.JSONPb.Marshal(v)
	if err != nil {
		return nil, errs.Wrap(err, errs.Internal, "INTERNAL", "encode answer")
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return nil, errs.Wrap(err, errs.Internal, "INTERNAL", "encode answer")
	}
	out.WriteByte('\n')
	return out.Bytes(), nil
}
