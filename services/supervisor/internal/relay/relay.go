// Package relay moves bytes between a child's standard streams and whoever speaks to the child.
//
// It knows nothing of what it carries: no lines, no messages. Whoever needs ACP reads and writes
// it through a Relay; a native client's stream is pumped through the same Relay untouched.
package relay

import (
	"errors"
	"io"
	"sync/atomic"
	"time"
)

// BufferSize is the size of a pump's buffer in bytes, the capacity of a Linux pipe.
const BufferSize = 64 << 10

// Relay owns the parent's ends of a child's standard input and output. Backpressure is the
// pipes' own: a Write blocks while the child does not read, a Read while it does not write.
// Reads and writes may run at the same time as each other; two of the same kind may not.
type Relay struct {
	stdin  io.WriteCloser
	stdout io.ReadCloser

	toChild   atomic.Int64
	fromChild atomic.Int64
	created   time.Time
	progress  atomic.Int64 // nanoseconds after created, on the monotonic clock
}

// Counts is how many bytes have passed.
type Counts struct {
	ToChild, FromChild int64
}

// New takes over both ends.
func New(stdin io.WriteCloser, stdout io.ReadCloser) *Relay {
	return &Relay{stdin: stdin, stdout: stdout, created: time.Now()}
}

// Read reads the child's standard output. The end of the stream is io.EOF.
func (r *Relay) Read(p []byte) (int, error) {
	n, err := r.stdout.Read(p)
	if n > 0 {
		r.fromChild.Add(int64(n))
		r.Touch()
	}
	return n, err
}

// Write writes to the child's standard input.
func (r *Relay) Write(p []byte) (int, error) {
	n, err := r.stdin.Write(p)
	if n > 0 {
		r.toChild.Add(int64(n))
		r.Touch()
	}
	return n, err
}

// CloseWrite ends the child's standard input, which asks an ACP agent to exit.
func (r *Relay) CloseWrite() error { return r.stdin.Close() }

// Close gives both ends up. A Read or Write that is blocked returns.
func (r *Relay) Close() error { return errors.Join(r.stdin.Close(), r.stdout.Close()) }

// Touch records progress that did not pass through the relay, such as standard error.
func (r *Relay) Touch() { r.progress.Store(int64(time.Since(r.created))) }

// Progress is when a byte last passed, or Touch was last called, with a monotonic reading.
func (r *Relay) Progress() time.Time { return r.created.Add(time.Duration(r.progress.Load())) }

// Counts returns the bytes that have passed so far.
func (r *Relay) Counts() Counts {
	return Counts{ToChild: r.toChild.Load(), FromChild: r.fromChild.Load()}
}

// Pump copies src to dst through buf until src ends, and returns the bytes written. A clean end
// is a nil error. It holds no byte back: what one Read returns is written before the next.
// Unlike io.Copy it never hands over to ReaderFrom or WriterTo, which would allocate a buffer
// of their own or pass the counters by.
func Pump(dst io.Writer, src io.Reader, buf []byte) (int64, error) {
	var written int64
	for {
		n, readErr := src.Read(buf)
		if n > 0 {
			w, err := dst.Write(buf[:n])
			written += int64(w)
			if err != nil {
				return written, err
			}
			if w < n {
				return written, io.ErrShortWrite
			}
		}
		if readErr == io.EOF {
			return written, nil
		}
		if readErr != nil {
			return written, readErr
		}
	}
}
