// Package transcript holds the pure rules that turn Hermes's message rows into a canonical
// transcript and into the outcome of a turn. It reads structure only (order, roles, finish
// reasons, tool calls, equality of text), never wording, and touches no database.
//
// The rows are those of hermes-agent 0.19.0. Every rule here states the behaviour it answers.
package transcript

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"math"
	"strings"
	"time"
	"unicode"
)

// Roles of rows that clients see. Other roles (tool, system) never reach this package's results.
const (
	RoleUser      = "user"
	RoleAssistant = "assistant"
)

// finishLength marks an assistant row that was cut off: by the output limit or by a broken stream.
const finishLength = "length"

// maxLengthRows is how many cut-off rows Hermes writes for one reply before it gives up: it asks
// itself to go on after the first three. A user row after the fourth is therefore a real one.
const maxLengthRows = 4

// Row is one verbatim row of Hermes's messages table, live or kept by the delete trigger.
type Row struct {
	ID           int64
	SessionID    string
	Role         string
	Content      string  // "" for NULL
	APIContent   string  // "" for NULL
	ToolCalls    string  // JSON text, "" for NULL
	FinishReason string  // "" for NULL
	Timestamp    float64 // Unix seconds
	Active       bool
	Compacted    bool
	// DeletedAt is 0 for a live row, otherwise the largest message id given when it was deleted.
	DeletedAt int64
}

// ToolCall is Hermes's record of one call. Arguments is JSON text, verbatim.
type ToolCall struct {
	ID        string
	Name      string
	Arguments string
}

// undone reports whether the row was taken back by undo or rewind: it is no longer history.
func (r Row) undone() bool { return !r.Active && !r.Compacted }

// callsTools reports whether the row asks for tools, so that a run goes on after it.
func (r Row) callsTools() bool {
	s := strings.TrimSpace(r.ToolCalls)
	return s != "" && s != "[]" && s != "null"
}

// cutOff reports whether the row is an assistant's text that was cut off.
func (r Row) cutOff() bool {
	return r.Role == RoleAssistant && !r.callsTools() && r.FinishReason == finishLength
}

// shownText is what a client sees: content, or api_content where both differ in outer white space
// only. Hermes strips the first and keeps what it was sent in the second; where they differ
// otherwise api_content carries attached files and injected context.
func (r Row) shownText() string {
	text := flatten(r.Content)
	if r.APIContent != "" && r.APIContent != text && Strip(r.APIContent) == Strip(text) {
		text = r.APIContent
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// createTime converts Hermes's float seconds, clipped to what a protobuf timestamp can hold.
func (r Row) createTime() time.Time {
	const last = 253402300799 // 9999-12-31T23:59:59Z
	s := r.Timestamp
	if math.IsNaN(s) || s < 0 {
		s = 0
	}
	if s > last {
		s = last
	}
	whole, fraction := math.Modf(s)
	return time.Unix(int64(whole), int64(fraction*1e9)).UTC()
}

// toolCalls parses the row's calls, in both shapes Hermes writes. What does not parse is left out:
// the transcript must not fail on one odd row.
func (r Row) toolCalls() []ToolCall {
	if !r.callsTools() {
		return nil
	}
	var raw []struct {
		ID        string          `json:"id"`
		CallID    string          `json:"call_id"`
		Name      string          `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
		Function  struct {
			Name      string          `json:"name"`
			Arguments json.RawMessage `json:"arguments"`
		} `json:"function"`
	}
	if err := json.Unmarshal([]byte(r.ToolCalls), &raw); err != nil {
		return nil
	}
	calls := make([]ToolCall, 0, len(raw))
	for _, c := range raw {
		call := ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: argumentText(c.Function.Arguments)}
		if call.ID == "" {
			call.ID = c.CallID
		}
		if call.Name == "" {
			call.Name, call.Arguments = c.Name, argumentText(c.Arguments)
		}
		calls = append(calls, call)
	}
	return calls
}

// argumentText undoes the string quoting in which most models send their arguments.
func argumentText(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return strings.ToValidUTF8(string(raw), "\uFFFD")
}

// structuredPrefix begins a content that Hermes stores as a JSON list of parts. Rows appended in a
// turn are flattened first; compaction's copies of the same messages are not.
const structuredPrefix = "\x00json:"

// flatten gives the text Hermes itself stores for a list of parts when it appends one.
func flatten(content string) string {
	if !strings.HasPrefix(content, structuredPrefix) {
		return content
	}
	var parts []struct {
		Type string `json:"type"`
		Text string `json:"text"`
	}
	if err := json.Unmarshal([]byte(content[len(structuredPrefix):]), &parts); err != nil {
		return content
	}
	var texts []string
	for _, p := range parts {
		switch p.Type {
		case "text":
			texts = append(texts, p.Text)
		case "image", "image_url", "input_image":
			texts = append(texts, "[screenshot]")
		}
	}
	return strings.Join(texts, "\n")
}

// Strip removes the outer white space that Python's str.strip removes, which is what Hermes does
// to every text it stores. It differs from strings.TrimSpace in U+001C to U+001F.
func Strip(s string) string {
	return strings.TrimFunc(s, isSpace)
}

func isSpace(r rune) bool { return r >= 0x1c && r <= 0x1f || unicode.IsSpace(r) }

// version is the digest of verbatim rows: every field is length-prefixed, so that no two
// different rows can give the same input.
func version(rows ...Row) string {
	h := sha256.New()
	field := func(s string) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(s)))
		h.Write(n[:])
		h.Write([]byte(s))
	}
	for _, r := range rows {
		var id [8]byte
		binary.BigEndian.PutUint64(id[:], uint64(r.ID))
		h.Write(id[:])
		for _, s := range []string{r.SessionID, r.Role, r.Content, r.APIContent, r.ToolCalls} {
			field(s)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}
