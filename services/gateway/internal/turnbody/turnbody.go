// Package turnbody reads the body of a turn submission. Each content block is cut out as the exact
// bytes received and never encoded again; what is inside a block is for ingress to judge.
package turnbody

import (
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/gateway/internal/strictjson"
)

// BusyPolicy is what to do when the conversation has an open turn.
type BusyPolicy string

// The policies. The empty one means Enqueue.
const (
	Enqueue BusyPolicy = "ENQUEUE"
	Reject  BusyPolicy = "REJECT"
)

// Submission is one turn as it was sent.
type Submission struct {
	Messages   []Message
	BusyPolicy BusyPolicy
}

// Message is one message of a turn.
type Message struct {
	// Blocks are the exact bytes of one JSON object each; they share the body's memory.
	Blocks [][]byte
}

// Parse reads {"messages": [{"blocks": [{...}]}], "busyPolicy": "ENQUEUE"|"REJECT"}. Errors are of
// kind errs.Invalid and name the path.
func Parse(body []byte) (Submission, error) {
	doc, err := strictjson.Parse(body)
	if err != nil {
		return Submission{}, err
	}
	fields, err := doc.Fields(
		strictjson.Field{Name: "messages", Kind: strictjson.Array, Required: true},
		strictjson.Field{Name: "busyPolicy", Kind: strictjson.String},
	)
	if err != nil {
		return Submission{}, err
	}
	var sub Submission
	if v, ok := fields["busyPolicy"]; ok {
		sub.BusyPolicy = BusyPolicy(v.Text())
		if sub.BusyPolicy != Enqueue && sub.BusyPolicy != Reject {
			return Submission{}, errs.New(errs.Invalid, strictjson.ReasonInvalidField,
				"busyPolicy: must be %q or %q", Enqueue, Reject).With("field", v.Path)
		}
	}
	for v := range fields["messages"].Elements() {
		m, err := message(v)
		if err != nil {
			return Submission{}, err
		}
		sub.Messages = append(sub.Messages, m)
	}
	return sub, nil
}

func message(v strictjson.Value) (Message, error) {
	fields, err := v.Fields(strictjson.Field{Name: "blocks", Kind: strictjson.Array, Required: true})
	if err != nil {
		return Message{}, err
	}
	var m Message
	for b := range fields["blocks"].Elements() {
		if err := b.Want(strictjson.Object); err != nil {
			return Message{}, err
		}
		m.Blocks = append(m.Blocks, b.Raw)
	}
	return m, nil
}
