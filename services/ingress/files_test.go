package ingress_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	supervisorv1 "humanwork.internal/proto/gen/humanwork/supervisor/v1"
)

const failed = ingressv1.TurnState_TURN_STATE_FAILED

// blocks makes a submission of one message.
func blocks(conv, key string, raws ...string) *ingressv1.SubmitTurnRequest {
	m := &ingressv1.InboundMessage{}
	for _, raw := range raws {
		m.Blocks = append(m.Blocks, []byte(raw))
	}
	return &ingressv1.SubmitTurnRequest{OrganizationId: org, ConversationId: conv, IdempotencyKey: key, Messages: []*ingressv1.InboundMessage{m}}
}

func (r *replica) send(t testing.TB, m *ingressv1.SubmitTurnRequest) *ingressv1.Turn {
	t.Helper()
	answer, err := r.SubmitTurn(t.Context(), m)
	if err != nil {
		t.Fatalf("SubmitTurn: %v", err)
	}
	return answer.GetTurn()
}

func link(uri string) string {
	return fmt.Sprintf(`{"type":"resource_link","uri":%q,"name":"a name","mimeType":"text/plain"}`, uri)
}

// planted is data that can be looked for.
var planted = bytes.Repeat([]byte("\xff\xfe planted bytes of an attachment "), 100)

func image(data []byte) string {
	return `{"type":"image","data":"` + base64.StdEncoding.EncodeToString(data) + `","mimeType":"image/png","_meta":{"n":9007199254740993}}`
}

// given returns the blocks Hermes was given with a turn's first attempt.
func recording(next func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult) (hermes func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult, given func(id string) []string) {
	var mu sync.Mutex
	all := map[string][]string{}
	return func(w *world, r *supervisorv1.PromptRequest, a *attempt) *supervisorv1.TurnResult {
			mu.Lock()
			for _, b := range r.GetBlocks() {
				all[r.GetAttempt().GetTurnId()] = append(all[r.GetAttempt().GetTurnId()], string(b))
			}
			mu.Unlock()
			return next(w, r, a)
		}, func(id string) []string {
			mu.Lock()
			defer mu.Unlock()
			return all[id]
		}
}

// dump returns all that the service's tables hold, as text.
func dump(t *testing.T, url string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(context.Background()) }()
	rows, _ := conn.Query(t.Context(), "SELECT table_name FROM information_schema.tables WHERE table_schema = 'ingress'")
	tables, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(tables) < 8 {
		t.Fatalf("tables = %v, %v", tables, err)
	}
	var out strings.Builder
	for _, table := range tables {
		// Bytes are shown as hexadecimal digits.
		rows, _ := conn.Query(t.Context(), "SELECT t::text FROM ingress."+table+" t")
		lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(&out, table, lines)
	}
	return out.String()
}

// nothingPlanted looks for the planted bytes in each form they could have in a dump.
func nothingPlanted(t *testing.T, url string) {
	t.Helper()
	all := dump(t, url)
	part := planted[:33] // a multiple of 3, so that its base64 is part of the whole's
	encoded := base64.StdEncoding.EncodeToString(part)
	for name, form := range map[string]string{"bytes": string(part[2:]), "hexadecimal": hex.EncodeToString(part),
		"base64": encoded, "hexadecimal of base64": hex.EncodeToString([]byte(encoded))} {
		if strings.Contains(all, form) {
			t.Errorf("Postgres holds inline data as %s", name)
		}
	}
}

// Inline data of a turn that runs at once, and of one that waits, reaches Hermes byte for byte;
// meanwhile it is in one file and not in Postgres.
func TestInlineData(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	echoes, began, release := gated()
	defer release()
	hermes, given := recording(echoes)
	r := start(t, url, w)
	r.wait(t, "c1", r.submit(t, "c1", "connects").GetTurnId())
	w.mu.Lock()
	w.hermes = hermes
	w.mu.Unlock()
	audio := append([]byte("\xff\xff\xff"), planted...)
	escaped := `{"type":"audio","data":"` + strings.ReplaceAll(base64.StdEncoding.EncodeToString(audio), "/", `\/`) + `","mimeType":"audio/wav"}`
	raws := []string{string(textBlock("look")), image(planted), image(planted), escaped,
		`{"type":"resource","resource":{"uri":"urn:x","blob":"` + base64.StdEncoding.EncodeToString(planted) + `","mimeType":"image/png"}}`,
		`{"type":"resource","resource":{"uri":"urn:y","blob":""}}`}
	turns := []*ingressv1.Turn{r.send(t, blocks("c1", "", raws...)), r.send(t, blocks("c1", "", raws...))}
	<-began
	nothingPlanted(t, url)
	if got := w.disk.uris(); len(got) != 2 { // the image and the blob are one object, with the same name
		t.Errorf("files = %q, want the image's and the audio's", got)
	}
	release()
	for i, accepted := range turns {
		got := r.wait(t, "c1", accepted.GetTurnId())
		wantReply(t, got, "echo: look")
		if sent := given(accepted.GetTurnId()); !slices.Equal(sent, raws) {
			t.Errorf("turn %d: Hermes was given %.200q, want %.200q", i, sent, raws)
		}
		for j, b := range accepted.GetMessages()[0].GetBlocks() {
			sum := sha256.Sum256([]byte(raws[j]))
			if b.GetSha256() != hex.EncodeToString(sum[:]) || (b.GetUri() != "") != (j > 0 && j < 5) {
				t.Errorf("accepted block %d = %v", j, b)
			}
		}
		eventually(t, "the release", func() error { return w.disk.releasedOnce(accepted.GetTurnId()) })
	}
	nothingPlanted(t, url)
	if reads := w.disk.count("read"); reads != 4 {
		t.Errorf("files were read %d times, want 4: what is accepted and sent at once is not read back", reads)
	}
}

func TestFilesAreChecked(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	w.disk.put("file:///workspace/a.txt", "hello")
	_, err := r.SubmitTurn(t.Context(), blocks("c1", "k", string(textBlock("x")), link("file:///workspace/a.txt"), link("file:///workspace/b.txt")))
	wantReason(t, err, errs.Invalid, "INVALID_FILE_URI")
	if err == nil || !strings.Contains(err.Error(), "messages[0].blocks[2].uri: no such file") {
		t.Errorf("error = %v, want one that names the block", err)
	}
	// A turn that is refused for a file it names leaves none of its own.
	_, err = r.SubmitTurn(t.Context(), blocks("c1", "k", image(planted), link("file:///workspace/b.txt")))
	wantReason(t, err, errs.Invalid, "INVALID_FILE_URI")
	if got := w.disk.uris(); !slices.Equal(got, []string{"file:///workspace/a.txt"}) {
		t.Errorf("files after the refusal = %q", got)
	}
	for reason, refusal := range map[errs.Reason]error{
		"QUOTA_EXCEEDED": errs.New(errs.Exhausted, "QUOTA_EXCEEDED", "full"),
		"UNAVAILABLE":    errs.New(errs.Unavailable, "UNAVAILABLE", "down"),
	} {
		w.disk.fail(refusal)
		for _, raw := range []string{link("file:///workspace/a.txt"), image(planted)} {
			_, err = r.SubmitTurn(t.Context(), blocks("c1", "k", raw))
			wantReason(t, err, errs.KindOf(refusal), reason)
		}
	}
	w.disk.fail(nil)
	for _, table := range []string{"turn", "event", "idempotency", "block"} {
		if n := query[int](t, url, "SELECT count(*) FROM ingress."+table); n != 0 {
			t.Errorf("%d rows in %s after refusals", n, table)
		}
	}
	// The key is free, and a text needs no agentfs.
	calls := w.disk.count("")
	w.disk.fail(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	wantReply(t, r.wait(t, "c1", r.send(t, blocks("c1", "k", string(textBlock("text")))).GetTurnId()), "echo: text")
	if n := w.disk.count(""); n != calls {
		t.Errorf("a text made %d calls to agentfs", n-calls)
	}
}

// What happens to files between acceptance and dispatch decides whether the message is sent.
func TestFilesBeforeDispatch(t *testing.T) {
	const named = "file:///workspace/a.txt"
	down := errs.New(errs.Unavailable, "UNAVAILABLE", "down")
	for name, c := range map[string]struct {
		meanwhile      func(d *disk)
		state          ingressv1.TurnState
		reason         string
		retry, release bool
	}{
		"nothing":           {func(*disk) {}, ingressv1.TurnState_TURN_STATE_REPLIED, "", false, true},
		"file removed":      {func(d *disk) { d.remove(named) }, failed, "FILE_GONE", false, true},
		"data removed":      {func(d *disk) { d.remove(d.uris()[0]) }, failed, "FILE_GONE", false, true},
		"data changed":      {func(d *disk) { d.put(d.uris()[0], strings.Repeat("x", len(planted))) }, failed, "FILE_CHANGED", true, true},
		"data grown":        {func(d *disk) { d.put(d.uris()[0], strings.Repeat("x", 1<<20)) }, failed, "FILE_CHANGED", true, true},
		"agentfs away":      {func(d *disk) { d.fail(down) }, ingressv1.TurnState_TURN_STATE_REPLIED, "", false, true},
		"away and canceled": {func(d *disk) { d.fail(down) }, cancelled, "", false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, w := testkit.Postgres(t), newWorld(t)
			echoes, began, release := gated()
			defer release()
			hermes, given := recording(echoes)
			w.hermes = hermes
			r := start(t, url, w)
			w.disk.put(named, "hello")
			first := r.submit(t, "c1", "first").GetTurnId()
			<-began
			raws := []string{string(textBlock("look")), link(named), image(planted)}
			id := r.send(t, blocks("c1", "", raws...)).GetTurnId()
			last := r.submit(t, "c1", "last").GetTurnId()
			c.meanwhile(w.disk)
			release()
			if w.disk.err != nil {
				eventually(t, "attempts", func() error {
					if n := w.disk.count("hold " + id); n < 4 {
						return fmt.Errorf("%d attempts", n)
					}
					return nil
				})
				if c.state == cancelled {
					if _, err := r.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: id}); err != nil {
						t.Error(err)
					}
				} else {
					w.disk.fail(nil)
				}
			}
			got := r.wait(t, "c1", id)
			if got.GetState() != c.state || got.GetError().GetReason() != c.reason || got.GetError().GetRetryable() != c.retry {
				t.Errorf("turn = %v, want %v %s", got, c.state, c.reason)
			}
			sent, kept := given(id), query[int](t, url, "SELECT count(*) FROM ingress.block WHERE turn_id = $1 AND raw IS NOT NULL", id)
			if c.state == ingressv1.TurnState_TURN_STATE_REPLIED {
				if !slices.Equal(sent, raws) || kept != 0 {
					t.Errorf("Hermes was given %.200q, want %.200q; %d blocks are kept", sent, raws, kept)
				}
			} else if sent != nil || kept != map[bool]int{true: 3}[c.state == failed] {
				t.Errorf("Hermes was given %.200q, want nothing; %d blocks are kept", sent, kept)
			}
			if c.release {
				eventually(t, "the release", func() error { return w.disk.releasedOnce(id) })
			}
			wantReply(t, r.wait(t, "c1", first), "echo: first")
			wantReply(t, r.wait(t, "c1", last), "echo: last")
			nothingPlanted(t, url)
		})
	}
}

// A replay is found before anything is written or held, whatever became of the files.
func TestReplayWithoutFiles(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	w.disk.put("file:///workspace/a.txt", "hello")
	m := blocks("c1", "key", string(textBlock("look")), link("file:///workspace/a.txt"), image(planted))
	first := r.send(t, m)
	r.wait(t, "c1", first.GetTurnId())
	eventually(t, "the release", func() error { return w.disk.releasedOnce(first.GetTurnId()) })
	for _, uri := range w.disk.uris() {
		w.disk.remove(uri)
	}
	w.disk.fail(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	calls := w.disk.count("")
	again, err := r.SubmitTurn(t.Context(), m)
	if err != nil || !again.GetReplayed() || again.GetTurn().GetTurnId() != first.GetTurnId() {
		t.Errorf("replay = %v, %v, want turn %s", again, err, first.GetTurnId())
	}
	if n := w.disk.count(""); n != calls {
		t.Errorf("the replay made %d calls to agentfs", n-calls)
	}
	_, err = r.SubmitTurn(t.Context(), blocks("c1", "key", link("file:///workspace/a.txt")))
	wantReason(t, err, errs.Conflict, "IDEMPOTENCY_KEY_REUSED")
}

// A process that ends between writing and accepting has left a file, which the repeated call uses.
func TestCrashBeforeAcceptance(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	w.disk.before = func(call string) error {
		if strings.HasPrefix(call, "hold") {
			return errs.New(errs.Unavailable, "UNAVAILABLE", "gone")
		}
		return nil
	}
	m := blocks("c1", "key", string(textBlock("look")), image(planted))
	_, err := r.SubmitTurn(t.Context(), m)
	wantReason(t, err, errs.Unavailable, "UNAVAILABLE")
	left := w.disk.uris()
	if n := query[int](t, url, "SELECT count(*) FROM ingress.turn"); n != 0 || len(left) != 1 {
		t.Fatalf("%d turns and files %q, want one file", n, left)
	}
	w.disk.mu.Lock()
	w.disk.before = nil
	w.disk.mu.Unlock()
	got := r.send(t, m)
	wantReply(t, r.wait(t, "c1", got.GetTurnId()), "echo: look")
	if uri := got.GetMessages()[0].GetBlocks()[1].GetUri(); !slices.Equal(w.disk.uris(), left) || uri != left[0] {
		t.Errorf("files = %q and the block's is %s, want %q", w.disk.uris(), uri, left)
	}
}

// Calls with one key at once, and with a full queue, leave no holds behind.
func TestHoldsOfRefusals(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	echoes, began, release := gated()
	defer release()
	w.hermes = echoes
	r := start(t, url, w)
	r.submit(t, "c1", "first")
	<-began
	ids := make([]string, 8)
	var wg sync.WaitGroup
	for i := range ids {
		wg.Go(func() {
			m, err := r.SubmitTurn(t.Context(), blocks("c1", "key", string(textBlock("look")), image(planted)))
			if err != nil {
				t.Errorf("SubmitTurn: %v", err)
			}
			ids[i] = m.GetTurn().GetTurnId()
		})
	}
	wg.Wait()
	ids = slices.Compact(ids)
	if len(ids) != 1 {
		t.Fatalf("one key made turns %v", ids)
	}
	eventually(t, "the releases", func() error {
		w.disk.mu.Lock()
		defer w.disk.mu.Unlock()
		if len(w.disk.holds) != 1 || w.disk.holds[ids[0]] == nil {
			return fmt.Errorf("holds = %v, want those of %s", w.disk.holds, ids[0])
		}
		return nil
	})
	// A waiting turn that is withdrawn lets go at once.
	for range 2 {
		if _, err := r.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: ids[0]}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the release", func() error { return w.disk.releasedOnce(ids[0]) })
	reject := blocks("c1", "", image(planted))
	reject.BusyPolicy = ingressv1.BusyPolicy_BUSY_POLICY_REJECT
	calls := w.disk.count("")
	_, err := r.SubmitTurn(t.Context(), reject)
	wantReason(t, err, errs.Precondition, "CONVERSATION_BUSY")
	if n := w.disk.count(""); n != calls {
		t.Errorf("a refused turn made %d calls to agentfs", n-calls)
	}
}

// A turn that another instance takes over is released by that one, and what it lacks of the blocks
// does not change what becomes of it.
func TestFilesAfterTakeover(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	began, gate := make(chan struct{}), make(chan struct{})
	w.hermes = func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult {
		close(began)
		<-gate
		return answered("end_turn", false)
	}
	dies, lives := start(t, url, w), start(t, url, w)
	// Hermes makes an image of this blob: without a row it is wedged, and not a message without text.
	id := dies.send(t, blocks("c1", "", `{"type":"resource","resource":{"uri":"urn:x","blob":"aGk=","mimeType":"image/png"}}`)).GetTurnId()
	<-began
	dies.stop()
	close(gate)
	if got := lives.wait(t, "c1", id); got.GetError().GetReason() != "HERMES_WEDGED" {
		t.Errorf("turn = %v, want HERMES_WEDGED", got)
	}
	eventually(t, "the release", func() error { return w.disk.releasedOnce(id) })
}

// While agentfs is away a turn whose files are needed waits as accepted: it can be cancelled at once,
// and outlives the instance that accepted it.
func TestInstanceDiesWithoutAgentFS(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	echoes, began, release := gated()
	defer release()
	w.hermes = echoes
	dies := start(t, url, w)
	first := dies.submit(t, "c1", "first").GetTurnId()
	<-began
	id := dies.send(t, blocks("c1", "", string(textBlock("look")), image(planted))).GetTurnId()
	withdrawn := dies.send(t, blocks("c1", "", image(planted))).GetTurnId()
	w.disk.fail(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	release()
	wantReply(t, dies.wait(t, "c1", first), "echo: first")
	eventually(t, "attempts", func() error {
		if n := w.disk.count("hold " + id); n < 3 {
			return fmt.Errorf("%d attempts", n)
		}
		return nil
	})
	m, err := dies.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: withdrawn})
	if err != nil || m.GetTurn().GetState() != cancelled {
		t.Errorf("CancelTurn = %v, %v", m, err)
	}
	if got := query[string](t, url, "SELECT state FROM ingress.turn WHERE turn_id = $1", id); got != "ACCEPTED" {
		t.Errorf("the turn is %s without agentfs, want ACCEPTED", got)
	}
	dies.stop()
	lives := start(t, url, w)
	w.disk.fail(nil)
	wantReply(t, lives.wait(t, "c1", id), "echo: look")
	w.once(t, []string{"first", "look"})
	eventually(t, "the release", func() error { return w.disk.releasedOnce(id) })
}

// A message of nothing but links ends without a reply, and says why.
func TestOnlyLinks(t *testing.T) {
	w := newWorld(t)
	w.hermes = func(*world, *supervisorv1.PromptRequest, *attempt) *supervisorv1.TurnResult {
		return answered("end_turn", false)
	}
	r := start(t, testkit.Postgres(t), w)
	w.disk.put("file:///artifacts/inbound/1/a.txt", "hello")
	id := r.send(t, blocks("c1", "", link("file:///artifacts/inbound/1/a.txt"))).GetTurnId()
	got := r.wait(t, "c1", id)
	if got.GetState() != ingressv1.TurnState_TURN_STATE_NO_REPLY || got.GetError().GetReason() != "NOTHING_READABLE" {
		t.Errorf("turn = %v, want NO_REPLY, NOTHING_READABLE", got)
	}
	eventually(t, "the release", func() error { return w.disk.releasedOnce(id) })
}

// agentfs may ask what a holder is doing, and nothing else.
func TestAgentFSAsks(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w)
	id := r.submit(t, "c1", "hello").GetTurnId()
	wantReply(t, r.wait(t, "c1", id), "echo: hello")
	conn := r.as(*rpc.Service("agentfs"))
	m, err := ingressv1.NewIngressReadServiceClient(conn).GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: id})
	if err != nil {
		t.Fatal(err)
	}
	wantReply(t, m.GetTurn(), "echo: hello")
	_, err = ingressv1.NewIngressReadServiceClient(conn).GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: "other"})
	wantReason(t, err, errs.NotFound, "TURN_NOT_FOUND")
	if _, err := ingressv1.NewIngressServiceClient(conn).SubmitTurn(t.Context(), request("c1", "x", "")); !errors.Is(err, errs.Denied) {
		t.Errorf("SubmitTurn as agentfs = %v, want %v", err, errs.Denied)
	}
	_, err = ingressv1.NewFileEventServiceClient(r.as(member)).AppendFileChanges(t.Context(), &ingressv1.AppendFileChangesRequest{OrganizationId: org, ConversationId: "c1",
		Generation: "g", Changes: []*ingressv1.FileChange{{Position: 1, Uri: "file:///workspace/a", Change: "written"}}})
	if !errors.Is(err, errs.Denied) {
		t.Errorf("AppendFileChanges as a member = %v, want %v", err, errs.Denied)
	}
}
