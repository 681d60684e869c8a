package scriptedmodel

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// Defaults of Config.
const (
	DefaultModelName     = "scripted-demo-model"
	DefaultContextLength = 200_000
	DefaultRecordBytes   = 256 << 20
)

// Config sets a Model up. The zero value is usable.
type Config struct {
	// ModelName is the one model listed; DefaultModelName when empty. Requests may name any model.
	ModelName string
	// ContextLength is the context size in tokens that /v1/models tells; DefaultContextLength when 0.
	ContextLength int64
	// RecordBytes bounds the memory of recorded requests, in bytes; DefaultRecordBytes when 0. The oldest are dropped.
	RecordBytes int64
	// RecordTo, when set, gets every request as one line of JSON (a Request) before it is answered.
	RecordTo io.Writer
	// Control serves the interface below /_control/, which shows every request and has no authentication.
	Control bool
}

// Model is a scripted OpenAI-compatible model. Its methods may be called at any time from any goroutine.
type Model struct {
	cfg Config
	run string // makes the ids of this model's answers unlike those of any other's

	rec *recorder

	mu         sync.Mutex
	rules      []rule             // newest first
	queues     map[string][]Reply // by prompt
	gates      map[string]*Gate
	unanswered unanswered
	up         context.Context // done while the model is down
	goDown     context.CancelCauseFunc
}

type rule struct {
	match func(Request) bool
	reply Reply
}

var (
	errDown         = errors.New("scripted model is down")
	errTooManyGates = fmt.Errorf("more than %d gates", maxGates)
)

// maxGates bounds what texts with gate names of their own can make the model keep.
const maxGates = 4096

// New returns a model that is up. It opens nothing.
func New(cfg Config) *Model {
	if cfg.ModelName == "" {
		cfg.ModelName = DefaultModelName
	}
	if cfg.ContextLength == 0 {
		cfg.ContextLength = DefaultContextLength
	}
	if cfg.RecordBytes == 0 {
		cfg.RecordBytes = DefaultRecordBytes
	}
	var id [4]byte
	rand.Read(id[:])
	m := &Model{
		cfg: cfg, run: hex.EncodeToString(id[:]), rec: newRecorder(cfg.RecordBytes, cfg.RecordTo),
		queues: make(map[string][]Reply), gates: make(map[string]*Gate),
	}
	m.up, m.goDown = context.WithCancelCause(context.Background())
	return m
}

// On answers every request that match accepts with reply, before any directive.
// The newest rule wins. match sees requests of every kind.
func (m *Model) On(match func(Request) bool, reply Reply) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.rules = append([]rule{{match, reply}}, m.rules...)
}

// Queue gives the next requests of turns whose Prompt is prompt these answers, each once and in order, before any rule. A turn that
// calls tools makes a request for each step, and Hermes repeats a request that failed, so that one turn can use several.
func (m *Model) Queue(prompt string, replies ...Reply) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.queues[prompt] = append(m.queues[prompt], replies...)
}

// Gate returns the gate of that name, made closed when it is new.
func (m *Model) Gate(name string) *Gate {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.gate(name)
}

func (m *Model) gate(name string) *Gate {
	g := m.gates[name]
	if g == nil {
		g = newGate()
		m.gates[name] = g
	}
	return g
}

func (m *Model) pass(ctx context.Context, name string) error {
	m.mu.Lock()
	if m.gates[name] == nil && len(m.gates) >= maxGates {
		m.mu.Unlock()
		return errTooManyGates
	}
	g := m.gate(name)
	m.mu.Unlock()
	return g.pass(ctx)
}

// Down makes the model unreachable: answers in progress and connections of later requests are cut without a word, and nothing
// is recorded, until Up. The listener stays, so that the control interface can be reached.
func (m *Model) Down() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.goDown(errDown)
}

// Up ends Down.
func (m *Model) Up() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.up.Err() != nil {
		m.up, m.goDown = context.WithCancelCause(context.Background())
	}
}

// IsDown reports whether the model is down.
func (m *Model) IsDown() bool { return m.upContext().Err() != nil }

func (m *Model) upContext() context.Context {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.up
}

// Requests returns the recorded requests, oldest first.
func (m *Model) Requests() []Request { return m.rec.after(0) }

// Dropped is how many of the oldest requests were dropped to keep within Config.RecordBytes.
func (m *Model) Dropped() int64 {
	_, dropped := m.rec.counts()
	return dropped
}

// Await returns the oldest recorded request that match accepts, waiting for it to arrive.
func (m *Model) Await(ctx context.Context, match func(Request) bool) (Request, error) {
	var seen int64
	for {
		changed := m.rec.changes()
		for _, r := range m.rec.after(seen) {
			seen = r.Seq
			if match(r) {
				return r, nil
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return Request{}, fmt.Errorf("wait for a model request: %w", context.Cause(ctx))
		}
	}
}

// accept records a request and chooses its answer.
func (m *Model) accept(r Request) (Request, Reply, error) {
	if r.fromAgent() {
		e := entryOf(r)
		m.mu.Lock()
		r.Prompt = m.unanswered.prompt(r, e.history)
		m.unanswered.add(e)
		m.mu.Unlock()
	}
	r.Time = time.Now()
	r, err := m.rec.add(r)
	if err != nil {
		return r, Reply{}, err
	}
	if reply, ok := m.dequeue(r); ok {
		return r, reply, nil
	}
	m.mu.Lock()
	rules := m.rules
	m.mu.Unlock()
	for _, rule := range rules { // outside the lock: match may call the model
		if rule.match(r) {
			return r, rule.reply, nil
		}
	}
	if r.fromAgent() {
		if reply, ok := directive(r); ok {
			return r, reply, nil
		}
	}
	return r, byRule(r), nil
}

func (m *Model) dequeue(r Request) (Reply, bool) {
	if !r.fromAgent() {
		return Reply{}, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q := m.queues[r.Prompt]
	if len(q) == 0 {
		return Reply{}, false
	}
	if len(q) == 1 {
		delete(m.queues, r.Prompt)
	} else {
		m.queues[r.Prompt] = q[1:]
	}
	return q[0], true
}

// noteAnswered takes back what accept noted: the client has the whole answer.
func (m *Model) noteAnswered(r Request) {
	if !r.fromAgent() {
		return
	}
	e := entryOf(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unanswered.remove(e)
}

// noteRefused notes a request that came while the model was down.
func (m *Model) noteRefused(r Request) {
	if !r.fromAgent() {
		return
	}
	e := entryOf(r)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unanswered.add(e)
}
