package holder

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
)

// fakeAgent speaks ACP and misbehaves on request: mode is for the process, the first word of a
// prompt's text for that prompt.
func fakeAgent(mode string, stdin io.Reader, stdout *os.File, stderr io.Writer) int {
	mode = strings.TrimPrefix(mode, "mode:")
	if mode == "exit-at-start" {
		return 3
	}
	a := &agent{in: bufio.NewReaderSize(stdin, 1<<20), out: stdout, err: stderr, mode: mode}
	for {
		m, ok := a.read()
		if !ok {
			if mode == "ignore-eof" {
				forever()
			}
			return 0
		}
		switch m.Method {
		case "initialize":
			switch mode {
			case "exit-at-initialize":
				return 4
			case "silent-at-initialize":
				forever()
			}
			a.send(`{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":1}}`, m.ID)
		case "session/new":
			switch mode {
			case "exit-at-session":
				return 5
			case "error-at-session":
				a.send(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"no"}}`, m.ID)
				continue
			}
			a.sessions++
			a.send(`{"jsonrpc":"2.0","id":%s,"result":{"sessionId":"session-%d"}}`, m.ID, a.sessions)
		case "session/prompt":
			a.prompt(m)
		}
	}
}

func forever() { time.Sleep(time.Hour) }

type agent struct {
	in       *bufio.Reader
	out      *os.File
	err      io.Writer
	mode     string
	sessions int
}

type wire struct {
	ID     json.RawMessage
	Method string
	Params struct {
		SessionID string
		Prompt    []struct{ Text string }
	}
	Result json.RawMessage
	Error  json.RawMessage
}

func (a *agent) read() (wire, bool) {
	line, err := a.in.ReadBytes('\n')
	if err != nil {
		return wire{}, false
	}
	var m wire
	if err := json.Unmarshal(line, &m); err != nil {
		panic(err)
	}
	return m, true
}

func (a *agent) send(format string, args ...any) {
	_, _ = fmt.Fprintf(a.out, format+"\n", args...)
}

func (a *agent) chunk(session, text string) {
	quoted, _ := json.Marshal(text)
	a.send(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%s}}}}`, session, quoted)
}

func (a *agent) prompt(m wire) {
	session := m.Params.SessionID
	word, rest, _ := strings.Cut(m.Params.Prompt[0].Text, " ")
	answer := func(stop string) { a.send(`{"jsonrpc":"2.0","id":%s,"result":{"stopReason":%q}}`, m.ID, stop) }
	echo := func() { a.chunk(session, rest); answer("end_turn") }
	switch word {
	case "exit":
		a.chunk(session, "started")
		os.Exit(6)
	case "answer-and-exit":
		echo()
		os.Exit(0)
	case "garbage":
		a.send("Traceback (most recent call last):\n[1,2]\n{}\n\n{\"id\":null}\n{\"method\":7}\n\"text\"")
		echo()
	case "utf8":
		a.send("{\"jsonrpc\":\"2.0\",\"method\":\"session/update\",\"params\":{\"sessionId\":%q,\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"text\":\"\xff\"}}}}", session)
		echo()
	case "huge":
		_, _ = a.out.Write(bytes.Repeat([]byte("x"), 100<<20))
		a.send("")
		echo()
	case "stderr":
		_, _ = a.err.Write(bytes.Repeat([]byte("y"), 4<<20))
		_, _ = a.err.Write(bytes.Repeat([]byte("line of standard error\n"), 100_000))
		echo()
	case "close-stdout":
		_ = a.out.Close()
		forever()
	case "twice":
		echo()
		answer("end_turn")
	case "hang":
		a.chunk(session, "started")
		forever()
	case "wait-cancel":
		a.chunk(session, "started")
		a.awaitCancel()
		answer("cancelled")
	case "forget-cancel": // Hermes before it has begun a prompt
		a.awaitCancel()
		a.chunk(session, "started")
		a.awaitCancel()
		answer("cancelled")
	case "permission", "cancelled-permission":
		if word == "cancelled-permission" {
			a.chunk(session, "started")
			a.awaitCancel()
		}
		a.send(`{"jsonrpc":"2.0","id":"p-1","method":"session/request_permission","params":{"sessionId":%q,"options":%s,"toolCall":{"toolCallId":"t"}}}`, session, rest)
		for {
			r, ok := a.read()
			if !ok {
				os.Exit(7)
			}
			if string(r.ID) == `"p-1"` {
				a.chunk(session, string(r.Result))
				break
			}
		}
		answer("end_turn")
	case "unknown-request":
		a.send(`{"jsonrpc":"2.0","id":99,"method":"fs/read_text_file","params":{}}`)
		r, _ := a.read()
		a.chunk(session, string(r.Error))
		answer("end_turn")
	case "error":
		a.send(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32603,"message":"secret text"}}`, m.ID)
	case "bad-answer":
		a.send(`{"jsonrpc":"2.0","id":%s,"result":{"stopReason":4}}`, m.ID)
	case "refuse":
		answer("refusal")
	case "stray":
		a.chunk("another", "of another session")
		echo()
	case "tool":
		a.send(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"tool_call","toolCallId":"t1","title":"ls","kind":"execute","status":"pending","content":[{"type":"new"}]}}}`, session)
		a.send(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"some_future_kind"}}}`, session)
		echo()
	case "flood":
		for i := range 5000 {
			a.chunk(session, fmt.Sprintf("%d;", i))
		}
		answer("end_turn")
	default:
		a.chunk(session, m.Params.Prompt[0].Text)
		answer("end_turn")
	}
}

func (a *agent) awaitCancel() {
	for {
		m, ok := a.read()
		if !ok {
			os.Exit(8)
		}
		if m.Method == "session/cancel" {
			return
		}
	}
}
