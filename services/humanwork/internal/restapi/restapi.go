// Package restapi is a client of the public REST contract, for the command line.
package restapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Client speaks to one gateway. Files stream through it; nothing is sent twice.
type Client struct {
	// BaseURL is the gateway's, without a slash at the end.
	BaseURL string
	// Token is the bearer token; empty sends none.
	Token string
}

// transport differs from the default in two ways: a body waits for the gateway's go-ahead, so that
// an upload that is refused costs nothing, and what comes back is what was stored, not decompressed.
var transport = func() http.RoundTripper {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.ExpectContinueTimeout = 5 * time.Second
	t.DisableCompression = true
	return t
}()

// Error is a refusal by the API.
type Error struct {
	Status   int    // HTTP's
	Reason   string // of the documented list; empty when something before the gateway answered
	Message  string
	Metadata map[string]string
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return e.Message
	}
	return e.Message + " (" + e.Reason + ")"
}

// UnreachableError says that no answer came.
type UnreachableError struct {
	BaseURL string
	Err     error
}

func (e *UnreachableError) Error() string {
	return "no answer from " + e.BaseURL + ": " + e.Err.Error()
}

func (e *UnreachableError) Unwrap() error { return e.Err }

// maxAnswer bounds one JSON answer, in bytes. A page of the longest paths takes less.
const maxAnswer = 64 << 20

// Call sends body as JSON, unless it is nil, and reads the answer into out, unless that is nil.
func (c *Client) Call(ctx context.Context, method, path string, header http.Header, body, out any) error {
	var payload io.Reader
	header = header.Clone()
	if body != nil {
		var raw bytes.Buffer
		enc := json.NewEncoder(&raw)
		enc.SetEscapeHTML(false) // a content block keeps its bytes, '&' in a name too
		if err := enc.Encode(body); err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		payload = &raw
		if header == nil {
			header = http.Header{}
		}
		header.Set("Content-Type", "application/json")
	}
	resp, err := c.do(ctx, method, path, header, payload, -1)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decode(resp, out)
}

func decode(resp *http.Response, out any) error {
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read the answer: %w", err)
	case len(raw) > maxAnswer:
		return fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(raw, out); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// upload sends size bytes of body, -1: until it ends, and reads the answer into out.
func (c *Client) upload(ctx context.Context, method, path string, header http.Header, body io.Reader, size int64, out any) (status int, err error) {
	if header == nil {
		header = http.Header{}
	}
	header.Set("Content-Type", "application/octet-stream")
	header.Set("Expect", "100-continue")
	if size == 0 {
		body = http.NoBody
	}
	resp, err := c.do(ctx, method, path, header, body, size)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	return resp.StatusCode, decode(resp, out)
}

// do sends one request. The error is an *Error for every status that is not a success; the body is
// the caller's to close otherwise.
func (c *Client) do(ctx context.Context, method, path string, header http.Header, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.BaseURL+path, body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	if size >= 0 && body != nil {
		req.ContentLength = size
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	client := http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // the API has none; a token goes nowhere else
	}}
	resp, err := client.Do(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		// What was wrong with the body is the caller's: it was read from a local file.
		var broken *readError
		if errors.As(err, &broken) {
			return nil, broken.err
		}
		return nil, &UnreachableError{c.BaseURL, err}
	}
	if resp.StatusCode/100 == 2 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, refusal(resp)
}

func refusal(resp *http.Response) error {
	out := &Error{Status: resp.StatusCode}
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	var body struct {
		Message string `json:"message"`
		Details []struct {
			Reason   string            `json:"reason"`
			Metadata map[string]string `json:"metadata"`
		} `json:"details"`
	}
	if err != nil || json.Unmarshal(raw, &body) != nil || body.Message == "" {
		out.Message = fmt.Sprintf("the server answered %q without a reason", resp.Status)
		return out
	}
	out.Message = body.Message
	for _, d := range body.Details {
		if d.Reason != "" {
			out.Reason, out.Metadata = d.Reason, d.Metadata
		}
	}
	return out
}

// readError marks an error of a body's source, which net/http would hide among the network's.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }

// source marks the errors of a body's reader.
type source struct{ io.Reader }

func (s source) Read(p []byte) (int, error) {
	n, err := s.Reader.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = &readError{err}
	}
	return n, err
}
