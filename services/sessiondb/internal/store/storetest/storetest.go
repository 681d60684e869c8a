package storetest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"humanwork.internal/services/sessiondb/internal/store"
	"humanwork.internal/services/sessiondb/internal/transcript"
)

const org = "acme"

// fixture is a store over a fresh cell with one provisioned organization.
type fixture struct {
	store.Store
	t    *testing.T
	open func(cellDir string) store.Store
	cell string
	path string
	ctx  context.Context
}

// Run tests the contract of the stores that open makes over a cell directory.
func Run(t *testing.T, open func(cellDir string) store.Store) {
	for _, test := range []struct {
		name string
		run  func(*fixture)
	}{
		{"reads as empty before Hermes ran", testEmpty},
		{"refuses organizations it does not have", testNotProvisioned},
		{"never lowers the watermark", testWatermark},
		{"finds unbound sessions", testUnbound},
		{"keeps what Hermes deletes", testReplace},
		{"tells a reset from a replacement", testReset},
		{"knows where a compaction ends", testCompaction},
		{"reads windows", testWindow},
		{"keeps NUL and text that looks like a date", testTexts},
		{"waits for a file that Hermes is creating", testCreating},
		{"refuses foreign and damaged files unchanged", testRefused},
		{"follows a file that is replaced", testReplaced},
		{"keeps columns of a later Hermes", testNewColumn},
		{"opens a file left behind by a crash", testLeftover},
		{"reads while Hermes writes", testConcurrent},
		{"ends calls when closed", testClosed},
		{"resolves every id of the recordings", testRecordings},
	} {
		t.Run(test.name, func(t *testing.T) {
			cell := t.TempDir()
			f := &fixture{Store: open(cell), t: t, open: open, cell: cell, path: Path(cell, org), ctx: t.Context()}
			t.Cleanup(func() {
				if err := f.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			f.must(f.Provision(f.ctx, org))
			test.run(f)
		})
	}
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) mark() int64 {
	f.t.Helper()
	n, err := f.MessageWatermark(f.ctx, org)
	f.must(err)
	return n
}

// started is the file as it is once Hermes ran and the store has seen it.
func (f *fixture) started(session string) *Hermes {
	f.t.Helper()
	h := Start(f.t, f.path)
	h.NewSession(session, "acp", nil)
	f.mark()
	return h
}

func (f *fixture) list(session string) []string {
	f.t.Helper()
	snap, err := f.Window(f.ctx, org, session, 0, 500)
	f.must(err)
	var list []string
	for _, m := range transcript.New(snap.Rows, snap.Rewrites).List() {
		list = append(list, fmt.Sprintf("%d %s", m.ID, m.Text))
	}
	return list
}

func (f *fixture) wantList(session string, want ...string) {
	f.t.Helper()
	if got := f.list(session); !slices.Equal(got, want) {
		f.t.Errorf("transcript:\n got %q\nwant %q", got, want)
	}
}

func (f *fixture) outcome(session string, mark int64, prompt string) transcript.Outcome {
	f.t.Helper()
	snap, err := f.Above(f.ctx, org, session, mark)
	f.must(err)
	return transcript.New(snap.Rows, snap.Rewrites).Outcome(mark, transcript.Prompt{Text: prompt})
}

func testEmpty(f *fixture) {
	f.must(f.Provision(f.ctx, org)) // idempotent
	if got := f.mark(); got != 0 {
		f.t.Errorf("watermark %d, want 0", got)
	}
	n, err := f.SessionWatermark(f.ctx, org)
	if n != 0 || err != nil {
		f.t.Errorf("session watermark %d, %v; want 0", n, err)
	}
	ids, err := f.UnboundSessions(f.ctx, org, 0)
	if len(ids) != 0 || err != nil {
		f.t.Errorf("unbound sessions %v, %v; want none", ids, err)
	}
	snap, err := f.Window(f.ctx, org, "s", 0, 10)
	if len(snap.Rows) != 0 || err != nil {
		f.t.Errorf("window %v, %v; want empty", snap, err)
	}
	if _, err := os.Stat(f.path); !errors.Is(err, os.ErrNotExist) {
		f.t.Errorf("a read created state.db: %v", err)
	}
}

func testNotProvisioned(f *fixture) {
	for _, name := range []string{"other", "..", "../" + org, "A", ""} {
		if _, err := f.MessageWatermark(f.ctx, name); !errors.Is(err, store.ErrNotProvisioned) {
			f.t.Errorf("organization %q: %v, want ErrNotProvisioned", name, err)
		}
	}
	for _, name := range []string{"..", "a/b", "", strings.Repeat("a", 64)} {
		if err := f.Provision(f.ctx, name); !errors.Is(err, store.ErrNotProvisioned) {
			f.t.Errorf("provision %q: %v, want ErrNotProvisioned", name, err)
		}
	}
}

func testWatermark(f *fixture) {
	h := f.started("s")
	h.Append("s", User("a"), Reply("b"))
	if got := f.mark(); got != 2 {
		f.t.Errorf("watermark %d, want 2", got)
	}
	h.Replace("s", false)
	if got := f.mark(); got != 2 {
		f.t.Errorf("watermark after a deletion %d, want 2", got)
	}
}

func testUnbound(f *fixture) {
	h := f.started("bound")
	h.Append("bound", User("a"))
	mark, err := f.SessionWatermark(f.ctx, org)
	f.must(err)
	h.NewSession("cli", "cli", nil)
	h.NewSession("first", "acp", nil)
	h.NewSession("child", "acp", "bound")
	h.NewSession("used", "acp", nil)
	h.Append("used", User("a"))
	h.NewSession("second", "acp", nil)
	h.NewSession("reset", "acp", nil)
	h.Append("reset", User("a"))
	h.Replace("reset", false)
	got, err := f.UnboundSessions(f.ctx, org, mark)
	if want := []string{"first", "second"}; !slices.Equal(got, want) || err != nil {
		f.t.Errorf("unbound sessions %v, %v; want %v", got, err, want)
	}
}

func testReplace(f *fixture) {
	h := f.started("s")
	h.Append("s", User("a"), Reply("b"), Reply("from a person"), User("c"), Reply("d"))
	h.Replace("s", false, User("a"), Reply("b\nfrom a person"), User("c"), Reply("d"))
	f.wantList("s", "1 a", "2 b", "3 from a person", "4 c", "5 d")
	mark := f.mark()
	h.Append("s", User("c"), Reply("d"))
	f.wantList("s", "1 a", "2 b", "3 from a person", "4 c", "5 d", "10 c", "11 d")
	if got := f.outcome("s", mark, "c"); got.UserID != 10 || len(got.Replies) != 1 || got.Replies[0].ID != 11 {
		f.t.Errorf("outcome %+v, want user 10 and reply 11", got)
	}
}

func testReset(f *fixture) {
	h := f.started("s")
	h.Append("s", User("a"), Reply("b"))
	h.Replace("s", false)
	mark := f.mark()
	h.Append("s", User("a"), Reply("b"))
	f.wantList("s", "1 a", "2 b", "3 a", "4 b")
	if got := f.outcome("s", mark, "a"); got.UserID != 3 || len(got.Replies) != 1 || got.Replies[0].ID != 4 {
		f.t.Errorf("outcome %+v, want user 3 and reply 4", got)
	}
	// A replacement by a single row: its end is told from the row that follows.
	h.Replace("s", false, Reply("b"))
	h.Append("s", Reply("b"))
	f.wantList("s", "1 a", "2 b", "3 a", "4 b", "6 b")
}

func testCompaction(f *fixture) {
	h := f.started("s")
	// Always the same texts: only the recorded end of the batch tells copies from new rows.
	for range 4 {
		h.Append("s", User("a"), Reply("b"))
	}
	mark := f.mark()
	h.Append("s", User("a"))
	h.Compact("s", User("a"), Reply("b"), Message{Role: "user", Content: "summary"}, User("a"), Reply("b"), User("a"))
	if got := f.outcome("s", mark, "a"); got.UserID != 9 || len(got.Replies) != 0 {
		f.t.Errorf("outcome of a failing turn %+v, want user 9 and no reply", got)
	}
	h.Append("s", Reply("b"))
	if got := f.outcome("s", mark, "a"); got.UserID != 9 || len(got.Replies) != 1 || got.Replies[0].ID != 16 {
		f.t.Errorf("outcome %+v, want user 9 and reply 16", got)
	}
	want := []string{"1 a", "2 b", "3 a", "4 b", "5 a", "6 b", "7 a", "8 b", "9 a", "16 b"}
	f.wantList("s", want...)
	h.Append("s", User("a"), Reply("b"))
	f.wantList("s", append(want, "17 a", "18 b")...)
	// Deletions of the live rows only, with archived ones behind them.
	h.Replace("s", true, User("a"), Reply("b"), Message{Role: "user", Content: "summary"}, User("a"), Reply("b"), User("a"), Reply("b"), User("a"), Reply("b"))
	f.wantList("s", append(want, "17 a", "18 b")...)
}

func testWindow(f *fixture) {
	h := f.started("s")
	h.NewSession("t", "acp", nil)
	for i := range 60 {
		h.Append("s", User(fmt.Sprint("q", i)), Reply(fmt.Sprint("r", i)))
		h.Append("t", User("other session"))
	}
	snap, err := f.Window(f.ctx, org, "s", 61, 10)
	f.must(err)
	if snap.Whole || snap.UpTo == 0 {
		f.t.Errorf("window whole %v up to %d, want a part", snap.Whole, snap.UpTo)
	}
	var inside int
	for _, r := range snap.Rows {
		if r.SessionID != "s" || strings.HasPrefix(r.Content, "other") {
			f.t.Errorf("row of another session: %+v", r)
		}
		if r.ID > 61 && r.ID <= snap.UpTo {
			inside++
		}
	}
	if inside != 10 {
		f.t.Errorf("%d rows in the window, want 10", inside)
	}
}

func testTexts(f *fixture) {
	h := f.started("s")
	list := "\x00json:" + `[{"type":"text","text":"2024-01-05"},{"type":"image_url"}]`
	h.Append("s", User("2024-01-05"), Reply("a\x00b"), User(list),
		Message{Role: "assistant", Content: "with spaces", APIContent: "  with spaces\r\n", Finish: "stop"},
		Message{Role: "user", Content: "caption", APIContent: "[Attached file: x]\n\nbody\ncaption"})
	f.wantList("s", "1 2024-01-05", "2 a\x00b", "3 2024-01-05\n[screenshot]", "4   with spaces\r\n", "5 caption")
}

func testCreating(f *fixture) {
	f.must(os.WriteFile(f.path, nil, 0o600))
	if got := f.mark(); got != 0 {
		f.t.Errorf("watermark of an empty file %d, want 0", got)
	}
	h := Attach(f.t, f.path)
	h.Exec("CREATE TABLE schema_version (version INTEGER NOT NULL)")
	if got := f.mark(); got != 0 {
		f.t.Errorf("watermark of a half-made file %d, want 0", got)
	}
	h.Stop()
	h = Start(f.t, f.path)
	h.NewSession("s", "acp", nil)
	h.Append("s", User("a"))
	if got := f.mark(); got != 1 {
		f.t.Errorf("watermark %d, want 1", got)
	}
}

func testRefused(f *fixture) {
	sound := filepath.Join(f.t.TempDir(), "sound.db")
	h := Start(f.t, sound)
	h.NewSession("s", "acp", nil)
	for i := range 400 {
		h.Append("s", User(fmt.Sprint(i, strings.Repeat(" word", 200))))
	}
	h.query("PRAGMA wal_checkpoint(TRUNCATE)")
	h.Stop()
	body, err := os.ReadFile(sound)
	f.must(err)
	damaged := slices.Clone(body)
	for i := len(damaged) / 4; i < len(damaged)/2; i++ {
		damaged[i] ^= 0x5a
	}
	schema := slices.Clone(body)
	for i := 100; i < 4096; i++ {
		schema[i] = 0xff
	}
	strange := filepath.Join(f.t.TempDir(), "strange.db")
	other := Attach(f.t, strange)
	other.Exec("CREATE TABLE notes (text TEXT)")
	other.query("PRAGMA wal_checkpoint(TRUNCATE)")
	other.Stop()
	foreign, err := os.ReadFile(strange)
	f.must(err)

	for _, test := range []struct {
		name string
		body []byte
		want error
	}{
		{"not SQLite", []byte(strings.Repeat("certainly no database, though long enough to be taken for one\n", 100)), store.ErrForeign},
		{"a few bytes", []byte("SQLi"), store.ErrForeign},
		{"another program's", foreign, store.ErrForeign},
		{"damaged pages", damaged, store.ErrDamaged},
		{"damaged schema", schema, store.ErrDamaged},
		{"cut in half", body[:len(body)/2], store.ErrDamaged},
	} {
		_ = os.Remove(f.path)
		f.must(os.WriteFile(f.path, test.body, 0o600))
		_, err := f.Window(f.ctx, org, "s", 0, 10)
		if !errors.Is(err, test.want) {
			f.t.Errorf("%s: %v, want %v", test.name, err, test.want)
		}
		after, err := os.ReadFile(f.path)
		f.must(err)
		if !slices.Equal(after, test.body) {
			f.t.Errorf("%s: the file was changed", test.name)
		}
	}
	f.must(os.Remove(f.path))
	f.must(os.Symlink(sound, f.path))
	if _, err := f.MessageWatermark(f.ctx, org); !errors.Is(err, store.ErrForeign) {
		f.t.Errorf("a link out of the directory: %v, want ErrForeign", err)
	}
}

func testReplaced(f *fixture) {
	h := f.started("s")
	h.Append("s", User("a"), Reply("b"))
	if got := f.mark(); got != 2 {
		f.t.Fatalf("watermark %d, want 2", got)
	}
	h.Stop()
	for _, suffix := range []string{"", "-wal", "-shm"} {
		_ = os.Remove(f.path + suffix)
	}
	if got := f.mark(); got != 0 {
		f.t.Errorf("watermark after the file went %d, want 0", got)
	}
	h = Start(f.t, f.path)
	h.NewSession("s", "acp", nil)
	h.Append("s", User("other"))
	f.wantList("s", "1 other")
}

func testNewColumn(f *fixture) {
	h := f.started("s")
	h.Append("s", User("a"))
	h.Exec("ALTER TABLE messages ADD COLUMN mood TEXT")
	f.must(f.Close())
	// The next open follows, whoever it is.
	f.Store = f.open(f.cell)
	f.mark()
	h.Exec("UPDATE messages SET mood = 'calm'")
	h.Replace("s", false)
	if n := h.Int("SELECT COUNT(*) FROM humanwork_deleted_messages WHERE mood = 'calm' AND content = 'a'"); n != 1 {
		f.t.Errorf("%d deleted rows with the new column, want 1", n)
	}
	f.wantList("s", "1 a")
}

func testLeftover(f *fixture) {
	source := filepath.Join(f.t.TempDir(), "state.db")
	h := Start(f.t, source)
	h.NewSession("s", "acp", nil)
	h.Append("s", User("a"), Reply("b"))
	// What a killed process leaves: a log that was not written back, and no shared memory.
	for _, suffix := range []string{"", "-wal"} {
		body, err := os.ReadFile(source + suffix)
		f.must(err)
		f.must(os.WriteFile(f.path+suffix, body, 0o600))
	}
	f.wantList("s", "1 a", "2 b")
}

func testConcurrent(f *fixture) {
	h := f.started("s")
	const turns = 60
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 3 {
		wg.Go(func() {
			for last := int64(0); ; {
				select {
				case <-done:
					return
				default:
				}
				mark, err := f.MessageWatermark(f.ctx, org)
				if err != nil || mark < last {
					f.t.Errorf("watermark %d after %d: %v", mark, last, err)
					return
				}
				last = mark
				snap, err := f.Window(f.ctx, org, "s", 0, 500)
				if err != nil {
					f.t.Errorf("read beside a writer: %v", err)
					return
				}
				// A compaction is seen as a whole or not at all.
				if n := len(transcript.New(snap.Rows, snap.Rewrites).List()); n > 2*turns {
					f.t.Errorf("%d messages, want at most %d", n, 2*turns)
					return
				}
			}
		})
	}
	for i := range turns {
		u, r := User(fmt.Sprint("q", i)), Reply(fmt.Sprint("r", i))
		h.Append("s", u, r)
		if i%10 == 9 {
			h.Compact("s", Message{Role: "assistant", Content: "summary", Finish: "stop"}, u, r)
		}
	}
	close(done)
	wg.Wait()
	if n := len(f.list("s")); n != 2*turns {
		f.t.Errorf("%d messages in the end, want %d", n, 2*turns)
	}
}

func testClosed(f *fixture) {
	f.started("s")
	f.must(f.Close())
	if _, err := f.MessageWatermark(f.ctx, org); !errors.Is(err, store.ErrClosed) {
		f.t.Errorf("a call after Close: %v, want ErrClosed", err)
	}
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	if _, err := f.MessageWatermark(ctx, org); !errors.Is(err, context.Canceled) {
		f.t.Errorf("a canceled call: %v, want context.Canceled", err)
	}
}

func testRecordings(f *fixture) {
	for _, name := range []string{"turns", "compaction", "compact_command"} {
		for _, suffix := range []string{"", "-wal", "-shm"} {
			_ = os.Remove(f.path + suffix)
		}
		h := Start(f.t, f.path)
		f.mark() // makes our tables
		h.Restore(name)
		snap, err := f.Window(f.ctx, org, Session, 0, 10)
		f.must(err)
		rows, rewrites := Recorded(f.t, name)
		want := transcript.New(rows, rewrites)
		got := transcript.New(snap.Rows, snap.Rewrites)
		if !snap.Whole || len(got.List()) != len(want.List()) {
			f.t.Errorf("%s: %d messages (whole: %v), want %d", name, len(got.List()), snap.Whole, len(want.List()))
		}
		for _, r := range rows {
			w, known := want.Find(r.ID)
			g, found := got.Find(r.ID)
			if found != known || g.Text != w.Text || g.Role != w.Role {
				f.t.Errorf("%s: message %d is %+v, want %+v", name, r.ID, g, w)
			}
		}
		h.Stop()
	}
}
