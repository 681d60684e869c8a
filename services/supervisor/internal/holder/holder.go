// Package holder keeps, on one cell, one resident machine an organization, one Hermes child a
// conversation, and the registry of turn attempts, each of which runs at most once.
package holder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/supervisor/internal/acp"
)

// Reasons of errors and of results.
const (
	ReasonPlacementMoved     errs.Reason = "PLACEMENT_MOVED"
	ReasonConversationBusy   errs.Reason = "CONVERSATION_BUSY"
	ReasonTurnSettled        errs.Reason = "TURN_SETTLED"
	ReasonTurnNotFound       errs.Reason = "TURN_NOT_FOUND"
	ReasonTurnRunning        errs.Reason = "TURN_RUNNING"
	ReasonAttemptMismatch    errs.Reason = "ATTEMPT_MISMATCH"
	ReasonNoEstablishment    errs.Reason = "ESTABLISHMENT_NOT_FOUND"
	ReasonEstablishment      errs.Reason = "ESTABLISHMENT_FAILED"
	ReasonHermesUnavailable  errs.Reason = "HERMES_UNAVAILABLE"
	ReasonSupervisorStarting errs.Reason = "SUPERVISOR_STARTING"
	ReasonSupervisorStopping errs.Reason = "SUPERVISOR_STOPPING"
)

// Cell starts resident machines.
type Cell interface {
	StartMachine(ctx context.Context, organization string) (Machine, error)
}

// Machine is one organization's resident machine.
type Machine interface {
	// Spawn starts a conversation's child with these private files.
	Spawn(ctx context.Context, conversation string, home Home) (Child, error)
	// Done closes when the machine, and everything below it, is gone.
	Done() <-chan struct{}
	// Close ends the machine and returns when it is gone.
	Close(ctx context.Context) error
}

// Child is one running Hermes. The ends of its streams become the caller's.
type Child interface {
	Stdin() io.WriteCloser
	Stdout() io.ReadCloser
	Stderr() io.ReadCloser
	// Kill ends the child and everything it started. Done tells when they are gone.
	Kill() error
	Done() <-chan struct{}
	// Exit describes how it ended, once Done is closed.
	Exit() string
}

// Home is a conversation's private files by name: .env, SOUL.md, config.yaml.
type Home map[string][]byte

// Homes gives the private files of a conversation as they are now.
type Homes interface {
	ConversationHome(ctx context.Context, organization, conversation string) (Home, error)
}

// Observer is told what happens, for logs and metrics. Its methods must not block.
type Observer interface {
	MachineStarted(organization string, took time.Duration)
	MachineEnded(organization string)
	ChildStarted(organization, conversation string, took time.Duration)
	ChildLine(organization, conversation, line string)
	ChildEnded(ChildReport)
	TurnEnded(Attempt, Result)
}

// ChildReport describes a child that is gone. Stderr is the redacted last words of a child that
// never got a prompt: after one, Hermes's lines quote the transcript.
type ChildReport struct {
	Organization, Conversation string
	Exit                       string
	Lived                      time.Duration
	Dropped                    acp.Counters
	Stderr                     []string
}

// Config holds limits. Every field is required.
type Config struct {
	MaxChildren      int           // per organization
	AdmissionTimeout time.Duration // machine, spawn and initialize, each session/new
	CancelTimeout    time.Duration // session/cancel to the prompt's answer
	WatchdogTimeout  time.Duration // longest silence of a running turn
	ExitGrace        time.Duration // closed input to exit, before a kill
	DrainTimeout     time.Duration // how long running turns may go on after Run was asked to stop
	ACP              acp.Config
}

type phase int

const (
	phaseNew phase = iota
	phaseRunning
	phaseDraining
)

// Holder is safe for concurrent use.
type Holder struct {
	cfg      Config
	cell     Cell
	homes    Homes
	observer Observer

	// life ends when everything must end; work counts what then has to.
	life    context.Context
	endLife context.CancelFunc
	work    sync.WaitGroup

	mu            sync.Mutex // guards all below and every organization and conversation; never held while waiting
	phase         phase
	organizations map[string]*organization
	turns         map[turnKey]*turn
	running       int
	drained       chan struct{} // closed once draining and nothing runs
}

// New opens nothing.
func New(cfg Config, cell Cell, homes Homes, observer Observer) *Holder {
	life, end := context.WithCancel(context.Background())
	return &Holder{
		cfg: cfg, cell: cell, homes: homes, observer: observer,
		life: life, endLife: end,
		organizations: map[string]*organization{},
		turns:         map[turnKey]*turn{},
		drained:       make(chan struct{}),
	}
}

// Run serves until ctx ends, then takes no new work, lets running turns end within the drain
// timeout, ends every child and machine, and returns when all are gone. It runs once.
func (h *Holder) Run(ctx context.Context) error {
	h.mu.Lock()
	h.phase = phaseRunning
	h.mu.Unlock()
	<-ctx.Done()

	h.mu.Lock()
	h.phase = phaseDraining
	if h.running == 0 {
		close(h.drained)
	}
	h.mu.Unlock()
	deadline := time.NewTimer(h.cfg.DrainTimeout)
	defer deadline.Stop()
	select {
	case <-h.drained:
	case <-deadline.C:
	}
	h.endLife()
	h.endChildren()
	err := h.closeMachines()
	h.work.Wait()
	return err
}

// endChildren asks every child to exit and returns when all are gone.
func (h *Holder) endChildren() {
	h.mu.Lock()
	var living []*hermes
	for _, o := range h.organizations {
		for _, c := range o.conversations {
			if c.child != nil {
				c.child.stopping = true
				living = append(living, c.child)
			}
		}
	}
	h.mu.Unlock()
	var ends sync.WaitGroup
	for _, c := range living {
		ends.Go(func() { c.stop(h.cfg.ExitGrace) })
	}
	ends.Wait()
}

func (h *Holder) closeMachines() error {
	h.mu.Lock()
	var slots []*machineSlot
	for _, o := range h.organizations {
		if o.machine != nil {
			slots = append(slots, o.machine)
		}
	}
	h.mu.Unlock()
	var failed []error
	for _, s := range slots {
		<-s.ready
		if s.err != nil {
			continue
		}
		if err := s.machine.Close(context.Background()); err != nil {
			failed = append(failed, fmt.Errorf("close a machine: %w", err))
		}
	}
	return errors.Join(failed...)
}

// accepting refuses new work outside Run. h.mu is held.
func (h *Holder) accepting() error {
	switch h.phase {
	case phaseNew:
		return errs.New(errs.Unavailable, ReasonSupervisorStarting, "the supervisor has not opened its cell yet")
	case phaseDraining:
		return errs.New(errs.Unavailable, ReasonSupervisorStopping, "the supervisor is stopping")
	}
	return nil
}

// enter finds the conversation, after checking that the caller's placement epoch is not an old
// one. h.mu is held.
func (h *Holder) enter(organizationID, conversationID string, epoch int64) (*conversation, error) {
	if h.phase == phaseNew {
		return nil, h.accepting()
	}
	o := h.organizations[organizationID]
	if o == nil {
		o = &organization{id: organizationID, conversations: map[string]*conversation{}, changed: make(chan struct{})}
		h.organizations[organizationID] = o
	}
	if epoch < o.epoch {
		return nil, errs.New(errs.Precondition, ReasonPlacementMoved, "the organization was placed anew since epoch %d", epoch)
	}
	o.epoch = epoch
	c := o.conversations[conversationID]
	if c == nil {
		c = &conversation{organization: o, id: conversationID}
		o.conversations[conversationID] = c
	}
	return c, nil
}

// organization is what the cell holds of one organization.
type organization struct {
	id            string
	epoch         int64
	machine       *machineSlot // nil: none is starting or living
	conversations map[string]*conversation
	children      int           // starting, living or ending
	changed       chan struct{} // closed and replaced when there may be room for a child
}

// announce wakes whoever waits for room. h.mu is held.
func (o *organization) announce() {
	close(o.changed)
	o.changed = make(chan struct{})
}

// use is what a conversation is taken by. One at a time: Hermes mixes prompts of one session.
type use int

const (
	useNone use = iota
	useTurn
	useEstablishment
	useNative
)

type conversation struct {
	organization *organization
	id           string

	use           use
	child         *hermes // living or ending
	admission     *admission
	establishment *establishment
	lastUsed      time.Time

	ended   []*turn // results not acknowledged yet
	settled settled
}

func (c *conversation) busy() error {
	if c.use == useNone {
		return nil
	}
	return errs.New(errs.Precondition, ReasonConversationBusy, "the conversation is in use")
}

// release gives the conversation back. h.mu is held.
func (c *conversation) release() {
	c.use = useNone
	c.lastUsed = time.Now()
	c.organization.announce()
}
