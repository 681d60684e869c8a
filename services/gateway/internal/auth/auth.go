// Package auth turns a bearer token into the principal it stands for.
package auth

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"strings"

	"humanwork.internal/pkg/errs"
)

// Reasons of the errors; all are of kind errs.Unauthenticated.
const (
	ReasonTokenMissing errs.Reason = "TOKEN_MISSING"
	ReasonTokenInvalid errs.Reason = "TOKEN_INVALID"
)

// minTokenBytes keeps guessable tokens out.
const minTokenBytes = 16

// Tokens maps the digests of tokens to principals of type P. The tokens themselves are not kept.
type Tokens[P any] struct {
	digests    [][sha256.Size]byte
	principals []P
}

// Add registers a token of at least 16 visible ASCII characters; it fails for one that is already
// there.
func (t *Tokens[P]) Add(token string, principal P) error {
	if len(token) < minTokenBytes {
		return fmt.Errorf("the token has %d characters, want at least %d", len(token), minTokenBytes)
	}
	for i := range len(token) {
		if token[i] <= ' ' || token[i] > '~' {
			return fmt.Errorf("the token has a character at byte %d that no header can carry", i)
		}
	}
	digest := sha256.Sum256([]byte(token))
	for _, d := range t.digests {
		if d == digest {
			return fmt.Errorf("the token is already given to another principal")
		}
	}
	t.digests = append(t.digests, digest)
	t.principals = append(t.principals, principal)
	return nil
}

// Authenticate returns the principal of the Authorization header values of one request.
func (t *Tokens[P]) Authenticate(headers []string) (P, error) {
	var none P
	if len(headers) == 0 {
		return none, errs.New(errs.Unauthenticated, ReasonTokenMissing, "this needs the header Authorization: Bearer <token>")
	}
	invalid := errs.New(errs.Unauthenticated, ReasonTokenInvalid, "the bearer token is not valid")
	scheme, token, ok := strings.Cut(headers[0], " ")
	if len(headers) > 1 || !ok || !strings.EqualFold(scheme, "bearer") {
		return none, invalid
	}
	digest := sha256.Sum256([]byte(strings.TrimLeft(token, " ")))
	// All digests are compared, and in constant time: how long it takes says nothing about a token.
	found := -1
	for i := range t.digests {
		found = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(t.digests[i][:], digest[:]), i, found)
	}
	if found < 0 {
		return none, invalid
	}
	return t.principals[found], nil
}
