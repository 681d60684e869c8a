package fscli

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// progress is a line on a terminal that follows a transfer. A nil one shows nothing.
type progress struct {
	to          io.Writer
	name        string
	done, total int64 // bytes; total -1: not known
	start, last time.Time
}

// maxProgressName keeps the line on one line: of a wrapped one the rest would stay.
const maxProgressName = 32

// newProgress returns nil if to is no terminal: in a log the line would be noise.
func newProgress(to io.Writer, name string, total int64) *progress {
	f, ok := to.(*os.File)
	if !ok {
		return nil
	}
	if _, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS); err != nil {
		return nil
	}
	return &progress{to: to, name: clip(quoted(name), maxProgressName), total: total, start: time.Now()}
}

// reader counts what is read from r.
func (p *progress) reader(r io.Reader) io.Reader {
	if p == nil {
		return r
	}
	return progressReader{r, p}
}

type progressReader struct {
	io.Reader
	*progress
}

func (r progressReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.done += int64(n)
	if now := time.Now(); now.Sub(r.last) >= 100*time.Millisecond {
		r.last = now
		r.show(now, "")
	}
	return n, err
}

// end shows the last figures and leaves the line.
func (p *progress) end() {
	if p != nil {
		p.show(time.Now(), "\n")
	}
}

func (p *progress) show(now time.Time, end string) {
	rate := int64(float64(p.done) / max(now.Sub(p.start).Seconds(), 0.001))
	of := ""
	if p.total > 0 {
		of = fmt.Sprintf(" of %s, %d%%", bytesOf(p.total), p.done*100/p.total)
	}
	// Erases what was there, however long it was.
	fmt.Fprintf(p.to, "\r\x1b[K%s  %s%s, %s/s%s", p.name, bytesOf(p.done), of, bytesOf(rate), end)
}
