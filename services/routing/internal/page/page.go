// Package page makes the opaque tokens of paged lists. A token is signed with the list it belongs
// to, so that a changed one, or one of another organization, is refused rather than misread.
package page

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/routing/internal/directory"
	"humanwork.internal/services/routing/internal/store"
)

const (
	timeBytes = 8
	macBytes  = 16
)

// Encode returns the token that continues list after the cursor.
func Encode(key []byte, list string, after store.Cursor) string {
	body := binary.BigEndian.AppendUint64(nil, uint64(after.CreateTime.UnixMicro()))
	body = append(body, after.ID...)
	return base64.RawURLEncoding.EncodeToString(append(mac(key, list, body), body...))
}

// Decode reverses Encode. The empty token is the start of the list.
func Decode(key []byte, list, token string) (store.Cursor, error) {
	if token == "" {
		return store.Cursor{}, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(raw) < macBytes+timeBytes || !hmac.Equal(raw[:macBytes], mac(key, list, raw[macBytes:])) {
		return store.Cursor{}, errs.New(errs.Invalid, directory.ReasonInvalidPageToken, "page token was not given by this list")
	}
	body := raw[macBytes:]
	return store.Cursor{
		CreateTime: time.UnixMicro(int64(binary.BigEndian.Uint64(body))).UTC(),
		ID:         string(body[timeBytes:]),
	}, nil
}

func mac(key []byte, list string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("page\x00" + list + "\x00"))
	h.Write(body)
	return h.Sum(nil)[:macBytes]
}
