package fscli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf8"
)

// printer writes results: tables for people, or JSON for programs.
type printer struct {
	io.Writer
	json bool
}

// object writes one object on one line.
func (p printer) object(v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, raw); err != nil {
		return fmt.Errorf("encode output: %w", err)
	}
	line.WriteByte('\n')
	return p.write(line.Bytes())
}

func (p printer) line(format string, args ...any) error {
	return p.write(fmt.Appendf(nil, format+"\n", args...))
}

func (p printer) write(b []byte) error {
	if _, err := p.Write(b); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return nil
}

// table writes rows in columns. Cells must be harmless.
func (p printer) table(rows [][]string) error {
	var b bytes.Buffer
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for _, r := range rows {
		fmt.Fprintln(w, strings.Join(r, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write output: %w", err)
	}
	return p.write(b.Bytes())
}

// quoted is a name as a terminal may see it: in double quotes, with escapes, if anything in it
// would be acted on, be invisible, turn the writing around or break a line; and if it looks quoted
// already.
func quoted(s string) string {
	if strings.HasPrefix(s, `"`) || harmless(s) != s {
		return strconv.Quote(s)
	}
	return s
}

// harmless escapes whatever in a text a terminal would act on; line ends stay out of it too.
func harmless(s string) string {
	clean := true
	for _, r := range s {
		clean = clean && shown(r)
	}
	if clean && utf8.ValidString(s) {
		return s
	}
	var b strings.Builder
	for i, r := range s {
		if _, size := utf8.DecodeRuneInString(s[i:]); r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		} else if shown(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// shown reports whether a terminal shows r as one thing at its place.
func shown(r rune) bool { return unicode.IsPrint(r) }

// bytesOf is a size for people.
func bytesOf(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " B"
	}
	f, units := float64(n)/1024, "KMGTPE"
	for f >= 1024 && len(units) > 1 {
		f, units = f/1024, units[1:]
	}
	return strconv.FormatFloat(f, 'f', 1, 64) + " " + units[:1] + "iB"
}

// timeOf is a time for people, of this machine's zone.
func timeOf(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// modeOf is a stat(2) mode as ls shows it; only regular files are listed.
func modeOf(mode uint32) string {
	out := []byte("-rwxrwxrwx")
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			out[i+1] = '-'
		}
	}
	return string(out)
}
