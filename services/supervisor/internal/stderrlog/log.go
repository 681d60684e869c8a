// Package stderrlog drains a child's standard error: always, so that a child never waits for it,
// into a bounded and redacted tail.
package stderrlog

import (
	"bufio"
	"errors"
	"io"
	"sync"
)

const (
	readBytes = 16 << 10 // a longer line is cut
	lineBytes = 4 << 10  // what is kept of a line, after redaction
	tailLines = 200
)

// Log keeps the last lines of one child's standard error. A Log may be read while it drains.
type Log struct {
	redact *Redactor

	mu      sync.Mutex
	lines   []string
	next    int // place of the oldest line once the ring is full
	dropped int64
}

// New makes an empty log.
func New(redact *Redactor) *Log { return &Log{redact: redact} }

// Drain reads src until it ends, giving every line, redacted, to each. Read errors end it too: a
// child's standard error has no other meaning than its text.
func (l *Log) Drain(src io.Reader, each func(line string)) {
	r := bufio.NewReaderSize(src, readBytes)
	for {
		raw, err := r.ReadSlice('\n')
		if len(raw) > 0 {
			line := l.redact.Line(raw)
			l.keep(line)
			each(line)
		}
		for errors.Is(err, bufio.ErrBufferFull) { // the rest of a line that was cut
			_, err = r.ReadSlice('\n')
		}
		if err != nil {
			return
		}
	}
}

func (l *Log) keep(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.lines) < tailLines {
		l.lines = append(l.lines, line)
		return
	}
	l.lines[l.next] = line
	l.next = (l.next + 1) % tailLines
	l.dropped++
}

// Tail returns the kept lines, oldest first, and how many older ones were dropped.
func (l *Log) Tail() (lines []string, dropped int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines = append(lines, l.lines[l.next:]...)
	return append(lines, l.lines[:l.next]...), l.dropped
}
