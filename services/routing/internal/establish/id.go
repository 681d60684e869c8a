package establish

import (
	"crypto/rand"
	"fmt"
)

const (
	idAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789"
	idLength   = 16 // 82 bits
)

// newID returns a random conversation id.
func newID() (string, error) {
	id := make([]byte, 0, idLength)
	var raw [2 * idLength]byte
	for len(id) < idLength {
		if _, err := rand.Read(raw[:]); err != nil {
			return "", fmt.Errorf("make a conversation id: %w", err)
		}
		for _, b := range raw {
			// The largest multiple of 36 in a byte: higher values would favour some letters.
			if b < 252 && len(id) < idLength {
				id = append(id, idAlphabet[int(b)%len(idAlphabet)])
			}
		}
	}
	return string(id), nil
}
