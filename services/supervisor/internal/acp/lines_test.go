package acp

import (
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestLines(t *testing.T) {
	const limit = 200_000 // over the reader's own buffer
	long := strings.Repeat("x", limit)
	for name, tc := range map[string]struct {
		in   string
		want []string // "!" is a line that was skipped
	}{
		"short":             {"a\n\nbc\n", []string{"a", "", "bc"}},
		"at the limit":      {long + "\nb\n", []string{long, "b"}},
		"over the limit":    {"a\n" + long + "y\nb\n", []string{"a", "!", "b"}},
		"far over":          {long + long + long + "\nb\n", []string{"!", "b"}},
		"two":               {long + "y\n" + long + "z\nb\n", []string{"!", "!", "b"}},
		"unfinished":        {"a\nhalf a mess", []string{"a"}},
		"unfinished, long":  {"a\n" + long + long, []string{"a"}},
		"carriage return":   {"a\r\n", []string{"a\r"}},
		"nothing":           {"", nil},
		"zeros and newline": {"\x00\n\xff\n", []string{"\x00", "\xff"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, src := range []io.Reader{strings.NewReader(tc.in), iotest.HalfReader(strings.NewReader(tc.in))} {
				skipped := 0
				l := newLineReader(src, limit, func() { skipped++ })
				var got []string
				for {
					line, err := l.next()
					if errors.Is(err, errLineTooLong) {
						got = append(got, "!")
						continue
					}
					if err != nil {
						break
					}
					got = append(got, string(line))
				}
				if strings.Join(got, "\n") != strings.Join(tc.want, "\n") || len(got) != len(tc.want) {
					t.Errorf("got %d lines, want %d", len(got), len(tc.want))
				}
				want := strings.Count(strings.Join(tc.want, ""), "!")
				if name == "unfinished, long" {
					want = 1 // announced before its end, which never came
				}
				if skipped != want {
					t.Errorf("%d long lines were announced, want %d", skipped, want)
				}
			}
		})
	}
}

func TestHugeLineDoesNotKeepItsMemory(t *testing.T) {
	l := newLineReader(strings.NewReader(strings.Repeat("x", 8<<20)+"\na\n"), 16<<20, func() {})
	for range 2 {
		if _, err := l.next(); err != nil {
			t.Fatal(err)
		}
	}
	if cap(l.buf) > keepCapacity {
		t.Errorf("%d bytes are kept, want at most %d", cap(l.buf), keepCapacity)
	}
}
