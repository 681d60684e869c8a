// Package turn holds what ingress knows about turns: their states, what was accepted, what came
// of them, and the durable events of a conversation.
package turn

import "time"

// Conversation names one conversation of one organization.
type Conversation struct {
	Organization string
	ID           string
}

// State of a turn: Accepted, then Running, then one of the others for ever.
type State string

// The states, as the store keeps them.
const (
	Accepted      State = "ACCEPTED"
	Running       State = "RUNNING"
	Replied       State = "REPLIED"
	NativeCommand State = "NATIVE_COMMAND"
	NoReply       State = "NO_REPLY"
	Failed        State = "FAILED"
	Cancelled     State = "CANCELLED"
)

// Ended reports whether the state is final.
func (s State) Ended() bool { return s != Accepted && s != Running && s != "" }

// Locator is Hermes's own identity of a message.
type Locator struct {
	SessionID string
	MessageID int64
}

// Error says why a turn failed or has no reply. Message is for people and holds no transcript text.
type Error struct {
	Reason    string
	Message   string
	Retryable bool // sending the same message again may succeed
}

// Timings are milliseconds; nil: the phase did not happen or was not seen.
type Timings struct {
	AcceptToAttach, ColdAdmission, FirstModelRequest, ModelToolLoop, PersistDeliver *float64
}

// Block is one accepted content block.
type Block struct {
	Type   string
	SHA256 []byte
	Size   int64
	Raw    []byte // the exact bytes, compacted; nil once they are deleted or when not asked for
}

// Message is one accepted message.
type Message struct {
	InboundID string
	Blocks    []Block
}

// Turn is one turn as clients see it.
type Turn struct {
	Conversation    Conversation
	ID              string
	Position        int64 // in the conversation, from 1
	State           State
	CancelRequested bool
	Replies         []Locator
	Error           *Error
	Timings         Timings
	Created         time.Time
	Ended           time.Time // zero while open
	Messages        []Message // without Raw
}

// End is what the end of a turn adds to it.
type End struct {
	State   State
	Replies []Locator
	Error   *Error
	Timings Timings
	Time    time.Time
}

// With returns the open turn as it is after its end.
func (t Turn) With(e End) Turn {
	t.State, t.Replies, t.Error, t.Timings, t.Ended = e.State, e.Replies, e.Error, e.Timings, e.Time
	return t
}

// Run is one attempt to run a turn: what is committed with RUNNING, before the prompt.
type Run struct {
	Conversation    Conversation
	TurnID          string
	Attempt         int32
	Epoch           int64
	SessionID       string
	Watermark       int64
	CancelRequested bool
	Owner           int32   // the instance it belongs to
	Blocks          []Block // in order, with Raw; nil when not read yet
}

// Types of durable events.
const (
	EventAccepted  = "turn.accepted"
	EventStarted   = "turn.started"
	EventEnded     = "turn.ended"
	EventDelivered = "message.delivered"
)

// Event is one durable event of a conversation. Sequences of a conversation begin at 1 and have no
// holes.
type Event struct {
	Sequence int64
	Type     string
	TurnID   string
	State    State    // EventEnded only
	Locator  *Locator // EventDelivered, and EventEnded that has replies
	Error    *Error   // EventEnded only
	Created  time.Time
}

// Update is one live piece of a running turn: a piece of text, or a tool call's progress.
type Update struct {
	Text string
	Tool *Tool
}

// Tool is the progress of one tool call, in ACP's own words.
type Tool struct {
	ID, Title, Kind, Status string
}
