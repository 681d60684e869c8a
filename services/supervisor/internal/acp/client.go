// Package acp is the client side of the Agent Client Protocol on one Hermes child: one prompt at
// a time, content blocks as the exact bytes given, every permission request answered at once.
//
// The SDK (github.com/coder/acp-go-sdk) gives the types and names of what this client makes
// itself. The connection is our own, because the SDK's ends at a line over 10 MiB and when its
// notification queue overflows, and the prompt is, because its type encodes the blocks again.
package acp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	sdk "github.com/coder/acp-go-sdk"
)

// Defaults of Config.
const (
	DefaultMaxLine = 64 << 20
	// Hermes's own reader fails, and its pipe with it, on a line of more than 50 MiB.
	DefaultMaxPromptLine = 48 << 20
)

// writeQueue is how many messages may wait for the child to read. A child that lets so many
// answers pile up is not speaking the protocol.
const writeQueue = 256

// What ends a call, besides the agent's answer.
var (
	// ErrEnded: the agent's output ended, or it can no longer be spoken to.
	ErrEnded = errors.New("the agent's connection ended")
	// ErrLineTooLong: a line over the limit arrived while the call ran, or would have to be written.
	ErrLineTooLong = errors.New("a line is over the limit")
	// ErrBadAnswer: the agent answered something that is not an answer to the request.
	ErrBadAnswer = errors.New("the agent's answer cannot be read")
	// ErrBusy: a prompt is running.
	ErrBusy = errors.New("a prompt is running")

	errNotReading = errors.New("the agent does not read its input")
)

// Config bounds the lines, in bytes. Zero fields take the defaults.
type Config struct {
	MaxLine       int
	MaxPromptLine int
}

// Counters says what was dropped.
type Counters struct {
	BadLines        int64 // not JSON-RPC, not UTF-8
	LongLines       int64
	StrayUpdates    int64 // outside a prompt, or of another session
	StrayAnswers    int64 // to no open request
	UnknownRequests int64
}

// Client speaks to one agent. Run must be running for its calls to end.
type Client struct {
	rw  io.ReadWriter
	cfg Config

	writes chan write
	done   chan struct{}

	mu     sync.Mutex
	err    error
	nextID int64
	calls  map[int64]*call
	prompt *Prompt

	badLines, longLines, strayUpdates, strayAnswers, unknownRequests atomic.Int64
}

type write struct {
	line    []byte
	written func()
}

type call struct {
	done   chan struct{}
	result json.RawMessage
	err    error
}

// NewClient makes a client that reads the agent's output from rw and writes its input to it.
func NewClient(rw io.ReadWriter, cfg Config) *Client {
	if cfg.MaxLine == 0 {
		cfg.MaxLine = DefaultMaxLine
	}
	if cfg.MaxPromptLine == 0 {
		cfg.MaxPromptLine = DefaultMaxPromptLine
	}
	return &Client{
		rw: rw, cfg: cfg,
		writes: make(chan write, writeQueue),
		done:   make(chan struct{}),
		calls:  map[int64]*call{},
	}
}

// Run reads until the agent's output ends, which is a nil error, or fails. A write that the agent
// does not read blocks Run's end until rw is closed.
func (c *Client) Run() error {
	var writer sync.WaitGroup
	writer.Go(c.writeAll)
	err := c.readAll()
	c.fail(err)
	writer.Wait()
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("read the agent's output: %w", err)
}

// Done closes when the agent can no longer be spoken to.
func (c *Client) Done() <-chan struct{} { return c.done }

// Counters returns what was dropped so far.
func (c *Client) Counters() Counters {
	return Counters{
		BadLines: c.badLines.Load(), LongLines: c.longLines.Load(), StrayUpdates: c.strayUpdates.Load(),
		StrayAnswers: c.strayAnswers.Load(), UnknownRequests: c.unknownRequests.Load(),
	}
}

// Initialize opens the protocol. It offers neither files nor a terminal, so that Hermes uses its
// own tools.
func (c *Client) Initialize(ctx context.Context) error {
	var answer sdk.InitializeResponse
	err := c.request(ctx, sdk.AgentMethodInitialize, sdk.InitializeRequest{
		ProtocolVersion: sdk.ProtocolVersionNumber,
		ClientInfo:      &sdk.Implementation{Name: "humanwork", Version: "1"},
	}, &answer)
	if err != nil {
		return fmt.Errorf("initialize: %w", err)
	}
	if answer.ProtocolVersion != sdk.ProtocolVersionNumber {
		return fmt.Errorf("initialize: the agent speaks protocol version %d, want %d", answer.ProtocolVersion, sdk.ProtocolVersionNumber)
	}
	return nil
}

// NewSession makes a native session and returns its id.
func (c *Client) NewSession(ctx context.Context, cwd string) (string, error) {
	var answer struct {
		SessionID string `json:"sessionId"`
	}
	err := c.request(ctx, sdk.AgentMethodSessionNew, sdk.NewSessionRequest{Cwd: cwd, McpServers: []sdk.McpServer{}}, &answer)
	if err == nil && answer.SessionID == "" {
		err = ErrBadAnswer
	}
	if err != nil {
		return "", fmt.Errorf("session/new: %w", err)
	}
	return answer.SessionID, nil
}

func (c *Client) request(ctx context.Context, method string, params, into any) error {
	pending, id, err := c.open()
	if err != nil {
		return err
	}
	message, err := requestLine(id, method, params)
	if err != nil {
		return err
	}
	if err := c.send(write{line: message}); err != nil {
		return err
	}
	select {
	case <-pending.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if pending.err != nil {
		return pending.err
	}
	if err := json.Unmarshal(pending.result, into); err != nil {
		return errors.Join(ErrBadAnswer, err)
	}
	return nil
}

// open registers a request, so that its answer finds it.
func (c *Client) open() (*call, int64, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return nil, 0, c.err
	}
	c.nextID++
	pending := &call{done: make(chan struct{})}
	c.calls[c.nextID] = pending
	return pending, c.nextID, nil
}

// send queues a message. It never blocks: the reader answers requests through it, and a reader
// that waited for the child to read could wait for a child that waits for the reader.
func (c *Client) send(w write) error {
	select {
	case c.writes <- w:
		return nil
	default:
		c.fail(errNotReading)
		return ErrEnded
	}
}

func (c *Client) writeAll() {
	for {
		select {
		case <-c.done:
			return
		case w := <-c.writes:
			if _, err := c.rw.Write(w.line); err != nil {
				c.fail(err)
				return
			}
			if w.written != nil {
				w.written()
			}
		}
	}
}

func (c *Client) readAll() error {
	lines := newLineReader(c.rw, c.cfg.MaxLine, c.lineTooLong)
	for {
		line, err := lines.next()
		switch {
		case errors.Is(err, errLineTooLong):
		case err != nil:
			return err
		case len(line) > 0:
			c.handle(line)
		}
	}
}

// lineTooLong ends the running calls: what the line said is lost, and it may be the answer.
func (c *Client) lineTooLong() {
	c.longLines.Add(1)
	c.endCalls(ErrLineTooLong, nil)
}

// fail ends the client once.
func (c *Client) fail(cause error) {
	err := ErrEnded
	if cause != nil && !errors.Is(cause, io.EOF) {
		err = fmt.Errorf("%w: %w", ErrEnded, cause)
	}
	c.endCalls(err, func() {
		if c.err == nil {
			c.err = err
			close(c.done)
		}
	})
}

func (c *Client) endCalls(err error, also func()) {
	c.mu.Lock()
	calls := c.calls
	c.calls, c.prompt = map[int64]*call{}, nil
	if also != nil {
		also()
	}
	c.mu.Unlock()
	for _, pending := range calls {
		pending.err = err
		close(pending.done)
	}
}

func (c *Client) handle(line []byte) {
	var m envelope
	// encoding/json would quietly replace bytes that are not UTF-8.
	if !utf8.Valid(line) || json.Unmarshal(line, &m) != nil {
		c.badLines.Add(1)
		return
	}
	hasID := len(m.ID) > 0 && string(m.ID) != "null"
	switch {
	case m.Method == sdk.ClientMethodSessionUpdate && !hasID:
		c.update(m.Params)
	case m.Method == sdk.ClientMethodSessionRequestPermission && hasID:
		c.permission(m)
	case m.Method != "" && hasID:
		c.unknownRequests.Add(1)
		c.reply(errorLine(m.ID, -32601, "method not found"))
	case m.Method != "": // a notification that is not for us
	case hasID:
		c.answer(m)
	default:
		c.badLines.Add(1)
	}
}

func (c *Client) answer(m envelope) {
	id, err := strconv.ParseInt(string(m.ID), 10, 64)
	c.mu.Lock()
	pending := c.calls[id]
	delete(c.calls, id)
	if pending != nil && c.prompt != nil && c.prompt.call == pending {
		c.prompt = nil // updates after the answer belong to no prompt
	}
	c.mu.Unlock()
	if err != nil || pending == nil {
		c.strayAnswers.Add(1)
		return
	}
	if m.Error != nil {
		pending.err = m.Error
	}
	pending.result = m.Result
	close(pending.done)
}

func (c *Client) update(params json.RawMessage) {
	n, err := decodeUpdate(params)
	if err != nil {
		c.badLines.Add(1)
		return
	}
	c.mu.Lock()
	p := c.prompt
	c.mu.Unlock()
	if p == nil || p.session != n.session {
		c.strayUpdates.Add(1)
		return
	}
	if n.work {
		p.sawWork()
	}
	if n.shown {
		p.sink(n.update)
	}
}

// permission answers at once: a person is never asked (Hermes asks for each dangerous command).
func (c *Client) permission(m envelope) {
	c.mu.Lock()
	p := c.prompt
	c.mu.Unlock()
	cancelled := p == nil || p.cancelled.Load()
	if p != nil {
		p.sawWork()
	}
	c.reply(resultLine(m.ID, decidePermission(m.Params, cancelled)))
}

// reply queues an answer. A failed queue has ended the client already.
func (c *Client) reply(message []byte, err error) {
	if err != nil {
		c.fail(err)
		return
	}
	_ = c.send(write{line: message})
}
