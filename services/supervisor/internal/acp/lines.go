package acp

import (
	"bufio"
	"errors"
	"io"
)

// errLineTooLong marks a line that was read past and dropped.
var errLineTooLong = errors.New("line too long")

// keepCapacity is how large a line buffer may stay between lines, so that one huge line does not
// hold its memory for the child's whole life.
const keepCapacity = 1 << 20

// lineReader reads lines of bounded length. A longer line is skipped to its end, so that the
// stream stays in step.
type lineReader struct {
	r   *bufio.Reader
	max int
	buf []byte
	// tooLong is called as soon as a line passes the limit: its end may never come.
	tooLong func()
}

func newLineReader(r io.Reader, limit int, tooLong func()) *lineReader {
	return &lineReader{r: bufio.NewReaderSize(r, 64<<10), max: limit, tooLong: tooLong}
}

// next returns the next line without its newline, valid until the next call. It answers
// errLineTooLong for a line that was skipped. A last line without a newline is not a message:
// its writer died, and it is dropped.
func (l *lineReader) next() ([]byte, error) {
	if cap(l.buf) > keepCapacity {
		l.buf = nil
	}
	l.buf = l.buf[:0]
	skipping := false
	for {
		part, err := l.r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
		whole := err == nil
		if whole {
			part = part[:len(part)-1]
		}
		switch {
		case skipping:
		case len(l.buf)+len(part) > l.max:
			skipping = true
			l.buf = l.buf[:0]
			l.tooLong()
		case whole && len(l.buf) == 0:
			return part, nil // no copy: the common short line
		default:
			l.buf = append(l.buf, part...)
		}
		if whole && skipping {
			return nil, errLineTooLong
		}
		if whole {
			return l.buf, nil
		}
	}
}
