package checks

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/scriptedmodel"
)

// Events shows that a subscriber that is cut off and comes back sees every durable event once, that a
// slow one is told of its gap, and that nginx in between changes nothing.
func Events(t harness.T) string {
	w := start(t, 3*time.Minute, harness.Options{Replicas: 2, Configure: func(service string, file map[string]any) {
		switch service {
		case harness.Ingress(0), harness.Ingress(1):
			file["subscriber_queue"] = 8
		case harness.Gateway(0), harness.Gateway(1):
			file["heartbeat"] = "1s"
		}
	}})
	conv, _ := w.conversation("events")
	const turns = 8
	ids := make([]string, turns)
	for i := range turns {
		ids[i] = w.submit(conv, fmt.Sprintf("SAY:event %d", i)).TurnID
	}
	events := w.cutAndBack(conv, turns)
	w.wantWhole(conv, events, ids)
	gaps := w.slowReader(conv)
	proxied := w.throughNginx(conv, len(events))
	live := w.otherReplica(conv)
	return fmt.Sprintf("%d durable events of %d turns once each, over a cut after every second one; a slow reader got %s; %s; %s",
		len(events), turns, gaps, proxied, live)
}

// cutAndBack reads two events a connection, from one replica and the other, going on by Last-Event-ID.
func (w *world) cutAndBack(conv harness.Conversation, turns int) []harness.Event {
	w.t.Helper()
	var all []harness.Event
	for last, ended := int64(0), 0; ended < turns; {
		stream, err := w.Client.At(len(all)/2%2).Events(w.ctx, conv, last)
		if err != nil {
			w.t.Fatalf("attach after %d: %v", last, err)
		}
		for n := 0; n < 2 && ended < turns; {
			ev, err := stream.Next()
			if err != nil {
				w.t.Fatalf("read after %d: %v", last, err)
			}
			if ev.ID == 0 {
				continue
			}
			n, last, all = n+1, ev.ID, append(all, ev)
			if ev.Type == "turn.ended" {
				ended++
			}
		}
		stream.Close()
	}
	return all
}

func (w *world) wantWhole(conv harness.Conversation, events []harness.Event, ids []string) {
	w.t.Helper()
	kinds := map[string]int{}
	for i, ev := range events {
		if ev.ID != int64(i+1) {
			w.t.Errorf("event %d has the sequence %d", i+1, ev.ID)
		}
		kinds[ev.Type+" "+ev.TurnID]++
		if ev.Type == "message.delivered" && ev.Loc == nil {
			w.t.Errorf("a delivery without a locator: %s", ev.Data)
		}
	}
	for _, id := range ids {
		for _, kind := range []string{"turn.accepted", "turn.started", "message.delivered", "turn.ended"} {
			if n := kinds[kind+" "+id]; n != 1 {
				w.t.Errorf("%d events %s of one turn, want 1", n, kind)
			}
		}
	}
	if _, err := w.Client.Events(w.ctx, conv, 1_000_000); harness.ReasonOf(err) != "EVENTS_SEQUENCE_UNKNOWN" {
		w.t.Errorf("attach after an event that never was = %v, want EVENTS_SEQUENCE_UNKNOWN", err)
	}
}

const longAnswer = 6 << 20

// slowReader attaches, reads nothing while a long answer streams, then reads on.
func (w *world) slowReader(conv harness.Conversation) string {
	w.t.Helper()
	before, err := w.Client.Events(w.ctx, conv, -1)
	if err != nil {
		w.t.Fatalf("attach: %v", err)
	}
	before.Close()
	slow, err := w.Client.Events(w.ctx, conv, 0)
	if err != nil {
		w.t.Fatalf("attach: %v", err)
	}
	defer slow.Close()
	prompt := "a long answer " + unique()
	// More than every socket buffer on the way, so that the reader is behind and not only late.
	long := strings.Repeat("sixteen bytes.. ", longAnswer/16) + "end"
	w.answer(prompt, scriptedmodel.Text(long))
	began := time.Now()
	if turn := w.turn(conv, prompt); turn.State != "REPLIED" || turn.Replies[0].Text != long {
		w.t.Fatalf("a long answer beside a slow reader: %s, want all of it", describe(turn))
	}
	w.t.Logf("an answer of %d MiB beside a slow reader took %v", longAnswer>>20, time.Since(began))
	last := int64(0)
	for {
		ev, err := slow.Next()
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			w.t.Errorf("the slow reader's stream ended at event %d without a gap event", last)
			return "none"
		}
		if err != nil {
			w.t.Fatalf("read slowly: %v", err)
		}
		if ev.Type == "gap" {
			if ev.Last != last {
				w.t.Errorf("the gap names %d as the last event sent, want %d", ev.Last, last)
			}
			break
		}
		if ev.ID > 0 {
			last = ev.ID
		}
	}
	// Reading on from there misses nothing.
	rest, err := w.Client.Events(w.ctx, conv, last)
	if err != nil {
		w.t.Fatalf("attach after the gap: %v", err)
	}
	defer rest.Close()
	for next := last + 1; ; next++ {
		ev, err := rest.Next()
		if err != nil {
			w.t.Fatalf("read after the gap: %v", err)
		}
		if ev.ID != next {
			w.t.Errorf("the first event after the gap is %d, want %d", ev.ID, next)
			break
		}
		if ev.Type == "turn.ended" {
			break
		}
	}
	return fmt.Sprintf("a gap event after %d and then the rest", last)
}

// otherReplica sees the deltas of a turn at both replicas, of which only one runs it. The other joins
// when it hears of the start, so that it may miss the first words and nothing after them.
func (w *world) otherReplica(conv harness.Conversation) string {
	w.t.Helper()
	var streams []*harness.Events
	for i := range 2 {
		stream, err := w.Client.At(i).Events(w.ctx, conv, -1)
		if err != nil {
			w.t.Fatalf("attach: %v", err)
		}
		defer stream.Close()
		streams = append(streams, stream)
	}
	token := unique()
	turn := w.submit(conv, "SLOW:live-"+token+"|alpha beta gamma "+token)
	w.arrived("live-"+token, 1)
	w.trickle("live-"+token, 6)
	whole := 0
	for i, stream := range streams {
		text := ""
		_, err := stream.Until(func(ev harness.Event) bool {
			if ev.Type == "delta" && ev.TurnID == turn.TurnID {
				text += ev.Text
			}
			return ev.Type == "turn.ended" && ev.TurnID == turn.TurnID
		})
		if err != nil {
			w.t.Fatalf("follow a turn at replica %d: %v", i, err)
		}
		want := "alpha beta gamma " + token
		if text == "" || !strings.HasSuffix(want, text) {
			w.t.Errorf("the deltas at replica %d are %q, want %q to its end", i, text, want)
		}
		if text == want {
			whole++
		}
	}
	if whole == 0 {
		w.t.Errorf("no replica had all deltas")
	}
	return "live deltas at both replicas"
}

const nginxConfiguration = `daemon off;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
  access_log off;
  client_body_temp_path %[1]s/body; proxy_temp_path %[1]s/proxy; fastcgi_temp_path %[1]s/f; uwsgi_temp_path %[1]s/u; scgi_temp_path %[1]s/s;
  server {
    listen %[2]s;
    location / { proxy_pass %[3]s; proxy_http_version 1.1; proxy_read_timeout 3s; }
  }
}
`

// throughNginx follows a turn through nginx as it comes, which buffers and cuts what is silent for 3 s.
func (w *world) throughNginx(conv harness.Conversation, events int) string {
	w.t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		bin = "/usr/sbin/nginx"
	}
	if _, err := os.Stat(bin); err != nil {
		return "nginx is not installed, not tried"
	}
	dir := filepath.Join(w.Dir, "nginx")
	if err := os.Mkdir(dir, 0o777); err != nil {
		w.t.Fatalf("make nginx's directory: %v", err)
	}
	lis, err := harness.Listen(0)
	if err != nil {
		w.t.Fatalf("choose nginx's port: %v", err)
	}
	address := lis.Addr().String()
	lis.Close()
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, fmt.Appendf(nil, nginxConfiguration, dir, address, w.Client.Base(0)), 0o600); err != nil {
		w.t.Fatalf("configure nginx: %v", err)
	}
	nginx := exec.CommandContext(w.ctx, bin, "-p", dir, "-c", file)
	if err := nginx.Start(); err != nil {
		w.t.Fatalf("start nginx: %v", err)
	}
	defer func() {
		_ = nginx.Process.Signal(os.Interrupt) // a fast shutdown of master and workers
		_ = nginx.Wait()
	}()
	stream, err := harness.Durably(w.ctx, func() (*harness.Events, error) { return w.Client.EventsFrom(w.ctx, "http://"+address, conv, 0) })
	if err != nil {
		w.t.Fatalf("attach through nginx: %v", err)
	}
	defer stream.Close()
	for i := range events {
		if ev, err := stream.Next(); err != nil || ev.ID != int64(i+1) {
			w.t.Fatalf("event %d through nginx = %d %v", i+1, ev.ID, err)
		}
	}
	// Each word must come through before the next is let go: nothing is held back on the way.
	token := unique()
	turn := w.submit(conv, "SLOW:nginx-"+token+"|one two three")
	gate := w.Model.Gate("nginx-" + token)
	for n := 1; n <= 2; n++ {
		w.arrived("nginx-"+token, n)
		gate.Step()
		if _, err := stream.Until(func(ev harness.Event) bool { return ev.Type == "delta" && ev.TurnID == turn.TurnID }); err != nil {
			w.t.Fatalf("word %d through nginx: %v", n, err)
		}
	}
	// Longer than nginx waits for a silent server: heartbeats keep the stream.
	silence := time.NewTimer(4 * time.Second)
	<-silence.C
	gate.Release()
	if _, err := stream.Until(func(ev harness.Event) bool { return ev.Type == "turn.ended" && ev.TurnID == turn.TurnID }); err != nil {
		w.t.Errorf("the turn's end through nginx after 4 s of silence: %v", err)
	}
	return fmt.Sprintf("through nginx %d events replayed, each word at once, kept over 4 s of silence by %d heartbeats", events, stream.Comments)
}
