package libsql_test

import (
	"fmt"
	"sync"
	"testing"

	"humanwork.internal/services/sessiondb/internal/store/libsql"
	"humanwork.internal/services/sessiondb/internal/store/storetest"
	"humanwork.internal/services/sessiondb/internal/transcript"
)

// BenchmarkWarmTurn is what sessiondb adds to a warm turn of a session of 4,000 messages, one of
// ten in its organization, while another session's Hermes writes without pause: the watermark
// before it, the outcome after it, and the reply's text.
func BenchmarkWarmTurn(b *testing.B) {
	for _, quiet := range []bool{true, false} {
		b.Run(map[bool]string{true: "quiet", false: "writer"}[quiet], func(b *testing.B) {
			cell := b.TempDir()
			s := libsql.New(cell)
			b.Cleanup(func() { _ = s.Close() })
			if err := s.Provision(b.Context(), "acme"); err != nil {
				b.Fatal(err)
			}
			h := storetest.Start(b, storetest.Path(cell, "acme"))
			h.Exec("PRAGMA synchronous = OFF")
			h.Exec("BEGIN")
			for i := range 10 {
				h.NewSession(fmt.Sprint("s", i), "acp", nil)
			}
			h.Exec(`WITH RECURSIVE n(i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 39999)
				INSERT INTO messages (session_id, role, content, finish_reason, timestamp)
				SELECT 's' || (i / 2 % 10), CASE i % 2 WHEN 0 THEN 'user' ELSE 'assistant' END,
				       printf('%d %.*c', i, 500, 'x'), CASE i % 2 WHEN 1 THEN 'stop' END, 1700000000 + i FROM n`)
			h.Exec("COMMIT")
			mark, err := s.MessageWatermark(b.Context(), "acme")
			if err != nil {
				b.Fatal(err)
			}
			h.Append("s0", storetest.User("q"), storetest.Reply("r"))
			done := make(chan struct{})
			var wg sync.WaitGroup
			if !quiet {
				wg.Go(func() {
					for {
						select {
						case <-done:
							return
						default:
							h.Append("s1", storetest.Reply("noise"))
						}
					}
				})
			}
			measure := func(name string, f func() error) {
				b.Run(name, func(b *testing.B) {
					for b.Loop() {
						if err := f(); err != nil {
							b.Fatal(err)
						}
					}
				})
			}
			measure("watermark", func() error {
				_, err := s.MessageWatermark(b.Context(), "acme")
				return err
			})
			measure("outcome", func() error {
				snap, err := s.Above(b.Context(), "acme", "s0", mark)
				out := transcript.New(snap.Rows, snap.Rewrites).Outcome(mark, transcript.Prompt{Text: "q"})
				if err == nil && len(out.Replies) != 1 {
					err = fmt.Errorf("outcome %+v", out)
				}
				return err
			})
			measure("text", func() error {
				snap, err := s.Window(b.Context(), "acme", "s0", mark+2, 0)
				if m, ok := transcript.New(snap.Rows, snap.Rewrites).Find(mark + 2); err == nil && (!ok || m.Text != "r") {
					err = fmt.Errorf("message %+v", m)
				}
				return err
			})
			measure("page", func() error {
				_, err := s.Window(b.Context(), "acme", "s0", mark/2, 100)
				return err
			})
			close(done)
			wg.Wait()
		})
	}
}
