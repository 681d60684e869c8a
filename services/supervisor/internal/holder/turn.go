package holder

import (
	"sync"
	"time"

	"humanwork.internal/services/supervisor/internal/acp"
)

// Attempt names one run of one turn, and where the caller believes it to be placed.
type Attempt struct {
	Organization, Conversation, Turn string
	Number                           int32
	Epoch                            int64
}

func (a Attempt) key() turnKey {
	return turnKey{organization: a.Organization, turn: a.Turn, number: a.Number}
}

type turnKey struct {
	organization, turn string
	number             int32
}

// End is how an attempt ended.
type End int

// The ends. See the contract's TurnResult.End.
const (
	EndAnswered End = iota + 1
	EndError
	EndChildExited
	EndNotDispatched
)

// Result is what was seen of an attempt.
type Result struct {
	End          End
	StopReason   string
	Reason       string
	Message      string
	CancelSent   bool
	TextStreamed bool
	ChildEnded   bool
	Timings      Timings
}

// Timings are 0 for a phase that did not happen.
type Timings struct {
	Attach, ColdAdmission, FirstModelRequest, ModelToolLoop time.Duration
}

// turn is one attempt in the registry.
type turn struct {
	attempt      Attempt
	conversation *conversation
	session      string
	received     time.Time

	cancel chan struct{} // closed when a cancel was asked for
	done   chan struct{} // closed when result is set
	result Result
	ran    *hermes // the child it ran on; set before done closes

	mu           sync.Mutex
	cancelAsked  bool
	prompt       *acp.Prompt
	textStreamed bool
	modelAt      time.Time
	subscribers  map[*Subscription]struct{}
	ended        bool
}

func newTurn(a Attempt, c *conversation, session string) *turn {
	return &turn{
		attempt: a, conversation: c, session: session, received: time.Now(),
		cancel: make(chan struct{}), done: make(chan struct{}),
		subscribers: map[*Subscription]struct{}{},
	}
}

func (t *turn) subscribe() *Subscription {
	s := newSubscription(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		s.end()
		return s
	}
	t.subscribers[s] = struct{}{}
	return s
}

func (t *turn) unsubscribe(s *Subscription) {
	t.mu.Lock()
	delete(t.subscribers, s)
	t.mu.Unlock()
}

// publish is the prompt's sink: it runs on the reader's goroutine and never waits for a
// subscriber.
func (t *turn) publish(u acp.Update) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.textStreamed = t.textStreamed || u.Text != ""
	for s := range t.subscribers {
		s.publish(u)
	}
}

// askCancel is idempotent, and without effect on a turn that ended.
func (t *turn) askCancel() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.cancelAsked && !t.ended {
		t.cancelAsked = true
		close(t.cancel)
	}
}

// dispatch hands the prompt to the child unless a cancel came first: after it returns false
// nothing can have run.
func (t *turn) dispatch(x *hermes, blocks [][]byte) (*acp.Prompt, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cancelAsked {
		return nil, false, nil
	}
	x.turn.Store(t)
	x.prompted.Store(true)
	p, err := x.client.StartPrompt(t.session, blocks, t.publish)
	if err != nil {
		x.turn.Store(nil)
		return nil, false, err
	}
	t.prompt = p
	return p, true, nil
}

// modelRequested records the first model request and tells the prompt that Hermes runs it.
func (t *turn) modelRequested(at time.Time) {
	t.mu.Lock()
	p := t.prompt
	if p != nil && t.modelAt.IsZero() {
		t.modelAt = at
	}
	t.mu.Unlock()
	if p != nil {
		p.Working()
	}
}

// settle sets the result and lets every subscriber know.
func (t *turn) settle(r Result) {
	t.mu.Lock()
	t.result = r
	t.ended = true
	subscribers := t.subscribers
	t.subscribers = nil
	t.mu.Unlock()
	close(t.done)
	for s := range subscribers {
		s.end()
	}
}

// settledKept is how many settled attempts a conversation remembers, so that a late Prompt of
// one is refused. A conversation's turns run one after the other, so a Prompt would have to be
// under way while this many later turns came and went.
const settledKept = 1024

// settled is the set of the newest attempts that can never run here.
type settled struct {
	keys  map[turnKey]struct{}
	order []turnKey
	next  int
}

func (s *settled) has(k turnKey) bool {
	_, ok := s.keys[k]
	return ok
}

func (s *settled) add(k turnKey) {
	if s.has(k) {
		return
	}
	if s.keys == nil {
		s.keys = map[turnKey]struct{}{}
	}
	s.keys[k] = struct{}{}
	if len(s.order) < settledKept {
		s.order = append(s.order, k)
		return
	}
	delete(s.keys, s.order[s.next])
	s.order[s.next] = k
	s.next = (s.next + 1) % settledKept
}
