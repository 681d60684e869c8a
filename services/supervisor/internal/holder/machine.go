package holder

import (
	"context"
	"fmt"
	"time"
)

// deathKnown bounds the time between a machine's broken channel and its confirmed end.
const deathKnown = time.Second

// machineSlot is one machine, starting or living.
type machineSlot struct {
	ready   chan struct{} // closed when machine or err is set
	machine Machine
	err     error
	removed chan struct{} // closed when the next call starts another
}

// machine returns the organization's machine, starting one if there is none. All callers of one
// start share its outcome; the next call after a failure tries again.
func (h *Holder) machine(ctx context.Context, o *organization) (Machine, error) {
	for {
		h.mu.Lock()
		slot := o.machine
		if slot == nil {
			slot = &machineSlot{ready: make(chan struct{}), removed: make(chan struct{})}
			o.machine = slot
			h.work.Go(func() { h.runMachine(o, slot) })
		}
		h.mu.Unlock()
		select {
		case <-slot.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if slot.err != nil {
			return nil, slot.err
		}
		select {
		case <-slot.machine.Done(): // it died and is about to be removed
		default:
			return slot.machine, nil
		}
		select {
		case <-slot.removed:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// runMachine starts a machine and stays until it is gone.
func (h *Holder) runMachine(o *organization, slot *machineSlot) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(h.life, h.cfg.AdmissionTimeout)
	slot.machine, slot.err = h.cell.StartMachine(ctx, o.id)
	cancel()
	close(slot.ready)
	if slot.err == nil {
		h.observer.MachineStarted(o.id, time.Since(began))
		<-slot.machine.Done()
		h.observer.MachineEnded(o.id)
	}
	h.mu.Lock()
	o.machine = nil
	h.mu.Unlock()
	close(slot.removed)
}

// spawnOn starts a child. A machine that dies under the call is replaced once.
func (h *Holder) spawnOn(ctx context.Context, c *conversation, home Home) (Child, error) {
	for again := true; ; again = false {
		m, err := h.machine(ctx, c.organization)
		if err != nil {
			return nil, fmt.Errorf("start the organization's machine: %w", err)
		}
		child, err := m.Spawn(ctx, c.id, home)
		if err == nil {
			return child, nil
		}
		err = fmt.Errorf("start a Hermes child: %w", err)
		if !again || !dies(ctx, m) {
			return nil, err
		}
	}
}

// dies says whether the machine ends: its channel breaks a moment before its death is known.
func dies(ctx context.Context, m Machine) bool {
	timer := time.NewTimer(deathKnown)
	defer timer.Stop()
	select {
	case <-m.Done():
		return true
	case <-timer.C:
		return false
	case <-ctx.Done():
		return false
	}
}
