// Package deployed tests that every service starts alone from its configuration in deploy/config
// and reports its health.
package deployed

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"

	"humanwork.internal/integration/harness"
	"humanwork.internal/pkg/app"
	"humanwork.internal/pkg/rpc"
)

// services with what each must name when it can't serve alone; empty: it can.
var services = map[string]string{
	"gateway":    "routing",
	"ingress":    "ostgres",
	"routing":    "ostgres",
	"agentfs":    "",
	"sessiondb":  "",
	"supervisor": "/opt/humanwork/hermes",
}

func TestEveryConfigurationHasAService(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(source(t), "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(services) {
		t.Errorf("%d configurations in deploy/config, want one for each of %d services", len(files), len(services))
	}
	for _, f := range files {
		if _, ok := services[strings.TrimSuffix(filepath.Base(f), ".yaml")]; !ok {
			t.Errorf("%s is no service's", f)
		}
	}
}

func TestEachServiceStartsAloneAndReportsHealth(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every binary")
	}
	for name, missing := range services {
		t.Run(name, func(t *testing.T) {
			d := deploy(t, name)
			p := d.start(t)
			serving, why := d.health(t)
			t.Logf("serving %v: %s", serving, why)
			if missing == "" && !serving {
				t.Errorf("health = NOT_SERVING (%s), want SERVING", why)
			}
			if missing != "" && (serving || !strings.Contains(why, missing)) {
				t.Errorf("health = serving %v %q, want NOT_SERVING with a reason that names %q", serving, why, missing)
			}
			if err := p.stop(); err != nil {
				t.Errorf("SIGTERM: %v\n%s", err, p.log)
			}
		})
	}
}

func TestUnknownKeysAreRefused(t *testing.T) {
	if testing.Short() {
		t.Skip("starts every binary")
	}
	for name := range services {
		t.Run(name, func(t *testing.T) {
			d := deploy(t, name)
			f, err := os.OpenFile(d.config, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(f, "misspelled_key: 1")
			f.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			out, err := exec.CommandContext(ctx, d.binary, "-config", d.config).CombinedOutput()
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(out), "misspelled_key") {
				t.Errorf("start = %v with %q, want exit code 1 and the key's name", err, out)
			}
		})
	}
}

// deployment is one service's copy of deploy/config with secrets and certificates.
type deployment struct {
	name, dir, config, binary, listen string
	client                            *rpc.TLS
}

var addressLine = regexp.MustCompile(`(?m)^(listen|admin_addr): .*$`)

func deploy(t *testing.T, name string) *deployment {
	t.Helper()
	bin, err := harness.Binaries()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(source(t))); err != nil {
		t.Fatal(err)
	}
	d := &deployment{name: name, dir: dir, config: filepath.Join(dir, name+".yaml"), binary: filepath.Join(bin, name)}
	raw, err := os.ReadFile(d.config)
	if err != nil {
		t.Fatal(err)
	}
	// The addresses alone are changed: several tests run on this host at once.
	raw = addressLine.ReplaceAllFunc(raw, func(line []byte) []byte {
		lis, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer lis.Close()
		key, _, _ := strings.Cut(string(line), ":")
		if key == "listen" {
			d.listen = lis.Addr().String()
		}
		return fmt.Appendf(nil, "%s: %s", key, lis.Addr())
	})
	if err := os.WriteFile(d.config, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	writeSecrets(t, dir)
	d.client = writeCertificates(t, filepath.Join(dir, "tls"))
	return d
}

func source(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, "deploy", "config")
}

func writeSecrets(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	// Nothing listens at port 9 of loopback: a database that is away.
	const url = "postgres://humanwork@127.0.0.1:9/humanwork?sslmode=disable"
	for name, text := range map[string]string{
		"principal.key": strings.Repeat("k", 32), "routing-digest.key": strings.Repeat("d", 32), "model-api.key": "sk-example",
		"operator.token": strings.Repeat("o", 24), "example-product.token": strings.Repeat("p", 24),
		"postgres-routing.url": url, "postgres-ingress.url": url,
	} {
		if err := os.WriteFile(filepath.Join(dir, "secrets", name), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// health asks until the service has said that it serves, or why it does not.
func (d *deployment) health(t *testing.T) (serving bool, why string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if d.name == "gateway" {
		return d.ready(ctx, t)
	}
	signer, err := rpc.NewSigner([]byte(strings.Repeat("k", 32)))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := rpc.Dial(d.listen, rpc.ClientConfig{Signer: signer, Self: rpc.Service("probe"), TLS: d.client})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plain, err := rpc.Dial(d.listen, rpc.ClientConfig{Signer: signer, Self: rpc.Service("probe")})
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if _, err := healthpb.NewHealthClient(plain).Check(ctx, &healthpb.HealthCheckRequest{}); err == nil {
		t.Error("health answered a client without a certificate")
	}
	beat := time.NewTicker(50 * time.Millisecond)
	defer beat.Stop()
	for {
		var header metadata.MD
		got, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.Header(&header))
		if err != nil {
			t.Fatalf("health: %v", err)
		}
		why = strings.Join(header.Get(app.NotReadyHeader), "")
		serving = got.GetStatus() == healthpb.HealthCheckResponse_SERVING
		if serving || strings.Contains(why, services[d.name]) && services[d.name] != "" {
			return serving, why
		}
		select {
		case <-beat.C: // a service that begins may say so before it says what is missing
		case <-ctx.Done():
			return serving, why
		}
	}
}
