// Package tree is the holder's view of a cell's real process tree: machines in namespaces, Hermes
// below them, the cell's lock inherited by all.
package tree

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/supervisor/internal/cell"
	"humanwork.internal/services/supervisor/internal/hermes"
	"humanwork.internal/services/supervisor/internal/holder"
	"humanwork.internal/services/supervisor/internal/machine"
)

// Tree starts machines of one cell once it is open.
type Tree struct {
	Dir  string // the cell's directory
	Data string // what no child may see; it holds Dir. Empty: the directory Dir lies in
	Venv string // the Hermes installation

	cell atomic.Pointer[cell.Cell]
}

// Open takes the cell's lock. It waits while processes of an earlier supervisor are still ending.
func (t *Tree) Open(ctx context.Context) error {
	c, err := cell.Open(ctx, t.Dir)
	if err != nil {
		return err
	}
	t.cell.Store(c)
	return nil
}

// Close gives the lock up. Every machine must be gone.
func (t *Tree) Close() error { return t.cell.Load().Close() }

// Ready says what keeps children from starting, with the remedy.
func (t *Tree) Ready(ctx context.Context) error {
	var problems []error
	if err := hermes.Check(t.Venv); err != nil {
		problems = append(problems, err)
	}
	if err := machine.Check(ctx); err != nil {
		problems = append(problems, err)
	}
	if t.cell.Load() == nil {
		problems = append(problems, fmt.Errorf("the cell directory %s is not open yet; processes of an earlier supervisor may still be ending", t.Dir))
	} else if err := unix.Access(t.Dir, unix.W_OK|unix.X_OK); err != nil {
		problems = append(problems, fmt.Errorf("the cell directory %s is not writable: %w; make it so, or name another in cell_dir", t.Dir, err))
	}
	return errors.Join(problems...)
}

// StartMachine implements holder.Cell.
func (t *Tree) StartMachine(ctx context.Context, organization string) (holder.Machine, error) {
	// Before the machine, because it cannot tell a missing Hermes from a broken one.
	if err := hermes.Check(t.Venv); err != nil {
		return nil, err
	}
	c := t.cell.Load()
	db, err := c.SessionDB(organization)
	if err != nil {
		return nil, err
	}
	m, err := machine.Start(ctx, machine.Config{
		Organization: organization, CellDir: c.Dir(), DataDir: t.Data, HermesVenv: t.Venv, Lock: c.Lock(),
	})
	var refused *machine.NamespaceError
	if errors.As(err, &refused) {
		return nil, errs.Wrap(err, errs.Precondition, hermes.ReasonUnavailable, "%s", refused.Error())
	}
	if err != nil {
		return nil, err
	}
	return &resident{Machine: m, sessionDB: db, venv: t.Venv}, nil
}

type resident struct {
	*machine.Machine
	sessionDB string
	venv      string
}

// Spawn implements holder.Machine.
func (r *resident) Spawn(ctx context.Context, conversation string, home holder.Home) (holder.Child, error) {
	if err := hermes.Check(r.venv); err != nil {
		return nil, err
	}
	c, err := r.Machine.Spawn(ctx, machine.ChildSpec{Conversation: conversation, Home: home, SessionDB: r.sessionDB})
	if err != nil {
		return nil, err
	}
	return process{c}, nil
}

// process gives a child's files as streams.
type process struct{ *machine.Child }

func (p process) Stdin() io.WriteCloser { return p.Child.Stdin() }
func (p process) Stdout() io.ReadCloser { return p.Child.Stdout() }
func (p process) Stderr() io.ReadCloser { return p.Child.Stderr() }
func (p process) Exit() string          { return p.Child.Exit().String() }
