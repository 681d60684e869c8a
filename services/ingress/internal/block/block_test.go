package block

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
)

func TestParseAccepts(t *testing.T) {
	for name, raw := range map[string]string{
		"text":              `{"type":"text","text":" a\r\n\tb "}`,
		"text, empty":       `{"type":"text","text":""}`,
		"surrogate pair":    `{"type":"text","text":"\ud83d\ude00 \u200b"}`,
		"escaped backslash": `{"type":"text","text":"\\ud800 \\u0000"}`,
		"large number":      `{"type":"text","text":"x","_meta":{"n":9007199254740993,"f":1.50e+3,"deep":[[{"a":null}]]}}`,
		"annotations":       `{"type":"text","text":"x","annotations":{"audience":["user","assistant"],"priority":0.5,"lastModified":"x","_meta":{}}}`,
		"nulls":             `{"type":"text","text":"x","annotations":null,"_meta":null}`,
		"image":             `{"type":"image","data":"aGk=","mimeType":"image/png","uri":"https://x/y"}`,
		"audio":             `{"type":"audio","data":"aGk=","mimeType":"audio/wav"}`,
		"link":              `{"type":"resource_link","uri":"https://example.com/a?b#c","name":"n","size":12,"title":"t","description":"d","mimeType":"a/b"}`,
		"resource text":     `{"type":"resource","resource":{"uri":"urn:x","text":"body"}}`,
		"resource blob":     `{"type":"resource","resource":{"uri":"urn:x","blob":"","mimeType":"a/b","_meta":{"a":1}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			b, err := Parse([]byte(" "+strings.Replace(raw, ":", " :\t", 1)+"\n"), "b", DefaultLimits())
			if err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if string(b.Raw) != raw {
				t.Errorf("Raw = %s, want %s", b.Raw, raw)
			}
			if b.SHA256 != sha256.Sum256([]byte(raw)) {
				t.Error("SHA256 is not that of the compacted bytes")
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	deep := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	for name, c := range map[string]struct {
		raw  string
		code Code
		want string
	}{
		"not JSON":            {`{"type":`, Malformed, "b: is not valid JSON"},
		"two values":          {`{"type":"text","text":"x"}{}`, Malformed, "b: is not valid JSON"},
		"array":               {`[]`, Malformed, "b: must be an object, not an array"},
		"null":                {`null`, Malformed, "b: must be an object, not null"},
		"no type":             {`{"text":"x"}`, Malformed, "b.type: is required"},
		"type not a string":   {`{"type":1}`, Malformed, "b.type: must be a string, not a number"},
		"unknown type":        {`{"type":"video"}`, Malformed, `b.type: unknown block type "video"`},
		"unknown field":       {`{"type":"text","text":"x","foo":1}`, Malformed, "b.foo: unknown field"},
		"case of a field":     {`{"type":"text","Text":"x"}`, Malformed, "b.Text: unknown field"},
		"unknown annotation":  {`{"type":"text","text":"x","annotations":{"foo":1}}`, Malformed, "b.annotations.foo: unknown field"},
		"duplicate":           {`{"type":"text","text":"x","text":"y"}`, Malformed, "b.text: duplicate key"},
		"duplicate, escaped":  {`{"type":"text","text":"x","te\u0078t":"y"}`, Malformed, "b.text: duplicate key"},
		"duplicate in meta":   {`{"type":"text","text":"x","_meta":{"a":[{"b":1,"b":2}]}}`, Malformed, "b._meta.a[0].b: duplicate key"},
		"no text":             {`{"type":"text"}`, Malformed, "b.text: is required"},
		"null text":           {`{"type":"text","text":null}`, Malformed, "b.text: must be a string, not null"},
		"lone surrogate":      {`{"type":"text","text":"\ud800"}`, Malformed, `b.text: lone surrogate \ud800 is not valid Unicode`},
		"lone low surrogate":  {`{"type":"text","text":"\udc00x"}`, Malformed, `b.text: lone surrogate \udc00 is not valid Unicode`},
		"two high surrogates": {`{"type":"text","text":"\ud800\ud800"}`, Malformed, `b.text: lone surrogate \ud800 is not valid Unicode`},
		"surrogate in a key":  {`{"type":"text","text":"x","_meta":{"\ud800":1}}`, Malformed, `b._meta: lone surrogate \ud800 is not valid Unicode`},
		"escaped NUL":         {`{"type":"text","text":"a\u0000"}`, Malformed, "b.text: NUL is not allowed"},
		"raw NUL":             {"{\"type\":\"text\",\"text\":\"a\x00\"}", Malformed, "b: is not valid JSON"},
		"bad UTF-8":           {"{\"type\":\"text\",\"text\":\"a\xff\"}", Malformed, "b: is not valid UTF-8"},
		"encoded surrogate":   {"{\"type\":\"text\",\"text\":\"\xed\xa0\x80\"}", Malformed, "b: is not valid UTF-8"},
		"deep":                {`{"type":"text","text":"x","_meta":{"a":` + deep + `}}`, TooLarge, "nested deeper than 64"},
		"long text":           {`{"type":"text","text":"` + strings.Repeat("x", 1<<20+1) + `"}`, TooLarge, "b.text: more than 1048576 bytes of text"},
		"bad base64":          {`{"type":"image","data":"aGk","mimeType":"image/png"}`, Malformed, "b.data: is not base64"},
		"base64 with newline": {`{"type":"image","data":"aG\nk=","mimeType":"image/png"}`, Malformed, "b.data: is not base64"},
		"loose base64 bits":   {`{"type":"image","data":"aGl=","mimeType":"image/png"}`, Malformed, "b.data: is not base64"},
		"no image data":       {`{"type":"image","data":"","mimeType":"image/png"}`, Malformed, "b.data: must not be empty"},
		"no mime type":        {`{"type":"audio","data":"aGk="}`, Malformed, "b.mimeType: is required"},
		"meta not an object":  {`{"type":"text","text":"x","_meta":[]}`, Malformed, "b._meta: must be an object, not an array"},
		"audience":            {`{"type":"text","text":"x","annotations":{"audience":["system"]}}`, Malformed, `b.annotations.audience[0]: must be "user" or "assistant"`},
		"priority":            {`{"type":"text","text":"x","annotations":{"priority":"1"}}`, Malformed, "b.annotations.priority: must be a number, not a string"},
		"size":                {`{"type":"resource_link","uri":"urn:x","name":"n","size":1.5}`, Malformed, "b.size: must be a whole number of bytes"},
		"both contents":       {`{"type":"resource","resource":{"uri":"urn:x","text":"a","blob":""}}`, Malformed, "b.resource: needs exactly one of text and blob"},
		"text resource field": {`{"type":"resource","resource":{"uri":"urn:x","text":"a","name":"n"}}`, Malformed, "b.resource.name: unknown field"},
		"path":                {`{"type":"resource_link","uri":"/etc/passwd","name":"n"}`, FileURI, "b.uri: has no scheme"},
		"relative path":       {`{"type":"resource_link","uri":"notes.txt","name":"n"}`, FileURI, "b.uri: has no scheme"},
		"drive":               {`{"type":"resource_link","uri":"C:\\x","name":"n"}`, FileURI, "b.uri: has no scheme"},
		"tab in the scheme":   {`{"type":"resource_link","uri":"fi\tle:///etc/passwd","name":"n"}`, Malformed, "b.uri: holds white space"},
		"leading space":       {`{"type":"resource_link","uri":" file:///etc/passwd","name":"n"}`, Malformed, "b.uri: holds white space"},
		"file outside":        {`{"type":"resource_link","uri":"file:///etc/passwd","name":"n"}`, FileURI, "b.uri: "},
		"file scheme's case":  {`{"type":"resource_link","uri":"FILE:///workspace/a","name":"n"}`, FileURI, "b.uri: "},
		"file, dots":          {`{"type":"resource_link","uri":"file:///workspace/../etc/passwd","name":"n"}`, FileURI, "b.uri: "},
		"file, escaped dots":  {`{"type":"resource_link","uri":"file:///workspace/%2e%2e/x","name":"n"}`, FileURI, "b.uri: "},
		"file, host":          {`{"type":"resource_link","uri":"file://localhost/workspace/x","name":"n"}`, FileURI, "b.uri: "},
		"file, root itself":   {`{"type":"resource_link","uri":"file:///workspace","name":"n"}`, FileURI, "b.uri: "},
		"file, odd escape":    {`{"type":"resource_link","uri":"file:///workspace/a%2fb","name":"n"}`, FileURI, "b.uri: has a broken escape"},
		"escaped base64":      {`{"type":"image","data":"\u0061Gk=","mimeType":"image/png"}`, Malformed, "b.data: is not base64"},
		"base64, odd slashes": {`{"type":"resource","resource":{"uri":"urn:x","blob":"\/\/\//"}}`, Malformed, "b.resource.blob: is not base64"},
		"embedded file":       {`{"type":"resource","resource":{"uri":"file:///etc/passwd","text":"a"}}`, FileURI, "b.resource.uri: is not below workspace"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.raw), "b", DefaultLimits())
			var e *Error
			if !errors.As(err, &e) || e.Code != c.code || !strings.Contains(e.Error(), c.want) {
				t.Errorf("Parse = %v, want code %d and %q", err, c.code, c.want)
			}
		})
	}
}

func TestParseTurn(t *testing.T) {
	text := func(s string) []byte {
		raw, _ := json.Marshal(map[string]string{"type": "text", "text": s})
		return raw
	}
	many := func(n int) (out [][]byte) {
		for range n {
			out = append(out, text("x"))
		}
		return out
	}
	lim := DefaultLimits()
	lim.TotalBytes = 4096
	for name, c := range map[string]struct {
		messages [][][]byte
		code     Code
		ok       bool
	}{
		"one":              {[][][]byte{{text("hi")}}, 0, true},
		"blank and text":   {[][][]byte{{text(" ")}, {text("hi")}}, 0, true},
		"zero width":       {[][][]byte{{text("\u200b")}}, 0, true},
		"blank and audio":  {[][][]byte{{text(""), []byte(`{"type":"audio","data":"aGk=","mimeType":"a/b"}`)}}, 0, true},
		"no message":       {nil, Empty, false},
		"no block":         {[][][]byte{{}}, Empty, false},
		"blank":            {[][][]byte{{text(" \u00a0\u3000")}, {text("\u001c\n")}}, Empty, false},
		"64":               {[][][]byte{many(32), many(32)}, 0, true},
		"65":               {[][][]byte{many(32), many(33)}, TooLarge, false},
		"too many bytes":   {[][][]byte{{text(strings.Repeat("x", 4090)), text("y")}}, TooLarge, false},
		"one bad of many":  {[][][]byte{{text("x"), []byte(`{}`)}}, Malformed, false},
		"empty block":      {[][][]byte{{nil}}, Malformed, false},
		"whitespace block": {[][][]byte{{[]byte("  ")}}, Malformed, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ParseTurn(c.messages, lim)
			var e *Error
			if c.ok != (err == nil) || !c.ok && (!errors.As(err, &e) || e.Code != c.code) {
				t.Errorf("ParseTurn = %v, want ok %v, code %d", err, c.ok, c.code)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{`{"type":"text","text":"x","_meta":{"a":[1,{"b":"\ud83d\ude00"}]}}`, `{"type":"image","data":"aGk=","mimeType":"a/b"}`,
		`{"type":"resource","resource":{"uri":"urn:x","text":"\\"}}`, `{"type":"resource_link","uri":"file:///workspace/x","name":"n"}`, `"\ud800\`, ``, ` `} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		b, err := Parse(raw, "b", DefaultLimits())
		if err != nil {
			return
		}
		again, err := Parse(b.Raw, "b", DefaultLimits())
		if err != nil || again.SHA256 != b.SHA256 {
			t.Fatalf("accepted %q, but its compacted form %q gives %v", raw, b.Raw, err)
		}
		value := func(raw []byte) any {
			d := json.NewDecoder(strings.NewReader(string(raw)))
			d.UseNumber()
			var v any
			if err := d.Decode(&v); err != nil {
				t.Fatalf("accepted what encoding/json refuses: %q: %v", raw, err)
			}
			return v
		}
		if got, want := value(b.Raw), value(raw); !reflect.DeepEqual(got, want) {
			t.Fatalf("compacted %q to %q, another value", raw, b.Raw)
		}
	})
}
