package scriptedmodel

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Kind tells what a request is for. The package documentation says how it is decided.
type Kind string

const (
	// KindTurn is a request of a turn's own model and tool loop.
	KindTurn Kind = "turn"
	// KindDelegate is a request of a sub-agent that a turn started with delegate_task.
	KindDelegate Kind = "delegate"
	// KindTitle asks for a title of the session, once, after its first exchange.
	KindTitle Kind = "title"
	// KindVision asks for a description of an image.
	KindVision Kind = "vision"
	// KindReview is the background review of memory and skills.
	KindReview Kind = "review"
	// KindOther is anything else, compaction summaries included.
	KindOther Kind = "other"
)

// Request is one chat completion request as it arrived. In JSON, Body is base64 so that it stays exact.
type Request struct {
	// Seq counts the requests of this model from 1.
	Seq int64 `json:"seq"`
	// Time is when the body had been read in full.
	Time time.Time `json:"time"`
	Kind Kind      `json:"kind"`
	// Model and Stream are the request's own fields.
	Model  string `json:"model"`
	Stream bool   `json:"stream"`
	// UserText is the text of the last user message, as sent.
	UserText string `json:"userText"`
	// Prompt is UserText without the earlier prompts Hermes merged into it because they were never answered.
	Prompt string `json:"prompt"`
	// Body is the request body, byte for byte.
	Body []byte `json:"body"`
	// Tools is the value of "tools" as a part of Body, byte for byte; nil when there is none.
	Tools json.RawMessage `json:"-"`
	// Messages are the request's messages in order.
	Messages []Message `json:"-"`

	includeUsage bool
	lastUser     int
}

// Message is one message of a request.
type Message struct {
	Role       string          `json:"role"`
	Content    json.RawMessage `json:"content"`
	Name       string          `json:"name"`
	ToolCallID string          `json:"tool_call_id"`
	ToolCalls  []RequestCall   `json:"tool_calls"`
}

// RequestCall is a tool call of an earlier answer, repeated in a request's history.
type RequestCall struct {
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

type contentPart struct {
	Type string `json:"type"`
	Text string `json:"text"`
}

// Text returns the message's text: a string content as it is, the text parts of a list joined with "\n".
func (m Message) Text() string {
	var s string
	if json.Unmarshal(m.Content, &s) == nil {
		return s
	}
	var texts []string
	for _, p := range m.parts() {
		if p.Type == "text" {
			texts = append(texts, p.Text)
		}
	}
	return strings.Join(texts, "\n")
}

// HasImage reports whether the message carries an image part.
func (m Message) HasImage() bool {
	for _, p := range m.parts() {
		if p.Type == "image_url" {
			return true
		}
	}
	return false
}

func (m Message) parts() []contentPart {
	if len(m.Content) == 0 || m.Content[0] != '[' {
		return nil
	}
	var parts []contentPart
	if json.Unmarshal(m.Content, &parts) != nil {
		return nil
	}
	return parts
}

// ParseRequest reads a chat completion request body. It sets every field but Seq, Time and a Prompt different from UserText.
// Use it also to restore Tools and Messages of a Request that was decoded from JSON.
func ParseRequest(body []byte) (Request, error) {
	var in struct {
		Model         string          `json:"model"`
		Stream        bool            `json:"stream"`
		Messages      []Message       `json:"messages"`
		Tools         json.RawMessage `json:"tools"`
		StreamOptions struct {
			IncludeUsage bool `json:"include_usage"`
		} `json:"stream_options"`
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return Request{}, fmt.Errorf("read chat completion request: %w", err)
	}
	if len(in.Messages) == 0 {
		return Request{}, errors.New("read chat completion request: messages is empty")
	}
	r := Request{
		Model: in.Model, Stream: in.Stream, Body: body, Messages: in.Messages,
		includeUsage: in.StreamOptions.IncludeUsage, lastUser: -1,
	}
	if !bytes.Equal(in.Tools, []byte("null")) {
		r.Tools = in.Tools
	}
	for i := len(in.Messages) - 1; i >= 0; i-- {
		if in.Messages[i].Role == "user" {
			r.lastUser = i
			r.UserText = in.Messages[i].Text()
			break
		}
	}
	r.Prompt = r.UserText
	r.Kind = kindOf(r)
	return r, nil
}

// Both must be there: the review replays the whole conversation with the turn's own system prompt and tools, so that nothing else differs.
const (
	reviewOpening = "Review the conversation above and "
	reviewEnding  = "Other tools will be denied at runtime — do not attempt them."
)

// A sub-agent's system prompt holds it; fewer tools are offered too, but which ones depends on the configuration.
const delegateSystem = "You are a focused subagent working on a specific delegated task."

func kindOf(r Request) Kind {
	ms := r.Messages
	if len(r.Tools) > 0 && !emptyList(r.Tools) {
		if strings.Contains(r.UserText, reviewOpening) && strings.HasSuffix(r.UserText, reviewEnding) {
			return KindReview
		}
		if ms[0].Role == "system" && strings.Contains(ms[0].Text(), delegateSystem) {
			return KindDelegate
		}
		return KindTurn
	}
	switch {
	case len(ms) == 1 && ms[0].Role == "user" && ms[0].HasImage():
		return KindVision
	case len(ms) == 2 && ms[0].Role == "system" && ms[1].Role == "user" &&
		strings.HasPrefix(r.UserText, "User: ") && strings.Contains(r.UserText, "\n\nAssistant: "):
		return KindTitle
	}
	return KindOther
}

// fromAgent reports whether the user text is a prompt for an agent, in which directives are obeyed.
func (r Request) fromAgent() bool { return r.Kind == KindTurn || r.Kind == KindDelegate }

func emptyList(raw json.RawMessage) bool {
	return len(raw) >= 2 && raw[0] == '[' && len(bytes.TrimSpace(raw[1:len(raw)-1])) == 0
}

// toolSteps is how many answers with tool calls followed the last user message.
func (r Request) toolSteps() int {
	n := 0
	for _, m := range r.afterLastUser() {
		if m.Role == "assistant" && len(m.ToolCalls) > 0 {
			n++
		}
	}
	return n
}

// toolResults are the texts of the tool results at the end of the request.
func (r Request) toolResults() []string {
	after := r.afterLastUser()
	start := len(after)
	for start > 0 && after[start-1].Role == "tool" {
		start--
	}
	var texts []string
	for _, m := range after[start:] {
		texts = append(texts, m.Text())
	}
	return texts
}

func (r Request) afterLastUser() []Message {
	return r.Messages[r.lastUser+1:]
}

// userMessages is how many user messages the conversation holds.
func (r Request) userMessages() int {
	n := 0
	for _, m := range r.Messages {
		if m.Role == "user" {
			n++
		}
	}
	return n
}

// cost is about what a recorded request holds in memory, in bytes: the body and the parsed copies of its parts.
func (r Request) cost() int64 {
	n := len(r.Body) + len(r.Tools) + len(r.UserText)
	for _, m := range r.Messages {
		n += len(m.Content) + 160
		for _, c := range m.ToolCalls {
			n += len(c.Function.Arguments) + 80
		}
	}
	return int64(n)
}
