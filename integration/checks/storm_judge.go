package checks

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"humanwork.internal/integration/harness"
)

// tally counts what the judge saw.
type tally struct {
	states    map[string]int
	reasons   map[string]int
	locators  map[string]string // by organization and message id, to the turn
	delivered int
	files     int // turns that brought a file, whose blocks reached a child
}

// judge holds every promise against what clients, the database of Hermes and the model saw.
func (s *storm) judge(turns int) string {
	s.t.Helper()
	n := &tally{states: map[string]int{}, reasons: map[string]int{}, locators: map[string]string{}}
	for _, l := range s.lanes {
		s.judgeTurns(l, n)
		s.judgeEvents(l)
		s.judgeRows(l)
		s.judgeBlocks(l, n)
		s.judgeTranscript(l)
	}
	for _, l := range s.lanes {
		s.says(l.conv, "SAY:afterwards in "+l.conv.ID, "afterwards in "+l.conv.ID)
	}
	return fmt.Sprintf("%d accepted = %d ended (%s; reasons: %s), %d replies delivered once under their own turns, none invented, %d turns with a file reached a child byte for byte; killed: %s",
		turns, turns, counts(n.states), counts(n.reasons), n.delivered, n.files, s.killed())
}

func (s *storm) judgeTurns(l *stormLane, n *tally) {
	s.t.Helper()
	listed, err := s.client.Turns(s.ctx, l.conv)
	if err != nil {
		s.t.Fatalf("%s: list turns: %v", l.conv.ID, err)
	}
	if len(listed) != len(l.turns) {
		s.t.Errorf("%s: %d turns exist, want the %d accepted", l.conv.ID, len(listed), len(l.turns))
		return
	}
	for i, turn := range l.turns {
		got := listed[i]
		if got.TurnID != turn.id {
			s.t.Errorf("%s: turn %d is %s, want %s: the order of acceptance is lost", l.conv.ID, i, got.TurnID, turn.id)
		}
		if got.State != turn.end.State || len(got.Replies) != len(turn.end.Replies) {
			s.t.Errorf("%s: turn %d changed after its end from %s to %s", l.conv.ID, i, describe(turn.end), describe(got))
		}
		n.states[got.State]++
		if got.Reason() != "" {
			n.reasons[got.Reason()]++
		}
		s.judgeTurn(l, turn, i > 0 && l.turns[i-1].cancelled, got, n)
	}
}

func (s *storm) judgeTurn(l *stormLane, turn *stormTurn, afterCancel bool, got harness.Turn, n *tally) {
	s.t.Helper()
	switch {
	case got.State == "REPLIED" && len(got.Replies) == 1:
	case got.State == "FAILED" && got.Reason() != "" && len(got.Replies) == 0:
	case got.State == "CANCELLED" && turn.cancelled && len(got.Replies) == 0:
	default:
		s.t.Errorf("%s %s: %s", l.conv.ID, turn.text, describe(got))
	}
	for _, r := range got.Replies {
		n.delivered++
		key := fmt.Sprintf("%s/%d", l.conv.Organization, r.Locator.MessageID)
		if other, taken := n.locators[key]; taken {
			s.t.Errorf("%s: locator %s is a reply of %s and of %s", l.conv.ID, key, other, turn.token)
		}
		n.locators[key] = turn.token
		if r.Locator.SessionID != l.session {
			s.t.Errorf("%s: a reply's session is %s, want %s", l.conv.ID, r.Locator.SessionID, l.session)
		}
		if r.Text != turn.reply && !(afterCancel && saidOrContinued(r.Text, turn.reply)) {
			s.t.Errorf("%s %s: the reply is %q, but the model said %q", l.conv.ID, turn.text, r.Text, turn.reply)
		}
	}
}

// judgeEvents wants every durable event once, in sequence, to one subscriber that was cut often.
func (s *storm) judgeEvents(l *stormLane) {
	s.t.Helper()
	ended, delivered, accepted := map[string]int{}, map[int64]int{}, map[string]int{}
	for i, ev := range l.events {
		if ev.ID != int64(i+1) {
			s.t.Errorf("%s: event %d of the subscriber has the sequence %d: lost or repeated", l.conv.ID, i+1, ev.ID)
			return
		}
		switch ev.Type {
		case "turn.accepted":
			accepted[ev.TurnID]++
		case "turn.ended":
			ended[ev.TurnID]++
		case "message.delivered":
			delivered[ev.Loc.MessageID]++
		}
	}
	for _, turn := range l.turns {
		if accepted[turn.id] != 1 || ended[turn.id] != 1 {
			s.t.Errorf("%s %s: %d accepted and %d ended events, want one each", l.conv.ID, turn.token, accepted[turn.id], ended[turn.id])
		}
		for _, r := range turn.end.Replies {
			if delivered[r.Locator.MessageID] != 1 {
				s.t.Errorf("%s %s: %d delivered events, want 1", l.conv.ID, turn.token, delivered[r.Locator.MessageID])
			}
		}
	}
}

// judgeRows looks into Hermes's database: no message was given to Hermes twice.
func (s *storm) judgeRows(l *stormLane) {
	s.t.Helper()
	rows, err := s.Rows(s.ctx, l.conv.Organization)
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	for _, turn := range l.turns {
		users := 0
		for _, r := range rows {
			if r.SessionID == l.session && r.Role == "user" && (r.Content == turn.text || turn.blocks != nil && strings.Contains(r.Content, turn.text)) {
				users++
			}
		}
		if users > 1 {
			s.t.Errorf("%s %s: Hermes took the message %d times", l.conv.ID, turn.token, users)
		}
		if users == 0 && turn.end.State == "REPLIED" {
			s.t.Errorf("%s %s: replied, but Hermes has no such message", l.conv.ID, turn.token)
		}
	}
}

// judgeBlocks wants the blocks of a turn that brought a file at a child's standard input as they were accepted, whoever was killed
// between, and never twice.
func (s *storm) judgeBlocks(l *stormLane, n *tally) {
	s.t.Helper()
	recorded, err := s.Recorded(l.conv.Organization)
	if err != nil {
		s.t.Fatalf("read what the children read: %v", err)
	}
	prompts := map[string][]harness.Prompt{}
	for _, p := range recorded {
		if p.SessionID == l.session && len(p.Blocks) > 0 {
			key := digest(p.Blocks[len(p.Blocks)-1])
			prompts[key] = append(prompts[key], p)
		}
	}
	for _, turn := range l.turns {
		if turn.blocks == nil {
			continue
		}
		got := prompts[digest(turn.blocks[len(turn.blocks)-1])]
		if len(got) > 1 || len(got) == 0 && turn.end.State == "REPLIED" {
			s.t.Errorf("%s %s: %d children read the turn, which is %s", l.conv.ID, turn.token, len(got), describe(turn.end))
		}
		for _, p := range got {
			n.files++
			if !slices.EqualFunc(p.Blocks, turn.blocks, bytes.Equal) {
				s.t.Errorf("%s %s: the child read %.200q, want %.200q", l.conv.ID, turn.token, p.Blocks, turn.blocks)
			}
		}
	}
}

// judgeTranscript wants every reply in the transcript, and every reply there delivered.
func (s *storm) judgeTranscript(l *stormLane) {
	s.t.Helper()
	shown := map[int64]string{}
	for _, m := range s.transcript(l.conv) {
		if m.Role == "assistant" {
			shown[m.Locator.MessageID] = m.Text
		}
	}
	for _, turn := range l.turns {
		own := map[int64]bool{}
		for _, r := range turn.end.Replies {
			own[r.Locator.MessageID] = true
			if shown[r.Locator.MessageID] != r.Text {
				s.t.Errorf("%s %s: the transcript shows %q under the reply's locator, want %q", l.conv.ID, turn.token, shown[r.Locator.MessageID], r.Text)
			}
		}
		if turn.cancelled {
			continue // a cut stream leaves its part as a row that is no reply
		}
		for id, text := range shown {
			if strings.HasSuffix(text, turn.token) && !own[id] {
				s.t.Errorf("%s %s: message %d of the transcript is a reply that was never delivered: %q; the turn is %s", l.conv.ID, turn.token, id, text, describe(turn.end))
			}
		}
	}
}
