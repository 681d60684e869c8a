package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"humanwork.internal/pkg/config"
)

var backoffConfig = backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second}

// TLS names the files of mutual TLS between services. Both sides show a certificate of the same
// authority. A nil *TLS means plain text.
type TLS struct {
	CertFile string `yaml:"cert_file"`
	KeyFile  string `yaml:"key_file"`
	CAFile   string `yaml:"ca_file"`
}

// Validate checks and resolves the file names below key.
func (t *TLS) Validate(p *config.Problems, key, base string) {
	if t == nil {
		return
	}
	for _, f := range []struct {
		name string
		path *string
	}{{"cert_file", &t.CertFile}, {"key_file", &t.KeyFile}, {"ca_file", &t.CAFile}} {
		p.Require(key+"."+f.name, *f.path)
		*f.path = config.Path(base, *f.path)
	}
}

func (t *TLS) load() (tls.Certificate, *x509.CertPool, error) {
	cert, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("load TLS certificate: %w", err)
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return tls.Certificate{}, nil, fmt.Errorf("load TLS authority: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return tls.Certificate{}, nil, fmt.Errorf("load TLS authority: %s holds no certificate", t.CAFile)
	}
	return cert, pool, nil
}

func (t *TLS) server() (credentials.TransportCredentials, error) {
	if t == nil {
		return insecure.NewCredentials(), nil
	}
	cert, pool, err := t.load()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert},
		ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}), nil
}

func (t *TLS) client() (credentials.TransportCredentials, error) {
	if t == nil {
		return insecure.NewCredentials(), nil
	}
	cert, pool, err := t.load()
	if err != nil {
		return nil, err
	}
	return credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{cert}, RootCAs: pool}), nil
}
