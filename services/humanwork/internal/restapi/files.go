package restapi

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"humanwork.internal/pkg/fileuri"
)

// Conversation names one conversation; with an empty ID, its organization.
type Conversation struct{ Organization, ID string }

// Path is the conversation's path, or the organization's, below the gateway's URL.
func (c Conversation) Path() string {
	p := "/v1/organizations/" + url.PathEscape(c.Organization)
	if c.ID != "" {
		p += "/conversations/" + url.PathEscape(c.ID)
	}
	return p
}

// Item is a value of an answer with the JSON it came as, for programs.
type Item[T any] struct {
	Value T
	Raw   json.RawMessage
}

// UnmarshalJSON keeps the JSON beside the value.
func (i *Item[T]) UnmarshalJSON(raw []byte) error {
	i.Raw = append(json.RawMessage(nil), raw...)
	return json.Unmarshal(raw, &i.Value)
}

// MarshalJSON returns the JSON as it came.
func (i Item[T]) MarshalJSON() ([]byte, error) { return i.Raw, nil }

// File describes one regular file.
type File struct {
	URI        string    `json:"uri"`
	Path       string    `json:"path"`
	Size       int64     `json:"size,string"` // bytes
	Mode       uint32    `json:"mode"`        // as in stat(2)
	ModifyTime time.Time `json:"modifyTime"`
	Version    string    `json:"version"`
	SHA256     string    `json:"sha256"` // hexadecimal; empty: not known
}

// Attachment is a stored attachment and the content block to send for it.
type Attachment struct {
	URI      string          `json:"uri"`
	Size     int64           `json:"size,string"` // bytes
	MimeType string          `json:"mimeType"`
	SHA256   string          `json:"sha256"`
	Block    json.RawMessage `json:"block"`
}

// Condition is what must hold for a write or removal; zero: nothing.
type Condition struct {
	// Version is the one the file must have.
	Version string
	// Absent: there must be no such file.
	Absent bool
}

func (c Condition) header() http.Header {
	h := http.Header{}
	if c.Version != "" {
		h.Set("If-Match", strconv.Quote(c.Version))
	}
	if c.Absent {
		h.Set("If-None-Match", "*")
	}
	return h
}

func filePath(conv Conversation, p fileuri.Path) string {
	// A canonical URI's path is a canonical URL path as well.
	return conv.Path() + "/files/" + strings.TrimPrefix(p.URI(), "file:///")
}

// PutFile writes a file of size bytes, -1: as many as there are. created: the name was free.
func (c *Client) PutFile(ctx context.Context, conv Conversation, p fileuri.Path, cond Condition, body io.Reader, size int64) (f Item[File], created bool, err error) {
	status, err := c.upload(ctx, http.MethodPut, filePath(conv, p), cond.header(), source{body}, size, &f)
	return f, status == http.StatusCreated, err
}

// Content is a file that is read; the caller closes it.
type Content struct {
	io.ReadCloser
	Size    int64  // bytes; -1: not known
	Version string // of File
}

// GetFile begins to read a file.
func (c *Client) GetFile(ctx context.Context, conv Conversation, p fileuri.Path) (Content, error) {
	return c.download(ctx, filePath(conv, p))
}

func (c *Client) download(ctx context.Context, path string) (Content, error) {
	resp, err := c.do(ctx, http.MethodGet, path, nil, nil, -1) //nolint:bodyclose // the caller closes the Content
	if err != nil {
		return Content{}, err
	}
	version, err := strconv.Unquote(resp.Header.Get("ETag"))
	if err != nil {
		version = ""
	}
	return Content{resp.Body, resp.ContentLength, version}, nil
}

// DeleteFile removes a file.
func (c *Client) DeleteFile(ctx context.Context, conv Conversation, p fileuri.Path, cond Condition) error {
	return c.Call(ctx, http.MethodDelete, filePath(conv, p), cond.header(), nil, nil)
}

// Attach stores an attachment of size bytes, -1: as many as there are, under a name.
func (c *Client) Attach(ctx context.Context, conv Conversation, name string, body io.Reader, size int64) (Item[Attachment], error) {
	var a Item[Attachment]
	_, err := c.upload(ctx, http.MethodPost, conv.Path()+"/attachments?"+url.Values{"filename": {name}}.Encode(), nil, source{body}, size, &a)
	return a, err
}

// FilePage is a page of a listing.
type FilePage struct {
	Files []Item[File] `json:"files"`
	// Directories are public paths with a slash at the end; of shallow listings.
	Directories   []string `json:"directories"`
	NextPageToken string   `json:"nextPageToken"`
}

func (p FilePage) next() string { return p.NextPageToken }

// Listing says what to list.
type Listing struct {
	Prefix   string // of public paths
	Shallow  bool   // name directories, do not descend
	PageSize int    // at most 1000; 0 means 1000
}

// Files lists files, page by page.
func (c *Client) Files(ctx context.Context, conv Conversation, l Listing) iter.Seq2[FilePage, error] {
	q := url.Values{"prefix": {l.Prefix}}
	if l.Shallow {
		q.Set("shallow", "true")
	}
	return pages[FilePage](ctx, c, conv.Path()+"/files", q, l.PageSize)
}

// Conversations lists the ids of an organization's conversations, page by page.
func (c *Client) Conversations(ctx context.Context, organization string) iter.Seq2[ConversationPage, error] {
	return pages[ConversationPage](ctx, c, Conversation{Organization: organization}.Path()+"/conversations", url.Values{}, 200)
}

// ConversationPage is a page of conversations.
type ConversationPage struct {
	Conversations []struct {
		ID string `json:"conversationId"`
	} `json:"conversations"`
	NextPageToken string `json:"nextPageToken"`
}

func (p ConversationPage) next() string { return p.NextPageToken }

// pages asks for one page after another until there is none, the caller has enough, or an error.
func pages[P interface{ next() string }](ctx context.Context, c *Client, path string, q url.Values, size int) iter.Seq2[P, error] {
	if size == 0 {
		size = 1000
	}
	q.Set("pageSize", strconv.Itoa(size))
	return func(yield func(P, error) bool) {
		for {
			var page P
			err := c.Call(ctx, http.MethodGet, path+"?"+q.Encode(), nil, nil, &page)
			if err == nil && page.next() != "" && page.next() == q.Get("pageToken") {
				err = fmt.Errorf("the server answers the same page again and again")
			}
			if !yield(page, err) || err != nil || page.next() == "" {
				return
			}
			q.Set("pageToken", page.next())
		}
	}
}
