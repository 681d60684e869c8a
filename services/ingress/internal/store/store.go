// Package store says what ingress keeps and what holds of it. Package postgres keeps it; package
// storetest checks that it holds.
package store

import (
	"context"
	"errors"
	"time"

	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/turn"
)

// Errors of a store. Any other error is a fault of ours.
var (
	ErrUnavailable      = errors.New("the store cannot be reached")
	ErrNotFound         = errors.New("no such turn")
	ErrKeyReused        = errors.New("the idempotency key was used with another body")
	ErrQueueFull        = errors.New("too many turns wait in the conversation")
	ErrBusy             = errors.New("the conversation has an open turn")
	ErrNothingToClaim   = errors.New("no turn of the conversation can be claimed")
	ErrFilesFirst       = errors.New("the turn's files have to be made ready first")
	ErrNotOwner         = errors.New("this instance does not own the turn")
	ErrAlreadyDelivered = errors.New("a reply was delivered under another turn")
	ErrUnknownSequence  = errors.New("the sequence was never given")
)

// Submission is one turn to accept.
type Submission struct {
	Conversation   turn.Conversation
	TurnID         string
	Messages       []turn.Message // with Raw, which lacks what is in files
	IdempotencyKey string         // empty: none
	BodySHA256     [32]byte
	MaxWaiting     int
	RejectBusy     bool
}

// Direct asks Accept to claim too, in the same commit, if nothing of the conversation waits or runs.
type Direct struct {
	Instance int32
	// Place is called as Claim's is; if it fails the turn is accepted all the same, and waits.
	Place func(context.Context) (Placed, error)
}

// Acceptance is what became of a submission.
type Acceptance struct {
	Turn     turn.Turn
	Replayed bool     // the turn was accepted earlier, by the same key and body
	Sequence int64    // of turn.accepted
	Claimed  *Claimed // the turn is RUNNING because of this call
	// Claimable: no turn of the conversation runs, so that the caller should claim. Otherwise
	// whoever ends the running one claims next.
	Claimable bool
}

// Placed is what a claim commits beside the turn's state.
type Placed struct {
	SessionID string
	Epoch     int64
	Watermark int64
}

// Claimed is a turn that is RUNNING because of this call.
type Claimed struct {
	Run      turn.Run
	Sequence int64 // of turn.started
}

// Ending is the end of a running turn.
type Ending struct {
	Run      turn.Run
	Instance int32
	Decision outcome.Decision
	Rows     outcome.Rows
	Timings  turn.Timings
}

// Ended is what an ending committed.
type Ended struct {
	Time    time.Time
	Events  []turn.Event
	Waiting bool // another turn of the conversation waits
}

// CancelOutcome is the turn after a cancel.
type CancelOutcome struct {
	Turn turn.Turn
	// Run is set if the turn is running: the attempt to tell the supervisor about.
	Run *turn.Run
	// Events that the cancel made, with those of a waiting turn.
	Events []turn.Event
}

// Turns is the durable queue. Whatever changes a conversation locks its row first, so that all
// changes of one conversation have one order and its events' sequences follow it.
type Turns interface {
	// Replay finds the turn of the submission's key, and is otherwise refused as Accept would be by
	// now. It changes nothing: what Accept needs first can wait for its answer.
	Replay(ctx context.Context, s Submission) (a Acceptance, found bool, err error)
	// Accept stores a turn, or finds it by its key before any limit is looked at. Once it returns
	// the turn is durable. Errors: ErrKeyReused, ErrQueueFull, ErrBusy; after any other error it
	// may have been accepted, and claimed. direct may be nil.
	Accept(ctx context.Context, s Submission, direct *Direct) (Acceptance, error)
	// Claim makes the conversation's first waiting turn RUNNING, owned by the instance. It calls
	// place under the conversation's lock: no turn of it runs then, and its error ends the claim
	// with nothing changed. Errors: ErrNothingToClaim, ErrNotOwner (the instance was taken over),
	// ErrFilesFirst (the turn, which the answer has with its blocks, has files and is not the one
	// named ready); after any other error the turn may be RUNNING if one is named in the answer.
	Claim(ctx context.Context, c turn.Conversation, instance int32, ready string, place func(context.Context) (Placed, error)) (Claimed, error)
	// End ends a running turn once. Errors: ErrNotOwner (another instance owns or ended it),
	// ErrAlreadyDelivered (nothing was changed).
	End(ctx context.Context, e Ending) (Ended, error)
	// Cancel ends a waiting turn and deletes its blocks; of a running one it records the wish.
	Cancel(ctx context.Context, c turn.Conversation, turnID string) (CancelOutcome, error)
	// AppendFiles appends one event for each change whose position is above the last one of its
	// generation, in one commit. Positions must not fall.
	AppendFiles(ctx context.Context, c turn.Conversation, generation string, changes []turn.FileChange) ([]turn.Event, error)
	// Claimable returns conversations with a waiting and no running turn, after the one given, in
	// order, at most limit.
	Claimable(ctx context.Context, after turn.Conversation, limit int) ([]turn.Conversation, error)
}

// Reads are plain reads.
type Reads interface {
	Turn(ctx context.Context, c turn.Conversation, turnID string) (turn.Turn, error)
	// Turns returns turns after a position, in order, at most limit.
	Turns(ctx context.Context, c turn.Conversation, afterPosition int64, limit int) ([]turn.Turn, error)
	// Events returns events after a sequence, in order, at most limit. ErrUnknownSequence if the
	// sequence is larger than the last one given.
	Events(ctx context.Context, c turn.Conversation, afterSequence int64, limit int) ([]turn.Event, error)
	// LastSequence returns the sequence of the conversation's last event; 0: none.
	LastSequence(ctx context.Context, c turn.Conversation) (int64, error)
	// Running returns the running turn, or ErrNotFound.
	Running(ctx context.Context, c turn.Conversation) (turn.Run, error)
	// Attachments returns the files that turns brought which were given to Hermes, or were about to:
	// those behind a place and with a watermark below the one given, in order, at most limit.
	Attachments(ctx context.Context, c turn.Conversation, after turn.Place, below int64, limit int) ([]turn.Attachment, error)
	// Blocks returns a turn's blocks with Raw, in order.
	Blocks(ctx context.Context, c turn.Conversation, turnID string) ([]turn.Block, error)
	// Unaccepted returns those of the session's user rows that lie in the range of a turn of the
	// conversation, or above the watermark of a running one, and are not that turn's own.
	Unaccepted(ctx context.Context, c turn.Conversation, userRows []int64) ([]int64, error)
}

// Notice is a wake-up from another instance, or from this one.
type Notice struct {
	Conversation turn.Conversation
	Sequence     int64  // a new event's; 0 for Live
	TurnID       string // of the event
	Ended        bool   // the event is turn.ended
	Live         bool   // the turn streams; its supervisor knows it
	Instance     int32  // a new instance; all else is empty
}

// Listener hears the store's notices.
type Listener interface {
	// Connected is called after LISTEN is in effect and before any notice: what happened before
	// must be read now (rule 14). The listening ends, to be begun anew, if it fails.
	Connected(ctx context.Context) error
	Notified(n Notice)
}

// Instances is the ownership of running turns (rule 13).
type Instances interface {
	// Hold registers a new instance and holds its lock on a connection of its own. It calls held
	// with the instance's id and returns when the connection breaks or ctx ends; the instance
	// owns nothing from then on.
	Hold(ctx context.Context, held func(instance int32)) error
	// Peers returns all registered instances.
	Peers(ctx context.Context) ([]int32, error)
	// AwaitDeath returns once the instance's lock is free. It blocks on a connection of its own.
	AwaitDeath(ctx context.Context, instance int32) error
	// TakeOver makes the running turns of a dead instance this one's and forgets the dead one. An
	// instance that is already forgotten has none. ErrNotOwner if this instance was itself taken
	// over.
	TakeOver(ctx context.Context, dead, instance int32) ([]turn.Run, error)
}
