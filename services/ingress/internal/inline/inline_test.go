package inline_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strings"
	"testing"

	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/inline"
)

func TestSplitAndJoin(t *testing.T) {
	for name, c := range map[string]struct {
		raw, rest string
		path      []string
		cut       inline.Cut
		data      string
	}{
		"image": {`{"type":"image","data":"aGk=","mimeType":"image/png"}`, `{"type":"image","data":"","mimeType":"image/png"}`,
			[]string{"data"}, inline.Cut{Offset: 24}, "hi"},
		"data in another member": {`{"_meta":{"data":"eA=="},"uri":"data","data":"aGk="}`, `{"_meta":{"data":"eA=="},"uri":"data","data":""}`,
			[]string{"data"}, inline.Cut{Offset: 46}, "hi"},
		"escaped key": {`{"d\u0061ta":"aGk="}`, `{"d\u0061ta":""}`, []string{"data"}, inline.Cut{Offset: 14}, "hi"},
		"blob": {`{"resource":{"_meta":{"blob":1},"blob":"aGk=","uri":"urn:x"},"blob":"eA=="}`, `{"resource":{"_meta":{"blob":1},"blob":"","uri":"urn:x"},"blob":"eA=="}`,
			[]string{"resource", "blob"}, inline.Cut{Offset: 40}, "hi"},
		"slashes":         {`{"data":"////"}`, `{"data":""}`, []string{"data"}, inline.Cut{Offset: 9}, "\xff\xff\xff"},
		"escaped slashes": {`{"data":"\/\/\/\/"}`, `{"data":""}`, []string{"data"}, inline.Cut{Offset: 9, Escaped: true}, "\xff\xff\xff"},
		"empty":           {`{"data":""}`, `{"data":""}`, []string{"data"}, inline.Cut{Offset: 9}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			before := c.raw
			rest, cut, data, err := inline.Split([]byte(c.raw), c.path...)
			if err != nil || string(rest) != c.rest || cut != c.cut || string(data) != c.data {
				t.Fatalf("Split = %s, %+v, %q, %v, want %s, %+v, %q", rest, cut, data, err, c.rest, c.cut, c.data)
			}
			raw, err := inline.Join(rest, cut, data)
			if err != nil || string(raw) != before {
				t.Errorf("Join = %s, %v, want %s", raw, err, before)
			}
		})
	}
}

func TestSplitRefuses(t *testing.T) {
	for name, c := range map[string]struct {
		raw  string
		want error
	}{
		"some slashes escaped": {`{"data":"\/\/\//"}`, inline.ErrEncoding},
		"another escape":       {`{"data":"\u0061Gk="}`, inline.ErrEncoding},
		"escaped slash code":   {`{"data":"\u002f\/\/\/"}`, inline.ErrEncoding},
		"line end":             {`{"data":"aG\nk="}`, inline.ErrEncoding},
		"raw line end":         {"{\"data\":\"aG\nk=\"}", inline.ErrMember},
		"no padding":           {`{"data":"aGk"}`, inline.ErrEncoding},
		"loose bits":           {`{"data":"aGl="}`, inline.ErrEncoding},
		"URL alphabet":         {`{"data":"__-_"}`, inline.ErrEncoding},
		"absent":               {`{"_meta":{"data":"aGk="}}`, inline.ErrMember},
		"not a string":         {`{"data":{"data":"aGk="}}`, inline.ErrMember},
		"not compacted":        {`{"data": "aGk="}`, inline.ErrMember},
		"not an object":        {`["data"]`, inline.ErrMember},
		"cut off":              {`{"data":"aGk=`, inline.ErrMember},
		"nothing":              {``, inline.ErrMember},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, _, err := inline.Split([]byte(c.raw), "data"); !errors.Is(err, c.want) {
				t.Errorf("Split = %v, want %v", err, c.want)
			}
		})
	}
}

func TestJoinRefuses(t *testing.T) {
	for _, offset := range []int64{-1, 4, 1 << 62} {
		if _, err := inline.Join([]byte("abc"), inline.Cut{Offset: offset}, nil); !errors.Is(err, inline.ErrCut) {
			t.Errorf("Join at %d = %v, want %v", offset, err, inline.ErrCut)
		}
	}
}

// FuzzSplit: every block that is accepted with inline data is the same after a cut and a join, and
// nothing of the data is left in what remains.
func FuzzSplit(f *testing.F) {
	long := base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("humanwork\xff"), 300))
	for _, raw := range []string{
		`{"type":"image","data":"aGk=","mimeType":"image/png","uri":"https://x/y"}`,
		`{"type":"audio","data":"\/\/\/\/","mimeType":"audio/wav","_meta":{"data":"x"}}`,
		`{"type":"image","data":"` + long + `","mimeType":"a/b"}`,
		`{"type":"image","data":"` + strings.ReplaceAll(long, "/", `\/`) + `","mimeType":"a/b"}`,
		`{"type":"image","d\u0061ta":"\u0061Gk=","mimeType":"a/b"}`,
		`{"type":"resource","resource":{"uri":"urn:x","blob":"aGk="},"_meta":{"n":9007199254740993}}`,
		`{"resource":{"bl\u006fb":"","uri":"urn:x"},"type":"resource"}`,
	} {
		f.Add([]byte(raw))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		for _, path := range [][]string{{"data"}, {"resource", "blob"}} {
			if rest, cut, data, err := inline.Split(raw, path...); err == nil {
				if again, err := inline.Join(rest, cut, data); err != nil || !bytes.Equal(again, raw) {
					t.Errorf("Join = %q, %v, want %q", again, err, raw)
				}
			}
		}
		b, err := block.Parse(raw, "b", block.DefaultLimits())
		if err != nil || b.Inline == nil {
			return
		}
		rest, cut, data, err := inline.Split(b.Raw, b.Inline...)
		if err != nil {
			t.Fatalf("Split(%q) = %v: an accepted block cannot be cut", b.Raw, err)
		}
		if len(rest) >= len(b.Raw) || len(data) == 0 {
			t.Errorf("Split(%q) left %q and took %q", b.Raw, rest, data)
		}
		if again, err := inline.Join(rest, cut, data); err != nil || !bytes.Equal(again, b.Raw) {
			t.Errorf("Join = %q, %v, want %q", again, err, b.Raw)
		}
	})
}
