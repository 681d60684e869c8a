package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// DefaultGate is the gate of a HANG directive that names none.
const DefaultGate = "hang"

const (
	maxLong  = 64 << 20
	maxEcho  = 2000 // runes of a user's text repeated in an answer
	maxSteps = 32
)

var gateName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// directive answers a turn request whose prompt starts with a directive; ok is false when it doesn't.
func directive(r Request) (reply Reply, ok bool) {
	prompt := strings.TrimSpace(r.Prompt)
	word, rest, colon := strings.Cut(prompt, ":")
	if !colon {
		switch prompt {
		case "HANG":
			return Hang(DefaultGate, "The gate was released. "+signature), true
		case "HALF":
			return Half("This answer of the scripted demo model breaks off before its end."), true
		case "GARBAGE":
			return Garbage(), true
		case "LENGTH":
			return Length("This answer of the scripted demo model reached its output limit"), true
		}
		return Reply{}, false
	}
	var err error
	switch word {
	case "RUN", "WRITE", "TOOL":
		var call ToolCall
		if call, err = toolDirective(prompt); err == nil {
			return steps(r, [][]ToolCall{{call}}), true
		}
	case "PARALLEL", "STEPS":
		var calls []ToolCall
		if calls, err = toolLines(rest); err == nil {
			plan := [][]ToolCall{calls}
			if word == "STEPS" {
				plan = nil
				for _, c := range calls {
					plan = append(plan, []ToolCall{c})
				}
			}
			return steps(r, plan), true
		}
	case "SAY":
		return Text(rest), true
	case "FAIL":
		var status int
		status, err = strconv.Atoi(rest)
		if err == nil && status >= 400 && status <= 599 {
			return Fail(status), true
		}
		err = fmt.Errorf("FAIL needs an HTTP status from 400 to 599, as in FAIL:%d", http.StatusInternalServerError)
	case "HANG":
		if gateName.MatchString(rest) {
			return Hang(rest, "The gate was released. "+signature), true
		}
		err = fmt.Errorf("HANG needs the name of a gate: %s", gateName)
	case "SLOW":
		gate, text, bar := strings.Cut(rest, "|")
		if bar && gateName.MatchString(gate) {
			return Reply{Text: text, Between: gate}, true
		}
		err = fmt.Errorf("SLOW needs a gate and a text, as in SLOW:gate|some words")
	case "LONG":
		var n int64
		n, err = strconv.ParseInt(rest, 10, 64)
		if err == nil && n > 0 && n <= maxLong {
			return Long(n), true
		}
		err = fmt.Errorf("LONG needs a number of bytes from 1 to %d", maxLong)
	default:
		return Reply{}, false
	}
	return Text(fmt.Sprintf("I can't follow that directive: %v. %s", err, signature)), true
}

// steps calls the plan's tools one answer after another, then tells what the tools said.
func steps(r Request, plan [][]ToolCall) Reply {
	if len(r.Tools) > 0 && r.toolSteps() < len(plan) {
		return Calls(plan[r.toolSteps()]...)
	}
	results := r.toolResults()
	if len(results) == 0 {
		return Text("No tool answered. " + signature)
	}
	for i, s := range results {
		results[i] = clip(s, maxEcho)
	}
	return Text("The tool answered:\n\n" + strings.Join(results, "\n\n") + "\n\n" + signature)
}

func toolDirective(s string) (ToolCall, error) {
	word, rest, _ := strings.Cut(s, ":")
	switch word {
	case "RUN":
		if strings.TrimSpace(rest) == "" {
			return ToolCall{}, fmt.Errorf("RUN needs a command, as in RUN:ls -la")
		}
		return NewToolCall("terminal", map[string]string{"command": rest}), nil
	case "WRITE":
		path, text, bar := strings.Cut(rest, "|")
		if !bar || strings.TrimSpace(path) == "" {
			return ToolCall{}, fmt.Errorf("WRITE needs a path and a text, as in WRITE:notes.txt|some text")
		}
		return NewToolCall("write_file", map[string]string{"path": path, "content": text}), nil
	case "TOOL":
		name, args, _ := strings.Cut(rest, " ")
		if args = strings.TrimSpace(args); args == "" {
			args = "{}"
		}
		if name == "" || !json.Valid([]byte(args)) {
			return ToolCall{}, fmt.Errorf(`TOOL needs a name and JSON arguments, as in TOOL:todo {"todos": []}`)
		}
		return ToolCall{Name: name, Arguments: args}, nil
	}
	return ToolCall{}, fmt.Errorf("%q isn't RUN, WRITE or TOOL", clip(word, 40))
}

func toolLines(s string) ([]ToolCall, error) {
	var calls []ToolCall
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		c, err := toolDirective(line)
		if err != nil {
			return nil, err
		}
		calls = append(calls, c)
	}
	if len(calls) == 0 || len(calls) > maxSteps {
		return nil, fmt.Errorf("give 1 to %d lines of RUN, WRITE or TOOL", maxSteps)
	}
	return calls, nil
}

const (
	signature    = "(Scripted demo model: fixed rules, no real language model.)"
	introduction = "Hello! I am the scripted demo model of Humanwork. I follow fixed rules; no real language model is behind me."
	// continuation begins the user message with which Hermes asks for the rest of an answer that was cut off.
	continuation = "[System: "
	invitation   = "Send RUN:ls -la or WRITE:notes.txt|hello to see the agent use its tools."
)

// byRule is the answer without any script or directive.
func byRule(r Request) Reply {
	switch r.Kind {
	case KindTurn, KindDelegate:
		return Text(echo(r))
	case KindTitle:
		first, _, _ := strings.Cut(strings.TrimPrefix(r.UserText, "User: "), "\n")
		words := strings.Fields(first)
		return Text("Scripted demo: " + clip(strings.Join(words[:min(len(words), 5)], " "), 50))
	case KindVision:
		return Text("An image. The scripted demo model can't see what it shows.")
	case KindReview:
		return Text("Nothing to save.")
	}
	return Text("The conversation so far, as the scripted demo model sums it up: nothing is left to do.")
}

func echo(r Request) string {
	if r.toolSteps() > 0 {
		return steps(r, nil).Text
	}
	if strings.HasPrefix(r.Prompt, continuation) {
		return " … and this is the rest of it. " + signature
	}
	said := "You wrote:\n\n" + clip(r.Prompt, maxEcho) + "\n\n"
	if r.userMessages() > 1 {
		return said + signature
	}
	return introduction + " " + said + invitation
}

// clip shortens s to at most n runes and says so.
func clip(s string, n int) string {
	total := utf8.RuneCountInString(s)
	if total <= n {
		return s
	}
	return fmt.Sprintf("%s … (%d characters in all)", string([]rune(s)[:n]), total)
}

// DirectiveHelp describes the directives, one a line.
const DirectiveHelp = `  RUN:command             calls the terminal tool, then tells what it said
  WRITE:path|text         calls write_file
  TOOL:name {"arg": 1}    calls any tool
  STEPS:                  calls the tools of the RUN, WRITE and TOOL lines that follow, one after another
  PARALLEL:               calls them in one answer
  SAY:text                answers that text
  LONG:bytes              answers that much text
  FAIL:status             answers an HTTP error
  HANG or HANG:gate       answers nothing until the gate is released
  SLOW:gate|text          passes the gate before each word
  HALF                    breaks the connection in the middle of the answer
  GARBAGE                 answers bytes that are no completion
  LENGTH                  answers as if the output limit was reached
`
