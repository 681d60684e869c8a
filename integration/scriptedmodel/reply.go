package scriptedmodel

import (
	"encoding/json"
	"iter"
	"net/http"
	"strings"
	"unicode/utf8"
)

// Reply is one scripted answer. The zero value is an empty text that ends with "stop".
type Reply struct {
	// Text is the answer's text, Pad that many more bytes of filler after it.
	Text string
	Pad  int64
	// ToolCalls are called in one answer, in parallel when there are several.
	ToolCalls []ToolCall
	// FinishReason is "stop", or "tool_calls" when there are calls, unless set.
	FinishReason string
	// Status, when not 0, answers that HTTP status with an OpenAI error object and Header, and nothing else.
	Status int
	Header http.Header
	// Raw, when not nil, is sent as it is with status 200 in place of a completion.
	Raw []byte
	// Cut ends the connection in the middle of the answer.
	Cut bool
	// Before names a gate to pass before the first byte, Between one to pass before every chunk of a stream (after its headers).
	Before, Between string
}

// ToolCall is one call of a tool. Arguments is sent as it is, even when it isn't JSON.
type ToolCall struct {
	Name      string
	Arguments string
}

// Text answers s.
func Text(s string) Reply { return Reply{Text: s} }

// Fail answers an HTTP status with an error object.
func Fail(status int) Reply { return Reply{Status: status} }

// Hang answers nothing until the client goes away, or until the gate lets it pass; then it answers s.
func Hang(gate, s string) Reply { return Reply{Before: gate, Text: s} }

// Half begins to answer s and cuts the connection in the middle.
func Half(s string) Reply { return Reply{Text: s, Cut: true} }

// Garbage answers status 200 with bytes that are neither JSON nor an event stream.
func Garbage() Reply {
	return Reply{Raw: []byte("\x00\xff<<< not a completion >>>\r\n{\"choices\": [")}
}

// Length answers s and says that the output limit cut it off.
func Length(s string) Reply { return Reply{Text: s, FinishReason: "length"} }

// Long answers n bytes of deterministic text.
func Long(n int64) Reply { return Reply{Pad: n} }

// Call calls one tool with args marshalled to JSON; a value that can't be marshalled panics.
func Call(name string, args any) Reply { return Calls(NewToolCall(name, args)) }

// Calls calls tools in parallel.
func Calls(calls ...ToolCall) Reply { return Reply{ToolCalls: calls} }

// NewToolCall makes a call with args marshalled to JSON; a value that can't be marshalled panics.
func NewToolCall(name string, args any) ToolCall {
	b, err := json.Marshal(args)
	if err != nil {
		panic("scriptedmodel: marshal arguments of " + name + ": " + err.Error())
	}
	return ToolCall{Name: name, Arguments: string(b)}
}

func (r Reply) finishReason() string {
	switch {
	case r.FinishReason != "":
		return r.FinishReason
	case len(r.ToolCalls) > 0:
		return "tool_calls"
	}
	return "stop"
}

// A text up to this many bytes is streamed word by word, a longer one in pieces of pieceBytes.
const (
	wordwiseBytes = 2 << 10
	pieceBytes    = 4 << 10
)

// pieces splits s so that the pieces joined are s again and every piece is whole runes where s is UTF-8.
func pieces(s string) []string {
	if len(s) <= wordwiseBytes {
		words := strings.SplitAfter(s, " ")
		if words[len(words)-1] == "" {
			words = words[:len(words)-1]
		}
		return words
	}
	var out []string
	for len(s) > pieceBytes {
		cut := pieceBytes
		for back := 0; back < utf8.UTFMax && !utf8.RuneStart(s[cut]); back++ {
			cut--
		}
		out = append(out, s[:cut])
		s = s[cut:]
	}
	return append(out, s)
}

const fillerLine = "This line is filler of the scripted demo model, made to be long.\n"

// filler yields n bytes in pieces; equal n give equal bytes.
func filler(n int64) iter.Seq[string] {
	block := strings.Repeat(fillerLine, pieceBytes/len(fillerLine))
	return func(yield func(string) bool) {
		for n > 0 {
			piece := block[:min(int64(len(block)), n)]
			if !yield(piece) {
				return
			}
			n -= int64(len(piece))
		}
	}
}

// whole is the answer's full text.
func (r Reply) whole() string {
	if r.Pad == 0 {
		return r.Text
	}
	var b strings.Builder
	b.WriteString(r.Text)
	for p := range filler(r.Pad) {
		b.WriteString(p)
	}
	return b.String()
}
