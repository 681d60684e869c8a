package scriptedmodel

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Client drives the control interface of a model in another process.
type Client struct {
	base string
	http *http.Client
}

// NewClient returns a client of the model at an address such as "http://127.0.0.1:18080".
func NewClient(base string) *Client {
	// No timeout of its own: waiting calls end with their context.
	return &Client{base: strings.TrimSuffix(base, "/") + "/_control/", http: &http.Client{}}
}

// Down does what Model.Down does.
func (c *Client) Down(ctx context.Context) error { return c.post(ctx, "down") }

// Up does what Model.Up does.
func (c *Client) Up(ctx context.Context) error { return c.post(ctx, "up") }

// Release does what Gate.Release does.
func (c *Client) Release(ctx context.Context, gate string) error {
	return c.post(ctx, "gates/"+url.PathEscape(gate)+"/release")
}

// Step does what Gate.Step does.
func (c *Client) Step(ctx context.Context, gate string) error {
	return c.post(ctx, "gates/"+url.PathEscape(gate)+"/step")
}

// Shut does what Gate.Shut does.
func (c *Client) Shut(ctx context.Context, gate string) error {
	return c.post(ctx, "gates/"+url.PathEscape(gate)+"/shut")
}

// Arrived does what Gate.Arrived does.
func (c *Client) Arrived(ctx context.Context, gate string, n int) error {
	return c.call(ctx, http.MethodGet, "gates/"+url.PathEscape(gate)+"/arrived?n="+strconv.Itoa(n), nil)
}

// Requests returns the recorded requests with a Seq above after, oldest first, and how many were dropped in all.
func (c *Client) Requests(ctx context.Context, after int64) ([]Request, int64, error) {
	return c.requests(ctx, "requests?after="+strconv.FormatInt(after, 10))
}

// Await returns the oldest request with a Seq above after that match accepts, waiting for it to arrive.
func (c *Client) Await(ctx context.Context, after int64, match func(Request) bool) (Request, error) {
	for {
		got, _, err := c.requests(ctx, "requests?wait=1&after="+strconv.FormatInt(after, 10))
		if err != nil {
			return Request{}, err
		}
		for _, r := range got {
			after = r.Seq
			if match(r) {
				return r, nil
			}
		}
	}
}

func (c *Client) requests(ctx context.Context, path string) ([]Request, int64, error) {
	var got controlRequests
	if err := c.call(ctx, http.MethodGet, path, &got); err != nil {
		return nil, 0, err
	}
	for i, r := range got.Requests {
		parsed, err := ParseRequest(r.Body)
		if err != nil {
			return nil, 0, err
		}
		parsed.Seq, parsed.Time, parsed.Prompt = r.Seq, r.Time, r.Prompt
		got.Requests[i] = parsed
	}
	return got.Requests, got.Dropped, nil
}

func (c *Client) post(ctx context.Context, path string) error {
	return c.call(ctx, http.MethodPost, path, nil)
}

func (c *Client) call(ctx context.Context, method, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return fmt.Errorf("control scripted model: %w", err)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("control scripted model: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode >= http.StatusBadRequest {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return fmt.Errorf("control scripted model: %s %s answered %s: %s", method, path, resp.Status, text)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("control scripted model: read %s: %w", path, err)
	}
	return nil
}
