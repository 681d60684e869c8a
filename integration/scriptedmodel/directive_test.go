package scriptedmodel

import (
	"reflect"
	"strings"
	"testing"
)

func parse(t *testing.T, body string) Request {
	t.Helper()
	r, err := ParseRequest([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestDirectives(t *testing.T) {
	tests := []struct {
		prompt string
		want   Reply
	}{
		{"RUN:ls -la | wc", Call("terminal", map[string]string{"command": "ls -la | wc"})},
		{"  RUN:a\nb\n", Call("terminal", map[string]string{"command": "a\nb"})},
		{"WRITE:a/b.txt|x|y\nz", Call("write_file", map[string]string{"path": "a/b.txt", "content": "x|y\nz"})},
		{`TOOL:mcp__kb__find {"q": 1e2}`, Calls(ToolCall{Name: "mcp__kb__find", Arguments: `{"q": 1e2}`})},
		{"TOOL:todo", Calls(ToolCall{Name: "todo", Arguments: "{}"})},
		{"PARALLEL:\nRUN:a\n\nTOOL:todo", Calls(NewToolCall("terminal", map[string]string{"command": "a"}), ToolCall{Name: "todo", Arguments: "{}"})},
		{"STEPS:\nRUN:a\nTOOL:todo", Call("terminal", map[string]string{"command": "a"})},
		{"SAY: as it is", Text(" as it is")},
		{"FAIL:503", Fail(503)},
		{"SLOW:g.1|a b", Reply{Text: "a b", Between: "g.1"}},
		{"LONG:7", Long(7)},
		{"GARBAGE", Garbage()},
	}
	for _, tt := range tests {
		got, ok := directive(parse(t, turnBody(true, user(t, tt.prompt))))
		if !ok || !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%q: got %+v, %v; want %+v", tt.prompt, got, ok, tt.want)
		}
	}
	for prompt, check := range map[string]func(Reply) bool{
		"HANG":      func(r Reply) bool { return r.Before == DefaultGate },
		"HANG:mine": func(r Reply) bool { return r.Before == "mine" },
		"HALF":      func(r Reply) bool { return r.Cut && r.Text != "" },
		"LENGTH":    func(r Reply) bool { return r.FinishReason == "length" },
	} {
		if got, ok := directive(parse(t, turnBody(true, user(t, prompt)))); !ok || !check(got) {
			t.Errorf("%q: got %+v, %v", prompt, got, ok)
		}
	}
}

func TestMalformedDirectivesExplainThemselves(t *testing.T) {
	for _, prompt := range []string{
		"RUN:", "WRITE:nobar", "WRITE:|x", "TOOL:", "TOOL:x {", "STEPS:", "PARALLEL:\nhello", "FAIL:200", "FAIL:x", "FAIL:",
		"HANG:", "HANG:a b", "HANG:" + strings.Repeat("a", 65), "SLOW:g", "SLOW:|x", "LONG:0", "LONG:-1", "LONG:99999999999",
		"STEPS:" + strings.Repeat("\nRUN:a", maxSteps+1),
	} {
		got, ok := directive(parse(t, turnBody(true, user(t, prompt))))
		if !ok || !strings.HasPrefix(got.Text, "I can't follow that directive: ") || !strings.HasSuffix(got.Text, signature) {
			t.Errorf("%q: got %+v, %v; want an explanation", prompt, got, ok)
		}
	}
}

func TestOrdinaryTextsAreNoDirectives(t *testing.T) {
	for _, prompt := range []string{"", "hello", "HANGOUT", "HALF of it", "please RUN:ls", "run:ls", "Note: RUN:ls", "\u200bRUN:ls", "/RUN:ls"} {
		if got, ok := directive(parse(t, turnBody(true, user(t, prompt)))); ok {
			t.Errorf("%q: got %+v, want no directive", prompt, got)
		}
	}
}

const (
	calledTool = `{"role":"assistant","content":"","tool_calls":[{"id":"c","function":{"name":"terminal","arguments":"{}"}}]}`
	toolSaid   = `{"role":"tool","tool_call_id":"c","content":"RUN:from the tool"}`
)

func TestOnlyTheLastUserMessageCounts(t *testing.T) {
	_, base := start(t, Config{})
	ho := `{"role":"assistant","content":"ho"}`
	if got := ask(t, base, turnBody(true, user(t, "FAIL:500"), ho, user(t, "hi"))); !strings.Contains(got.text, "You wrote:\n\nhi\n\n") {
		t.Errorf("answer = %+v, want an echo", got)
	}
	got := ask(t, base, turnBody(true, user(t, "RUN:x"), calledTool, toolSaid))
	if len(got.calls) != 0 || !strings.Contains(got.text, "RUN:from the tool") {
		t.Errorf("after the tool: %+v, want its result told", got)
	}
	prompt := user(t, "STEPS:\nRUN:a\nRUN:b")
	got = ask(t, base, turnBody(true, prompt, calledTool, toolSaid))
	if len(got.calls) != 1 || got.calls[0].Arguments != `{"command":"b"}` {
		t.Errorf("second step: %+v, want a call of b", got)
	}
	if got = ask(t, base, turnBody(true, prompt, calledTool, toolSaid, calledTool, toolSaid)); len(got.calls) != 0 {
		t.Errorf("after the last step: %+v, want no call", got)
	}
	noTools := strings.Replace(turnBody(true, user(t, "RUN:x")), `"tools":`+someTools, `"tools":null`, 1)
	if got = ask(t, base, noTools); len(got.calls) != 0 {
		t.Errorf("without tools: %+v, want no call", got)
	}
}

func TestDemoAnswersNameTheScriptedModel(t *testing.T) {
	_, base := start(t, Config{})
	for name, body := range map[string]string{
		"first":        turnBody(true, user(t, "hello\n👋 there")),
		"later":        turnBody(true, user(t, "a"), `{"role":"assistant","content":"b"}`, user(t, "hello\n👋 there")),
		"tool":         turnBody(true, user(t, "hello\n👋 there"), calledTool, toolSaid),
		"continuation": turnBody(true, user(t, "a"), `{"role":"assistant","content":"b"}`, user(t, "[System: Continue.]")),
		"title":        `{"messages":[{"role":"system","content":"s"},` + user(t, "User: hello you\n\nAssistant: x") + `]}`,
	} {
		one, two := ask(t, base, body), ask(t, base, body)
		if !strings.Contains(strings.ToLower(one.text), "scripted demo") || one.text != two.text {
			t.Errorf("%s: answers %q and %q", name, one.text, two.text)
		}
		if (name == "first" || name == "later") && !strings.Contains(one.text, "hello\n👋 there") {
			t.Errorf("%s: %q doesn't hold the user's text", name, one.text)
		}
	}
	long := ask(t, base, turnBody(true, user(t, strings.Repeat("é", 10_000))))
	if len(long.text) > 3*maxEcho || !strings.Contains(long.text, "(10000 characters in all)") {
		t.Errorf("echo of a long text: %d bytes", len(long.text))
	}
}
