package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway/internal/problem"
)

// content is one version of a file as an io.ReadSeeker: reading from a place opens a stream there.
// Its methods may be called from any goroutine; http.ServeContent reads several ranges in one of
// its own, which can outlive it.
type content struct {
	ctx   context.Context
	stall *stall
	read  func(ctx context.Context, offset, length int64) (grpc.ServerStreamingClient[agentfsv1.ReadFileResponse], error)
	file  *agentfsv1.File

	mu      sync.Mutex
	offset  int64 // of the next byte
	at, end int64 // where the open stream is, and where it ends
	pending []byte
	stream  grpc.ServerStreamingClient[agentfsv1.ReadFileResponse]
	cancel  context.CancelFunc
	err     error
}

// Seek sets the place of the next Read.
func (c *content) Seek(offset int64, whence int) (int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch whence {
	case io.SeekCurrent:
		offset += c.offset
	case io.SeekEnd:
		offset += c.file.GetSize()
	}
	if offset < 0 {
		return 0, errors.New("seek before the beginning of a file")
	}
	c.offset = offset
	return offset, nil
}

// Read reads on. After an error other than io.EOF nothing more is read; failure has it.
func (c *content) Read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return 0, c.err
	}
	if c.stream == nil || c.at != c.offset {
		if c.offset >= c.file.GetSize() {
			return 0, io.EOF
		}
		if c.err = c.open(c.file.GetSize() - c.offset); c.err != nil {
			return 0, c.err
		}
	}
	if len(c.pending) == 0 {
		if c.offset >= c.end {
			return 0, io.EOF
		}
		if c.err = c.next(); c.err != nil {
			return 0, c.err
		}
	}
	n := copy(p, c.pending)
	c.pending, c.offset, c.at = c.pending[n:], c.offset+int64(n), c.at+int64(n)
	return n, nil
}

// start opens the stream for the next length bytes, so that what can go wrong does before an answer
// begins.
func (c *content) start(length int64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stream != nil && c.at == c.offset && c.end == c.offset+length {
		return nil
	}
	c.err = c.open(length)
	return c.err
}

// take makes a stream of the whole content, whose first message was received, the open one.
func (c *content) take(stream grpc.ServerStreamingClient[agentfsv1.ReadFileResponse], cancel context.CancelFunc) {
	c.stream, c.cancel, c.end = stream, cancel, c.file.GetSize()
}

func (c *content) open(length int64) error {
	c.drop()
	ctx, cancel := context.WithCancel(c.ctx)
	c.cancel, c.at, c.end = cancel, c.offset, c.offset+length
	return c.stall.during(func() error {
		stream, err := c.read(ctx, c.offset, length)
		if err != nil {
			return err
		}
		first, err := stream.Recv()
		if err != nil {
			return early(err)
		}
		if v := first.GetFile().GetVersion(); v != c.file.GetVersion() {
			return fmt.Errorf("read a file: agentfs opened version %q, not %q", v, c.file.GetVersion())
		}
		c.stream = stream
		return nil
	})
}

// next receives one message. The last one is held until the stream has ended well: agentfs says only
// then that all it sent was of the one version.
func (c *content) next() error {
	return c.stall.during(func() error {
		m, err := c.stream.Recv()
		if err != nil {
			return early(err)
		}
		c.pending = m.GetData()
		if c.offset+int64(len(c.pending)) < c.end {
			return nil
		}
		switch m, err := c.stream.Recv(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		default:
			return fmt.Errorf("read a file: agentfs sent %d bytes beyond the end", len(m.GetData()))
		}
	})
}

// early is the error of a stream that ends before its time.
func early(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("read a file: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (c *content) drop() {
	if c.cancel != nil {
		c.cancel()
	}
	c.stream, c.cancel, c.pending = nil, nil, nil
}

// close ends what is open; later reads fail. It returns the error that reading met.
func (c *content) close() error {
	c.stall.end() // or a Read that waits would hold the lock
	c.mu.Lock()
	defer c.mu.Unlock()
	c.drop()
	err := c.err
	c.err = errs.New(errs.Canceled, rpc.ReasonCanceled, "the answer has ended")
	return err
}

// fileAnswer lets http.ServeContent decide about conditions and ranges, and keeps two things from
// it: errors, which are this API's own, and the begin of an answer, until the file is open.
type fileAnswer struct {
	http.ResponseWriter
	content *content
	head    bool
	begun   bool
	opening bool  // the error is that of opening the file
	want    int64 // bytes of the body
	wrote   int64
	err     error
}

var errNotBegun = errors.New("no answer was begun")

// WriteHeader begins the answer, unless it turns out to be an error.
func (a *fileAnswer) WriteHeader(status int) {
	h := a.Header()
	switch status {
	case http.StatusPreconditionFailed:
		a.err = errs.New(errs.Precondition, problem.ReasonVersionMismatch, "the file has another version than the request allows")
		return
	case http.StatusRequestedRangeNotSatisfiable:
		a.err = errs.New(errs.OutOfRange, problem.ReasonRange, "the file has %d bytes; the Range is outside or malformed", a.content.file.GetSize())
		return
	case http.StatusOK, http.StatusPartialContent:
		if a.head {
			break
		}
		var err error
		if a.want, err = strconv.ParseInt(h.Get("Content-Length"), 10, 64); err != nil {
			a.err = fmt.Errorf("answer a file: %w", err)
			return
		}
		// Several ranges are opened one by one when their turn comes.
		if !strings.HasPrefix(h.Get("Content-Type"), "multipart/byteranges;") || status == http.StatusOK {
			if a.err = a.content.start(a.want); a.err != nil {
				a.opening = true
				return
			}
		}
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write sends some of the body.
func (a *fileAnswer) Write(p []byte) (int, error) {
	if !a.begun {
		return 0, errNotBegun
	}
	n, err := a.ResponseWriter.Write(p)
	a.wrote += int64(n)
	if err != nil && a.err == nil {
		a.err = fmt.Errorf("send a file: %w", err)
	}
	return n, err
}

// finish returns what kept the answer from being whole; nothing was sent yet if begun is false.
func (a *fileAnswer) finish() error {
	err := a.content.close()
	switch {
	case a.err != nil:
		return a.err
	case err != nil:
		return err
	case a.wrote != a.want:
		return fmt.Errorf("send a file: %d of %d bytes", a.wrote, a.want)
	}
	return nil
}
