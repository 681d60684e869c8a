package queue

import (
	"context"
	"crypto/sha256"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"humanwork.internal/services/ingress/internal/inline"
	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/store"
	"humanwork.internal/services/ingress/internal/turn"
)

var errAway, errGone = errors.New("agentfs is away"), errors.New("no such file")

// files is an agentfs with one file.
type files struct {
	world   *world
	content string
	fails   []error // answers of the first Holds
	onHold  func()
	// released is how often the turn's files were let go of: beside everything else, so that no order
	// among the calls is known.
	released, wantReleased int
}

func (f *files) Hold(_ context.Context, _ turn.Conversation, id string, _ []string) error {
	f.world.did("hold " + id)
	if f.onHold != nil {
		f.onHold()
	}
	if len(f.fails) > 0 {
		err := f.fails[0]
		f.fails = f.fails[1:]
		return err
	}
	return nil
}

func (f *files) Release(context.Context, turn.Conversation, string) error {
	f.world.mu.Lock()
	defer f.world.mu.Unlock()
	f.released++
	return nil
}

func (f *files) Read(context.Context, turn.Conversation, string, int64) ([]byte, error) {
	return []byte(f.content), nil
}
func (f *files) Gone(err error) bool { return errors.Is(err, errGone) }
func (f *files) Changed(error) bool  { return false }

// withData is accepted with a turn whose block has its data in a file.
func withData(t *testing.T) *world {
	raw := []byte(`{"type":"image","data":"aGk=","mimeType":"image/png"}`)
	rest, cut, data, err := inline.Split(raw, "data")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	w := accepted()
	w.blocks = []turn.Block{{Type: "image", Raw: rest, SHA256: sum[:], Size: int64(len(raw)),
		File: &turn.File{URI: "file:///artifacts/inbound/1/inline.png"}, Data: &turn.Data{URI: "file:///artifacts/inbound/1/inline.png", Cut: cut}}}
	w.files = &files{world: w, content: string(data), wantReleased: 1}
	return w
}

// reasonOf remembers why the turn ended.
func (w *world) reasonOf(reason *string) {
	w.onEnd = func(e store.Ending) {
		*reason = "none"
		if e.Decision.Error != nil {
			*reason = e.Decision.Error.Reason
		}
	}
}

// The claim follows the files, which are waited for.
func TestFilesBeforeTheClaim(t *testing.T) {
	w := withData(t)
	w.files.fails = []error{errAway, errAway}
	w.files.onHold = func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.state != turn.Accepted {
			t.Errorf("the turn is %s before its files are ready", w.state)
		}
	}
	w.play(t, func(q *Queue) {
		q.Kick(conversation)
		time.Sleep(time.Minute)
	}, turn.Replied, "hold t1", "hold t1", "hold t1", "prompt t1", "acknowledge t1")
}

func TestFileGone(t *testing.T) {
	w, reason := withData(t), ""
	w.files.fails = []error{errGone}
	w.reasonOf(&reason)
	w.play(t, func(q *Queue) { q.Kick(conversation) }, turn.Failed, "hold t1")
	if reason != turn.ReasonFileGone {
		t.Errorf("reason = %s, want %s", reason, turn.ReasonFileGone)
	}
}

func TestDataChanged(t *testing.T) {
	w, reason := withData(t), ""
	w.files.content = "ha"
	w.reasonOf(&reason)
	w.play(t, func(q *Queue) { q.Kick(conversation) }, turn.Failed, "hold t1")
	if reason != turn.ReasonFileChanged {
		t.Errorf("reason = %s, want %s", reason, turn.ReasonFileChanged)
	}
}

// lostClaim makes the claim's answer get lost: the turn is RUNNING, and its blocks are read again.
func lostClaim(t *testing.T, fails int) *world {
	w := withData(t)
	w.onClaim = func() error {
		for range fails {
			w.files.fails = append(w.files.fails, errAway)
		}
		return store.ErrUnavailable
	}
	return w
}

func TestLostClaimWithFiles(t *testing.T) {
	w := lostClaim(t, 2)
	w.play(t, func(q *Queue) {
		q.Kick(conversation)
		synctest.Wait()
		q.Back()
		time.Sleep(time.Minute)
	}, turn.Replied, "hold t1", "hold t1", "hold t1", "hold t1", "prompt t1", "acknowledge t1")
}

// A turn that is RUNNING while agentfs is away is cancelled without a prompt.
func TestCancelledWhileFilesAreAway(t *testing.T) {
	w := lostClaim(t, 3)
	w.play(t, func(q *Queue) {
		q.Kick(conversation)
		synctest.Wait()
		w.mu.Lock()
		w.run.CancelRequested = true
		w.mu.Unlock()
		q.Back()
		time.Sleep(time.Minute)
	}, turn.Cancelled, "hold t1", "hold t1")
}

// Nor does it prompt what another instance has taken over, and ended, meanwhile.
func TestTakenOverWhileFilesAreAway(t *testing.T) {
	w := lostClaim(t, 3)
	w.files.wantReleased = 0
	w.play(t, func(q *Queue) {
		q.Kick(conversation)
		synctest.Wait()
		n := 0
		w.files.onHold = func() {
			if n++; n == 3 {
				w.mu.Lock()
				w.state = turn.Failed
				w.mu.Unlock()
			}
		}
		q.Back()
		time.Sleep(time.Minute)
	}, turn.Failed, "hold t1", "hold t1", "hold t1", "hold t1")
}

// What a block lacks changes nothing of how its turn is judged.
func TestShapeWithoutData(t *testing.T) {
	blob := func(mime string, data *turn.Data) []turn.Block {
		return []turn.Block{{Type: "resource", Raw: []byte(`{"type":"resource","resource":{"uri":"urn:x","blob":"","mimeType":"` + mime + `"}}`), Data: data}}
	}
	for name, c := range map[string]struct {
		blocks []turn.Block
		want   outcome.Shape
	}{
		"image":         {[]turn.Block{{Type: "image", Raw: []byte(`{"type":"image","data":"","mimeType":"image/png"}`), Data: &turn.Data{}}}, outcome.Shape{Readable: true}},
		"image blob":    {blob("Image/PNG", &turn.Data{}), outcome.Shape{Readable: true}},
		"empty blob":    {blob("image/png", nil), outcome.Shape{}},
		"blob":          {blob("application/pdf", &turn.Data{}), outcome.Shape{}},
		"resource link": {[]turn.Block{{Type: "resource_link", Raw: []byte(`{"type":"resource_link","uri":"file:///workspace/a.png","name":"n","mimeType":"image/png"}`)}}, outcome.Shape{}},
	} {
		if _, got, others := shapeOf(c.blocks); got != c.want || !others {
			t.Errorf("%s: shapeOf = %+v, %v, want %+v", name, got, others, c.want)
		}
	}
}
