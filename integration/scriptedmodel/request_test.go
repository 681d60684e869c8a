package scriptedmodel

import (
	"strings"
	"testing"
)

func TestKindOf(t *testing.T) {
	image := `{"role":"user","content":[{"type":"text","text":"what"},{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}`
	review := user(t, reviewOpening+"update the skill library.\n\nYou can only call some tools. "+reviewEnding)
	bare := func(messages ...string) string { return `{"messages":[` + strings.Join(messages, ",") + `]}` }
	system := `{"role":"system","content":"s"}`
	tests := []struct {
		name, body string
		want       Kind
	}{
		{"text", turnBody(true, user(t, "hi")), KindTurn},
		{"image in a turn", turnBody(true, image), KindTurn},
		{"tool step", turnBody(true, user(t, "hi"), `{"role":"assistant","content":null,"tool_calls":[{"id":"1","function":{"name":"x","arguments":"{}"}}]}`, `{"role":"tool","content":"r"}`), KindTurn},
		{"review", turnBody(true, user(t, "hi"), `{"role":"assistant","content":"ho"}`, review), KindReview},
		{"review's tool step", turnBody(true, review, `{"role":"tool","content":"r"}`), KindReview},
		{"turn after a review's words", turnBody(true, review, user(t, "hi")), KindTurn},
		{"user who asks for a review", turnBody(true, user(t, reviewOpening+"tell me.")), KindTurn},
		{"sub-agent", strings.Replace(turnBody(true, user(t, "goal")), "You are an agent.", `Hi.\n\n`+delegateSystem+`\n\nYOUR TASK`, 1), KindDelegate},
		{"title", bare(system, user(t, "User: hi\n\nAssistant: ho")), KindTitle},
		{"title with empty tools", strings.Replace(bare(system, user(t, "User: hi\n\nAssistant: ho")), "{", `{"tools":[ ],`, 1), KindTitle},
		{"vision", bare(image), KindVision},
		{"summary", bare(user(t, "You are a summarization agent")), KindOther},
		{"system only", bare(system), KindOther},
	}
	for _, tt := range tests {
		r, err := ParseRequest([]byte(tt.body))
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if r.Kind != tt.want {
			t.Errorf("%s: kind = %s, want %s", tt.name, r.Kind, tt.want)
		}
	}
}

func TestMessageText(t *testing.T) {
	for content, want := range map[string]string{
		`"a\u0000b"`: "a\x00b", `null`: "", ``: "", `7`: "",
		`[{"type":"text","text":"a"},{"type":"image_url"},{"type":"text","text":"b"}]`: "a\nb",
	} {
		if got := (Message{Content: []byte(content)}).Text(); got != want {
			t.Errorf("%s: text = %q, want %q", content, got, want)
		}
	}
}

// FuzzParseRequest: hostile bodies are refused or answered, and never panic.
func FuzzParseRequest(f *testing.F) {
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text"}]}],"tools":[ ]}`))
	f.Add([]byte(`{"messages":[{"role":"tool"}],"tools":[1]}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":"RUN:x"}],"tools":[{}]}`))
	f.Fuzz(func(_ *testing.T, body []byte) {
		r, err := ParseRequest(body)
		if err != nil {
			return
		}
		directive(r)
		byRule(r)
		new(unanswered).prompt(r, historyDigest(r))
	})
}
