package outcome

import (
	"slices"
	"testing"

	"humanwork.internal/services/ingress/internal/turn"
)

func TestDecide(t *testing.T) {
	user := Rows{User: 10, Users: []int64{10}, End: 20}
	with := func(rows ...Row) Rows {
		r := user
		r.Replies = rows
		return r
	}
	stop := Row{12, "stop"}
	text, command, nothing := Shape{Readable: true}, Shape{Readable: true, Command: true}, Shape{}
	answered := func(reason string, streamed bool) Seen {
		return Seen{End: Answered, StopReason: reason, TextStreamed: streamed}
	}
	sent := func(s Seen) Seen { s.CancelSent = true; return s }
	for name, c := range map[string]struct {
		rows    Rows
		seen    Seen
		shape   Shape
		state   turn.State
		reason  string
		replies []int64
		keep    bool
		end     bool
	}{
		"reply":                                {with(stop), answered("end_turn", true), text, turn.Replied, "", []int64{12}, false, false},
		"several replies":                      {with(stop, Row{15, "stop"}), answered("end_turn", true), text, turn.Replied, "", []int64{12, 15}, false, false},
		"reply before the user row":            {with(Row{9, "stop"}), answered("end_turn", true), text, turn.Failed, turn.ReasonModelUnavailable, nil, false, false},
		"reply without a user row":             {Rows{Replies: []Row{stop}}, answered("end_turn", true), text, turn.Failed, turn.ReasonWedged, nil, true, true},
		"reply, child exited":                  {with(stop), Seen{End: ChildExited}, text, turn.Replied, "", []int64{12}, false, false},
		"reply, gone":                          {with(stop), Seen{End: Gone}, text, turn.Replied, "", []int64{12}, false, false},
		"reply, prompt error":                  {with(stop), Seen{End: PromptError}, text, turn.Replied, "", []int64{12}, false, true},
		"reply, cancelled all the same":        {with(stop), sent(answered("cancelled", true)), text, turn.Replied, "", []int64{12}, false, false},
		"reply without finish reason":          {with(Row{12, ""}), answered("end_turn", true), text, turn.Replied, "", []int64{12}, false, false},
		"partial text, cancelled":              {with(Row{12, ""}), sent(answered("cancelled", true)), text, turn.Cancelled, "", nil, false, false},
		"partial text, cancelled by Hermes":    {with(Row{12, ""}), answered("cancelled", true), text, turn.Cancelled, "", nil, false, false},
		"partial and final text, cancelled":    {with(Row{12, ""}, Row{14, "stop"}), sent(answered("cancelled", true)), text, turn.Replied, "", []int64{14}, false, false},
		"interrupted tool, cancelled, error":   {with(Row{12, ""}), sent(Seen{End: PromptError}), text, turn.Cancelled, "", nil, false, true},
		"cancelled in thought":                 {user, sent(answered("cancelled", false)), text, turn.Cancelled, "", nil, false, false},
		"cancelled before dispatch":            {Rows{}, sent(Seen{End: NotDispatched}), text, turn.Cancelled, "", nil, false, false},
		"cancelled, child exited":              {user, sent(Seen{End: ChildExited, Reason: "CANCEL_TIMEOUT"}), text, turn.Cancelled, "", nil, false, false},
		"cancelled, gone":                      {Rows{}, sent(Seen{End: Gone}), text, turn.Cancelled, "", nil, false, false},
		"model outage":                         {user, answered("end_turn", true), text, turn.Failed, turn.ReasonModelUnavailable, nil, false, false},
		"no answer":                            {user, answered("end_turn", false), text, turn.Failed, turn.ReasonNoAnswer, nil, false, false},
		"token limit":                          {user, answered("max_tokens", true), text, turn.Failed, turn.ReasonModelLimit, nil, false, false},
		"request limit":                        {user, answered("max_turn_requests", true), text, turn.Failed, turn.ReasonModelLimit, nil, false, false},
		"model refuses":                        {user, answered("refusal", true), text, turn.Failed, turn.ReasonRefused, nil, false, false},
		"session unknown":                      {Rows{}, answered("refusal", false), text, turn.Failed, turn.ReasonSessionUnknown, nil, true, false},
		"native command":                       {Rows{}, answered("end_turn", true), command, turn.NativeCommand, "", nil, false, false},
		"command that the model answers":       {with(stop), answered("end_turn", true), command, turn.Replied, "", []int64{12}, false, false},
		"command without a word":               {Rows{}, answered("end_turn", false), command, turn.Failed, turn.ReasonWedged, nil, true, true},
		"nothing readable":                     {Rows{}, answered("end_turn", false), nothing, turn.NoReply, turn.ReasonNothingReadable, nil, false, false},
		"nothing readable, but text":           {Rows{}, answered("end_turn", true), nothing, turn.Failed, turn.ReasonWedged, nil, true, true},
		"nothing readable, but answered":       {with(stop), answered("end_turn", true), nothing, turn.Replied, "", []int64{12}, false, false},
		"wedged, queued for the next turn":     {Rows{}, answered("end_turn", true), text, turn.Failed, turn.ReasonWedged, nil, true, true},
		"wedged, silent":                       {Rows{}, answered("end_turn", false), text, turn.Failed, turn.ReasonWedged, nil, true, true},
		"stop reason nobody knows":             {Rows{}, answered("tired", false), text, turn.Failed, turn.ReasonWedged, nil, true, true},
		"stop reason nobody knows, a user row": {user, answered("tired", false), text, turn.Failed, turn.ReasonNoAnswer, nil, false, false},
		"limit without a user row":             {Rows{}, answered("max_tokens", false), text, turn.Failed, turn.ReasonWedged, nil, true, true},
		"prompt error":                         {Rows{}, Seen{End: PromptError}, text, turn.Failed, turn.ReasonPromptError, nil, true, true},
		"prompt error after the user row":      {user, Seen{End: PromptError}, text, turn.Failed, turn.ReasonPromptError, nil, false, true},
		"child exited":                         {user, Seen{End: ChildExited, Reason: "CHILD_EXITED"}, text, turn.Failed, turn.ReasonInterrupted, nil, false, false},
		"child exited, long line":              {user, Seen{End: ChildExited, Reason: "LINE_TOO_LONG"}, text, turn.Failed, "LINE_TOO_LONG", nil, false, false},
		"gone":                                 {Rows{}, Seen{End: Gone}, text, turn.Failed, turn.ReasonInterrupted, nil, true, false},
		"gone after the user row":              {user, Seen{End: Gone}, text, turn.Failed, turn.ReasonInterrupted, nil, false, false},
		"gone, refused":                        {Rows{}, Seen{End: Gone, Reason: turn.ReasonDispatchRefused}, text, turn.Failed, turn.ReasonDispatchRefused, nil, true, false},
		"not dispatched":                       {Rows{}, Seen{End: NotDispatched}, text, turn.Failed, turn.ReasonNotDispatched, nil, true, false},
		"not dispatched, Hermes missing":       {Rows{}, Seen{End: NotDispatched, Reason: "HERMES_UNAVAILABLE"}, text, turn.Failed, "HERMES_UNAVAILABLE", nil, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			d := Decide(c.rows, c.seen, c.shape)
			reason := ""
			if d.Error != nil {
				reason = d.Error.Reason
			}
			if d.State != c.state || reason != c.reason || !slices.Equal(d.Replies, c.replies) || d.KeepBlocks != c.keep || d.EndChild != c.end {
				t.Errorf("Decide = %+v (%s), want %s %s replies %v keep %v end %v", d, reason, c.state, c.reason, c.replies, c.keep, c.end)
			}
		})
	}
}

// What must hold of every combination there is.
func TestDecideAlways(t *testing.T) {
	rowSets := []Rows{{}, {User: 10}, {User: 10, Replies: []Row{{12, "stop"}}}, {User: 10, Replies: []Row{{12, ""}}},
		{User: 10, Replies: []Row{{12, ""}, {13, "length"}, {14, "stop"}}}, {Replies: []Row{{12, "stop"}}}}
	stops := []string{"", "end_turn", "cancelled", "refusal", "max_tokens", "max_turn_requests", "new"}
	n := 0
	for _, rows := range rowSets {
		for end := Gone; end <= NotDispatched+1; end++ {
			for _, stop := range stops {
				for bits := range 16 {
					seen := Seen{End: end, StopReason: stop, CancelSent: bits&1 != 0, TextStreamed: bits&2 != 0}
					shape := Shape{Readable: bits&4 != 0, Command: bits&8 != 0}
					d := Decide(rows, seen, shape)
					n++
					bad := ""
					switch {
					case !d.State.Ended():
						bad = "not an end"
					case (d.State == turn.Replied) != (len(d.Replies) > 0):
						bad = "replied if and only if there are replies"
					case len(d.Replies) > 0 && rows.User == 0:
						bad = "a reply to nothing"
					case d.KeepBlocks != (d.State == turn.Failed && rows.User == 0):
						bad = "blocks"
					case (d.Error != nil) != (d.State == turn.Failed || d.State == turn.NoReply):
						bad = "an error if and only if it failed or has no reply"
					case d.State == turn.NativeCommand && (!shape.Command || !seen.TextStreamed || rows.User != 0):
						bad = "a native command"
					case d.State == turn.NoReply && shape.Readable:
						bad = "no reply to something readable"
					case d.State == turn.Cancelled && !seen.CancelSent && stop != "cancelled":
						bad = "cancelled by nobody"
					}
					for _, id := range d.Replies {
						i := slices.IndexFunc(rows.Replies, func(r Row) bool { return r.ID == id })
						if i < 0 || seen.CancelSent && rows.Replies[i].FinishReason == "" {
							bad = "a reply that is none"
						}
					}
					if bad != "" {
						t.Errorf("%s: Decide(%+v, %+v, %+v) = %+v", bad, rows, seen, shape, d)
					}
				}
			}
		}
	}
	if n < 4000 {
		t.Errorf("only %d combinations", n)
	}
}
