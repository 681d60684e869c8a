// Package turn holds what ingress knows about turns: their states, what was accepted, what came
// of them, and the durable events of a conversation.
package turn

import (
	"cmp"
	"slices"
	"time"

	"humanwork.internal/services/ingress/internal/inline"
)

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

// Block is one accepted content block. SHA256 and Size are those of the whole block.
type Block struct {
	Type   string
	SHA256 []byte
	Size   int64
	Raw    []byte // compacted; the exact bytes if Data is nil. Nil once deleted or when not asked for
	File   *File  // the file the block names, or that its inline data is in; nil: none
	Data   *Data  // what Raw lacks; nil: nothing
}

// File is an object of the conversation in AgentFS, as it was when the block was accepted.
type File struct {
	URI      string // canonical
	Name     string
	MimeType string // as the block says; may be empty
	Size     int64
	SHA256   []byte // of the content; nil: not known
}

// Data is inline data that is kept in a file and not with the block.
type Data struct {
	URI string // canonical
	Cut inline.Cut
}

// FileURIs returns the files of blocks, each once, in order. Nil: the blocks have none.
func FileURIs(blocks []Block) []string {
	var out []string
	add := func(uri string) {
		if !slices.Contains(out, uri) {
			out = append(out, uri)
		}
	}
	for _, b := range blocks {
		if b.File != nil {
			add(b.File.URI)
		}
		if b.Data != nil {
			add(b.Data.URI)
		}
	}
	return out
}

// Attachment is a file that a turn brought, with its place among the session's messages: after
// those up to the turn's watermark, in the order of positions, messages and blocks.
type Attachment struct {
	Place   Place
	File    File
	Created time.Time
}

// Place is where a message or an attachment stands in a transcript. A message has only Watermark,
// its own id.
type Place struct {
	Watermark, Position int64
	Message, Block      int32
}

// Compare orders places.
func (p Place) Compare(o Place) int {
	return cmp.Or(cmp.Compare(p.Watermark, o.Watermark), cmp.Compare(p.Position, o.Position),
		cmp.Compare(p.Message, o.Message), cmp.Compare(p.Block, o.Block))
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
	// Ready: the files were checked, and Blocks have their data. Problem is why they are not to be
	// sent; nil: they are.
	Ready   bool
	Problem *Error
}

// Types of durable events.
const (
	EventAccepted  = "turn.accepted"
	EventStarted   = "turn.started"
	EventEnded     = "turn.ended"
	EventDelivered = "message.delivered"
	EventFile      = "file.changed"
)

// Event is one durable event of a conversation. Sequences of a conversation begin at 1 and have no
// holes.
type Event struct {
	Sequence int64
	Type     string
	TurnID   string   // empty for EventFile
	State    State    // EventEnded only
	Locator  *Locator // EventDelivered, and EventEnded that has replies
	Error    *Error   // EventEnded only
	File     *FileChange
	Created  time.Time
}

// FileChange is one change of a file's content or name, as AgentFS's ledger has it.
type FileChange struct {
	Position int64 // in the ledger; 0 in events
	URI      string
	Change   string // written, removed or renamed
	Previous string // the URI before; renamed only
	Version  string // empty when removed
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
