package transcript

import (
	"cmp"
	"slices"
	"time"
)

// Rewrite is one transaction in which Hermes took a session's live rows away (compaction archives
// them; /reset, /compact, /model and session/load delete them) and inserted others in their place.
type Rewrite struct {
	// Boundary is the largest message id given before it: what it removed lies at or below, what
	// it inserted begins right above.
	Boundary int64
	// BatchEnd is the last id it inserted; equal to Boundary if it inserted none, 0 if unknown.
	BatchEnd int64
}

// Message is one entry of the canonical transcript.
type Message struct {
	// ID is the locator: the id the message was first given, whatever copies exist since.
	ID   int64
	Role string
	// Text is the exact text for clients. For a reply that Hermes continued after it was cut off
	// it is the cut-off rows' text followed by the final row's.
	Text       string
	Version    string
	CreateTime time.Time
	ToolCalls  []ToolCall
	// FinishReason is Hermes's own, "" for NULL.
	FinishReason string
	// Doubtful is set on a user row that Hermes may have written to itself: right after a row that
	// was cut off, or at the end of what a compaction inserted.
	Doubtful bool
}

// entry is one message of a session's history with all that is known of it.
type entry struct {
	row      Row   // verbatim, under the id first given
	latest   Row   // the newest copy; the row itself if there is none
	parts    []Row // cut-off rows this reply continues, oldest first
	folded   bool  // shown as a part of a later reply
	doubtful bool  // a user row that Hermes may have written to itself
}

func (e *entry) message(id int64) Message {
	rows := append(slices.Clone(e.parts), e.row)
	text := ""
	for _, r := range rows {
		text += r.shownText()
	}
	return Message{
		ID: id, Role: e.row.Role, Text: text, Version: version(rows...),
		CreateTime: e.row.createTime(), ToolCalls: e.row.toolCalls(),
		FinishReason: e.row.FinishReason, Doubtful: e.doubtful,
	}
}

// History is a session's canonical history, or a window of one.
type History struct {
	entries []*entry
	byID    map[int64]*entry
}

// New derives the history from a session's user and assistant rows and its rewrites. The rows may
// be a window of the session only if the session has no rewrite. Rows of other roles are ignored;
// neither slice need be ordered. It never fails: contradictory input gives more messages, not fewer.
func New(rows []Row, rewrites []Rewrite) *History {
	rows = slices.DeleteFunc(slices.Clone(rows), func(r Row) bool {
		return r.Role != RoleUser && r.Role != RoleAssistant
	})
	slices.SortStableFunc(rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	rows = slices.CompactFunc(rows, func(a, b Row) bool { return a.ID == b.ID })
	h := &History{byID: make(map[int64]*entry, len(rows))}
	synthetic := h.unite(rows, completeRewrites(rows, rewrites))
	for _, r := range rows {
		e, known := h.byID[r.ID]
		if !known {
			e = &entry{row: r, latest: r}
			h.byID[r.ID] = e
		}
		// Summaries and merged rows stand for messages that are listed already; they stay
		// reachable by their own id.
		if e.row.ID == r.ID && !synthetic[r.ID] {
			h.entries = append(h.entries, e)
		}
	}
	h.entries = slices.DeleteFunc(h.entries, func(e *entry) bool { return e.latest.undone() })
	h.joinParts()
	return h
}

// completeRewrites orders the rewrites and adds one for archived rows that no record explains: a
// file that was compacted before its triggers existed.
func completeRewrites(rows []Row, rewrites []Rewrite) []Rewrite {
	rewrites = slices.Clone(rewrites)
	slices.SortStableFunc(rewrites, func(a, b Rewrite) int { return cmp.Compare(a.Boundary, b.Boundary) })
	rewrites = slices.CompactFunc(rewrites, func(a, b Rewrite) bool { return a.Boundary == b.Boundary })
	var lastArchived int64
	for _, r := range rows {
		if r.Compacted {
			lastArchived = max(lastArchived, r.ID)
		}
	}
	if lastArchived > 0 && (len(rewrites) == 0 || rewrites[len(rewrites)-1].Boundary < lastArchived) {
		rewrites = append(rewrites, Rewrite{Boundary: lastArchived})
	}
	return rewrites
}

// removedAt returns the index of the rewrite that took the row away, or -1 for a live row.
func removedAt(r Row, rewrites []Rewrite) int {
	if !r.Compacted && r.DeletedAt == 0 {
		return -1
	}
	at := r.ID
	if !r.Compacted {
		at = r.DeletedAt
	}
	i, found := slices.BinarySearchFunc(rewrites, at, func(w Rewrite, id int64) int { return cmp.Compare(w.Boundary, id) })
	if i == len(rewrites) || (!r.Compacted && !found) {
		return -1
	}
	return i
}

// unite maps each copy to the entry of the message it copies and returns the ids of rows that a
// rewrite made up: summaries, merged neighbours, reminders.
func (h *History) unite(rows []Row, rewrites []Rewrite) map[int64]bool {
	removed := make([][]Row, len(rewrites))
	for _, r := range rows {
		if i := removedAt(r, rewrites); i >= 0 && !r.undone() {
			removed[i] = append(removed[i], r)
		}
	}
	synthetic := map[int64]bool{}
	for i, w := range rewrites {
		last := int64(1<<63 - 1)
		if i+1 < len(rewrites) {
			last = rewrites[i+1].Boundary
		}
		if w.BatchEnd >= w.Boundary && w.BatchEnd != 0 {
			last = min(last, w.BatchEnd)
		}
		first, _ := slices.BinarySearchFunc(rows, w.Boundary+1, func(r Row, id int64) int { return cmp.Compare(r.ID, id) })
		end := first
		for end < len(rows) && rows[end].ID <= last {
			end++
		}
		h.uniteBatch(removed[i], rows[first:end], w.BatchEnd != 0, synthetic)
	}
	return synthetic
}

// uniteBatch unites the rows that one rewrite inserted with those it removed. If the end of the
// batch is not known it is taken to end with the copy of what was removed last; if there is no such
// copy the batch is taken to be empty: a doubled message is better than a lost one.
func (h *History) uniteBatch(removed, batch []Row, bounded bool, synthetic map[int64]bool) {
	was, now := identities(removed), identities(batch)
	if !bounded {
		end, _ := tail(was, now)
		now, batch = now[:end], batch[:end]
	}
	pairs := align(was, now)
	lastCopy := -1
	for b, r := range pairs {
		if r >= 0 {
			lastCopy = b
		}
	}
	compaction := slices.ContainsFunc(removed, func(r Row) bool { return r.Compacted })
	for b, r := range pairs {
		row := batch[b]
		if r >= 0 {
			original := removed[r]
			e, known := h.byID[original.ID]
			if !known {
				e = &entry{row: original, latest: original}
				h.byID[original.ID] = e
			}
			e.latest = row
			h.byID[row.ID] = e
			continue
		}
		// A compaction before the first model request stores the prompt in its batch only, behind
		// the copies, and may add a reminder there. Everything else without an original is made up.
		if compaction && b > lastCopy && (row.Role == RoleUser || row.callsTools()) {
			h.byID[row.ID] = &entry{row: row, latest: row, doubtful: row.Role == RoleUser}
			continue
		}
		synthetic[row.ID] = true
	}
}

func identities(rows []Row) []identity {
	ids := make([]identity, len(rows))
	for i, r := range rows {
		ids[i] = identityOf(r)
	}
	return ids
}

// joinParts finds replies that Hermes continued after they were cut off: a cut-off row, a user row
// it wrote to itself, and the rows that go on. The reply is the last of them with the parts before
// it. A broken stream and the output limit look alike.
func (h *History) joinParts() {
	var parts []*entry // cut-off rows of the reply that is being continued
	for i, e := range h.entries {
		var previous, next *entry
		if i > 0 {
			previous = h.entries[i-1]
		}
		if i+1 < len(h.entries) {
			next = h.entries[i+1]
		}
		switch {
		case e.row.Role == RoleUser:
			if previous != nil && previous.row.cutOff() {
				e.doubtful = true
			} else {
				parts = nil
			}
		case e.row.callsTools() || (next != nil && next.row.Role == RoleAssistant):
			// The run goes on.
		case e.row.cutOff() && next != nil && len(parts) < maxLengthRows-1:
			parts = append(parts, e)
		default:
			for _, part := range parts {
				part.folded = true
				e.parts = append(e.parts, part.row)
			}
			parts = nil
		}
	}
}

// HoldsBeginning reports whether the rows, the last ones of a session up to some row, reach back to
// where that row's reply begins: to a user row that is certain to have been sent by someone.
func HoldsBeginning(rows []Row) bool {
	rows = slices.Clone(rows)
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Compare(a.ID, b.ID) })
	for i := 1; i < len(rows); i++ {
		if rows[i].Role == RoleUser && !rows[i-1].cutOff() {
			return true
		}
	}
	return false
}

// List returns the transcript, oldest first. A session's older messages never change place: a page
// may be continued from the last ID of the one before.
func (h *History) List() []Message {
	messages := make([]Message, 0, len(h.entries))
	for _, e := range h.entries {
		if !e.folded {
			messages = append(messages, e.message(e.row.ID))
		}
	}
	return messages
}

// Find returns the message behind any id it ever had, under that id, or false.
func (h *History) Find(id int64) (Message, bool) {
	e, ok := h.byID[id]
	if !ok {
		return Message{}, false
	}
	return e.message(id), true
}
