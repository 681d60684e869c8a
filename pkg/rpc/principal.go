package rpc

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"humanwork.internal/pkg/errs"
)

// Roles every service knows. RoleService + name is a service speaking for itself.
const (
	RoleAdmin   = "admin"  // any organization
	RoleMember  = "member" // its own organization only
	RoleService = "service:"
)

// Principal is who a call is made for.
type Principal struct {
	Organization string   `json:"org,omitempty"`
	Subject      string   `json:"sub"`
	Roles        []string `json:"roles"`
}

// Service returns the principal of a service speaking for itself.
func Service(name string) *Principal {
	return &Principal{Subject: name, Roles: []string{RoleService + name}}
}

type principalKey struct{}

// WithPrincipal returns a context whose outgoing calls speak for p.
func WithPrincipal(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// PrincipalFrom returns the verified principal of an incoming call, or what WithPrincipal set.
func PrincipalFrom(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

const (
	principalHeader = "humanwork-principal"
	// principalLife bounds how long a stolen token is of use; services sign anew for each call.
	principalLife = time.Minute
	// clockSkew is how far apart the clocks of two hosts may be.
	clockSkew = 30 * time.Second
)

// Signer signs and verifies principals with a key all services share.
type Signer struct {
	key []byte
	now func() time.Time
}

// NewSigner takes a key of at least 32 bytes.
func NewSigner(key []byte) (*Signer, error) {
	if len(key) < 32 {
		return nil, fmt.Errorf("principal key has %d bytes, want at least 32", len(key))
	}
	return &Signer{key: key, now: time.Now}, nil
}

type claims struct {
	Principal
	Expires int64 `json:"exp"`
}

func (s *Signer) mac(payload string) []byte {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(payload))
	return h.Sum(nil)
}

func (s *Signer) sign(p Principal) (string, error) {
	raw, err := json.Marshal(claims{p, s.now().Add(principalLife).Unix()})
	if err != nil {
		return "", fmt.Errorf("sign principal: %w", err)
	}
	payload := base64.RawURLEncoding.EncodeToString(raw)
	return payload + "." + base64.RawURLEncoding.EncodeToString(s.mac(payload)), nil
}

func (s *Signer) verify(token string) (Principal, error) {
	bad := errs.New(errs.Unauthenticated, ReasonUnauthenticated, "the call carries no valid principal")
	payload, sig, ok := strings.Cut(token, ".")
	if !ok {
		return Principal{}, bad
	}
	got, err := base64.RawURLEncoding.DecodeString(sig)
	if err != nil || !hmac.Equal(got, s.mac(payload)) {
		return Principal{}, bad
	}
	raw, err := base64.RawURLEncoding.DecodeString(payload)
	if err != nil {
		return Principal{}, bad
	}
	var c claims
	if err := json.Unmarshal(raw, &c); err != nil {
		return Principal{}, bad
	}
	if s.now().Add(-clockSkew).Unix() > c.Expires {
		return Principal{}, errs.New(errs.Unauthenticated, ReasonUnauthenticated, "the call's principal has expired; check the hosts' clocks")
	}
	return c.Principal, nil
}

// Rule says who may call a method.
type Rule struct {
	// Roles of which the caller must have one. A member may name its own organization only.
	Roles []string
}

// Policy maps full method names to rules. A method that is not listed is denied.
type Policy map[string]Rule

// Allow builds a policy entry for each method.
func (p Policy) Allow(roles []string, methods ...string) Policy {
	for _, m := range methods {
		p[m] = Rule{Roles: roles}
	}
	return p
}

// organizationNamer is any request that names an organization.
type organizationNamer interface{ GetOrganizationId() string }

// authorize checks the method's rule, and for members that the request names their organization.
// A foreign organization answers NotFound so that ids cannot be probed.
func (p Policy) authorize(ctx context.Context, method string, req any) error {
	who, ok := PrincipalFrom(ctx)
	if !ok {
		return errs.New(errs.Unauthenticated, ReasonUnauthenticated, "the call carries no principal")
	}
	rule, ok := p[method]
	if !ok {
		return errs.New(errs.Denied, ReasonDenied, "no rule allows %s", method)
	}
	member := false
	for _, r := range who.Roles {
		if !slices.Contains(rule.Roles, r) {
			continue
		}
		if r != RoleMember {
			return nil
		}
		member = true
	}
	if !member {
		return errs.New(errs.Denied, ReasonDenied, "this principal may not call %s", method)
	}
	named, ok := req.(organizationNamer)
	if !ok || who.Organization == "" || named.GetOrganizationId() != who.Organization {
		return errs.New(errs.NotFound, ReasonOrganizationNotFound, "no such organization")
	}
	return nil
}
