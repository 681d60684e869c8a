package scriptedmodel

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"sync"
)

// recorder keeps the newest requests within a bound and writes every one as a line of JSON.
type recorder struct {
	limit int64
	to    io.Writer

	mu       sync.Mutex
	requests []Request
	size     int64
	seq      int64
	dropped  int64
	changed  chan struct{} // closed and replaced when a request is added
}

func newRecorder(limit int64, to io.Writer) *recorder {
	return &recorder{limit: limit, to: to, changed: make(chan struct{})}
}

// add numbers r and keeps it. The lock is held over the write, so that lines are whole and in order of Seq.
func (c *recorder) add(r Request) (Request, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	r.Seq = c.seq
	if c.to != nil {
		line, err := json.Marshal(r)
		if err != nil {
			return r, fmt.Errorf("encode request record: %w", err)
		}
		if _, err := c.to.Write(append(line, '\n')); err != nil {
			return r, fmt.Errorf("write request record: %w", err)
		}
	}
	c.requests = append(c.requests, r)
	c.size += r.cost()
	drop := 0
	for c.size > c.limit && drop < len(c.requests) {
		c.size -= c.requests[drop].cost()
		c.requests[drop] = Request{} // the array may live on under a longer slice
		drop++
	}
	c.requests = c.requests[drop:]
	c.dropped += int64(drop)
	close(c.changed)
	c.changed = make(chan struct{})
	return r, nil
}

// after returns the kept requests with a Seq above seq, oldest first.
func (c *recorder) after(seq int64) []Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := 0
	if len(c.requests) > 0 {
		i = int(min(max(seq-c.requests[0].Seq+1, 0), int64(len(c.requests))))
	}
	return slices.Clone(c.requests[i:])
}

// counts is how many requests came in all, and how many of them are no longer kept.
func (c *recorder) counts() (total, dropped int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seq, c.dropped
}

func (c *recorder) changes() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}
