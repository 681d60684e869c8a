// Package wire holds the public JSON shapes of turns, events and the transcript, and makes them
// from the services' messages. 64-bit integers are strings, times RFC 3339 in UTC, enum values
// have no prefix. Lists are never null.
package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
)

// Locator is Hermes's own identity of a message.
type Locator struct {
	SessionID string `json:"sessionId"`
	MessageID int64  `json:"messageId,string"`
}

// Turn is a whole turn.
type Turn struct {
	TurnID     string     `json:"turnId"`
	State      string     `json:"state"`
	Messages   []Accepted `json:"messages"`
	Replies    []Reply    `json:"replies"`
	Error      *TurnError `json:"error,omitempty"`
	Timings    Timings    `json:"timings"`
	CreateTime string     `json:"createTime,omitempty"`
	EndTime    string     `json:"endTime,omitempty"`
}

// Submitted is the answer to a submission.
type Submitted struct {
	TurnID   string     `json:"turnId"`
	State    string     `json:"state"`
	Messages []Accepted `json:"messages"`
}

// Accepted is an accepted message.
type Accepted struct {
	InboundID string          `json:"inboundId"`
	Blocks    []AcceptedBlock `json:"blocks"`
}

// AcceptedBlock is the type, the digest and the file of a block.
type AcceptedBlock struct {
	Type   string `json:"type"`
	SHA256 string `json:"sha256"`
	// URI is the file's that the block names, or that its inline data was written to.
	URI string `json:"uri,omitempty"`
}

// Reply is one delivered reply.
type Reply struct {
	Locator *Locator `json:"locator"`
	Text    string   `json:"text"`
}

// TurnError says why a turn has no reply.
type TurnError struct {
	Reason    string `json:"reason"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
}

// Timings are milliseconds; a phase that did not happen is absent.
type Timings struct {
	AcceptToAttachMs    *float64 `json:"acceptToAttachMs,omitempty"`
	ColdAdmissionMs     *float64 `json:"coldAdmissionMs,omitempty"`
	FirstModelRequestMs *float64 `json:"firstModelRequestMs,omitempty"`
	ModelToolLoopMs     *float64 `json:"modelToolLoopMs,omitempty"`
	PersistDeliverMs    *float64 `json:"persistDeliverMs,omitempty"`
}

// TurnList is a page of turns; NextPageToken is empty on the last one.
type TurnList struct {
	Turns         []Turn `json:"turns"`
	NextPageToken string `json:"nextPageToken"`
}

// Message is one message of the transcript.
type Message struct {
	Locator    *Locator   `json:"locator"`
	Role       string     `json:"role"`
	Text       string     `json:"text"`
	Version    string     `json:"version"`
	CreateTime string     `json:"createTime,omitempty"`
	ToolCalls  []ToolCall `json:"toolCalls,omitempty"`
}

// ToolCall is one call a message asks for; Arguments is JSON text, verbatim.
type ToolCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
}

// AttachmentEntry is an entry of the transcript that is a file a turn brought.
type AttachmentEntry struct {
	Attachment Attachment `json:"attachment"`
	CreateTime string     `json:"createTime,omitempty"`
}

// Attachment is the file as it was when its turn was accepted. SHA256 is absent if not known.
type Attachment struct {
	URI      string `json:"uri"`
	Name     string `json:"name"`
	MimeType string `json:"mimeType"`
	Size     int64  `json:"size,string"`
	SHA256   string `json:"sha256,omitempty"`
}

// Transcript is a page of the transcript, each entry a Message or an AttachmentEntry; NextPageToken
// is empty on the last one.
type Transcript struct {
	Messages      []any  `json:"messages"`
	NextPageToken string `json:"nextPageToken"`
}

// Event is the data of one Server-Sent Event. Sequence is absent on live events.
type Event struct {
	Sequence     string     `json:"sequence,omitempty"`
	Type         string     `json:"type"`
	TurnID       string     `json:"turnId,omitempty"`
	State        string     `json:"state,omitempty"`
	Locator      *Locator   `json:"locator,omitempty"`
	Error        *TurnError `json:"error,omitempty"`
	CreateTime   string     `json:"createTime,omitempty"`
	Text         *string    `json:"text,omitempty"`
	Tool         *Tool      `json:"tool,omitempty"`
	File         *Change    `json:"file,omitempty"`
	LastSequence *int64     `json:"lastSequence,string,omitempty"`
}

// Tool is the state of a running tool call.
type Tool struct {
	ToolCallID string `json:"toolCallId"`
	Title      string `json:"title"`
	Kind       string `json:"kind"`
	Status     string `json:"status"`
}

// Change is what happened to a file: written, removed or renamed.
type Change struct {
	URI         string `json:"uri"`
	Change      string `json:"change"`
	PreviousURI string `json:"previousUri,omitempty"`
	Version     string `json:"version,omitempty"`
}

// Types of events that carry something of their own.
const (
	EventFile  = "file.changed"
	EventGap   = "gap"
	EventDelta = "delta"
	EventTool  = "tool"
)

// Marshal returns the compact JSON of v on one line, text as it is but for what JSON must escape.
func Marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("encode answer: %w", err)
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte("\n")), nil
}

// NewTurn makes the public shape of a turn.
func NewTurn(t *ingressv1.Turn) Turn {
	out := Turn{
		TurnID: t.GetTurnId(), State: state(t.GetState()), Messages: accepted(t.GetMessages()), Replies: []Reply{},
		Error: turnError(t.GetError()), CreateTime: instant(t.GetCreateTime()), EndTime: instant(t.GetEndTime()),
	}
	for _, r := range t.GetReplies() {
		out.Replies = append(out.Replies, Reply{locator(r.GetLocator()), r.GetText()})
	}
	if m := t.GetTimings(); m != nil {
		out.Timings = Timings{m.AcceptToAttachMs, m.ColdAdmissionMs, m.FirstModelRequestMs, m.ModelToolLoopMs, m.PersistDeliverMs}
	}
	return out
}

// NewSubmitted makes the answer to a submission.
func NewSubmitted(t *ingressv1.Turn) Submitted {
	return Submitted{t.GetTurnId(), state(t.GetState()), accepted(t.GetMessages())}
}

// NewTurnList makes a page of turns.
func NewTurnList(r *ingressv1.ListTurnsResponse) TurnList {
	out := TurnList{Turns: []Turn{}, NextPageToken: r.GetNextPageToken()}
	for _, t := range r.GetTurns() {
		out.Turns = append(out.Turns, NewTurn(t))
	}
	return out
}

// NewTranscript makes a page of the transcript.
func NewTranscript(r *ingressv1.ListTranscriptResponse) Transcript {
	out := Transcript{Messages: []any{}, NextPageToken: r.GetNextPageToken()}
	for _, m := range r.GetMessages() {
		if a := m.GetAttachment(); a != nil {
			out.Messages = append(out.Messages, AttachmentEntry{
				Attachment{a.GetUri(), a.GetName(), a.GetMimeType(), a.GetSize(), a.GetSha256()}, instant(m.GetCreateTime())})
			continue
		}
		msg := Message{Locator: locator(m.GetLocator()), Role: m.GetRole(), Text: m.GetText(), Version: m.GetVersion(),
			CreateTime: instant(m.GetCreateTime())}
		for _, c := range m.GetToolCalls() {
			msg.ToolCalls = append(msg.ToolCalls, ToolCall{c.GetId(), c.GetName(), c.GetArguments()})
		}
		out.Messages = append(out.Messages, msg)
	}
	return out
}

// NewEvent makes the public shape of an event.
func NewEvent(e *ingressv1.Event) Event {
	out := Event{Type: e.GetType(), TurnID: e.GetTurnId(), Locator: locator(e.GetLocator()), Error: turnError(e.GetError()),
		CreateTime: instant(e.GetCreateTime())}
	if e.GetSequence() > 0 {
		out.Sequence = fmt.Sprint(e.GetSequence())
	}
	if e.GetState() != ingressv1.TurnState_TURN_STATE_UNSPECIFIED {
		out.State = state(e.GetState())
	}
	switch e.GetType() {
	case EventDelta:
		text := e.GetText()
		out.Text = &text
	case EventTool:
		t := e.GetTool()
		out.Tool = &Tool{t.GetToolCallId(), t.GetTitle(), t.GetKind(), t.GetStatus()}
	case EventFile:
		f := e.GetFile()
		out.File = &Change{f.GetUri(), f.GetChange(), f.GetPreviousUri(), f.GetVersion()}
	case EventGap:
		last := e.GetLastSequence()
		out.LastSequence = &last
	}
	return out
}

func state(s ingressv1.TurnState) string { return strings.TrimPrefix(s.String(), "TURN_STATE_") }

func accepted(in []*ingressv1.AcceptedMessage) []Accepted {
	out := make([]Accepted, 0, len(in))
	for _, m := range in {
		a := Accepted{InboundID: m.GetInboundId(), Blocks: make([]AcceptedBlock, 0, len(m.GetBlocks()))}
		for _, b := range m.GetBlocks() {
			a.Blocks = append(a.Blocks, AcceptedBlock{b.GetType(), b.GetSha256(), b.GetUri()})
		}
		out = append(out, a)
	}
	return out
}

func locator(l *ingressv1.Locator) *Locator {
	if l == nil {
		return nil
	}
	return &Locator{l.GetSessionId(), l.GetMessageId()}
}

func turnError(e *ingressv1.TurnError) *TurnError {
	if e == nil {
		return nil
	}
	return &TurnError{e.GetReason(), e.GetMessage(), e.GetRetryable()}
}

func instant(t *timestamppb.Timestamp) string {
	if t == nil {
		return ""
	}
	return t.AsTime().Format(time.RFC3339Nano)
}
