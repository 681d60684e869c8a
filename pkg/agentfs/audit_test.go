package agentfs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestTimelineSelects(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	r.sql(`DELETE FROM hw_ledger`, `DELETE FROM sqlite_sequence WHERE name = 'hw_ledger'`, `UPDATE hw_writer SET ledger_sequence = 0`)
	r.update(func(x *tx) error {
		for i, record := range []Record{file(ActionCreate, "/p/2024-01-05"), file(ActionCreate, "/p/d/it's"), file(ActionCreate, "/p/d.txt"),
			to(file(ActionRename, "/p/x"), "/p/d/y"), dir(ActionMkdir, "/p/d"), file(ActionCreate, "/q"), file(ActionCreate, "/p/d/\U0010FFFF")} {
			record.Project = Ino(1 + i%2)
			if err := x.record(record); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range []struct {
		q    Query
		want []int64
	}{
		{Query{Limit: 100}, []int64{1, 2, 3, 4, 5, 6, 7}},
		{Query{Limit: 2, After: 3}, []int64{4, 5}},
		{Query{Limit: 100, Path: "/"}, []int64{1, 2, 3, 4, 5, 6, 7}},
		{Query{Limit: 100, Path: "/p/d"}, []int64{2, 4, 5, 7}},
		{Query{Limit: 100, Path: "/p/d/"}, []int64{2, 4, 5, 7}},
		{Query{Limit: 100, Path: "/p/d", Project: 1}, []int64{5, 7}},
		{Query{Limit: 100, Project: 2, After: 2}, []int64{4, 6}},
		{Query{Limit: 100, Path: "/p/2024-01-05"}, []int64{1}},
		{Query{Limit: 100, Path: "/p/%"}, nil},
	} {
		records, err := r.fs.Timeline(ctx, c.q)
		var got []int64
		for _, record := range records {
			got = append(got, record.Position)
		}
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("Timeline(%+v): %v, %v, want %v", c.q, got, err, c.want)
		}
	}
	if records, err := r.fs.Timeline(ctx, Query{Limit: 1}); err != nil || records[0].Path != "/p/2024-01-05" || records[0].Action != ActionCreate ||
		time.Since(records[0].Time) > time.Minute || len(records[0].Hash) != 32 {
		t.Errorf("first record: %+v, %v", records, err)
	}
	for _, q := range []Query{{}, {Limit: 1001}, {Limit: 1, After: -1}, {Limit: 1, Path: "p"}, {Limit: 1, Path: "/\xff"}, {Limit: 1, Path: "/a\x00"}} {
		if _, err := r.fs.Timeline(ctx, q); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("Timeline(%+v): %v, want EINVAL", q, err)
		}
	}
}

func TestPendingUntilAnnounced(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	pending := func(limit int) []int64 {
		t.Helper()
		records, err := r.fs.Pending(ctx, limit)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		for _, record := range records {
			got = append(got, record.Position)
		}
		return got
	}
	announce := func(position int64) {
		t.Helper()
		if err := r.fs.Announced(ctx, position); err != nil {
			t.Fatal(err)
		}
	}
	if got := pending(3); !slices.Equal(got, []int64{1, 2, 3}) {
		t.Errorf("at first: %v", got)
	}
	announce(7)
	announce(5) // late: changes nothing
	if got := pending(100); !slices.Equal(got, []int64{8, 9}) {
		t.Errorf("after 7: %v", got)
	}
	announce(1 << 40) // does not swallow what is to come
	r.update(func(x *tx) error { return x.record(file(ActionCreate, "/new")) })
	if got := pending(100); !slices.Equal(got, []int64{10}) {
		t.Errorf("after all: %v", got)
	}
}

func TestToolCalls(t *testing.T) {
	r := newRaw(t)
	ctx, by := context.Background(), Caller{Actor: "agent:c"}
	start := time.Unix(1700000000, 0)
	calls := []ToolCall{
		{Name: "shell", Parameters: `{"a":1}`, Result: `"2024-01-05"`, Status: ToolSuccess, Started: start, Completed: start.Add(2 * time.Second), Duration: 1500 * time.Millisecond},
		{Name: "2024-01-05", Error: "boom", Status: ToolError, Started: start, Completed: start},
		{Name: "wait", Status: ToolPending, Started: start},
	}
	for i := range calls {
		id, err := r.fs.RecordToolCall(ctx, by, r.inos["/d"], calls[i])
		if err != nil {
			t.Fatal(err)
		}
		calls[i].ID, calls[i].Position = id, int64(10+i)
	}
	for _, project := range []Ino{0, r.inos["/d"]} {
		got, err := r.fs.ToolCalls(ctx, Query{Project: project, Limit: 10})
		if err != nil || len(got) != 3 {
			t.Fatalf("ToolCalls: %+v, %v", got, err)
		}
		for i := range got {
			got[i].Started = got[i].Started.In(start.Location())
			if got[i] != calls[i] {
				t.Errorf("got %+v, want %+v", got[i], calls[i])
			}
		}
	}
	if got, err := r.fs.ToolCalls(ctx, Query{After: 10, Limit: 1}); err != nil || len(got) != 1 || got[0].Name != "2024-01-05" {
		t.Errorf("page: %+v, %v", got, err)
	}
	if n := r.number(`SELECT count(*) FROM tool_calls WHERE '' IN (coalesce(parameters, 'x'), coalesce(result, 'x'), coalesce(error, 'x'))`); n != 0 {
		t.Errorf("%d calls hold ''", n)
	}
	if records, err := r.fs.Timeline(ctx, Query{After: 9, Limit: 1}); err != nil || records[0].Action != ActionTool || records[0].Target != "shell" ||
		records[0].ToolCall != calls[0].ID || records[0].Actor != "agent:c" {
		t.Errorf("record: %+v, %v", records, err)
	}
	for _, bad := range []ToolCall{{}, {Name: "a\x00", Status: ToolPending, Started: start}, {Name: "a", Status: "done", Started: start},
		{Name: "a", Result: "\xff", Status: ToolPending, Started: start}, {Name: "a", Status: ToolSuccess, Started: start, Completed: start.Add(-time.Second)}} {
		if _, err := r.fs.RecordToolCall(ctx, by, 0, bad); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("RecordToolCall(%+v): %v, want EINVAL", bad, err)
		}
	}
	if _, err := r.fs.RecordToolCall(ctx, by, 99, calls[0]); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("no such project: %v, want ENOENT", err)
	}
	if faults := r.check(false).Faults; len(faults) != 0 {
		t.Errorf("faults: %+v", faults)
	}
}

func TestCheckFindsABrokenLedger(t *testing.T) {
	for _, c := range []struct{ sql, want string }{
		{`UPDATE hw_ledger SET path = '/other' WHERE position = 3`, "writer 1, sequence 3: the hash"},
		{`UPDATE hw_ledger SET actor = 'x' WHERE position = 1`, "writer 1, sequence 1: the hash"},
		{`UPDATE hw_ledger SET hash = x'00' WHERE position = 9`, "writer 1, sequence 9: the hash"},
		{`DELETE FROM hw_ledger WHERE position = 4`, "writer 1, sequence 4: the record is missing"},
		{`DELETE FROM hw_ledger WHERE position = 9`, "writer 1, sequence 9: the head is not the last record, which is 8"},
		{`UPDATE hw_ledger SET position = 99 WHERE position = 2`, "writer 1, sequence 2: the record is missing"},
		{`INSERT INTO hw_ledger (writer, sequence, time, actor, action, project, ino, mode, path, version, size, hash)
			VALUES (9, 1, 0, '', '', 0, 0, 0, '', 0, 0, x'')`, "writer 9, sequence 1: the hash"},
	} {
		r := newRaw(t)
		r.sql(c.sql)
		for _, repair := range []bool{false, true} {
			faults := r.check(repair).Faults
			if len(faults) != 1 || faults[0].Kind != FaultLedger || faults[0].Repaired || !strings.HasPrefix(faults[0].Message, c.want) {
				t.Errorf("%s: Check(%v): %+v, want %q", c.sql, repair, faults, c.want)
			}
		}
	}
}

func TestRepairOfManyIsBounded(t *testing.T) {
	r := newRaw(t)
	r.sql(`WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1500)
		INSERT INTO hw_xattr SELECT 4294967000 - i, x'61', x'' FROM n`)
	report := r.check(true)
	if len(report.Faults) != maxFaults || !report.Truncated || !report.Faults[0].Repaired {
		t.Errorf("%d faults, truncated %v", len(report.Faults), report.Truncated)
	}
	if got, want := r.number(`SELECT count(*) FROM hw_ledger WHERE action = 'repair'`), int64(maxFaults+1); got != want {
		t.Errorf("%d records, want %d", got, want)
	}
	records, err := r.fs.Timeline(context.Background(), Query{After: 9 + maxFaults, Limit: 1})
	if err != nil || len(records) != 1 || records[0].Target != fmt.Sprint(1500-maxFaults, " more") {
		t.Errorf("last: %+v, %v", records, err)
	}
	if report := r.check(false); len(report.Faults) != 0 {
		t.Errorf("after: %+v", report.Faults)
	}
}
