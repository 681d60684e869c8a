package agentfs

import (
	"context"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"
)

// States of a tool call.
const (
	ToolPending = "pending"
	ToolSuccess = "success"
	ToolError   = "error"
)

// ToolCall is a row of AgentFS's own table of tool calls.
type ToolCall struct {
	// ID is the row's, Position that of its record in the ledger; both are set by the database.
	ID, Position int64
	Name         string
	// Parameters and Result are JSON texts, verbatim; like Error empty if there is none.
	Parameters, Result, Error string
	// Status is ToolPending, ToolSuccess or ToolError.
	Status string
	// Started and Completed have seconds; Completed is zero while pending.
	Started, Completed time.Time
	// Duration has milliseconds.
	Duration time.Duration
}

func (c ToolCall) valid() bool {
	for _, s := range []string{c.Name, c.Parameters, c.Result, c.Error} {
		if !utf8.ValidString(s) || strings.ContainsRune(s, 0) {
			return false
		}
	}
	switch c.Status {
	case ToolPending:
		return c.Name != "" && !c.Started.IsZero() && c.Completed.IsZero()
	case ToolSuccess, ToolError:
		return c.Name != "" && !c.Started.IsZero() && !c.Completed.Before(c.Started) && c.Duration >= 0
	}
	return false
}

// RecordToolCall stores a tool call and its record in the ledger, whose target is the tool's name.
// It returns the call's id. EINVAL for texts with NUL or not UTF-8, another status, an end before
// the start; ENOENT if the project is none.
func (f *FS) RecordToolCall(ctx context.Context, by Caller, project Ino, call ToolCall) (int64, error) {
	if !call.valid() {
		return 0, fail("record a tool call", "", syscall.EINVAL)
	}
	err := f.update(ctx, func(t *tx) error {
		r, err := t.row(`SELECT 1 FROM hw_project WHERE project = ?`, project)
		if err != nil {
			return err
		}
		if r == nil {
			return syscall.ENOENT
		}
		if call.ID, err = t.ids(1); err != nil {
			return err
		}
		// NULL, never '': the SDKs parse what is not NULL.
		text := func(s string) any {
			if s == "" {
				return nil
			}
			return s
		}
		var completed, duration any
		if call.Status != ToolPending {
			completed, duration = call.Completed.Unix(), call.Duration.Milliseconds()
		}
		if _, err := t.exec(`INSERT INTO tool_calls (id, name, parameters, result, error, status, started_at, completed_at,
			duration_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`, call.ID, call.Name, text(call.Parameters), text(call.Result),
			text(call.Error), call.Status, call.Started.Unix(), completed, duration); err != nil {
			return err
		}
		t.change(change{kind: changeToolCall, ino: Ino(call.ID)})
		return t.record(Record{Actor: by.Actor, Action: ActionTool, Project: project, Target: call.Name, ToolCall: call.ID})
	})
	if err != nil {
		return 0, fail("record a tool call", "", err)
	}
	return call.ID, nil
}

// ToolCalls returns the tool calls that the ledger tells of, by position. A path selects none.
func (f *FS) ToolCalls(ctx context.Context, q Query) ([]ToolCall, error) {
	where, args, err := q.condition()
	if err != nil {
		return nil, fail("list tool calls", "", err)
	}
	var calls []ToolCall
	err = f.read(ctx, func(t *tx) error {
		return t.each(`SELECT c.id, l.position, CAST(c.name AS BLOB), CAST(c.parameters AS BLOB), CAST(c.result AS BLOB),
			CAST(c.error AS BLOB), CAST(c.status AS BLOB), c.started_at, c.completed_at, c.duration_ms
			FROM hw_ledger l CROSS JOIN tool_calls c ON c.id = l.tool_call WHERE `+where+` ORDER BY l.position LIMIT ?`,
			func(r row) error {
				c := ToolCall{ID: r.int(0), Position: r.int(1), Name: r.text(2), Parameters: r.text(3), Result: r.text(4),
					Error: r.text(5), Status: r.text(6), Started: time.Unix(r.int(7), 0),
					Duration: time.Duration(r.int(9)) * time.Millisecond}
				if !r.null(8) {
					c.Completed = time.Unix(r.int(8), 0)
				}
				calls = append(calls, c)
				return nil
			}, append(args, q.Limit)...)
	})
	return calls, fail("list tool calls", "", err)
}
