package transcript

import "strings"

// Prompt is what is known of a turn's prompt: enough to recognise its row, nothing more.
type Prompt struct {
	// Text is the prompt's text blocks joined with "\n", exact.
	Text string
	// OtherBlocks tells that the prompt had blocks that are not text.
	OtherBlocks bool
}

// Outcome is what a turn left in the database, told by structure only.
type Outcome struct {
	// UserID is the locator of the turn's own user row, 0 if Hermes wrote none.
	UserID int64
	// UserIDs are the turn's own user row and those Hermes had queued and ran in the same turn, in
	// order, without the ones it may have written to itself.
	UserIDs []int64
	// Replies are the assistant rows after the turn's own row that end a run, in order. A row
	// without text is none: there is nothing to deliver. Nor is the beginning of an answer that
	// Hermes set out to continue and did not.
	Replies []Reply
}

// Reply is one reply. FinishReason is "" for NULL: after a cancel such a row is a torn-off text,
// and only the caller knows whether a cancel was sent.
type Reply struct {
	ID           int64
	FinishReason string
}

// Outcome reads the outcome of the turn whose rows lie above the watermark. Copies that a
// compaction or another rewrite made of older messages stand under their first id and are
// therefore below it, whatever their own id.
func (h *History) Outcome(watermark int64, prompt Prompt) Outcome {
	var turn []*entry
	for _, e := range h.entries {
		if e.row.ID > watermark {
			turn = append(turn, e)
		}
	}
	var out Outcome
	own := ownRow(turn, prompt)
	if own < 0 {
		return out
	}
	out.UserID = turn[own].row.ID
	for i, e := range turn[own:] {
		if e.row.Role == RoleUser {
			if i == 0 || !e.doubtful {
				out.UserIDs = append(out.UserIDs, e.row.ID)
			}
			continue
		}
		next := own + i + 1
		endsRun := next == len(turn) || turn[next].row.Role == RoleUser
		// Hermes asked itself to go on and never did: the model failed, or it was ended.
		unfinished := e.row.cutOff() && next < len(turn) && turn[next].doubtful && len(e.parts) < maxLengthRows-1
		if endsRun && !unfinished && !e.row.callsTools() && !e.folded && Strip(e.message(e.row.ID).Text) != "" {
			out.Replies = append(out.Replies, Reply{ID: e.row.ID, FinishReason: e.row.FinishReason})
		}
	}
	return out
}

// ownRow finds the turn's own user row: the first whose text is the prompt's. Hermes rewrites some
// prompts (a /steer after a cancel is joined with the text it corrects, an image alone becomes a
// placeholder); as turns of a session run one at a time and queued texts run after the prompt, the
// turn's first user row is its own then.
func ownRow(turn []*entry, prompt Prompt) int {
	first := -1
	for i, e := range turn {
		if e.row.Role != RoleUser {
			continue
		}
		if first < 0 {
			first = i
		}
		if prompt.is(e.row) {
			return i
		}
	}
	return first
}

// is reports whether the row's text is the prompt's.
func (p Prompt) is(r Row) bool {
	want := Strip(p.Text)
	if steer, ok := steerText(want); ok && !p.OtherBlocks && rowIs(r, steer) {
		return true
	}
	return want != "" && rowIs(r, want)
}

func rowIs(r Row, text string) bool {
	return Strip(flatten(r.Content)) == text || Strip(r.APIContent) == text
}

// steerText returns what Hermes runs for "/steer text" in an idle session. Like Hermes it looks at
// the first letters only and takes what follows the first white space.
func steerText(prompt string) (string, bool) {
	if !strings.HasPrefix(prompt, "/steer") {
		return "", false
	}
	i := strings.IndexFunc(prompt, isSpace)
	if i < 0 {
		return "", false
	}
	return Strip(prompt[i:]), true
}
