package gateway_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/serve"
	"humanwork.internal/pkg/testkit"
	"humanwork.internal/services/gateway"
)

var noToken request = func(r *http.Request) { r.Header.Del("Authorization") }

func TestReadiness(t *testing.T) {
	f := &fakes{}
	w := start(t, f)
	if got := w.call(t, "GET", "/readyz", "", noToken); got.status != http.StatusOK || strings.TrimSpace(got.body) != `{"ready":true,"missing":[]}` {
		t.Errorf("got %d %s, want ready", got.status, got.body)
	}
	f.mu.Lock()
	f.ready = errors.New("Postgres does not answer: start it — \"now\"")
	f.mu.Unlock()
	got := w.call(t, "GET", "/readyz", "", noToken)
	want := `{"ready":false,"missing":[{"service":"routing","state":"NOT_READY","detail":"Postgres does not answer: start it — \"now\""}]}`
	if got.status != http.StatusServiceUnavailable || strings.TrimSpace(got.body) != want {
		t.Errorf("got %d %s, want 503 %s", got.status, got.body, want)
	}
	if got := w.call(t, "GET", "/healthz", "", noToken); got.status != http.StatusOK {
		t.Errorf("healthz: got %d, want 200 while the process lives", got.status)
	}
}

func TestMetricsNameRoutesNotPaths(t *testing.T) {
	w := start(t, &fakes{})
	w.call(t, "GET", chat, "")
	w.call(t, "GET", "/v1/secret-path", "")
	got := w.call(t, "GET", "/metrics", "", noToken)
	for _, want := range []string{
		`humanwork_gateway_requests_total{code="200",method="GET",route="/v1/organizations/{organizationId}/conversations/{conversationId}"} 1`,
		`humanwork_gateway_requests_total{code="404",method="GET",route="none"} 1`,
	} {
		if !strings.Contains(got.body, want) {
			t.Errorf("metrics lack %s", want)
		}
	}
	if strings.Contains(got.body, "secret-path") || strings.Contains(got.body, "acme") {
		t.Error("metrics have labels that callers choose")
	}
}

func TestRequestIDAndSecurityHeaders(t *testing.T) {
	w := start(t, &fakes{})
	own := w.call(t, "GET", acme, "", header("X-Request-Id", "mine-1"))
	if got := own.header.Get("X-Request-Id"); got != "mine-1" {
		t.Errorf("got X-Request-Id %q, want the caller's", got)
	}
	made := w.call(t, "GET", acme, "", header("X-Request-Id", "bad id\x01"[:6]))
	if got := made.header.Get("X-Request-Id"); !regexp.MustCompile(`^[0-9a-f]{32}$`).MatchString(got) {
		t.Errorf("got X-Request-Id %q, want a new one in place of a bad one", got)
	}
	for name, want := range map[string]string{"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Referrer-Policy": "no-referrer"} {
		if got := made.header.Get(name); got != want {
			t.Errorf("got %s %q, want %q", name, got, want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	w := start(t, &fakes{})
	got := w.call(t, "GET", "/v1/capabilities", "").json(t)
	limits, _ := got["limits"].(map[string]any)
	if got["apiVersion"] != "v1" || limits["jsonBodyBytes"] != "16777216" || limits["waitSeconds"] != 300.0 || limits["heartbeatSeconds"] != 15.0 ||
		limits["fileBytes"] != "5368709120" || limits["attachmentBytes"] != "268435456" || limits["filePathBytes"] != 4096.0 || limits["fileNameBytes"] != 255.0 {
		t.Errorf("got %v, want v1 with the limits", got)
	}
	wantProblem(t, w.call(t, "GET", "/v1/capabilities", "", noToken), http.StatusUnauthorized, "TOKEN_MISSING")
}

// TestDescriptionIsTrue checks that every described route exists and needs a token where it says so,
// that references resolve, and that nothing of the services' own contracts leaks in.
func TestDescriptionIsTrue(t *testing.T) {
	w := start(t, &fakes{})
	raw := w.call(t, "GET", "/openapi.json", "", noToken)
	var doc struct {
		Swagger string
		Info    struct{ Title, Version string }
		Paths   map[string]map[string]struct {
			OperationID string `json:"operationId"`
			Parameters  []struct{ Name, In string }
			Responses   map[string]json.RawMessage
			Tags        []string
			Security    *[]any
		}
		Definitions map[string]json.RawMessage
		Security    []map[string][]string
	}
	if err := json.Unmarshal([]byte(raw.body), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Swagger != "2.0" || doc.Info.Title == "" || doc.Info.Version == "" || len(doc.Security) != 1 {
		t.Errorf("got %q %+v %v, want Swagger 2.0 with a title, a version and security", doc.Swagger, doc.Info, doc.Security)
	}
	operations := map[string]bool{}
	for path, methods := range doc.Paths {
		for method, op := range methods {
			if operations[op.OperationID] || op.OperationID == "" {
				t.Errorf("%s %s: operation id %q is missing or not unique", method, path, op.OperationID)
			}
			operations[op.OperationID] = true
			if len(op.Tags) != 1 || strings.Contains(op.Tags[0], "Service") {
				t.Errorf("%s %s: got tags %v, want one that means something to callers", method, path, op.Tags)
			}
			if op.Responses["default"] == nil || len(op.Responses) < 2 {
				t.Errorf("%s %s: got responses %v, want one and the common error", method, path, op.Responses)
			}
			for _, name := range regexp.MustCompile(`\{(\w+)\}`).FindAllStringSubmatch(path, -1) {
				found := false
				for _, p := range op.Parameters {
					found = found || p.Name == name[1] && p.In == "path"
				}
				if !found {
					t.Errorf("%s %s: parameter %s is not described", method, path, name[1])
				}
			}
			concrete := regexp.MustCompile(`\{\w+\}`).ReplaceAllString(path, "x")
			got := w.call(t, strings.ToUpper(method), concrete, "", noToken)
			open := op.Security != nil && len(*op.Security) == 0
			if want := map[bool]int{true: 200, false: 401}[open]; got.status != want {
				t.Errorf("%s %s: got %d without a token, want %d", method, path, got.status, want)
			}
		}
	}
	for _, ref := range regexp.MustCompile(`"#/definitions/([^"]+)"`).FindAllStringSubmatch(raw.body, -1) {
		if doc.Definitions[ref[1]] == nil {
			t.Errorf("reference to %s leads nowhere", ref[1])
		}
	}
	for name := range doc.Definitions {
		if strings.Contains(name, "Placement") || strings.Contains(name, "humanwork") {
			t.Errorf("definition %s does not belong to the public contract", name)
		}
	}
}

func TestDocsPageLoadsNothingRemote(t *testing.T) {
	w := start(t, &fakes{})
	for _, path := range []string{"/docs", "/docs/docs.js", "/docs/docs.css"} {
		got := w.call(t, "GET", path, "", noToken)
		if got.status != http.StatusOK || strings.Contains(got.body, "http://") || strings.Contains(got.body, "https://") || strings.Contains(got.body, `"//`) {
			t.Errorf("%s: got %d, want 200 and no remote address", path, got.status)
		}
		if csp := got.header.Get("Content-Security-Policy"); !strings.Contains(csp, "default-src 'none'; script-src 'self'") {
			t.Errorf("%s: got policy %q, want nothing but its own files", path, csp)
		}
	}
}

func TestConfigurationProblemsAllAtOnce(t *testing.T) {
	err := config.Parse([]byte("routing: a\nbogus: 1\nheartbeat: -1s\nmax_body_bytes: 99999999999\nmax_file_bytes: -1\ntokens:\n- {token_file: t, roles: [\"service:ingress\", member]}\n"), "/etc", &gateway.Config{})
	if err == nil {
		t.Fatal("got no error")
	}
	for _, want := range []string{"bogus", "ingress: is required", "agentfs: is required", "max_file_bytes", "heartbeat", "max_body_bytes", "tokens[0].subject", "tokens[0].organization", `"service:ingress"`} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("got %q, want it to name %s", err, want)
		}
	}
}

func TestBadTokensStopTheStart(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		content []string
		says    string
	}{
		"short":    {[]string{"short"}, "at least 16"},
		"unusable": {[]string{"a token with spaces in it"}, "no header can carry"},
		"twice":    {[]string{"0123456789abcdef", "0123456789abcdef"}, "another principal"},
		"no file":  {[]string{""}, "token_file"},
		"empty":    {[]string{"\n"}, "empty"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := gateway.Config{Routing: "passthrough:///r", Ingress: "passthrough:///i", AgentFS: "passthrough:///a"}
			for i, content := range c.content {
				file := filepath.Join(dir, name+string(rune('0'+i)))
				if content != "" {
					if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				cfg.Tokens = append(cfg.Tokens, gateway.Token{TokenFile: file, Subject: "s", Roles: []string{rpc.RoleAdmin}})
			}
			if err := cfg.Validate("/"); err != nil {
				t.Fatal(err)
			}
			registry := prometheus.NewRegistry()
			_, err := gateway.New(cfg, serve.Environment{Logger: zap.NewNop(), Metrics: registry, Client: rpc.ClientConfig{Signer: testkit.Signer(t)}}, registry)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want it to say %q", err, c.says)
			}
		})
	}
}
