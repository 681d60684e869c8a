package postgres

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

const (
	lineLimit = 8 << 10 // bytes kept of one line
	tailLines = 20
	logLimit  = 4 << 20 // bytes of server.log; with its predecessor server.log.1 the log takes at most twice that

	readyLine = "database system is ready to accept connections"
)

// output takes what a program prints: it keeps the last lines for errors, sees the server become ready, and writes the
// bounded log. It never fails and never blocks on more than a file, so that the program is never held up.
type output struct {
	mu      sync.Mutex
	log     *boundedLog // nil: none is kept
	pending []byte      // an unfinished line
	lines   []string    // the last tailLines
	isReady bool
	ready   chan struct{} // closed at readyLine
}

func newOutput(log *boundedLog) *output {
	return &output{log: log, ready: make(chan struct{})}
}

func (o *output) Write(data []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for rest := data; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		o.pending = append(o.pending, line[:min(len(line), lineLimit-len(o.pending))]...)
		if whole {
			o.line(string(o.pending))
			o.pending = o.pending[:0]
		}
		rest = after
	}
	return len(data), nil
}

func (o *output) line(line string) {
	if len(o.lines) == tailLines {
		o.lines = append(o.lines[:0], o.lines[1:]...)
	}
	o.lines = append(o.lines, line)
	if o.log != nil {
		o.log.line(line)
	}
	if !o.isReady && strings.Contains(line, readyLine) {
		o.isReady = true
		close(o.ready)
	}
}

// tail returns the last lines printed.
func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Join(append(o.lines[:len(o.lines):len(o.lines)], string(o.pending)), "\n")
}

// boundedLog is a file that starts anew, keeping its predecessor, when it reaches its limit.
type boundedLog struct {
	path  string
	limit int64
	file  *os.File // nil when the last attempt to open it failed: the lines go nowhere until the next start
	size  int64
}

func openLog(dir string) (*boundedLog, error) {
	l := &boundedLog{path: filepath.Join(dir, "server.log"), limit: logLimit}
	return l, l.open()
}

func (l *boundedLog) open() error {
	file, err := os.OpenFile(l.path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	l.file, l.size = file, info.Size()
	return nil
}

// line drops what can't be written: a full disk must not stop the server from saying so on its next line.
func (l *boundedLog) line(line string) {
	if l.file == nil {
		return
	}
	if l.size+int64(len(line))+1 > l.limit && l.size > 0 {
		l.file.Close()
		l.file = nil
		if os.Rename(l.path, l.path+".1") != nil || l.open() != nil {
			return
		}
	}
	n, _ := l.file.WriteString(line + "\n")
	l.size += int64(n)
}

func (l *boundedLog) close() {
	if l.file != nil {
		l.file.Close()
	}
}
