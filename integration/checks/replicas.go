package checks

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"humanwork.internal/integration/harness"
)

// IngressDeath kills ingress replicas at each phase of a turn whose child lives on, slowly.
func IngressDeath(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Replicas: 2})
	conv, _ := w.conversation("slow")
	w.says(conv, "SAY:warm", "warm")
	var took []string
	deaths := 0
	for _, victims := range [][]int{{0}, {1}, {0, 1}} {
		for _, phase := range []string{"thinking", "streaming"} {
			gate := fmt.Sprintf("%s-%v", phase, len(took))
			token := "after-death-" + unique()
			asked := w.lastRequest()
			turn := w.submit(conv, "SLOW:"+gate+"|one two three "+token)
			waiting := w.submit(conv, "SAY:waited-"+token)
			w.arrived(gate, 1)
			if phase == "streaming" {
				w.Model.Gate(gate).Step()
				w.arrived(gate, 2)
			}
			for _, v := range victims {
				w.Kill(harness.Ingress(v))
				deaths++
			}
			if len(victims) == 2 {
				w.Launch(harness.Ingress(0))
			}
			alive := w.Client.At(1 - victims[0])
			if len(victims) == 2 {
				alive = w.Client.At(0)
			}
			got, err := harness.Durably(w.ctx, func() (harness.Turn, error) { return alive.Turn(w.ctx, conv, turn.TurnID, 300*time.Millisecond) })
			if err != nil || got.State != "RUNNING" {
				t.Errorf("%s, ingress %v killed: the turn is %s (%v) while its child works, want RUNNING", phase, victims, describe(got), err)
			}
			begin := time.Now()
			w.Model.Gate(gate).Release()
			if got, err = alive.Wait(w.ctx, conv, turn.TurnID); err != nil {
				t.Fatalf("%s, ingress %v killed: %v", phase, victims, err)
			}
			if got.State != "REPLIED" || len(got.Replies) != 1 || !strings.HasSuffix(got.Replies[0].Text, token) {
				t.Errorf("%s, ingress %v killed: %s, want its own reply", phase, victims, describe(got))
			}
			took = append(took, time.Since(begin).Round(time.Millisecond).String())
			if got, err = alive.Wait(w.ctx, conv, waiting.TurnID); err != nil || got.State != "REPLIED" || got.Replies[0].Text != "waited-"+token {
				t.Errorf("%s, ingress %v killed: the waiting turn is %s (%v), want its own reply", phase, victims, describe(got), err)
			}
			if n := len(w.requests(asked)); n != 2 {
				t.Errorf("%s, ingress %v killed: the model was asked %d times for two turns", phase, victims, n)
			}
			for _, v := range victims {
				if w.Process(harness.Ingress(v)).Ended() {
					w.Launch(harness.Ingress(v))
				}
			}
			w.AwaitReady(w.ctx)
		}
	}
	return fmt.Sprintf("%d ingress deaths in %d turns: none ended early, none was prompted twice, each replied %s after the child did",
		deaths, 2*len(took), strings.Join(took, " "))
}

const raceTurns = 30

// ClaimRaces submits to two replicas at once while their notices are lost again and again.
func ClaimRaces(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{Replicas: 2})
	var convs []harness.Conversation
	sessions := map[string]harness.Conversation{}
	for i := range 2 {
		conv, session := w.conversation(fmt.Sprintf("race-%d", i))
		convs, sessions[session] = append(convs, conv), conv
	}
	var senders sync.WaitGroup
	for i, conv := range convs {
		for r := range 2 {
			senders.Go(func() {
				for n := range raceTurns / 2 {
					_, err := harness.Durably(w.ctx, func() (harness.Turn, error) {
						turn, _, err := w.Client.At(r).Submit(w.ctx, conv, fmt.Sprintf("%d-%d-%d", i, r, n), harness.TextTurn(fmt.Sprintf("SAY:race %d %d %d", i, r, n)))
						return turn, err
					})
					if err != nil {
						t.Errorf("submit: %v", err)
					}
				}
			})
		}
	}
	lost := 0
	sent := make(chan struct{})
	go func() { senders.Wait(); close(sent) }()
	beat := time.NewTicker(150 * time.Millisecond)
	defer beat.Stop()
	for open := true; open; {
		select {
		case <-beat.C:
			var n int
			if err := w.Database.Query(w.ctx, `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'`, &n); err != nil {
				t.Fatalf("break the replicas' notices: %v", err)
			}
			lost += n
		case <-sent:
			open = false
		}
	}
	for _, conv := range convs {
		turns, err := w.Client.Turns(w.ctx, conv)
		if err != nil || len(turns) != raceTurns {
			t.Fatalf("%s: %d turns (%v), want %d", conv.ID, len(turns), err, raceTurns)
		}
		for _, turn := range turns {
			if got := w.wait(conv, turn.TurnID); got.State != "REPLIED" || len(got.Replies) != 1 {
				t.Errorf("%s: %s, want one reply", conv.ID, describe(got))
			}
		}
	}
	rows, err := w.Rows(w.ctx, w.org)
	if err != nil {
		t.Fatalf("%v", err)
	}
	// One turn at a time: in each session a user row is followed by its own answer.
	last := map[string]string{}
	for _, r := range rows {
		switch {
		case r.Role == "user" && last[r.SessionID] != "":
			t.Errorf("%s: %q was given to Hermes before %q was answered", sessions[r.SessionID].ID, r.Content, last[r.SessionID])
		case r.Role == "user":
			last[r.SessionID] = r.Content
		case r.Role == "assistant":
			if want := strings.TrimPrefix(last[r.SessionID], "SAY:"); r.Content != want {
				t.Errorf("%s: %q was answered %q", sessions[r.SessionID].ID, last[r.SessionID], r.Content)
			}
			last[r.SessionID] = ""
		}
	}
	return fmt.Sprintf("%d turns raced into 2 conversations over 2 replicas, %d LISTEN connections broken meanwhile: each ran once, one at a time", 2*raceTurns, lost)
}
