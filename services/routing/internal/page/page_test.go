package page

import (
	"errors"
	"testing"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

func TestTokens(t *testing.T) {
	key := []byte("0123456789abcdef0123456789abcdef")
	want := store.Cursor{CreateTime: time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC), ID: "conv-9"}
	token := Encode(key, "acme", want)
	got, err := Decode(key, "acme", token)
	if err != nil || got != want {
		t.Fatalf("Decode = %v, %v, want %v", got, err, want)
	}
	if got, err := Decode(key, "acme", ""); err != nil || got != (store.Cursor{}) {
		t.Fatalf("Decode of the empty token = %v, %v, want the start", got, err)
	}
	flipped := []byte(token)
	flipped[len(flipped)-2] ^= 1
	for name, bad := range map[string]string{
		"changed": string(flipped), "cut": token[:len(token)-4], "short": "AAAA", "not base64": "%%%", "long": token + "AAAA",
	} {
		if _, err := Decode(key, "acme", bad); !errors.Is(err, directory.ReasonInvalidPageToken) || !errors.Is(err, errs.Invalid) {
			t.Errorf("%s token: got %v, want INVALID_PAGE_TOKEN", name, err)
		}
	}
	if _, err := Decode(key, "other", token); !errors.Is(err, directory.ReasonInvalidPageToken) {
		t.Errorf("token of another organization: got %v, want INVALID_PAGE_TOKEN", err)
	}
}
