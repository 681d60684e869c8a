package restapi

import (
	"context"
	"iter"
	"net/url"
	"strconv"
	"time"
)

// Record is one record of the ledger.
type Record struct {
	Position int64     `json:"position,string"`
	Time     time.Time `json:"time"`
	Actor    string    `json:"actor"`
	Action   string    `json:"action"`
	Path     string    `json:"path"`
	Target   string    `json:"target"`
	Size     int64     `json:"size,string"` // bytes
	Version  string    `json:"version"`
}

// RecordPage is a page of the ledger.
type RecordPage struct {
	Records       []Item[Record] `json:"records"`
	NextPageToken string         `json:"nextPageToken"`
}

func (p RecordPage) next() string { return p.NextPageToken }

// Timeline lists the ledger above a position, oldest first, page by page; path: only what happened
// there and below.
func (c *Client) Timeline(ctx context.Context, conv Conversation, path string, after int64) iter.Seq2[RecordPage, error] {
	q := url.Values{}
	if path != "" {
		q.Set("path", path)
	}
	if after != 0 {
		q.Set("after", strconv.FormatInt(after, 10))
	}
	return pages[RecordPage](ctx, c, conv.Path()+"/audit/timeline", q, 0)
}

// Difference is a file that differs between two positions.
type Difference struct {
	Kind         string `json:"kind"` // ADDED, MODIFIED, REMOVED or RENAMED, perhaps after KIND_
	Path         string `json:"path"`
	PreviousPath string `json:"previousPath"`
	Directory    bool   `json:"directory"`
}

// DifferencePage is a page of differences between two positions.
type DifferencePage struct {
	Differences   []Item[Difference] `json:"differences"`
	From          int64              `json:"from,string"`
	To            int64              `json:"to,string"`
	NextPageToken string             `json:"nextPageToken"`
}

func (p DifferencePage) next() string { return p.NextPageToken }

// Diff lists what differs between two positions of the ledger, 0: the base and now, page by page.
func (c *Client) Diff(ctx context.Context, conv Conversation, from, to int64) iter.Seq2[DifferencePage, error] {
	q := url.Values{}
	if from != 0 {
		q.Set("from", strconv.FormatInt(from, 10))
	}
	if to != 0 {
		q.Set("to", strconv.FormatInt(to, 10))
	}
	return pages[DifferencePage](ctx, c, conv.Path()+"/audit/diff", q, 0)
}

// ToolCall is one call of a native tool.
type ToolCall struct {
	ID         int64     `json:"id,string"`
	Name       string    `json:"name"`
	Parameters string    `json:"parameters"` // JSON text
	Error      string    `json:"error"`
	Status     string    `json:"status"`
	StartTime  time.Time `json:"startTime"`
	DurationMs int64     `json:"durationMs,string"`
}

// ToolCallPage is a page of tool calls.
type ToolCallPage struct {
	ToolCalls     []Item[ToolCall] `json:"toolCalls"`
	NextPageToken string           `json:"nextPageToken"`
}

func (p ToolCallPage) next() string { return p.NextPageToken }

// ToolCalls lists tool calls, oldest first, page by page.
func (c *Client) ToolCalls(ctx context.Context, conv Conversation) iter.Seq2[ToolCallPage, error] {
	return pages[ToolCallPage](ctx, c, conv.Path()+"/audit/toolcalls", url.Values{}, 0)
}
