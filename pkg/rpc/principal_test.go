package rpc

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
)

func TestSignerRefusesForgedAndExpiredTokens(t *testing.T) {
	s, err := NewSigner(bytes.Repeat([]byte("k"), 32))
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewSigner(bytes.Repeat([]byte("x"), 32))
	if err != nil {
		t.Fatal(err)
	}
	p := Principal{Organization: "o", Subject: "s", Roles: []string{RoleMember}}
	token, err := s.sign(p)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := s.verify(token); err != nil || got.Organization != "o" {
		t.Fatalf("verify(own token) = %v, %v", got, err)
	}
	foreign, err := other.sign(p)
	if err != nil {
		t.Fatal(err)
	}
	payload, sig, _ := strings.Cut(token, ".")
	for name, bad := range map[string]string{
		"empty": "", "foreign key": foreign, "no signature": payload, "cut": token[:len(token)-2],
		"changed payload": payload + "x." + sig, "not base64": "*." + sig,
	} {
		if _, err := s.verify(bad); !errors.Is(err, errs.Unauthenticated) {
			t.Errorf("%s: error = %v, want unauthenticated", name, err)
		}
	}
	s.now = func() time.Time { return time.Now().Add(principalLife + clockSkew + 2*time.Second) }
	if _, err := s.verify(token); !errors.Is(err, errs.Unauthenticated) {
		t.Errorf("expired: error = %v, want unauthenticated", err)
	}
}
