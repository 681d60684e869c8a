package ingress_test

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/testkit"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
)

// instances counts the registered instances.
func instances(t *testing.T, url string, want int) func() error {
	return func() error {
		if n := query[int](t, url, "SELECT count(*) FROM ingress.instance"); n != want {
			return fmt.Errorf("%d instances are registered, want %d", n, want)
		}
		return nil
	}
}

// kill ends backends of the database that a condition on pg_stat_activity selects.
func kill(t *testing.T, url, where string) {
	t.Helper()
	n := query[int](t, url, "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "+where)
	if n == 0 {
		t.Fatalf("no backend where %s", where)
	}
}

const (
	holdsLock = "pid IN (SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted)"
	listens   = "query = 'LISTEN ingress'"
	ours      = "application_name = 'humanwork-ingress'"
)

func TestBrokenStreams(t *testing.T) {
	w := newWorld(t)
	hermes, began, release := gated()
	w.hermes, w.breakStreams = hermes, 3
	defer release()
	r := start(t, testkit.Postgres(t), w)
	id := r.submit(t, "c1", "hello").GetTurnId()
	<-began
	w.cutOff(true) // and once more from below
	w.cutOff(false)
	release()
	wantReply(t, r.wait(t, "c1", id), "echo: hello")
	w.once(t, []string{"hello"})
}

// A replica ends while a turn runs: another takes the turn over at once, gets its result from the
// supervisor, and goes on with what waits.
func TestDeathOfAnInstance(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	dies, lives := start(t, url, w), start(t, url, w)
	first, second := dies.submit(t, "c1", "one"), dies.submit(t, "c1", "two")
	<-began
	dies.stop()
	eventually(t, "the takeover", instances(t, url, 1))
	if got := query[string](t, url, "SELECT state FROM ingress.turn WHERE turn_id = $1", first.GetTurnId()); got != "RUNNING" {
		t.Errorf("the turn is %s after its owner's death, want RUNNING: it runs", got)
	}
	release()
	wantReply(t, lives.wait(t, "c1", first.GetTurnId()), "echo: one")
	wantReply(t, lives.wait(t, "c1", second.GetTurnId()), "echo: two")
	w.once(t, []string{"one", "two"})
}

// With no replica left the next one to start settles what the last left.
func TestRestart(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	first := start(t, url, w)
	known, unknown, waiting := first.submit(t, "c1", "known"), first.submit(t, "c2", "unknown"), first.submit(t, "c2", "waits")
	<-began
	<-began
	first.stop()
	// The supervisor has lost one of them, as after its own restart.
	w.mu.Lock()
	delete(w.attempts, unknown.GetTurnId()+"/1")
	w.running["c2"] = 0
	w.mu.Unlock()
	release()
	second := start(t, url, w)
	wantReply(t, second.wait(t, "c1", known.GetTurnId()), "echo: known")
	got := second.wait(t, "c2", unknown.GetTurnId())
	// The rows decide: the reply may have been written just before.
	if got.GetError().GetReason() != "INTERRUPTED" && len(got.GetReplies()) != 1 {
		t.Errorf("turn nobody knows = %v, want interrupted, or replied by its rows", got)
	}
	wantReply(t, second.wait(t, "c2", waiting.GetTurnId()), "echo: waits")
}

// An instance that loses its lock lives on as another one, and each turn still ends once.
func TestLostLock(t *testing.T) {
	for _, replicas := range []int{1, 2} {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			url, w := testkit.Postgres(t), newWorld(t)
			hermes, began, release := gated()
			w.hermes = hermes
			defer release()
			r := start(t, url, w)
			for range replicas - 1 {
				start(t, url, w)
			}
			id, next := r.submit(t, "c1", "one").GetTurnId(), r.submit(t, "c1", "two").GetTurnId()
			<-began
			before := query[int](t, url, "SELECT owner FROM ingress.turn WHERE state = 'RUNNING'")
			kill(t, url, holdsLock)
			eventually(t, "a new owner", func() error {
				if query[int](t, url, "SELECT owner FROM ingress.turn WHERE state = 'RUNNING'") == before {
					return errors.New("the turn still belongs to the dead instance")
				}
				return nil
			})
			eventually(t, "registration", instances(t, url, replicas))
			release()
			wantReply(t, r.wait(t, "c1", id), "echo: one")
			wantReply(t, r.wait(t, "c1", next), "echo: two")
			w.once(t, []string{"one", "two"})
			if n := query[int](t, url, "SELECT count(*) FROM ingress.event WHERE type = 'message.delivered'"); n != 2 {
				t.Errorf("%d deliveries, want 2", n)
			}
		})
	}
}

// Events committed by another replica while this one did not listen are not lost to its readers.
func TestLostListen(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	reads, runs := start(t, url, w), start(t, url, w)
	id := runs.submit(t, "c1", "hello").GetTurnId()
	<-began
	waited := make(chan *ingressv1.Turn, 1)
	go func() { waited <- reads.wait(t, "c1", id) }()
	for range 3 {
		eventually(t, "a listener", func() error {
			if query[int](t, url, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND "+listens) == 0 {
				return errors.New("nobody listens")
			}
			return nil
		})
		kill(t, url, listens)
		release()
	}
	wantReply(t, <-waited, "echo: hello")
	wantReply(t, reads.wait(t, "c1", runs.submit(t, "c1", "again").GetTurnId()), "echo: again")
}

// The database is gone while a turn runs, and comes back.
func TestPostgresGone(t *testing.T) {
	u, w := testkit.Postgres(t), newWorld(t)
	hermes, began, release := gated()
	w.hermes = hermes
	defer release()
	r := start(t, u, w)
	id, next := r.submit(t, "c1", "one").GetTurnId(), r.submit(t, "c1", "two").GetTurnId()
	<-began
	admit := func(yes bool) {
		parsed, err := url.Parse(u)
		if err != nil {
			t.Fatal(err)
		}
		name := parsed.Path[1:]
		parsed.Path = "/postgres"
		conn, err := pgx.Connect(context.Background(), parsed.String())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close(context.Background()) }()
		if _, err := conn.Exec(context.Background(), fmt.Sprintf("ALTER DATABASE %s ALLOW_CONNECTIONS %v", name, yes)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Exec(context.Background(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", name); err != nil {
			t.Fatal(err)
		}
	}
	admit(false)
	_, err := r.SubmitTurn(t.Context(), request("c1", "lost", ""))
	wantReason(t, err, errs.Unavailable, "STORE_UNAVAILABLE")
	eventually(t, "unreadiness", func() error {
		if r.svc.Ready(t.Context()) == nil {
			return errors.New("ready without a database")
		}
		return nil
	})
	release()
	eventually(t, "the result", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if a := w.attempts[id+"/1"]; a.result == nil || a.acked {
			return fmt.Errorf("result %v, acknowledged %v", a.result, a.acked)
		}
		return nil
	})
	admit(true)
	eventually(t, "readiness", func() error { return r.svc.Ready(t.Context()) })
	wantReply(t, r.wait(t, "c1", id), "echo: one")
	wantReply(t, r.wait(t, "c1", next), "echo: two")
	w.once(t, []string{"one", "two"})
}

// Every connection of the service breaks again and again while it works: what was accepted ends.
func TestConnectionsKilled(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	var ids []string
	for i := range 30 {
		if i%3 == 0 {
			kill(t, url, ours)
		}
		conv := fmt.Sprint("c", i%3)
		for key := fmt.Sprint("k", i); ; {
			m, err := r.SubmitTurn(t.Context(), request(conv, fmt.Sprint("m", i), key))
			if err == nil {
				ids = append(ids, m.GetTurn().GetTurnId())
				break
			}
			if !errors.Is(err, errs.Unavailable) {
				t.Fatalf("SubmitTurn: %v", err)
			}
		}
	}
	interrupted := 0
	for i, id := range ids {
		eventually(t, "the turn's end", func() error {
			m, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: fmt.Sprint("c", i%3), TurnId: id, WaitMs: 10_000})
			if err != nil || m.GetTurn().GetEndTime() == nil {
				return fmt.Errorf("turn %d = %v, %w", i, m, err)
			}
			// A claim whose answer was lost together with the instance's lock is settled by
			// attaching, and the supervisor knows nothing of it.
			if got := m.GetTurn(); got.GetError().GetReason() == "INTERRUPTED" {
				interrupted++
			} else if got.GetState() != ingressv1.TurnState_TURN_STATE_REPLIED {
				t.Errorf("turn %d = %v", i, m)
			}
			return nil
		})
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.order)+interrupted != len(ids) || w.overlaps > 0 {
		t.Errorf("%d turns were prompted (%d at once in a conversation) and %d interrupted before, want %d", len(w.order), w.overlaps, interrupted, len(ids))
	}
}

// While the cell can't be reached a turn waits, can be cancelled, and runs when the cell is back.
func TestCellUnreachable(t *testing.T) {
	url, w := testkit.Postgres(t), newWorld(t)
	r := start(t, url, w)
	wantReply(t, r.wait(t, "c1", r.submit(t, "c1", "before").GetTurnId()), "echo: before")
	w.cutOff(true)
	one, two := r.submit(t, "c1", "one").GetTurnId(), r.submit(t, "c1", "two").GetTurnId()
	m, err := r.CancelTurn(t.Context(), &ingressv1.CancelTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: two})
	if err != nil || m.GetTurn().GetState() != cancelled {
		t.Errorf("CancelTurn = %v, %v", m, err)
	}
	g, err := r.GetTurn(t.Context(), &ingressv1.GetTurnRequest{OrganizationId: org, ConversationId: "c1", TurnId: one, WaitMs: 200})
	if err != nil || g.GetTurn().GetState() != accepted {
		t.Errorf("turn without a cell = %v, %v, want accepted", g, err)
	}
	w.cutOff(false)
	wantReply(t, r.wait(t, "c1", one), "echo: one")
	w.once(t, []string{"before", "one"})
}

// The session database answers errors: the turn waits, and is accepted all the same.
func TestWatermarkFails(t *testing.T) {
	w := newWorld(t)
	r := start(t, testkit.Postgres(t), w)
	wantReply(t, r.wait(t, "c1", r.submit(t, "c1", "before").GetTurnId()), "echo: before")
	w.mu.Lock()
	w.watermarkErr, w.watermarks = errs.New(errs.Unavailable, "SESSIONDB_BUSY", "busy"), 0
	w.mu.Unlock()
	got := r.submit(t, "c1", "hello")
	if got.GetState() != accepted {
		t.Errorf("turn = %v, want accepted", got)
	}
	eventually(t, "attempts", func() error {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.watermarks < 4 {
			return fmt.Errorf("asked %d times", w.watermarks)
		}
		w.watermarkErr = nil
		return nil
	})
	wantReply(t, r.wait(t, "c1", got.GetTurnId()), "echo: hello")
}
