// Package checks holds the whole-system checks: each starts a system of real binaries, does what a
// product or a bad day would do to it, and says what it saw. The tests and the evidence runner call
// the same functions.
package checks

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

// Check reports failures to t and returns the figures seen, in a few words.
type Check func(t harness.T) string

// world is a system with one organization.
type world struct {
	*harness.System
	t   harness.T
	ctx context.Context
	org string
}

func start(t harness.T, limit time.Duration, opts harness.Options) *world {
	t.Helper()
	ctx, cancel := context.WithTimeoutCause(t.Context(), limit, fmt.Errorf("%s took longer than %v", t.Name(), limit))
	t.Cleanup(cancel)
	w := &world{System: harness.Start(t, opts), t: t, ctx: ctx, org: "o-" + unique()}
	if err := w.Client.CreateOrganization(ctx, w.org); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	return w
}

// conversation creates a conversation and returns it with its Hermes session.
func (w *world) conversation(id string) (harness.Conversation, string) {
	w.t.Helper()
	conv := harness.Conversation{Organization: w.org, ID: id}
	session, err := w.Client.CreateConversation(w.ctx, conv)
	if err != nil {
		w.t.Fatalf("create conversation: %v", err)
	}
	return conv, session
}

// submit submits a text turn.
func (w *world) submit(conv harness.Conversation, text string) harness.Turn {
	w.t.Helper()
	turn, _, err := w.Client.Submit(w.ctx, conv, "", harness.TextTurn(text))
	if err != nil {
		w.t.Fatalf("submit %.40q: %v", text, err)
	}
	return turn
}

// wait waits until a turn has ended.
func (w *world) wait(conv harness.Conversation, id string) harness.Turn {
	w.t.Helper()
	turn, err := w.Client.Wait(w.ctx, conv, id)
	if err != nil {
		w.t.Fatalf("wait for a turn of %s: %v", conv.ID, err)
	}
	return turn
}

// turn submits a text and waits for its end.
func (w *world) turn(conv harness.Conversation, text string) harness.Turn {
	w.t.Helper()
	return w.wait(conv, w.submit(conv, text).TurnID)
}

// says runs a turn and wants one reply with a text in it.
func (w *world) says(conv harness.Conversation, text, want string) harness.Turn {
	w.t.Helper()
	turn := w.turn(conv, text)
	if turn.State != "REPLIED" || len(turn.Replies) != 1 || !strings.Contains(turn.Replies[0].Text, want) {
		w.t.Errorf("turn %.40q = %s, want REPLIED with one reply that holds %q", text, describe(turn), want)
	}
	return turn
}

// arrived waits until the model holds n answers at a gate.
func (w *world) arrived(gate string, n int) {
	w.t.Helper()
	if err := w.Model.Gate(gate).Arrived(w.ctx, n); err != nil {
		w.t.Fatalf("wait for the model to be asked: %v", err)
	}
}

// transcript returns the whole transcript.
func (w *world) transcript(conv harness.Conversation) []harness.Message {
	w.t.Helper()
	got, err := w.Client.Transcript(w.ctx, conv)
	if err != nil {
		w.t.Fatalf("read the transcript of %s: %v", conv.ID, err)
	}
	return got
}

// answer makes the model answer a prompt, also when Hermes has merged earlier ones into it. The
// prompt must be unlike all others.
func (w *world) answer(prompt string, reply scriptedmodel.Reply) {
	w.Model.On(func(r scriptedmodel.Request) bool {
		return r.Kind == scriptedmodel.KindTurn && strings.HasSuffix(r.UserText, prompt)
	}, reply)
}

// answerWithTool makes the model answer a prompt with a command, and then with a text.
func (w *world) answerWithTool(prompt, command, text string) {
	w.answer(prompt, scriptedmodel.Call("terminal", map[string]string{"command": command}))
	w.Model.On(func(r scriptedmodel.Request) bool {
		return r.Kind == scriptedmodel.KindTurn && strings.HasSuffix(r.UserText, prompt) && r.Messages[len(r.Messages)-1].Role == "tool"
	}, scriptedmodel.Text(text))
}

// continued is in the model's answer to Hermes's own request for the rest of a broken stream.
const continued = "… and this is the rest of it"

// saidOrContinued reports whether a reply is what the model said, or its beginning and the rest: a
// cancel that came late can break the stream of the next turn, which Hermes then continues.
func saidOrContinued(reply, said string) bool {
	head, _, broken := strings.Cut(reply, continued)
	return reply == said || broken && strings.HasPrefix(said, strings.TrimSpace(head))
}

// requests are the model's requests of turns with a number above after.
func (w *world) requests(after int64) []scriptedmodel.Request {
	var got []scriptedmodel.Request
	for _, r := range w.Model.Requests() {
		if r.Seq > after && r.Kind == scriptedmodel.KindTurn {
			got = append(got, r)
		}
	}
	return got
}

func (w *world) lastRequest() int64 {
	all := w.Model.Requests()
	if len(all) == 0 {
		return 0
	}
	return all[len(all)-1].Seq
}

func describe(turn harness.Turn) string {
	var texts []string
	for _, r := range turn.Replies {
		texts = append(texts, fmt.Sprintf("%d:%.60q", r.Locator.MessageID, r.Text))
	}
	s := turn.State + " " + strings.Join(texts, " ")
	if turn.Error != nil {
		s += fmt.Sprintf(" %s (%s)", turn.Error.Reason, turn.Error.Message)
	}
	return s
}

// strip does what Python's str.strip does, which Hermes applies to every message for the model.
func strip(s string) string {
	return strings.TrimFunc(s, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f })
}

func digest(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// block encodes a text block without escaping what JSON does not make one escape.
func block(text string) []byte {
	var buf bytes.Buffer
	enc := json.NewEncoder(&buf)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(struct { // to memory, of valid strings
		Type string `json:"type"`
		Text string `json:"text"`
	}{"text", text})
	return bytes.TrimSpace(buf.Bytes())
}

// body is a turn of one message of exactly these blocks.
func body(blocks ...[]byte) []byte {
	return fmt.Appendf(nil, `{"messages":[{"blocks":[%s]}]}`, bytes.Join(blocks, []byte(",")))
}

func unique() string {
	var raw [5]byte
	rand.Read(raw[:])
	return hex.EncodeToString(raw[:])
}

// counts renders a tally in the order of its names.
func counts(of map[string]int) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		out = append(out, fmt.Sprintf("%s %d", k, of[k]))
	}
	return strings.Join(out, ", ")
}
