package establish

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
)

// fingerprint identifies what a conversation was asked to be, without keeping any of it: the
// environment holds secrets, which a plain hash would leave open to guessing.
func fingerprint(key []byte, r Request) []byte {
	mac := hmac.New(sha256.New, key)
	// Each field carries its length, so that no two requests share an encoding.
	field := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		mac.Write(n[:])
		mac.Write([]byte(s))
	}
	field("conversation 1")
	field(r.Specialist)
	field(r.Persona)
	for _, name := range slices.Sorted(maps.Keys(r.Environment)) {
		field(name)
		field(r.Environment[name])
	}
	return mac.Sum(nil)
}
