package checks

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

// Environment of the storm: how many turns, and the seed that repeats its choices.
const (
	stormTurnsVariable = "HUMANWORK_STORM_TURNS"
	stormSeedVariable  = "HUMANWORK_STORM_SEED"

	stormTurns         = 300
	stormConversations = 6
	// A slow host gets fewer kills, never fewer turns.
	stormKilling = 3 * time.Minute
	stormLimit   = 12 * time.Minute
)

// storm runs turns in several conversations of two organizations while processes are killed.
type storm struct {
	*world
	client *harness.Client
	lanes  []*stormLane
	ended  chan struct{} // a turn ended

	mu     sync.Mutex
	random *rand.Rand
	kills  map[string]int
}

// stormLane is one conversation and what was sent to it, in order.
type stormLane struct {
	conv    harness.Conversation
	session string
	turns   []*stormTurn
	events  []harness.Event // durable ones, as one subscriber saw them
}

type stormTurn struct {
	id, text, token string
	reply           string   // the one thing the model answers to it
	blocks          [][]byte // of a turn that brings a file, which the child must read as they are
	cancelled       bool     // a cancel was sent
	end             harness.Turn
}

// Storm is E7 and E15 as far as they need no mount.
func Storm(t harness.T) string {
	turns, seed := stormTurns, uint64(time.Now().UnixNano())
	if n, err := strconv.Atoi(os.Getenv(stormTurnsVariable)); err == nil && n > 0 {
		turns = n
	}
	if n, err := strconv.ParseUint(os.Getenv(stormSeedVariable), 10, 64); err == nil {
		seed = n
	}
	t.Logf("%s=%d %s=%d", stormSeedVariable, seed, stormTurnsVariable, turns)
	w := start(t, stormLimit, harness.Options{Replicas: 2, Venv: harness.RecordingVenv(t)})
	s := &storm{world: w, client: w.Client, ended: make(chan struct{}, turns), random: rand.New(rand.NewPCG(seed, seed)), kills: map[string]int{}}
	second := "o-" + unique()
	if err := w.Client.CreateOrganization(w.ctx, second); err != nil {
		t.Fatalf("create organization: %v", err)
	}
	for i := range stormConversations {
		conv := harness.Conversation{Organization: []string{w.org, second}[i%2], ID: fmt.Sprintf("storm-%d", i)}
		session, err := w.Client.CreateConversation(w.ctx, conv)
		if err != nil {
			t.Fatalf("create conversation: %v", err)
		}
		s.lanes = append(s.lanes, &stormLane{conv: conv, session: session})
	}
	s.rage(turns)
	if t.Failed() {
		return ""
	}
	return s.judge(turns)
}

// rage drives the conversations and kills until every turn has ended.
func (s *storm) rage(turns int) {
	s.t.Helper()
	listen, stopListening := context.WithCancel(s.ctx)
	var drivers, listeners sync.WaitGroup
	for i, l := range s.lanes {
		share := turns / len(s.lanes)
		if i < turns%len(s.lanes) {
			share++
		}
		drivers.Go(func() { s.drive(l, share) })
		listeners.Go(func() { s.listen(listen, l, share) })
	}
	begin := time.Now()
	for done, next := 0, s.between(2, 6); done < turns && s.ctx.Err() == nil; {
		select {
		case <-s.ended:
			done++
		case <-s.ctx.Done():
		}
		if done >= next && done < turns && time.Since(begin) < stormKilling {
			s.strike()
			next = done + s.between(3, 9)
		}
	}
	drivers.Wait()
	listeners.Wait()
	stopListening()
	s.t.Logf("%d turns in %v, killed: %s", turns, time.Since(begin).Round(time.Second), s.killed())
	if s.ctx.Err() != nil {
		s.t.Errorf("the storm did not end: %v", context.Cause(s.ctx))
	}
}

func (s *storm) between(low, high int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return low + s.random.IntN(high-low+1)
}

// drive submits turns one after another, now and then without waiting for the one before.
func (s *storm) drive(l *stormLane, n int) {
	var waits sync.WaitGroup
	defer waits.Wait()
	for i := range n {
		turn := s.prompt(l, i)
		message, err := s.message(l, turn)
		var got harness.Turn
		if err == nil {
			got, err = harness.Durably(s.ctx, func() (harness.Turn, error) {
				got, _, err := s.client.Submit(s.ctx, l.conv, fmt.Sprintf("%s-%d", l.conv.ID, i), message)
				return got, err
			})
		}
		if err != nil {
			s.t.Errorf("%s turn %d: submit: %v", l.conv.ID, i, err)
			for range n - i {
				s.ended <- struct{}{}
			}
			return
		}
		turn.id = got.TurnID
		l.turns = append(l.turns, turn)
		if turn.cancelled {
			waits.Go(func() { s.cancel(l, turn) })
		}
		wait := func() {
			end, err := s.client.Wait(s.ctx, l.conv, turn.id)
			if err != nil {
				s.t.Errorf("%s turn %d: %v", l.conv.ID, i, err)
			}
			turn.end = end
			s.ended <- struct{}{}
		}
		if s.between(1, 10) <= 3 {
			waits.Go(wait)
		} else {
			wait()
		}
	}
}

// prompt makes a turn whose reply names it: at once, in a slow stream, or after a tool.
func (s *storm) prompt(l *stormLane, i int) *stormTurn {
	turn := &stormTurn{token: fmt.Sprintf("token-%s-%d-%s", l.conv.ID, i, unique())}
	turn.text, turn.reply = "say "+turn.token, "here is "+turn.token
	switch kind := s.between(1, 10); {
	case kind <= 5:
		s.answer(turn.text, scriptedmodel.Text(turn.reply))
	case kind <= 8:
		s.answer(turn.text, scriptedmodel.Reply{Text: turn.reply, Between: turn.token})
		time.AfterFunc(time.Duration(s.between(50, 900))*time.Millisecond, s.Model.Gate(turn.token).Release)
	default:
		command := fmt.Sprintf("sleep 0.%d; echo %s", s.between(1, 4), turn.token)
		s.answerWithTool(turn.text, command, turn.reply)
	}
	turn.cancelled = s.between(1, 25) == 1
	return turn
}

// message is a turn's body: of every ten, one brings an attachment and one inline data.
func (s *storm) message(l *stormLane, turn *stormTurn) (any, error) {
	content := []byte(strings.Repeat(turn.token+"\n", s.between(1, 2000)))
	switch s.between(1, 10) {
	case 1:
		upload, err := harness.Durably(s.ctx, func() (harness.Attachment, error) {
			return s.client.Attach(s.ctx, l.conv, "notes of "+l.conv.ID+".txt", bytes.NewReader(content), int64(len(content)))
		})
		if err != nil {
			return nil, err
		}
		turn.blocks = [][]byte{upload.Block, block(turn.text)}
	case 2:
		turn.blocks = [][]byte{fmt.Appendf(nil, `{"type":"resource","resource":{"blob":"%s","uri":"blob://%s"}}`,
			base64.StdEncoding.EncodeToString(content), turn.token), block(turn.text)}
	default:
		return harness.TextTurn(turn.text), nil
	}
	return json.RawMessage(body(turn.blocks...)), nil
}

func (s *storm) cancel(l *stormLane, turn *stormTurn) {
	pause := time.NewTimer(time.Duration(s.between(0, 300)) * time.Millisecond)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-s.ctx.Done():
	}
	if _, err := harness.Durably(s.ctx, func() (harness.Turn, error) { return s.client.Cancel(s.ctx, l.conv, turn.id) }); err != nil {
		s.t.Errorf("%s: cancel: %v", l.conv.ID, err)
	}
}

// listen follows a conversation's events until every turn has ended, over every cut, by the id of
// the last event seen.
func (s *storm) listen(ctx context.Context, l *stormLane, turns int) {
	last, ended := int64(0), 0
	for replica := 0; ended < turns && ctx.Err() == nil; replica++ {
		stream, err := harness.Durably(ctx, func() (*harness.Events, error) { return s.client.At(replica%2).Events(ctx, l.conv, last) })
		if err != nil {
			if ctx.Err() == nil {
				s.t.Errorf("%s: attach to events after %d: %v", l.conv.ID, last, err)
			}
			return
		}
		for ended < turns {
			ev, err := stream.Next()
			if err != nil {
				break
			}
			if ev.ID == 0 {
				continue
			}
			last = ev.ID
			l.events = append(l.events, ev)
			if ev.Type == "turn.ended" {
				ended++
			}
		}
		stream.Close()
	}
}

// strike kills one process at a random phase and starts it again.
func (s *storm) strike() {
	s.t.Helper()
	switch s.between(1, 3) {
	case 1: // when the model is asked next
		seen := s.lastRequest()
		ctx, cancel := context.WithTimeout(s.ctx, time.Second)
		_, _ = s.Model.Await(ctx, func(r scriptedmodel.Request) bool { return r.Seq > seen }) // or never: then now
		cancel()
	case 2: // at any moment
		pause := time.NewTimer(time.Duration(s.between(0, 500)) * time.Millisecond)
		select {
		case <-pause.C:
		case <-s.ctx.Done():
		}
	}
	victim := s.victim()
	switch victim {
	case harness.HermesProcess, harness.ChildProcess, harness.MachineProcess:
		var pids []int
		for _, org := range []string{s.lanes[0].conv.Organization, s.lanes[1].conv.Organization} {
			pids = append(pids, s.Below(victim, org, "")...)
		}
		if len(pids) == 0 {
			return
		}
		kill(pids[s.between(0, len(pids)-1)])
	case "Postgres":
		s.Database.Cut()
		pause := time.NewTimer(time.Duration(s.between(20, 400)) * time.Millisecond)
		<-pause.C
		s.Database.Restore()
	case "everything":
		for _, name := range s.Names() {
			s.Kill(name)
		}
		for _, name := range s.Names() {
			s.Launch(name)
		}
	default:
		s.Restart(victim)
	}
	s.mu.Lock()
	s.kills[victim]++
	s.mu.Unlock()
}

func (s *storm) victim() string {
	victims := []string{harness.HermesProcess, harness.HermesProcess, harness.HermesProcess, harness.ChildProcess, harness.MachineProcess, harness.MachineProcess,
		harness.Supervisor, harness.SessionDB, harness.Routing, harness.AgentFS, "Postgres", "everything",
		harness.Ingress(0), harness.Ingress(1), harness.Ingress(0), harness.Ingress(1), harness.Gateway(0), harness.Gateway(1)}
	// Every kind once before any twice, so that no run misses one.
	s.mu.Lock()
	defer s.mu.Unlock()
	s.random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
	for _, v := range victims {
		if s.kills[v] == 0 {
			return v
		}
	}
	return victims[0]
}

func (s *storm) killed() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return counts(s.kills)
}

// kill sends SIGKILL to a process that may have ended by itself.
func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) }
