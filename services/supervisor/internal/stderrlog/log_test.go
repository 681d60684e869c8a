package stderrlog

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestDrainMasksSecretsAndBoundsLinesAndTail(t *testing.T) {
	const env = "A=plain-env-secret\nexport B=\"quoted secret\"\nC=1\nPEM='first line\nsecond-line-of-pem'\n"
	const config = "model: {default: fake-1, api_key: sk-config-secret}\nmcp_servers: {kb: {headers: {Authorization: Bearer xyz-token}}}\n"
	l := New(NewRedactor([]byte(env), []byte(config)))
	in := "got plain-env-secret and sk-config-secret 1\n" +
		"quoted secret|second-line-of-pem|Bearer xyz-token|fake-1\n" +
		strings.Repeat("x", lineBytes-3) + "plain-env-secret" + strings.Repeat("y", 100_000) + "\n" +
		"bad \xff byte\n" +
		"no newline"
	var lines []string
	l.Drain(strings.NewReader(in), func(line string) { lines = append(lines, line) })
	want := []string{
		"got *** and *** 1",
		"***|***|***|fake-1",
		strings.Repeat("x", lineBytes-3) + "***",
		"bad \uFFFD byte",
		"no newline",
	}
	if !slices.Equal(lines, want) {
		t.Errorf("lines = %q, want %q", lines, want)
	}
	if tail, dropped := l.Tail(); !slices.Equal(tail, want) || dropped != 0 {
		t.Errorf("tail = %q with %d dropped, want %q", tail, dropped, want)
	}
}

func TestTailKeepsTheNewestLines(t *testing.T) {
	l := New(NewRedactor(nil, nil))
	r, w := io.Pipe()
	go func() {
		for i := range tailLines + 5 {
			_, _ = fmt.Fprintf(w, "line %d\n", i)
		}
		_ = w.Close()
	}()
	l.Drain(r, func(string) {})
	tail, dropped := l.Tail()
	if got, want := tail[0], "line 5"; got != want {
		t.Errorf("oldest line = %q, want %q", got, want)
	}
	if got, want := tail[len(tail)-1], fmt.Sprintf("line %d", tailLines+4); got != want {
		t.Errorf("newest line = %q, want %q", got, want)
	}
	if dropped != 5 {
		t.Errorf("dropped = %d, want 5", dropped)
	}
}
