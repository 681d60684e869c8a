package acp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"unicode/utf8"

	sdk "github.com/coder/acp-go-sdk"

	"humanwork.internal/pkg/errs"
)

// ReasonInvalidBlock means: a content block is not one line of JSON holding one object.
const ReasonInvalidBlock errs.Reason = "INVALID_BLOCK"

// envelope is any JSON-RPC 2.0 message.
type envelope struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *RPCError       `json:"error"`
}

// RPCError is an agent's JSON-RPC error answer. Its message is the agent's own text: it may quote
// a prompt, so it is for debugging and not for callers.
type RPCError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// Error gives the code only.
func (e *RPCError) Error() string { return fmt.Sprintf("the agent answered JSON-RPC error %d", e.Code) }

// Update is one live update of a prompt: either a piece of the agent's text or a tool call's state.
type Update struct {
	Text string
	Tool *Tool
}

// Tool is what an update said of a tool call. Fields an update left out are empty.
type Tool struct{ ID, Title, Kind, Status string }

// CheckBlock refuses a content block that could not go into a prompt as it is: blocks are written
// byte for byte into one line.
func CheckBlock(block []byte) error {
	switch {
	case len(block) == 0 || block[0] != '{' || block[len(block)-1] != '}':
		return errs.New(errs.Invalid, ReasonInvalidBlock, "a content block is not a JSON object")
	case bytes.ContainsAny(block, "\n\r"):
		return errs.New(errs.Invalid, ReasonInvalidBlock, "a content block holds a line break between tokens")
	case !utf8.Valid(block):
		return errs.New(errs.Invalid, ReasonInvalidBlock, "a content block is not UTF-8")
	case !json.Valid(block):
		return errs.New(errs.Invalid, ReasonInvalidBlock, "a content block is not JSON")
	}
	return nil
}

func requestLine(id int64, method string, params any) ([]byte, error) {
	return line(struct {
		JSONRPC string `json:"jsonrpc"`
		ID      int64  `json:"id"`
		Method  string `json:"method"`
		Params  any    `json:"params"`
	}{"2.0", id, method, params})
}

// promptLine builds session/prompt around the blocks' own bytes. The SDK's PromptRequest would
// decode and encode them again, which changes escapes, key order, spacing and large numbers.
func promptLine(id int64, session string, blocks [][]byte) ([]byte, error) {
	name, err := json.Marshal(session)
	if err != nil {
		return nil, fmt.Errorf("encode the session id: %w", err)
	}
	size := 128 + len(name)
	for _, b := range blocks {
		size += len(b) + 1
	}
	out := make([]byte, 0, size)
	out = fmt.Appendf(out, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":{"sessionId":%s,"prompt":[`, id, sdk.AgentMethodSessionPrompt, name)
	for i, b := range blocks {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, b...)
	}
	return append(out, "]}}\n"...), nil
}

func notificationLine(method string, params any) ([]byte, error) {
	return line(struct {
		JSONRPC string `json:"jsonrpc"`
		Method  string `json:"method"`
		Params  any    `json:"params"`
	}{"2.0", method, params})
}

func resultLine(id json.RawMessage, result any) ([]byte, error) {
	return line(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Result  any             `json:"result"`
	}{"2.0", id, result})
}

func errorLine(id json.RawMessage, code int, message string) ([]byte, error) {
	return line(struct {
		JSONRPC string          `json:"jsonrpc"`
		ID      json.RawMessage `json:"id"`
		Error   RPCError        `json:"error"`
	}{"2.0", id, RPCError{Code: code, Message: message}})
}

func line(message any) ([]byte, error) {
	b, err := json.Marshal(message)
	if err != nil {
		return nil, fmt.Errorf("encode an ACP message: %w", err)
	}
	return append(b, '\n'), nil
}

// notification is a session/update as far as this client cares.
type notification struct {
	session string
	update  Update
	shown   bool // update is for people's live view
	work    bool // the agent is at work on a prompt
}

// decodeUpdate reads a session/update. The SDK's SessionUpdate is not used because it fails on a
// kind it does not know.
func decodeUpdate(params json.RawMessage) (notification, error) {
	var wire struct {
		SessionID string `json:"sessionId"`
		Update    struct {
			Kind    string          `json:"sessionUpdate"`
			Content json.RawMessage `json:"content"`
			ID      string          `json:"toolCallId"`
			Title   string          `json:"title"`
			Tool    string          `json:"kind"`
			Status  string          `json:"status"`
		} `json:"update"`
	}
	if err := json.Unmarshal(params, &wire); err != nil {
		return notification{}, fmt.Errorf("decode a session update: %w", err)
	}
	n := notification{session: wire.SessionID}
	switch u := wire.Update; u.Kind {
	case "agent_message_chunk":
		var c struct{ Type, Text string }
		if err := json.Unmarshal(u.Content, &c); err != nil {
			return notification{}, fmt.Errorf("decode a message chunk: %w", err)
		}
		n.work = true
		n.update.Text = c.Text
		n.shown = c.Type == "text" && c.Text != ""
	case "agent_thought_chunk":
		n.work = true
	case "tool_call", "tool_call_update":
		n.work = true
		n.update.Tool = &Tool{ID: u.ID, Title: u.Title, Kind: u.Tool, Status: u.Status}
		n.shown = u.ID != ""
	}
	return n, nil
}

// decidePermission picks the offered option whose kind is allow_once, whatever its place or name.
// Nothing is ever allowed for longer than once.
func decidePermission(params json.RawMessage, cancelled bool) sdk.RequestPermissionResponse {
	var p struct {
		Options []struct {
			Kind sdk.PermissionOptionKind `json:"kind"`
			ID   sdk.PermissionOptionId   `json:"optionId"`
		} `json:"options"`
	}
	if !cancelled && json.Unmarshal(params, &p) == nil {
		for _, o := range p.Options {
			if o.Kind == sdk.PermissionOptionKindAllowOnce {
				return sdk.RequestPermissionResponse{Outcome: sdk.NewRequestPermissionOutcomeSelected(o.ID)}
			}
		}
	}
	return sdk.RequestPermissionResponse{Outcome: sdk.NewRequestPermissionOutcomeCancelled()}
}
