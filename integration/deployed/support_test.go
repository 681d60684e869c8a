package deployed

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"humanwork.internal/pkg/rpc"
)

// ready asks the gateway's own probes over HTTP.
func (d *deployment) ready(ctx context.Context, t *testing.T) (bool, string) {
	t.Helper()
	ask := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+d.listen+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		return resp.StatusCode, string(body)
	}
	if status, body := ask("/healthz"); status != http.StatusOK {
		t.Errorf("/healthz = %d %s, want 200", status, body)
	}
	status, body := ask("/readyz")
	return status == http.StatusOK, body
}

// writeCertificates makes an authority and one certificate a service, and a client's.
func writeCertificates(t *testing.T, dir string) *rpc.TLS {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test authority"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	caKey := newKey(t)
	write(t, dir, "ca", authority, authority, caKey, caKey)
	names := []string{"client"}
	for name := range services {
		names = append(names, name)
	}
	for i, name := range names {
		leaf := &x509.Certificate{SerialNumber: big.NewInt(int64(i + 2)), Subject: pkix.Name{CommonName: name}, NotBefore: authority.NotBefore,
			NotAfter: authority.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature, DNSNames: []string{name, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
		write(t, dir, name, leaf, authority, newKey(t), caKey)
	}
	return &rpc.TLS{CertFile: filepath.Join(dir, "client.crt"), KeyFile: filepath.Join(dir, "client.key"), CAFile: filepath.Join(dir, "ca.crt")}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func write(t *testing.T, dir, name string, cert, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for suffix, block := range map[string]*pem.Block{".crt": {Type: "CERTIFICATE", Bytes: der}, ".key": {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(filepath.Join(dir, name+suffix), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// process is the running service.
type process struct {
	cmd  *exec.Cmd
	log  *buffer
	dir  string
	done chan struct{}
}

// buffer is a log that tells when a text has come.
type buffer struct {
	mu      sync.Mutex
	text    bytes.Buffer
	serving chan struct{}
	once    sync.Once
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.text.Write(p)
	if strings.Contains(b.text.String(), `"Serving"`) {
		b.once.Do(func() { close(b.serving) })
	}
	return len(p), nil
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

func (d *deployment) start(t *testing.T) *process {
	t.Helper()
	p := &process{cmd: exec.Command(d.binary, "-config", d.config), log: &buffer{serving: make(chan struct{})}, dir: d.dir, done: make(chan struct{})}
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // its state is what counts
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // ends what a failed test left
		<-p.done
	})
	select {
	case <-p.log.serving:
	case <-p.done:
		t.Fatalf("%s ended at its start with %s:\n%s", d.name, p.cmd.ProcessState, p.log)
	case <-time.After(20 * time.Second):
		t.Fatalf("%s does not listen after 20 s:\n%s", d.name, p.log)
	}
	return p
}

// stop sends SIGTERM and checks that no process names the deployment's directory any more.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(45 * time.Second):
		return fmt.Errorf("still runs after 45 s")
	}
	if !p.cmd.ProcessState.Success() {
		return fmt.Errorf("ended with %s, want exit code 0", p.cmd.ProcessState)
	}
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, f := range files {
		if raw, err := os.ReadFile(f); err == nil && bytes.Contains(raw, []byte(p.dir)) {
			return fmt.Errorf("process %s is left", f)
		}
	}
	return nil
}
