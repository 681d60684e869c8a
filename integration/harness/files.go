package harness

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// File is the public shape of a regular file of a conversation.
type File struct {
	URI        string    `json:"uri"`
	Path       string    `json:"path"`
	Size       int64     `json:"size,string"` // bytes
	Mode       uint32    `json:"mode"`        // as in stat(2)
	ModifyTime time.Time `json:"modifyTime"`
	Version    string    `json:"version"` // inode and content version
	SHA256     string    `json:"sha256"`  // empty: not known
}

// Attachment is what an upload of an attachment answers.
type Attachment struct {
	URI      string `json:"uri"`
	Size     int64  `json:"size,string"`
	MimeType string `json:"mimeType"`
	SHA256   string `json:"sha256"`
	// Block is the content block to send, as it came.
	Block json.RawMessage `json:"block"`
}

// LedgerRecord is one record of an AgentFS ledger.
type LedgerRecord struct {
	Position int64     `json:"position,string"`
	Time     time.Time `json:"time"`
	Actor    string    `json:"actor"`
	Action   string    `json:"action"`
	Path     string    `json:"path"`
	Target   string    `json:"target"`
	Version  string    `json:"version"`
	Size     int64     `json:"size,string"`
	Hash     string    `json:"hash"`
	Writer   int64     `json:"writer,string"`
	Sequence int64     `json:"sequence,string"`
}

// Difference is one line of the difference between two points of a ledger.
type Difference struct {
	Kind         string `json:"kind"`
	Path         string `json:"path"`
	PreviousPath string `json:"previousPath"`
	Directory    bool   `json:"directory"`
}

// CheckReport is what a check of an organization's AgentFS found.
type CheckReport struct {
	Faults []struct {
		Kind    string `json:"kind"`
		Message string `json:"message"`
	} `json:"faults"`
	Inodes        int64 `json:"inodes,string"`
	Bytes         int64 `json:"bytes,string"`
	LedgerRecords int64 `json:"ledgerRecords,string"`
}

// FileURL is the path of a public file path below the gateway's address.
func (c Conversation) FileURL(path string) string {
	names := strings.Split(path, "/")
	for i, name := range names {
		names[i] = url.PathEscape(name)
	}
	return c.Path() + "/files/" + strings.Join(names, "/")
}

// Stream sends a request with a body that is not kept in memory; size -1: unknown. The answer's body is the caller's to read and close,
// except that of an error, which is returned as one.
func (c *Client) Stream(ctx context.Context, method, path string, header http.Header, body io.Reader, size int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.bases[int(c.next.Load())%len(c.bases)]+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.ContentLength = size
		req.Header.Set("Content-Type", "application/octet-stream")
		if size == 0 {
			req.Body = http.NoBody
		}
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < http.StatusBadRequest {
		return resp, nil
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	return nil, Answer{resp.StatusCode, resp.Header, got}.Err()
}

// send is Stream with the answer decoded.
func (c *Client) send(ctx context.Context, method, path string, header http.Header, body io.Reader, size int64, into any) (Answer, error) {
	resp, err := c.Stream(ctx, method, path, header, body, size)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	a := Answer{resp.StatusCode, resp.Header, got}
	if err != nil || into == nil || len(got) == 0 {
		return a, err
	}
	if err := json.Unmarshal(got, into); err != nil {
		return a, fmt.Errorf("decode the answer of %s %s: %w", method, path, err)
	}
	return a, nil
}

// PutFile writes a file of size bytes, -1: unknown.
func (c *Client) PutFile(ctx context.Context, conv Conversation, path string, header http.Header, body io.Reader, size int64) (File, Answer, error) {
	var f File
	a, err := c.send(ctx, http.MethodPut, conv.FileURL(path), header, body, size, &f)
	return f, a, err
}

// OpenFile begins to read a file; the caller closes the answer's body.
func (c *Client) OpenFile(ctx context.Context, conv Conversation, path string, header http.Header) (*http.Response, error) {
	return c.Stream(ctx, http.MethodGet, conv.FileURL(path), header, nil, 0)
}

// GetFile reads a file.
func (c *Client) GetFile(ctx context.Context, conv Conversation, path string, header http.Header) (Answer, error) {
	return c.send(ctx, http.MethodGet, conv.FileURL(path), header, nil, 0, nil)
}

// HeadFile describes a file by its headers.
func (c *Client) HeadFile(ctx context.Context, conv Conversation, path string) (Answer, error) {
	return c.send(ctx, http.MethodHead, conv.FileURL(path), nil, nil, 0, nil)
}

// DeleteFile removes a file.
func (c *Client) DeleteFile(ctx context.Context, conv Conversation, path string, header http.Header) (Answer, error) {
	return c.send(ctx, http.MethodDelete, conv.FileURL(path), header, nil, 0, nil)
}

// Attach uploads an attachment.
func (c *Client) Attach(ctx context.Context, conv Conversation, name string, body io.Reader, size int64) (Attachment, error) {
	var got Attachment
	_, err := c.send(ctx, http.MethodPost, conv.Path()+"/attachments?"+url.Values{"filename": {name}}.Encode(), nil, body, size, &got)
	return got, err
}

// Files lists the files whose path begins with prefix, in the order they come. pages is how many answers it took.
func (c *Client) Files(ctx context.Context, conv Conversation, prefix string) (all []File, pages int, err error) {
	path := conv.Path() + "/files?" + url.Values{"prefix": {prefix}}.Encode()
	err = c.pages(ctx, path, "1000", func(raw []byte) (string, error) {
		var page struct {
			Files         []File `json:"files"`
			NextPageToken string `json:"nextPageToken"`
		}
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Files...)
		pages++
		return page.NextPageToken, err
	})
	return all, pages, err
}

// Timeline returns the ledger records of a conversation, or with an empty id of the organization, above a position, oldest first.
func (c *Client) Timeline(ctx context.Context, conv Conversation, after int64) ([]LedgerRecord, error) {
	var all []LedgerRecord
	err := c.pages(ctx, conv.audit()+fmt.Sprintf("timeline?after=%d", after), "1000", func(raw []byte) (string, error) {
		var page struct {
			Records       []LedgerRecord `json:"records"`
			NextPageToken string         `json:"nextPageToken"`
		}
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Records...)
		return page.NextPageToken, err
	})
	return all, err
}

// Diff returns what differs between two positions of the ledger, 0: the base, and now.
func (c *Client) Diff(ctx context.Context, conv Conversation, from, to int64) ([]Difference, error) {
	var all []Difference
	err := c.pages(ctx, conv.audit()+fmt.Sprintf("diff?from=%d&to=%d", from, to), "1000", func(raw []byte) (string, error) {
		var page struct {
			Differences   []Difference `json:"differences"`
			NextPageToken string       `json:"nextPageToken"`
		}
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Differences...)
		return page.NextPageToken, err
	})
	return all, err
}

func (c Conversation) audit() string {
	if c.ID == "" {
		return "/v1/organizations/" + c.Organization + "/audit/"
	}
	return c.Path() + "/audit/"
}

// CheckAgentFS checks an organization's AgentFS.
func (c *Client) CheckAgentFS(ctx context.Context, organization string, repair bool) (CheckReport, error) {
	var got CheckReport
	_, err := c.call(ctx, http.MethodPost, "/v1/organizations/"+organization+"/agentfs:check", nil, map[string]bool{"repair": repair}, &got)
	return got, err
}

// SnapshotAgentFS takes a snapshot of an organization's AgentFS.
func (c *Client) SnapshotAgentFS(ctx context.Context, organization, name string) error {
	_, err := c.call(ctx, http.MethodPost, "/v1/organizations/"+organization+"/agentfs/snapshots", nil, map[string]string{"name": name}, nil)
	return err
}

// ExportAgentFS writes a copy of an organization's AgentFS to w; empty snapshot: of now.
func (c *Client) ExportAgentFS(ctx context.Context, organization, snapshot string, w io.Writer) error {
	path := "/v1/organizations/" + organization + "/agentfs/export"
	if snapshot != "" {
		path += "?" + url.Values{"snapshot": {snapshot}}.Encode()
	}
	resp, err := c.Stream(ctx, http.MethodGet, path, nil, nil, 0)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(w, resp.Body)
	return err
}

// RestoreAgentFS replaces an organization's AgentFS by the database of size bytes.
func (c *Client) RestoreAgentFS(ctx context.Context, organization string, database io.Reader, size int64) error {
	_, err := c.send(ctx, http.MethodPost, "/v1/organizations/"+organization+"/agentfs:restore", nil, database, size, nil)
	return err
}
