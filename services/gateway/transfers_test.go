package gateway_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"

	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/gateway"
)

// get reads a whole answer of any kind; the error is the connection's.
func (w *world) get(t *testing.T, path string, changes ...request) (*http.Response, int64, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+adminToken)
	for _, c := range changes {
		c(req)
	}
	// A connection of its own: on a used one the client would try again by itself.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return &http.Response{}, 0, err
	}
	defer func() { _ = resp.Body.Close() }()
	n, err := io.Copy(io.Discard, resp.Body)
	return resp, n, err
}

// TestAnswerThatCannotBeCompletedIsCut covers every way a stream from agentfs can end too early.
func TestAnswerThatCannotBeCompletedIsCut(t *testing.T) {
	const size = 1 << 20
	broken := errs.New(errs.Precondition, "FILE_CHANGED", "it changed")
	for name, c := range map[string]struct {
		reading func(int64) error
		ending  func() error
		ranges  string
	}{
		"in the middle":    {func(offset int64) error { return when(offset >= size/2, broken) }, nil, ""},
		"at the end":       {nil, func() error { return broken }, ""},
		"of a range":       {func(offset int64) error { return when(offset >= size/2, broken) }, nil, "bytes=100-"},
		"of a second part": {func(offset int64) error { return when(offset >= size/2, broken) }, nil, "bytes=0-9,600000-900000"},
	} {
		t.Run(name, func(t *testing.T) {
			w := start(t, &fakes{agentfs: fakeAgentFS{reading: c.reading, ending: c.ending}})
			w.agentfs.put("workspace/d", fakeFile{size: size})
			var changes []request
			if c.ranges != "" {
				changes = append(changes, header("Range", c.ranges))
			}
			resp, n, err := w.get(t, filesPath+"workspace/d", changes...)
			// A short begin of an answer may still be in a buffer when the connection is cut.
			if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("got %d, %d bytes and %v, want a broken connection", resp.StatusCode, n, err)
			}
		})
	}
	t.Run("before the first byte", func(t *testing.T) {
		w := start(t, &fakes{})
		w.agentfs.put("workspace/d", fakeFile{size: size})
		tag := ""
		w.agentfs.replacing = func() { tag = w.agentfs.put("workspace/d", fakeFile{size: size}) }
		for _, ranges := range []string{"none", "bytes=5-9"} {
			resp, n, err := w.get(t, filesPath+"workspace/d", header("Range", ranges))
			if resp.StatusCode != http.StatusOK || n != size || err != nil {
				t.Errorf("always replaced, range %q: got %d, %d bytes, %v, want the whole file", ranges, resp.StatusCode, n, err)
			}
			if got := resp.Header.Get("ETag"); got != tag {
				t.Errorf("always replaced: got ETag %s, want %s", got, tag)
			}
		}
	})
	t.Run("an export", func(t *testing.T) {
		w := start(t, &fakes{agentfs: fakeAgentFS{exported: func(s grpc.ServerStreamingServer[agentfsv1.ExportOrganizationResponse]) error {
			if err := s.Send(&agentfsv1.ExportOrganizationResponse{Size: size}); err != nil {
				return err
			}
			return s.Send(&agentfsv1.ExportOrganizationResponse{Data: make([]byte, size/2)})
		}}})
		if resp, n, err := w.get(t, acme+"/agentfs/export"); err == nil {
			t.Errorf("got %d and %d bytes whole, want a broken connection", resp.StatusCode, n)
		}
	})
}

func when(is bool, err error) error {
	if is {
		return err
	}
	return nil
}

// TestMemoryStaysFlat streams 300 MiB each way. Sys is a high-water mark: it never goes down.
func TestMemoryStaysFlat(t *testing.T) {
	const size, bound = 300 << 20, 96 << 20
	w := start(t, &fakes{agentfs: fakeAgentFS{sink: true}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	put := w.call(t, "PUT", filesPath+"workspace/up", "", func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, size)), -1
	})
	if put.status != http.StatusCreated || put.json(t)["size"] != fmt.Sprint(size) {
		t.Fatalf("got %d %s, want 201 and the size", put.status, put.body)
	}
	w.agentfs.put("workspace/d", fakeFile{size: size})
	if resp, n, err := w.get(t, filesPath+"workspace/d"); resp.StatusCode != http.StatusOK || n != size || err != nil {
		t.Fatalf("got %d, %d bytes, %v, want the file", resp.StatusCode, n, err)
	}
	runtime.ReadMemStats(&after)
	grown := int64(after.Sys) - int64(before.Sys)
	if t.Logf("memory grew by %d MiB", grown>>20); grown > bound {
		t.Errorf("memory grew by %d MiB, want at most %d for both sides and the client", grown>>20, bound>>20)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// upload sends the head of a PUT over a connection of its own.
func (w *world) upload(t *testing.T, headers string) (net.Conn, *bufio.Reader) {
	t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(15 * time.Second)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "PUT %sworkspace/up HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%s\r\n", filesPath, adminToken, headers)
	return conn, bufio.NewReader(conn)
}

func readAnswer(t *testing.T, in *bufio.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode < 200 {
		return answer{resp.StatusCode, resp.Header, ""}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, string(body)}
}

// TestExpectContinue shows that a client is let in by agentfs, and that a refused one sends nothing.
func TestExpectContinue(t *testing.T) {
	verdict := make(chan error)
	w := start(t, &fakes{agentfs: fakeAgentFS{admit: func(h *agentfsv1.WriteFileHeader) error {
		if h.GetSize() != 5 {
			return fmt.Errorf("got size %d, want 5", h.GetSize())
		}
		return <-verdict
	}}})
	conn, in := w.upload(t, "Content-Length: 5\r\nExpect: 100-continue\r\n")
	verdict <- nil
	if got := readAnswer(t, in); got.status != http.StatusContinue {
		t.Fatalf("got %d, want 100", got.status)
	}
	fmt.Fprint(conn, "hello")
	if got := readAnswer(t, in); got.status != http.StatusCreated {
		t.Errorf("got %d %s, want 201", got.status, got.body)
	}
	_, in = w.upload(t, "Content-Length: 5\r\nExpect: 100-continue\r\n")
	verdict <- errs.New(errs.Exhausted, "QUOTA_EXCEEDED", "full")
	wantProblem(t, readAnswer(t, in), http.StatusInsufficientStorage, "QUOTA_EXCEEDED")
	// What the gateway refuses itself is refused before the body too.
	for headers, status := range map[string]int{
		"Content-Length: 5\r\nExpect: 100-continue\r\nIf-Match: x\r\n":                     400,
		"Content-Length: 9999999999\r\nExpect: 100-continue\r\n":                           413,
		"Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\nExpect: 100-continue\r\n": 415,
	} {
		_, in = w.upload(t, headers)
		if got := readAnswer(t, in); got.status != status {
			t.Errorf("%q: got %d %s, want %d", headers, got.status, got.body, status)
		}
	}
}

// TestUploadThatDoesNotArrive shows that whatever ends early is canceled, never completed.
func TestUploadThatDoesNotArrive(t *testing.T) {
	admitted, canceled := make(chan struct{}), make(chan error, 1)
	w := start(t, &fakes{agentfs: fakeAgentFS{canceled: canceled, admit: func(*agentfsv1.WriteFileHeader) error {
		admitted <- struct{}{}
		return nil
	}}}, func(c *gateway.Config) { c.BodyTimeout = 300 * time.Millisecond })
	for name, c := range map[string]struct {
		headers, body string
		leave         bool
		status        int
		reason        string
	}{
		"client gone":          {"Content-Length: 100\r\n", "half", true, 0, ""},
		"client gone, chunked": {"Transfer-Encoding: chunked\r\n", "4\r\nhalf\r\n", true, 0, ""},
		"client stands still":  {"Content-Length: 100\r\n", "half", false, 408, "BODY_TIMEOUT"},
		"malformed chunk":      {"Transfer-Encoding: chunked\r\n", "4\r\nhalf\r\nzz\r\n", false, 400, "BODY_UNREADABLE"},
	} {
		t.Run(name, func(t *testing.T) {
			conn, in := w.upload(t, c.headers)
			<-admitted
			fmt.Fprint(conn, c.body)
			if c.leave {
				_ = conn.Close()
			} else {
				wantProblem(t, readAnswer(t, in), c.status, c.reason)
			}
			select {
			case err := <-canceled:
				t.Logf("agentfs met %v", err)
			case <-time.After(10 * time.Second):
				t.Error("agentfs still waits for the body")
			}
			if w.agentfs.get("workspace/up") != nil {
				t.Error("half a file is there")
			}
		})
	}
}

// TestDownloadThatNobodyReads shows that a client that leaves ends the read at agentfs.
func TestDownloadThatNobodyReads(t *testing.T) {
	canceled := make(chan error, 1)
	w := start(t, &fakes{agentfs: fakeAgentFS{canceled: canceled}})
	w.agentfs.put("workspace/d", fakeFile{size: 256 << 20})
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "GET %sworkspace/d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", filesPath, adminToken)
	if _, err := io.ReadFull(conn, make([]byte, 1<<16)); err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	select {
	case err := <-canceled:
		t.Logf("agentfs met %v", err)
	case <-time.After(10 * time.Second):
		t.Error("agentfs still sends")
	}
}

// TestTransfersOutliveTheStop lets a download that has begun finish while the gateway stops.
func TestTransfersOutliveTheStop(t *testing.T) {
	const size = 1 << 20
	begun, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	w := start(t, &fakes{agentfs: fakeAgentFS{reading: func(int64) error {
		once.Do(func() { close(begun) })
		<-release
		return nil
	}}})
	w.agentfs.put("workspace/d", fakeFile{size: size})
	stopped := make(chan error, 1)
	go func() {
		<-begun
		go func() { stopped <- w.stop() }()
		// The listener closes first: from here on the gateway is stopping.
		for {
			conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
			if err != nil {
				break
			}
			_ = conn.Close()
		}
		close(release)
	}()
	if resp, n, err := w.get(t, filesPath+"workspace/d"); resp.StatusCode != http.StatusOK || n != size || err != nil {
		t.Errorf("got %d, %d bytes, %v, want the file", resp.StatusCode, n, err)
	}
	if err := <-stopped; err != nil {
		t.Errorf("stop: %v", err)
	}
}

// TestRefusalInTheMiddle shows that a service's refusal reaches a client that is still sending.
func TestRefusalInTheMiddle(t *testing.T) {
	w := start(t, &fakes{}, func(c *gateway.Config) { c.MaxFileBytes = 1 << 20 })
	got := w.call(t, "PUT", filesPath+"workspace/up", "", func(r *http.Request) {
		r.Body, r.ContentLength = io.NopCloser(io.LimitReader(zeros{}, 2<<20)), -1
	})
	wantProblem(t, got, http.StatusRequestEntityTooLarge, "FILE_TOO_LARGE")
}

// TestSlowTransfersSurvive moves a few bytes at a time for longer than every timeout.
func TestSlowTransfersSurvive(t *testing.T) {
	const timeout, steps = 400 * time.Millisecond, 12
	pace := time.NewTicker(timeout / 8)
	t.Cleanup(pace.Stop)
	messages := make(chan int, steps)
	w := start(t, &fakes{agentfs: fakeAgentFS{reading: func(int64) error { <-pace.C; return nil }, received: func(data []byte) { messages <- len(data) }}},
		func(c *gateway.Config) { c.BodyTimeout, c.WriteTimeout, c.RequestTimeout = timeout, timeout, timeout })
	begin := time.Now()
	conn, in := w.upload(t, fmt.Sprintf("Content-Length: %d\r\n", steps))
	for range steps {
		<-pace.C
		fmt.Fprint(conn, "x")
	}
	if got := readAnswer(t, in); got.status != http.StatusCreated || time.Since(begin) < timeout {
		t.Errorf("upload: got %d %s after %v, want 201 after more than %v", got.status, got.body, time.Since(begin), timeout)
	}
	if n := len(messages); n < 2 {
		t.Errorf("upload: agentfs got all in %d messages, want them while the body arrives", n)
	}
	const size = steps * 256 << 10
	w.agentfs.put("workspace/d", fakeFile{size: size})
	begin = time.Now()
	if resp, n, err := w.get(t, filesPath+"workspace/d"); resp.StatusCode != http.StatusOK || n != size || err != nil || time.Since(begin) < timeout {
		t.Errorf("download: got %d, %d bytes, %v after %v, want it whole after more than %v", resp.StatusCode, n, err, time.Since(begin), timeout)
	}
}

// TestStalledTransfersEnd lets either side of a download stand still.
func TestStalledTransfersEnd(t *testing.T) {
	short := func(c *gateway.Config) { c.WriteTimeout, c.RequestTimeout = 200*time.Millisecond, 200*time.Millisecond }
	t.Run("agentfs", func(t *testing.T) {
		w := start(t, &fakes{agentfs: fakeAgentFS{reading: func(offset int64) error {
			if offset >= 1<<20 {
				<-t.Context().Done()
			}
			return nil
		}}}, short)
		w.agentfs.put("workspace/d", fakeFile{size: 2 << 20})
		if resp, n, err := w.get(t, filesPath+"workspace/d"); err == nil {
			t.Errorf("got %d and %d bytes whole, want a broken connection", resp.StatusCode, n)
		}
	})
	t.Run("client", func(t *testing.T) {
		core, logs := observer.New(zapcore.InfoLevel)
		answered := make(chan struct{}, 1)
		log := zap.New(core, zap.Hooks(func(e zapcore.Entry) error {
			if e.Message == "Answered a request" {
				answered <- struct{}{}
			}
			return nil
		}))
		w := startLogged(t, &fakes{}, log, short)
		w.agentfs.put("workspace/d", fakeFile{size: 256 << 20})
		conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		fmt.Fprintf(conn, "GET %sworkspace/d HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n\r\n", filesPath, adminToken)
		select {
		case <-answered:
		case <-time.After(10 * time.Second):
			t.Fatal("a client that does not read still holds its download")
		}
		if line := logs.FilterMessage("Answered a request").All()[0]; line.ContextMap()["bytes"].(int64) >= 256<<20 {
			t.Errorf("got line %v, want a part of the file", line.ContextMap())
		}
	})
}
