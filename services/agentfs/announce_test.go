package agentfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
)

// heard waits until ingress was told of n changes, and returns them as "conversation kind uri<previous".
func (s *system) heard(t *testing.T, n int) []string {
	t.Helper()
	for {
		s.mu.Lock()
		lines, last := []string{}, map[string]int64{}
		for _, r := range s.told {
			for _, c := range r.GetChanges() {
				// What was told before a crash may be told again; ingress skips it by its position.
				key := r.GetConversationId() + r.GetGeneration()
				if c.GetPosition() <= last[key] {
					continue
				}
				last[key] = c.GetPosition()
				line := r.GetOrganizationId() + "/" + r.GetConversationId() + " " + c.GetChange() + " " + c.GetUri()
				if c.GetPreviousUri() != "" {
					line += " < " + c.GetPreviousUri()
				}
				if (c.GetVersion() == "") != (c.GetChange() == "removed") {
					line += " version " + c.GetVersion()
				}
				lines = append(lines, line)
			}
		}
		changed := s.changed
		s.mu.Unlock()
		if len(lines) >= n {
			return lines
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("heard %q, want %d", lines, n)
		}
	}
}

func TestChangesAreAnnounced(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	c.put(t, "workspace/a b", "1")
	c.get(t, "workspace/a b")
	c.put(t, "workspace/a b", "2")
	if err := c.remove(t.Context(), "workspace/a b", nil); err != nil {
		t.Fatal(err)
	}
	s.core(t, func(fs *core.FS) error {
		by := core.Caller{Actor: "agent:c1"}
		work, err := fs.MkdirAll(t.Context(), by, "/conversations/c1/work/dir", 0o755)
		if err != nil {
			return err
		}
		state, err := fs.Resolve(t.Context(), "/conversations/c1/state")
		if err != nil {
			return err
		}
		out, err := fs.Resolve(t.Context(), "/conversations/c1/artifacts/outbound")
		if err != nil {
			return err
		}
		if _, _, err := fs.Put(t.Context(), by, core.Placement{Parent: state.Ino, Name: "private"}, 0o600, nil); err != nil {
			return err
		}
		if _, err := fs.Symlink(t.Context(), by, work.Ino, "link", "x"); err != nil {
			return err
		}
		for _, m := range []struct {
			from core.Ino
			name string
			to   core.Ino
			as   string
		}{{state.Ino, "private", work.Ino, "public"}, {work.Ino, "public", out.Ino, "é"}, {out.Ino, "é", state.Ino, "private"}, {work.Ino, "link", work.Ino, "l"}} {
			if err := fs.Rename(t.Context(), by, m.from, m.name, m.to, m.as, 0); err != nil {
				return err
			}
		}
		return nil
	})
	wanted := []string{"acme/c1 written file:///workspace/a%20b", "acme/c1 written file:///workspace/a%20b", "acme/c1 removed file:///workspace/a%20b",
		"acme/c1 written file:///workspace/dir/public", "acme/c1 renamed file:///artifacts/outbound/%C3%A9 < file:///workspace/dir/public",
		"acme/c1 removed file:///artifacts/outbound/%C3%A9", "acme/c1 written file:///workspace/end"}
	c.put(t, "workspace/end", "x")
	if got := s.heard(t, len(wanted)); !slices.Equal(got, wanted) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(wanted, "\n"))
	}
}

func (o *others) answer(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refuse = err
}

func TestAnnouncementsAreMadeAgain(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	s.answer(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	s.mu.Lock()
	tried := s.changed
	s.mu.Unlock()
	c.put(t, "workspace/a", "1")
	<-tried
	c.put(t, "workspace/b", "1")
	s.answer(nil)
	if got := s.heard(t, 2); strings.Join(got, ", ") != "acme/c1 written file:///workspace/a, acme/c1 written file:///workspace/b" {
		t.Errorf("got %q", got)
	}
	// A conversation that ingress does not know must not keep the others back.
	s.answer(errs.New(errs.NotFound, "CONVERSATION_NOT_FOUND", "no such conversation"))
	s.mu.Lock()
	tried = s.changed
	s.mu.Unlock()
	c.put(t, "workspace/lost", "1")
	<-tried
	s.answer(nil)
	c.put(t, "workspace/c", "1")
	if got := s.heard(t, 3); !strings.HasSuffix(got[len(got)-1], "workspace/c") {
		t.Errorf("got %q", got)
	}
}

// TestARestartAnnounces ends agentfs, in order and by a crash, before ingress took what it was told.
func TestARestartAnnounces(t *testing.T) {
	cfg := testConfig(t)
	s := established(t, cfg)
	s.answer(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	s.files(member).put(t, "workspace/a", "1")
	s.stop()
	if _, err := os.Stat(filepath.Join(cfg.DataDir, "organizations", "acme.db-wal")); err == nil {
		t.Error("a log is left of an orderly end")
	}
	again := startBeside(t, cfg, s.others)
	s.answer(nil)
	if got := again.heard(t, 1); got[0] != "acme/c1 written file:///workspace/a" {
		t.Errorf("got %q", got)
	}
	// A crash leaves files as they are at some moment: a copy of them is one.
	again.answer(errs.New(errs.Unavailable, "UNAVAILABLE", "down"))
	again.files(member).put(t, "workspace/b", "1")
	crashed := cfg
	crashed.DataDir = t.TempDir()
	if err := os.MkdirAll(filepath.Join(crashed.DataDir, "organizations"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, suffix := range []string{"", "-wal"} {
		content, err := os.ReadFile(filepath.Join(cfg.DataDir, "organizations", "acme.db"+suffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(crashed.DataDir, "organizations", "acme.db"+suffix), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again.stop()
	third := startBeside(t, crashed, s.others)
	third.answer(nil)
	if got := third.heard(t, 2); got[1] != "acme/c1 written file:///workspace/b" {
		t.Errorf("got %q", got)
	}
	if got := third.files(member).get(t, "workspace/b"); got != "1" {
		t.Errorf("b = %q", got)
	}
}

func TestManyChangesKeepTheirOrder(t *testing.T) {
	s := established(t, testConfig(t))
	c, c2 := s.files(member), s.files(member)
	c2.conversation = "c2"
	var wanted []string
	for i := range 120 {
		name := fmt.Sprintf("workspace/%03d", i)
		(map[bool]client{true: c, false: c2})[i%2 == 0].put(t, name, "x")
		wanted = append(wanted, fmt.Sprintf("acme/c%d written file:///%s", 1+i%2, name))
	}
	got := s.heard(t, len(wanted))
	for _, conversation := range []string{"acme/c1", "acme/c2"} {
		other := func(line string) bool { return !strings.HasPrefix(line, conversation) }
		if one, two := slices.DeleteFunc(slices.Clone(got), other), slices.DeleteFunc(slices.Clone(wanted), other); !slices.Equal(one, two) {
			t.Errorf("%s: got %q, want %q", conversation, one, two)
		}
	}
}
