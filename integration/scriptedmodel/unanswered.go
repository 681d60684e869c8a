package scriptedmodel

import (
	"crypto/sha256"
	"slices"
	"strings"
)

const maxUnanswered = 256

// unanswered remembers prompts that have no answer yet. Hermes merges such a prompt with the next one into one user message
// ("first\n\nsecond"), in which the first one's directive would be obeyed again. A prompt is added before it is answered, because
// after a cancel the next request comes before the old connection ends. Only digests are kept.
type unanswered struct {
	entries []unansweredEntry // oldest first
}

type unansweredEntry struct {
	history [sha256.Size]byte
	length  int
	text    [sha256.Size]byte
}

func entryOf(r Request) unansweredEntry {
	return unansweredEntry{history: historyDigest(r), length: len(r.UserText), text: sha256.Sum256([]byte(r.UserText))}
}

// add may add equal entries: two conversations can begin with the same prompt.
func (u *unanswered) add(e unansweredEntry) {
	if len(u.entries) == maxUnanswered {
		u.entries = slices.Delete(u.entries, 0, 1)
	}
	u.entries = append(u.entries, e)
}

func (u *unanswered) remove(e unansweredEntry) {
	if i := slices.Index(u.entries, e); i >= 0 {
		u.entries = slices.Delete(u.entries, i, i+1)
	}
}

// prompt returns r's user text without the longest unanswered prompt of the same history at its start.
func (u *unanswered) prompt(r Request, history [sha256.Size]byte) string {
	longest := 0
	for _, e := range u.entries {
		if e.history == history && e.length > longest && e.length < len(r.UserText) &&
			strings.HasPrefix(r.UserText[e.length:], "\n\n") &&
			sha256.Sum256([]byte(r.UserText[:e.length])) == e.text {
			longest = e.length
		}
	}
	if longest == 0 {
		return r.UserText
	}
	return r.UserText[longest+len("\n\n"):]
}

// historyDigest covers the conversation before the last user message. System messages are left out: they hold the date.
func historyDigest(r Request) [sha256.Size]byte {
	h := sha256.New()
	for _, m := range r.Messages[:max(r.lastUser, 0)] {
		if m.Role == "system" {
			continue
		}
		h.Write([]byte(m.Role))
		h.Write(m.Content)
		h.Write([]byte{0})
	}
	return [sha256.Size]byte(h.Sum(nil))
}
