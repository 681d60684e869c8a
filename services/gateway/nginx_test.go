package gateway_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/gateway"
)

// startNginx runs the real nginx, with its buffering as it comes and a short read timeout, before
// the gateway at url, and returns a client that reaches it.
func startNginx(t *testing.T, url string, readTimeout time.Duration) *http.Client {
	t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin = "/usr/sbin/nginx"; exec.Command(bin, "-v").Run() != nil {
			t.Skip("nginx is not installed")
		}
	}
	// Not t.TempDir: its path can be too long for a socket.
	dir, err := os.MkdirTemp("", "nginx")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	user := ""
	if os.Geteuid() == 0 {
		user = "user root;"
	}
	socket, conf := filepath.Join(dir, "s"), filepath.Join(dir, "nginx.conf")
	text := fmt.Sprintf(`%s
worker_processes 1;
pid %[2]s/pid;
error_log %[2]s/error.log;
events { worker_connections 64; }
http {
  access_log off;
  client_body_temp_path %[2]s/body; proxy_temp_path %[2]s/proxy;
  fastcgi_temp_path %[2]s/f; uwsgi_temp_path %[2]s/u; scgi_temp_path %[2]s/c;
  server {
    listen unix:%[3]s;
    location / { proxy_pass %[4]s; proxy_read_timeout %[5]dms; }
  }
}
`, user, dir, socket, url, readTimeout.Milliseconds())
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command(bin, append([]string{"-p", dir, "-e", filepath.Join(dir, "error.log"), "-c", conf}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("nginx %v: %v: %s", args, err, out)
		}
	}
	run() // returns once it listens
	t.Cleanup(func() { run("-s", "stop") })
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
}

// TestEventsThroughNginx shows that nginx neither holds an event back nor cuts a stream that is
// idle for longer than its read timeout. The next event is sent only when the one before was read.
func TestEventsThroughNginx(t *testing.T) {
	const idle = time.Second
	send := make(chan int64)
	w := start(t, &fakes{stream: func(_ *ingressv1.StreamEventsRequest, s eventStream) error {
		if err := attached(s); err != nil {
			return err
		}
		for {
			select {
			case seq := <-send:
				if err := s.Send(event(seq, "turn.started")); err != nil {
					return err
				}
			case <-s.Context().Done():
				return nil
			}
		}
	}}, func(c *gateway.Config) { c.Heartbeat = idle / 4 })
	client := startNginx(t, w.url, idle)
	s := w.openWith(t, client, chat+"/events")
	if got := s.next(t); got != ": attached" {
		t.Fatalf("got %q, want the stream to begin at once", got)
	}
	for seq := int64(1); seq <= 3; seq++ {
		send <- seq
		for got := s.next(t); !strings.HasPrefix(got, fmt.Sprintf("id: %d\n", seq)); got = s.next(t) {
			if got != ": heartbeat" {
				t.Fatalf("got %q, want event %d", got, seq)
			}
		}
	}
	for begin := time.Now(); time.Since(begin) < 2*idle; {
		if got := s.next(t); got != ": heartbeat" {
			t.Fatalf("got %q, want heartbeats only", got)
		}
	}
	send <- 4
	for got := s.next(t); !strings.HasPrefix(got, "id: 4\n"); got = s.next(t) {
		if got != ": heartbeat" {
			t.Fatalf("got %q, want event 4", got)
		}
	}
}
