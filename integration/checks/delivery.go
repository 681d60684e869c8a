package checks

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
)

// DeliveryHasNoGate looks through the whole schema for a place where a reply could be held, and for one
// that holds its text. That each reply is delivered once is Storm's to show.
func DeliveryHasNoGate(t harness.T) string {
	w := start(t, 2*time.Minute, harness.Options{})
	conv, _ := w.conversation("delivered")
	const reply = "a reply that no column may hold"
	w.says(conv, "SAY:"+reply, reply)
	var columns []string
	if err := w.Database.Query(w.ctx, `SELECT array_agg(table_schema || '.' || table_name || '.' || column_name ORDER BY 1)
		FROM information_schema.columns WHERE table_schema IN ('ingress', 'routing')`, &columns); err != nil {
		t.Fatalf("read the schema: %v", err)
	}
	gate := regexp.MustCompile(`review|approv|held|hold|moderat|confidence|risk|publish|withheld|pending_reply`)
	for _, c := range columns {
		if gate.MatchString(c) {
			t.Errorf("column %s could hold a reply back", c)
		}
	}
	tables := map[string]bool{}
	for _, c := range columns {
		table := c[:strings.LastIndexByte(c, '.')]
		if tables[table] {
			continue
		}
		tables[table] = true
		var rows int
		if err := w.Database.Query(w.ctx, fmt.Sprintf(`SELECT count(*) FROM %s t WHERE t::text LIKE '%%%s%%'`, table, reply), &rows); err != nil {
			t.Fatalf("search %s: %v", table, err)
		}
		if rows > 0 {
			t.Errorf("%d rows of %s hold the reply's text", rows, table)
		}
	}
	return fmt.Sprintf("%d columns of %d tables: none for review, hold or approval, none holds a reply's text; each reply once: see E15", len(columns), len(tables))
}
