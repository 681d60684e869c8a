package scriptedmodel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strconv"
)

var (
	// errNoCompletion: the answer went out in full, but holds no completion.
	errNoCompletion = errors.New("no completion was sent")
	errCut          = errors.New("the answer was cut on purpose")
)

// answer sends one reply to one request.
type answer struct {
	m     *Model
	ctx   context.Context
	w     http.ResponseWriter
	out   *http.ResponseController
	req   Request
	reply Reply
	sent  int64 // bytes of text and arguments
}

func newAnswer(ctx context.Context, m *Model, w http.ResponseWriter, req Request, reply Reply) *answer {
	return &answer{m: m, ctx: ctx, w: w, out: http.NewResponseController(w), req: req, reply: reply}
}

type usage struct {
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
	TotalTokens      int64 `json:"total_tokens"`
}

type functionCall struct {
	Name      string `json:"name,omitempty"`
	Arguments string `json:"arguments"`
}

type toolCall struct {
	Index    *int         `json:"index,omitempty"` // in streams only
	ID       string       `json:"id,omitempty"`
	Type     string       `json:"type,omitempty"`
	Function functionCall `json:"function"`
}

type delta struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

type choice struct {
	Index        int     `json:"index"`
	Delta        *delta  `json:"delta,omitempty"`
	Message      *delta  `json:"message,omitempty"`
	FinishReason *string `json:"finish_reason"`
}

type completion struct {
	ID      string   `json:"id"`
	Object  string   `json:"object"`
	Created int64    `json:"created"`
	Model   string   `json:"model"`
	Choices []choice `json:"choices"`
	Usage   *usage   `json:"usage,omitempty"`
}

func (a *answer) send() error {
	if a.reply.Before != "" {
		err := a.m.pass(a.ctx, a.reply.Before)
		if errors.Is(err, errTooManyGates) {
			writeError(a.w, http.StatusServiceUnavailable, err.Error())
			return errNoCompletion
		}
		if err != nil {
			return err
		}
	}
	switch {
	case a.reply.Status != 0:
		maps.Copy(a.w.Header(), a.reply.Header)
		writeError(a.w, a.reply.Status, fmt.Sprintf("the scripted model answers %d on purpose", a.reply.Status))
		return errNoCompletion
	case a.reply.Raw != nil:
		kind := "application/json"
		if a.req.Stream {
			kind = "text/event-stream"
		}
		a.w.Header().Set("Content-Type", kind)
		if _, err := a.w.Write(a.reply.Raw); err != nil {
			return fmt.Errorf("write raw answer: %w", err)
		}
		return errNoCompletion
	case a.req.Stream:
		return a.stream()
	}
	return a.object()
}

func (a *answer) base(object string) completion {
	return completion{
		ID:     "chatcmpl-" + a.m.run + "-" + strconv.FormatInt(a.req.Seq, 10),
		Object: object, Created: a.req.Time.Unix(), Model: a.m.cfg.ModelName,
	}
}

// callID is unique over all models: Hermes keeps ids in a session's history, which outlives this process.
func (a *answer) callID(i int) string {
	return fmt.Sprintf("call_%s_%d_%d", a.m.run, a.req.Seq, i)
}

// tokens counts four bytes as one token, which is what Hermes estimates with too.
func (a *answer) tokens() *usage {
	u := usage{PromptTokens: int64(len(a.req.Body))/4 + 1, CompletionTokens: a.sent/4 + 1}
	u.TotalTokens = u.PromptTokens + u.CompletionTokens
	return &u
}

func (a *answer) object() error {
	text := a.reply.whole()
	a.sent = int64(len(text))
	msg := delta{Role: "assistant", Content: &text}
	for i, c := range a.reply.ToolCalls {
		a.sent += int64(len(c.Arguments))
		msg.ToolCalls = append(msg.ToolCalls, toolCall{ID: a.callID(i), Type: "function", Function: functionCall(c)})
	}
	finish := a.reply.finishReason()
	v := a.base("chat.completion")
	v.Choices = []choice{{Message: &msg, FinishReason: &finish}}
	v.Usage = a.tokens()
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode completion: %w", err)
	}
	a.w.Header().Set("Content-Type", "application/json")
	a.w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if a.reply.Cut {
		if _, err := a.w.Write(b[:len(b)/2]); err != nil {
			return fmt.Errorf("write half a completion: %w", err)
		}
		return errors.Join(errCut, a.out.Flush())
	}
	if _, err := a.w.Write(b); err != nil {
		return fmt.Errorf("write completion: %w", err)
	}
	return nil
}

func (a *answer) stream() error {
	a.w.Header().Set("Content-Type", "text/event-stream")
	a.w.Header().Set("Cache-Control", "no-cache")
	a.w.WriteHeader(http.StatusOK)
	if err := a.out.Flush(); err != nil {
		return fmt.Errorf("write stream header: %w", err)
	}
	fixed := a.deltas()
	if a.reply.Cut {
		fixed = fixed[:(len(fixed)+1)/2]
	}
	for _, d := range fixed {
		if err := a.chunk(d); err != nil {
			return err
		}
	}
	if a.reply.Cut {
		return errCut
	}
	for s := range filler(a.reply.Pad) {
		if err := a.chunk(delta{Content: &s}); err != nil {
			return err
		}
	}
	finish := a.reply.finishReason()
	v := a.base("chat.completion.chunk")
	v.Choices = []choice{{Delta: &delta{}, FinishReason: &finish}}
	if err := a.event(v); err != nil {
		return err
	}
	if a.req.includeUsage {
		v.Choices, v.Usage = []choice{}, a.tokens()
		if err := a.event(v); err != nil {
			return err
		}
	}
	return a.write([]byte("data: [DONE]\n\n"))
}

// deltas are the stream's chunks up to the filler. A call comes as its name, then its arguments in two parts.
func (a *answer) deltas() []delta {
	var out []delta
	for _, s := range pieces(a.reply.Text) {
		out = append(out, delta{Content: &s})
	}
	for i, c := range a.reply.ToolCalls {
		half := len(c.Arguments) / 2
		for half > 0 && c.Arguments[half]&0xC0 == 0x80 { // not inside a rune
			half--
		}
		out = append(out,
			delta{ToolCalls: []toolCall{{Index: &i, ID: a.callID(i), Type: "function", Function: functionCall{Name: c.Name}}}},
			delta{ToolCalls: []toolCall{{Index: &i, Function: functionCall{Arguments: c.Arguments[:half]}}}},
			delta{ToolCalls: []toolCall{{Index: &i, Function: functionCall{Arguments: c.Arguments[half:]}}}})
	}
	if len(out) == 0 {
		empty := ""
		out = append(out, delta{Content: &empty})
	}
	out[0].Role = "assistant"
	return out
}

func (a *answer) chunk(d delta) error {
	if a.reply.Between != "" {
		if err := a.m.pass(a.ctx, a.reply.Between); err != nil {
			return err
		}
	}
	if d.Content != nil {
		a.sent += int64(len(*d.Content))
	}
	for _, c := range d.ToolCalls {
		a.sent += int64(len(c.Function.Arguments))
	}
	v := a.base("chat.completion.chunk")
	v.Choices = []choice{{Delta: &d}}
	return a.event(v)
}

func (a *answer) event(v completion) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode chunk: %w", err)
	}
	return a.write(fmt.Appendf(nil, "data: %s\n\n", b))
}

func (a *answer) write(b []byte) error {
	if err := context.Cause(a.ctx); err != nil {
		return err
	}
	if _, err := a.w.Write(b); err != nil {
		return fmt.Errorf("write chunk: %w", err)
	}
	if err := a.out.Flush(); err != nil {
		return fmt.Errorf("flush chunk: %w", err)
	}
	return nil
}
