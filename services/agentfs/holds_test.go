package agentfs

import (
	"errors"
	"fmt"
	"testing"
	"time"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	ingressv1 "humanwork.internal/proto/gen/humanwork/ingress/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

type holder struct {
	t *testing.T
	agentfsv1.HoldServiceClient
}

func (s *system) holder(t *testing.T) holder {
	return holder{t, agentfsv1.NewHoldServiceClient(s.dial(*rpc.Service("ingress")))}
}

func (h holder) hold(turn string, uris ...string) ([]*agentfsv1.File, error) {
	r, err := h.HoldFiles(h.t.Context(), &agentfsv1.HoldFilesRequest{OrganizationId: "acme", ConversationId: "c1", Holder: turn, Uris: uris})
	return r.GetFiles(), err
}

func (h holder) release(turn string) {
	h.t.Helper()
	if _, err := h.ReleaseFiles(h.t.Context(), &agentfsv1.ReleaseFilesRequest{OrganizationId: "acme", ConversationId: "c1", Holder: turn}); err != nil {
		h.t.Error(err)
	}
}

func TestHeldFilesStay(t *testing.T) {
	s := established(t, testConfig(t))
	c, h := s.files(member), s.holder(t)
	a := c.put(t, "workspace/a b", "a").GetFile()
	c.put(t, "workspace/b", "b")
	for range 2 {
		got, err := h.hold("turn-1", "file:///workspace/a%20b", "file:///workspace/b", "file:///workspace/a%20b")
		if err != nil || len(got) != 3 || got[0].GetVersion() != a.GetVersion() || got[2].GetSha256() != digest("a") {
			t.Fatalf("hold: got %v, %v", got, err)
		}
	}
	if _, err := h.hold("turn-2", "file:///workspace/b"); err != nil {
		t.Fatal(err)
	}
	refused := func(what, path, turn string) {
		t.Helper()
		_, err := c.write(t.Context(), to(path, nil), "other")
		for call, err := range map[string]error{"write": err, "remove": c.remove(t.Context(), path, nil)} {
			want(t, what+": "+call, err, errs.Precondition, fault.FileHeld)
			var e *errs.Error
			if errors.As(err, &e) && e.Metadata()["turnId"] != turn {
				t.Errorf("%s: %s names turn %q, want %s", what, call, e.Metadata()["turnId"], turn)
			}
		}
	}
	refused("both hold", "workspace/b", "turn-1")
	h.release("turn-1")
	refused("one holds", "workspace/b", "turn-2")
	c.put(t, "workspace/a b", "changed")
	h.release("turn-2")
	h.release("turn-2")
	if err := c.remove(t.Context(), "workspace/b", nil); err != nil {
		t.Errorf("after the release: %v", err)
	}
	if got := c.get(t, "workspace/a b"); got != "changed" {
		t.Errorf("content %q", got)
	}
}

func TestHoldsRefuseWhatIsNoFile(t *testing.T) {
	s := established(t, testConfig(t))
	c, h := s.files(member), s.holder(t)
	c.put(t, "workspace/f", "x")
	c.put(t, "workspace/d/f", "x")
	s.core(t, func(fs *core.FS) error {
		d, err := fs.Resolve(t.Context(), "/conversations/c1/work/d")
		if err == nil {
			_, err = fs.Symlink(t.Context(), core.Caller{Actor: "agent:c1"}, d.Ino, "link", "f")
		}
		return err
	})
	for i, uri := range []string{"file:///workspace/none", "file:///workspace/d", "file:///workspace/d/link", "file:///workspace/f/x", "file:///workspace/%66",
		"file:///workspace/../f", "file:///etc/passwd", "file:///.env", "https://example.com/f", "", "file:///workspace/F"} {
		uris := append(make([]string, 0, 4), "file:///workspace/f", "file:///workspace/f")[:i%3]
		_, err := h.hold("turn", append(uris, uri, "file:///workspace/none")...)
		want(t, uri, err, errs.Invalid, fault.InvalidFileURI)
		var e *errs.Error
		if errors.As(err, &e) && e.Metadata()["index"] != fmt.Sprint(len(uris)) {
			t.Errorf("%s: index %q, want %d", uri, e.Metadata()["index"], len(uris))
		}
	}
	c.put(t, "workspace/f", "nothing was held")
}

func TestStaleHoldsAreDropped(t *testing.T) {
	s := established(t, testConfig(t))
	c, h := s.files(member), s.holder(t)
	c.put(t, "workspace/f", "0")
	hold := func(turn string) {
		t.Helper()
		if _, err := h.hold(turn, "file:///workspace/f"); err != nil {
			t.Fatal(err)
		}
	}
	hold("unknown")
	_, err := c.write(t.Context(), to("workspace/f", nil), "1")
	want(t, "a young hold", err, errs.Precondition, fault.FileHeld)
	// From here on every hold is old enough to ask.
	s.svc.holds.Grace = -time.Second
	c.put(t, "workspace/f", "2")
	for state, stale := range map[ingressv1.TurnState]bool{ingressv1.TurnState_TURN_STATE_ACCEPTED: false,
		ingressv1.TurnState_TURN_STATE_RUNNING: true, ingressv1.TurnState_TURN_STATE_FAILED: true} {
		turn := "t" + fmt.Sprint(int(state))
		hold("gone-before")
		s.setTurn("c1/"+turn, state)
		hold(turn)
		err := c.remove(t.Context(), "workspace/f", nil)
		if stale && err != nil {
			t.Errorf("turn %s: %v, want its hold dropped", state, err)
		}
		if !stale {
			want(t, "turn "+state.String(), err, errs.Precondition, fault.FileHeld)
			h.release(turn)
		}
		c.put(t, "workspace/f", "3")
	}
}
