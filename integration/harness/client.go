package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"
)

// Conversation names one conversation.
type Conversation struct{ Organization, ID string }

// Path is the conversation's path below the gateway's address.
func (c Conversation) Path() string {
	return "/v1/organizations/" + c.Organization + "/conversations/" + c.ID
}

// Locator is, as the types after it, a public JSON shape as a product would write it down.
type Locator struct {
	SessionID string `json:"sessionId"`
	MessageID int64  `json:"messageId,string"`
}

// Turn is the public shape of a turn.
type Turn struct {
	TurnID   string `json:"turnId"`
	State    string `json:"state"`
	Messages []struct {
		InboundID string `json:"inboundId"`
		Blocks    []struct {
			Type   string `json:"type"`
			SHA256 string `json:"sha256"`
			URI    string `json:"uri"`
		} `json:"blocks"`
	} `json:"messages"`
	Replies []struct {
		Locator Locator `json:"locator"`
		Text    string  `json:"text"`
	} `json:"replies"`
	Error *struct {
		Reason    string `json:"reason"`
		Message   string `json:"message"`
		Retryable bool   `json:"retryable"`
	} `json:"error"`
	Timings    map[string]float64 `json:"timings"`
	CreateTime time.Time          `json:"createTime"`
	EndTime    time.Time          `json:"endTime"`
}

// Ended reports whether the state is a final one.
func (t Turn) Ended() bool { return t.State != "ACCEPTED" && t.State != "RUNNING" }

// Reason is the error's reason, empty if there is no error.
func (t Turn) Reason() string {
	if t.Error == nil {
		return ""
	}
	return t.Error.Reason
}

// Message is one entry of a transcript: a message, or an attachment that has no locator.
type Message struct {
	Locator    Locator `json:"locator"`
	Role       string  `json:"role"`
	Text       string  `json:"text"`
	Version    string  `json:"version"`
	Attachment *struct {
		URI      string `json:"uri"`
		Name     string `json:"name"`
		MimeType string `json:"mimeType"`
		Size     int64  `json:"size,string"`
		SHA256   string `json:"sha256"`
	} `json:"attachment"`
}

// Answer is an HTTP answer with its body read.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// APIError is an answer that is an error.
type APIError struct {
	Status  int
	Code    int    `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type     string            `json:"@type"`
		Reason   string            `json:"reason"`
		Domain   string            `json:"domain"`
		Metadata map[string]string `json:"metadata"`
	} `json:"details"`
}

// Reason is the ErrorInfo's.
func (e *APIError) Reason() string {
	for _, d := range e.Details {
		if d.Reason != "" {
			return d.Reason
		}
	}
	return ""
}

func (e *APIError) Error() string {
	return fmt.Sprintf("HTTP %d %s: %s", e.Status, e.Reason(), e.Message)
}

// ReasonOf is the reason of an APIError, empty for any other error.
func ReasonOf(err error) string {
	var e *APIError
	if errors.As(err, &e) {
		return e.Reason()
	}
	return ""
}

// Client speaks to the gateways of a system, one after another where one does not answer.
type Client struct {
	token string
	bases []string
	http  *http.Client
	next  atomic.Uint32
}

// NewClient speaks to gateways at the base addresses.
func NewClient(token string, bases ...string) *Client {
	return &Client{token: token, bases: bases, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
}

// At is the same client on one gateway alone.
func (c *Client) At(replica int) *Client {
	return &Client{token: c.token, bases: c.bases[replica : replica+1], http: c.http}
}

// Base is the address of a gateway.
func (c *Client) Base(replica int) string { return c.bases[replica] }

// As is the same client with another token.
func (c *Client) As(token string) *Client { return &Client{token: token, bases: c.bases, http: c.http} }

// Raw sends one request as it is given to one gateway.
func (c *Client) Raw(ctx context.Context, method, path string, header http.Header, body []byte) (Answer, error) {
	return c.raw(ctx, c.bases[int(c.next.Load())%len(c.bases)], method, path, header, body)
}

func (c *Client) raw(ctx context.Context, base, method, path string, header http.Header, body []byte) (Answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	for k, v := range header {
		req.Header[k] = v
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Answer{}, err
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return Answer{resp.StatusCode, resp.Header, got}, err
}

// Err is the answer's error, nil below 400.
func (a Answer) Err() error {
	if a.Status < http.StatusBadRequest {
		return nil
	}
	e := &APIError{Status: a.Status}
	if err := json.Unmarshal(a.Body, e); err != nil {
		return fmt.Errorf("HTTP %d with a body that is no error object: %.200q", a.Status, a.Body)
	}
	e.Status = a.Status
	return e
}

// call sends to each gateway once until one answers, and decodes.
func (c *Client) call(ctx context.Context, method, path string, header http.Header, body, into any) (Answer, error) {
	var raw []byte
	if body != nil {
		var err error
		if raw, err = json.Marshal(body); err != nil {
			return Answer{}, err
		}
	}
	start := int(c.next.Load())
	var a Answer
	var err error
	for i := range c.bases {
		a, err = c.raw(ctx, c.bases[(start+i)%len(c.bases)], method, path, header, raw)
		if err == nil && a.Status != http.StatusServiceUnavailable {
			break
		}
		c.next.Add(1)
	}
	if err != nil {
		return a, err
	}
	if err := a.Err(); err != nil {
		return a, err
	}
	if into == nil {
		return a, nil
	}
	if err := json.Unmarshal(a.Body, into); err != nil {
		return a, fmt.Errorf("decode the answer of %s %s: %w", method, path, err)
	}
	return a, nil
}

// CreateOrganization creates an organization.
func (c *Client) CreateOrganization(ctx context.Context, id string) error {
	_, err := c.call(ctx, http.MethodPost, "/v1/organizations", nil, map[string]string{"organizationId": id}, nil)
	return err
}

// CreateConversation creates a conversation and returns its Hermes session.
func (c *Client) CreateConversation(ctx context.Context, conv Conversation) (sessionID string, err error) {
	var got struct {
		SessionID string `json:"sessionId"`
	}
	_, err = c.call(ctx, http.MethodPost, "/v1/organizations/"+conv.Organization+"/conversations", nil, map[string]string{"conversationId": conv.ID}, &got)
	return got.SessionID, err
}

// TextTurn is the body of a turn with one text block.
func TextTurn(text string) any {
	return map[string]any{"messages": []any{map[string]any{"blocks": []any{map[string]any{"type": "text", "text": text}}}}}
}

// Submit submits a turn; key may be empty.
func (c *Client) Submit(ctx context.Context, conv Conversation, key string, body any) (Turn, Answer, error) {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	var turn Turn
	a, err := c.call(ctx, http.MethodPost, conv.Path()+"/turns", header, body, &turn)
	return turn, a, err
}

// Turn returns a turn; with wait it answers when the turn has ended or the time is up.
func (c *Client) Turn(ctx context.Context, conv Conversation, turnID string, wait time.Duration) (Turn, error) {
	path := conv.Path() + "/turns/" + turnID
	if wait > 0 {
		path += "?wait=" + wait.String()
	}
	var turn Turn
	_, err := c.call(ctx, http.MethodGet, path, nil, nil, &turn)
	return turn, err
}

// Wait waits until a turn has ended, over gateways that die meanwhile.
func (c *Client) Wait(ctx context.Context, conv Conversation, turnID string) (Turn, error) {
	for {
		turn, err := c.Turn(ctx, conv, turnID, 30*time.Second)
		if err == nil && turn.Ended() {
			return turn, nil
		}
		if err != nil && !passing(err) {
			return turn, err
		}
		if err := pause(ctx, err); err != nil {
			return turn, fmt.Errorf("wait for turn %s (last seen %q): %w", turnID, turn.State, err)
		}
	}
}

// Durably repeats a call that fails because a part of the system is away, as a product would.
func Durably[R any](ctx context.Context, call func() (R, error)) (R, error) {
	for {
		got, err := call()
		if err == nil || !passing(err) {
			return got, err
		}
		if stop := pause(ctx, err); stop != nil {
			return got, fmt.Errorf("%w; the last answer: %w", stop, err)
		}
	}
}

// passing tells errors of a part that is away from answers that stay.
func passing(err error) bool {
	var e *APIError
	if errors.As(err, &e) {
		return e.Status == http.StatusServiceUnavailable || e.Status == http.StatusGatewayTimeout || e.Status == http.StatusTooManyRequests
	}
	var u *url.Error
	return errors.As(err, &u) || errors.Is(err, io.ErrUnexpectedEOF)
}

// pause lets a part come back after an error; nil waits for nothing.
func pause(ctx context.Context, err error) error {
	if err == nil {
		return context.Cause(ctx)
	}
	timer := time.NewTimer(100 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Cancel cancels a turn.
func (c *Client) Cancel(ctx context.Context, conv Conversation, turnID string) (Turn, error) {
	var turn Turn
	_, err := c.call(ctx, http.MethodPost, conv.Path()+"/turns/"+turnID+":cancel", nil, nil, &turn)
	return turn, err
}

// Turns lists every turn of a conversation in the order they were accepted.
func (c *Client) Turns(ctx context.Context, conv Conversation) ([]Turn, error) {
	var all []Turn
	err := c.pages(ctx, conv.Path()+"/turns", "200", func(raw []byte) (string, error) {
		var page struct {
			Turns         []Turn `json:"turns"`
			NextPageToken string `json:"nextPageToken"`
		}
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Turns...)
		return page.NextPageToken, err
	})
	return all, err
}

// Transcript returns the whole transcript, oldest first.
func (c *Client) Transcript(ctx context.Context, conv Conversation) ([]Message, error) {
	var all []Message
	err := c.pages(ctx, conv.Path()+"/transcript", "500", func(raw []byte) (string, error) {
		var page struct {
			Messages      []Message `json:"messages"`
			NextPageToken string    `json:"nextPageToken"`
		}
		err := json.Unmarshal(raw, &page)
		all = append(all, page.Messages...)
		return page.NextPageToken, err
	})
	return all, err
}

func (c *Client) pages(ctx context.Context, path, size string, page func([]byte) (string, error)) error {
	for token := ""; ; {
		q := url.Values{"pageSize": {size}}
		if token != "" {
			q.Set("pageToken", token)
		}
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		a, err := c.call(ctx, http.MethodGet, path+separator+q.Encode(), nil, nil, nil)
		if err != nil {
			return err
		}
		if token, err = page(a.Body); err != nil || token == "" {
			return err
		}
	}
}

func get(ctx context.Context, address string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	return resp.StatusCode, string(body), err
}
