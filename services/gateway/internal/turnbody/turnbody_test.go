package turnbody

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/gateway/internal/strictjson"
)

func TestParseKeepsExactBytes(t *testing.T) {
	blocks := []string{
		`{"type":"text","text":"hi"}`,
		"{ \"type\" :\t\"text\",\r\n \"text\": \"  \\u00e9 \\ud83d\\ude00 \\/ <&>\u2028 \" }",
		`{"type":"text","text":"x","_meta":{"n":9007199254740993,"e":1.0E+2,"z":-0,"deep":[[{"a\u0062":null}],[]]}}`,
		`{}`,
		`{"text":"]}\\\"[{"}`,
	}
	body := " {\n\"messages\" : [ {\"blocks\":[ " + strings.Join(blocks[:2], " ,\n ") + " ]} , { \"blocks\" : [" +
		strings.Join(blocks[2:], ",") + "]}] , \"busyPolicy\":\"RE\\u004aECT\"}\n"
	sub, err := Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	if sub.BusyPolicy != Reject {
		t.Errorf("busy policy: got %q, want %q", sub.BusyPolicy, Reject)
	}
	var got []string
	for _, m := range sub.Messages {
		for _, b := range m.Blocks {
			got = append(got, string(b))
		}
	}
	if len(sub.Messages) != 2 || len(got) != len(blocks) {
		t.Fatalf("got %d messages with %d blocks, want 2 with %d", len(sub.Messages), len(got), len(blocks))
	}
	for i := range blocks {
		if got[i] != blocks[i] {
			t.Errorf("block %d: got %q, want %q", i, got[i], blocks[i])
		}
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for name, c := range map[string]struct {
		body   string
		reason errs.Reason
		says   string
	}{
		"empty":               {"", strictjson.ReasonInvalidJSON, "ends where a value"},
		"not an object":       {"[]", strictjson.ReasonInvalidField, "the body: must be an object, not an array"},
		"no messages":         {"{}", strictjson.ReasonInvalidField, "messages: is required"},
		"null messages":       {`{"messages":null}`, strictjson.ReasonInvalidField, "messages: must be an array, not null"},
		"unknown field":       {`{"messages":[],"x":1}`, strictjson.ReasonUnknownField, "x: unknown field"},
		"unknown inner field": {`{"messages":[{"blocks":[],"role":"user"}]}`, strictjson.ReasonUnknownField, "messages[0].role"},
		"other case":          {`{"Messages":[]}`, strictjson.ReasonUnknownField, "Messages"},
		"message type":        {`{"messages":[{"blocks":[]},"hi"]}`, strictjson.ReasonInvalidField, "messages[1]: must be an object, not a string"},
		"block type":          {`{"messages":[{"blocks":[{},3]}]}`, strictjson.ReasonInvalidField, "messages[0].blocks[1]: must be an object, not a number"},
		"no blocks":           {`{"messages":[{}]}`, strictjson.ReasonInvalidField, "messages[0].blocks: is required"},
		"busy policy":         {`{"messages":[],"busyPolicy":"enqueue"}`, strictjson.ReasonInvalidField, "busyPolicy"},
		"busy policy type":    {`{"messages":[],"busyPolicy":1}`, strictjson.ReasonInvalidField, "busyPolicy: must be a string, not a number"},
		"duplicate":           {`{"messages":[],"messages":[]}`, strictjson.ReasonDuplicateField, "messages"},
		"escaped duplicate":   {`{"messages":[{"blocks":[{"a":1,"\u0061":2}]}]}`, strictjson.ReasonDuplicateField, "messages[0].blocks[0].a"},
		"bad UTF-8":           {"{\"messages\":[{\"blocks\":[{\"text\":\"\xff\"}]}]}", strictjson.ReasonInvalidUnicode, "UTF-8"},
		"surrogate in UTF-8":  {"{\"messages\":[{\"blocks\":[{\"text\":\"\xed\xa0\x80\"}]}]}", strictjson.ReasonInvalidUnicode, "UTF-8"},
		"lone high":           {`{"messages":[{"blocks":[{"text":"\ud83d"}]}]}`, strictjson.ReasonInvalidUnicode, `messages[0].blocks[0].text: holds the lone surrogate \ud83d`},
		"lone low":            {`{"messages":[{"blocks":[{"text":"\ude00"}]}]}`, strictjson.ReasonInvalidUnicode, "lone surrogate"},
		"high high":           {`{"messages":[{"blocks":[{"text":"\ud83d\ud83d"}]}]}`, strictjson.ReasonInvalidUnicode, "lone surrogate"},
		"lone in a name":      {`{"messages":[{"blocks":[{"\ud83d":1}]}]}`, strictjson.ReasonInvalidUnicode, "lone surrogate"},
		"trailing":            {`{"messages":[]} {}`, strictjson.ReasonInvalidJSON, "unexpected data after"},
		"byte order mark":     {"\ufeff{}", strictjson.ReasonInvalidJSON, "a value"},
		"control character":   {"{\"messages\":[{\"blocks\":[{\"text\":\"a\nb\"}]}]}", strictjson.ReasonInvalidJSON, "control character"},
		"leading zero":        {`{"messages":[{"blocks":[{"a":01}]}]}`, strictjson.ReasonInvalidJSON, "byte"},
		"trailing comma":      {`{"messages":[],}`, strictjson.ReasonInvalidJSON, "a name"},
		"truncated":           {`{"messages":[{"blocks":[{"text":"a`, strictjson.ReasonInvalidJSON, "end of a string"},
		"too deep":            {`{"messages":[{"blocks":[{"a":` + deep + `}]}]}`, strictjson.ReasonInvalidJSON, "nests deeper"},
		"NaN":                 {`{"messages":[{"blocks":[{"a":NaN}]}]}`, strictjson.ReasonInvalidJSON, "byte"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.body))
			if got := errs.ReasonOf(err); got != c.reason {
				t.Fatalf("got reason %q (%v), want %q", got, err, c.reason)
			}
			if errs.KindOf(err) != errs.Invalid {
				t.Errorf("got kind %v, want %v", errs.KindOf(err), errs.Invalid)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("got message %q, want it to say %q", err, c.says)
			}
		})
	}
}

func TestManyNamesStayLinear(t *testing.T) {
	var b strings.Builder
	b.WriteString(`{"messages":[{"blocks":[{`)
	for i := range 200_000 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(`"k`)
		b.WriteString(strings.Repeat("x", i%7))
		b.WriteString(strconv.Itoa(i))
		b.WriteString(`":1`)
	}
	b.WriteString(`,"k0":2}]}]}`)
	if _, err := Parse([]byte(b.String())); errs.ReasonOf(err) != strictjson.ReasonDuplicateField {
		t.Fatalf("got %v, want a duplicate field", err)
	}
}

// FuzzParse holds the parser against encoding/json: it never panics, what it accepts encoding/json
// accepts with the same blocks byte for byte, and what it calls a syntax error encoding/json
// refuses too, nesting aside.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		`{"messages":[{"blocks":[{"type":"text","text":"a\ud83d\ude00"}]}],"busyPolicy":"REJECT"}`,
		`{"messages":[ {"blocks":[ {} , {"a":[1,-0.5e+7,true,false,null,"]"]} ]} ]}`,
		`{"messages":[{"blocks":[{"a":1,"a":2}]}]}`, `{"messages":[]}x`, `{"\u006dessages":[]}`, "", "[", `{"a":"\ud800"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		sub, err := Parse(body)
		if err != nil {
			if errs.ReasonOf(err) == strictjson.ReasonInvalidJSON && json.Valid(body) && !strings.Contains(err.Error(), "nests deeper") {
				t.Fatalf("encoding/json accepts %q: %v", body, err)
			}
			if errs.ReasonOf(err) == "" {
				t.Fatalf("error without a reason: %v", err)
			}
			return
		}
		if !utf8.Valid(body) {
			t.Fatalf("accepted bad UTF-8: %q", body)
		}
		var want struct {
			Messages []struct {
				Blocks []json.RawMessage `json:"blocks"`
			} `json:"messages"`
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatalf("accepted what encoding/json refuses: %q: %v", body, err)
		}
		if len(want.Messages) != len(sub.Messages) {
			t.Fatalf("got %d messages, want %d", len(sub.Messages), len(want.Messages))
		}
		for i, m := range want.Messages {
			if len(m.Blocks) != len(sub.Messages[i].Blocks) {
				t.Fatalf("message %d: got %d blocks, want %d", i, len(sub.Messages[i].Blocks), len(m.Blocks))
			}
			for j, b := range m.Blocks {
				if !bytes.Equal(b, sub.Messages[i].Blocks[j]) {
					t.Fatalf("block %d.%d: got %q, want %q", i, j, sub.Messages[i].Blocks[j], b)
				}
			}
		}
	})
}
