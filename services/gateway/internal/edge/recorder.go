package edge

import (
	"net/http"
	"time"
)

// recorder notes what was answered, and bounds the writing of an answer so that a client that
// does not read cannot hold a connection.
type recorder struct {
	http.ResponseWriter
	status   int
	bytes    int64
	deadline time.Duration
	each     bool // the deadline is that of each write, not of the whole answer
}

const pieceBytes = 32 << 10

// Unwrap lets http.ResponseController reach the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader notes the status; answers that are streams move the deadline themselves.
func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
		w.extend()
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) extend() {
	// A connection that has no deadlines is a test's own; the answer is sent all the same.
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.deadline))
}

// Write notes the size.
func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	total := 0
	for {
		piece := b
		if w.each {
			// A large write is cut up, so that the deadline is that of a small amount.
			piece = b[:min(len(b), pieceBytes)]
			w.extend()
		}
		n, err := w.ResponseWriter.Write(piece)
		total, w.bytes, b = total+n, w.bytes+int64(n), b[n:]
		if err != nil || len(b) == 0 {
			return total, err
		}
	}
}
