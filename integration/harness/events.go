package harness

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Event is one Server-Sent Event.
type Event struct {
	ID     int64 // 0: live
	Type   string
	TurnID string   `json:"turnId"`
	State  string   `json:"state"`
	Text   string   `json:"text"`
	Loc    *Locator `json:"locator"`
	Last   int64    `json:"lastSequence,string"`
	File   *struct {
		URI      string `json:"uri"`
		Change   string `json:"change"`
		Previous string `json:"previousUri"`
		Version  string `json:"version"`
	} `json:"file"`
	// Data is the event's data as it came.
	Data string `json:"-"`
}

// Events is an open event stream.
type Events struct {
	resp   *http.Response
	cancel context.CancelFunc
	lines  *bufio.Reader
	// Comments counts the heartbeats seen so far.
	Comments int
}

// Events opens the event stream of a conversation after the event of that id, -1 for a stream
// without the header. It returns once the stream is attached.
func (c *Client) Events(ctx context.Context, conv Conversation, after int64) (*Events, error) {
	return c.EventsFrom(ctx, c.bases[int(c.next.Load())%len(c.bases)], conv, after)
}

// EventsFrom is Events through another address, such as a proxy's.
func (c *Client) EventsFrom(ctx context.Context, base string, conv Conversation, after int64) (*Events, error) {
	ctx, cancel := context.WithCancel(ctx)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+conv.Path()+"/events", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if after >= 0 {
		req.Header.Set("Last-Event-ID", strconv.FormatInt(after, 10))
	}
	resp, err := c.http.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		defer cancel()
		defer resp.Body.Close()
		body, _ := bufio.NewReader(resp.Body).ReadBytes(0)
		return nil, Answer{resp.StatusCode, resp.Header, body}.Err()
	}
	return &Events{resp: resp, cancel: cancel, lines: bufio.NewReaderSize(resp.Body, 1<<20)}, nil
}

// Header is the answer's.
func (e *Events) Header() http.Header { return e.resp.Header }

// Next returns the next event; io.EOF when the stream has ended.
func (e *Events) Next() (Event, error) {
	var ev Event
	var data []string
	for {
		line, err := e.lines.ReadString('\n')
		if err != nil {
			return Event{}, err
		}
		line = strings.TrimRight(line, "\r\n")
		field, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch {
		case line == "" && ev.Type == "" && data == nil: // the end of a comment
		case line == "":
			ev.Data = strings.Join(data, "\n")
			kind, id := ev.Type, ev.ID
			if err := json.Unmarshal([]byte(ev.Data), &ev); err != nil {
				return Event{}, fmt.Errorf("event data %.100q: %w", ev.Data, err)
			}
			ev.Type, ev.ID = kind, id
			return ev, nil
		case field == "":
			e.Comments++
		case field == "id":
			if ev.ID, err = strconv.ParseInt(value, 10, 64); err != nil {
				return Event{}, fmt.Errorf("event id: %w", err)
			}
		case field == "event":
			ev.Type = value
		case field == "data":
			data = append(data, value)
		}
	}
}

// Until returns the durable events up to the first that last accepts, and all live ones between.
func (e *Events) Until(last func(Event) bool) ([]Event, error) {
	var all []Event
	for {
		ev, err := e.Next()
		if err != nil {
			return all, err
		}
		all = append(all, ev)
		if last(ev) {
			return all, nil
		}
	}
}

// Close ends the stream.
func (e *Events) Close() {
	e.cancel()
	e.resp.Body.Close()
}
