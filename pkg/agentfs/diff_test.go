package agentfs

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
)

func file(action, path string) Record {
	return Record{Action: action, Path: path, Mode: TypeFile | 0o644, Ino: 7}
}

func dir(action, path string) Record {
	return Record{Action: action, Path: path, Mode: TypeDir | 0o755, Ino: 7}
}

func to(r Record, target string) Record {
	r.Target = target
	return r
}

func TestDiffFoldsTheLedger(t *testing.T) {
	const base = 2 // records before the range
	for _, c := range []struct {
		name    string
		records []Record
		want    []Difference
	}{
		{"nothing", nil, nil},
		{"opened", []Record{file(ActionOpen, "/p/a")}, nil},
		{"added", []Record{file(ActionCreate, "/p/it's.txt"), file(ActionWrite, "/p/it's.txt")}, []Difference{{Added, "/p/it's.txt", "", false}}},
		{"modified", []Record{file(ActionWrite, "/p/2024-01-05"), file(ActionSetAttr, "/p/b")},
			[]Difference{{Modified, "/p/2024-01-05", "", false}, {Modified, "/p/b", "", false}}},
		{"removed", []Record{file(ActionWrite, "/p/a"), file(ActionRemove, "/p/a")}, []Difference{{Removed, "/p/a", "", false}}},
		{"came and went", []Record{file(ActionCreate, "/p/a"), file(ActionRemove, "/p/a")}, nil},
		{"came, was renamed and went", []Record{file(ActionCreate, "/p/a"), to(file(ActionRename, "/p/a"), "/p/b"), file(ActionRemove, "/p/b")}, nil},
		{"replaced at once", []Record{file(ActionReplace, "/p/a")}, []Difference{{Modified, "/p/a", "", false}}},
		{"removed and made", []Record{file(ActionRemove, "/p/a"), file(ActionCreate, "/p/a")}, []Difference{{Modified, "/p/a", "", false}}},
		{"made, replaced", []Record{file(ActionCreate, "/p/a"), file(ActionReplace, "/p/a")}, []Difference{{Added, "/p/a", "", false}}},
		{"saved by a rename", []Record{file(ActionCreate, "/p/a~"), file(ActionRemove, "/p/a"), to(file(ActionRename, "/p/a~"), "/p/a")},
			[]Difference{{Modified, "/p/a", "", false}}},
		{"saved beside a backup", []Record{to(file(ActionRename, "/p/a"), "/p/a~"), file(ActionCreate, "/p/a")},
			[]Difference{{Added, "/p/a", "", false}, {Renamed, "/p/a~", "/p/a", false}}},
		{"renamed", []Record{to(file(ActionRename, "/p/a"), "/p/b")}, []Difference{{Renamed, "/p/b", "/p/a", false}}},
		{"renamed and back", []Record{to(file(ActionRename, "/p/a"), "/p/b"), to(file(ActionRename, "/p/b"), "/p/a")}, nil},
		{"renamed and modified", []Record{file(ActionWrite, "/p/a"), to(file(ActionRename, "/p/a"), "/p/b")},
			[]Difference{{Modified, "/p/b", "", false}, {Renamed, "/p/b", "/p/a", false}}},
		{"renamed over another", []Record{file(ActionRemove, "/p/b"), to(file(ActionRename, "/p/a"), "/p/b")},
			[]Difference{{Modified, "/p/b", "", false}, {Renamed, "/p/b", "/p/a", false}}},
		{"a new one renamed", []Record{file(ActionCreate, "/p/a"), to(file(ActionRename, "/p/a"), "/p/b")}, []Difference{{Added, "/p/b", "", false}}},
		{"exchanged", []Record{to(file(ActionExchange, "/p/a"), "/p/b")},
			[]Difference{{Renamed, "/p/a", "/p/b", false}, {Renamed, "/p/b", "/p/a", false}}},
		{"directory renamed", []Record{file(ActionWrite, "/p/d/x"), to(dir(ActionRename, "/p/d"), "/p/e"), file(ActionRemove, "/p/e/y")},
			[]Difference{{Removed, "/p/d/y", "", false}, {Renamed, "/p/e", "/p/d", true}, {Modified, "/p/e/x", "", false}}},
		{"file moved out of a renamed directory", []Record{to(dir(ActionRename, "/p/d"), "/p/e"), to(file(ActionRename, "/p/e/x"), "/p/x")},
			[]Difference{{Renamed, "/p/e", "/p/d", true}, {Renamed, "/p/x", "/p/d/x", false}}},
		{"new in a renamed directory", []Record{to(dir(ActionRename, "/p/d"), "/p/e"), file(ActionCreate, "/p/e/x")},
			[]Difference{{Renamed, "/p/e", "/p/d", true}, {Added, "/p/e/x", "", false}}},
		{"tree removed and made", []Record{file(ActionRemove, "/p/d/x"), file(ActionRemove, "/p/d/y"), dir(ActionRmdir, "/p/d"),
			dir(ActionMkdir, "/p/d"), file(ActionCreate, "/p/d/x")},
			[]Difference{{Modified, "/p/d/x", "", false}, {Removed, "/p/d/y", "", false}}},
		{"directory becomes a file", []Record{dir(ActionRmdir, "/p/d"), file(ActionCreate, "/p/d")},
			[]Difference{{Added, "/p/d", "", false}, {Removed, "/p/d", "", true}}},
		{"directory made", []Record{dir(ActionMkdir, "/p/n"), file(ActionCreate, "/p/n/x")},
			[]Difference{{Added, "/p/n", "", true}, {Added, "/p/n/x", "", false}}},
		{"links", []Record{to(file(ActionLink, "/p/a"), "/p/b"), to(Record{Action: ActionSymlink, Path: "/p/s", Mode: TypeSymlink | 0o777}, "a")},
			[]Difference{{Added, "/p/b", "", false}, {Added, "/p/s", "", false}}},
		{"provisioned in the range", []Record{dir(ActionProvision, "/p/n"), file(ActionProvision, "/p/n/x")},
			[]Difference{{Added, "/p/n", "", true}, {Added, "/p/n/x", "", false}}},
		{"written without a name", []Record{file(ActionWrite, "")}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newRaw(t)
			r.sql(`DELETE FROM hw_ledger`, `UPDATE hw_writer SET ledger_sequence = 0`, `DELETE FROM sqlite_sequence WHERE name = 'hw_ledger'`)
			r.update(func(x *tx) error {
				for _, record := range slices.Concat([]Record{dir(ActionProvision, "/p"), file(ActionCreate, "/p/elder")}, c.records) {
					record.Project = 5
					if err := x.record(record); err != nil {
						return err
					}
				}
				return x.record(Record{Action: ActionCreate, Path: "/q/x", Mode: TypeFile, Project: 6})
			})
			got, from, last, err := r.fs.Diff(context.Background(), 5, base, 0)
			if err != nil || from != base || last != base+int64(len(c.records))+1 {
				t.Fatalf("Diff: from %d to %d, %v", from, last, err)
			}
			if !reflect.DeepEqual(got, c.want) {
				t.Errorf("got\n%v, want\n%v", got, c.want)
			}
		})
	}
}

func TestDiffPoints(t *testing.T) {
	r := newRaw(t)
	ctx := context.Background()
	r.sql(`DELETE FROM hw_ledger`, `DELETE FROM sqlite_sequence WHERE name = 'hw_ledger'`, `UPDATE hw_writer SET ledger_sequence = 0`)
	r.update(func(x *tx) error {
		for _, record := range []Record{dir(ActionProvision, "/p"), file(ActionProvision, "/p/.env"), file(ActionWrite, "/p/.env"),
			file(ActionCreate, "/p/a"), dir(ActionProvision, "/q"), file(ActionRemove, "/p/a")} {
			if err := x.record(record); err != nil {
				return err
			}
		}
		return nil
	})
	for _, c := range []struct {
		from, to int64
		want     string
	}{
		{0, 0, "[{2 /p/.env  false}]"},
		{0, 4, "[{2 /p/.env  false} {1 /p/a  false}]"},
		{4, 0, "[{3 /p/a  false} {1 /q  true}]"},
		{4, 4, "[]"},
		{6, 0, "[]"},
	} {
		got, _, _, err := r.fs.Diff(ctx, 0, c.from, c.to)
		if s := fmt.Sprint(got); err != nil || s != c.want {
			t.Errorf("Diff(%d, %d): %s, %v, want %s", c.from, c.to, s, err, c.want)
		}
	}
	for _, c := range [][2]int64{{-1, 0}, {5, 4}, {0, 7}, {7, 0}} {
		if _, _, _, err := r.fs.Diff(ctx, 0, c[0], c[1]); !errors.Is(err, ErrPosition) {
			t.Errorf("Diff(%d, %d): %v, want ErrPosition", c[0], c[1], err)
		}
	}
}

func TestDiffOfOperations(t *testing.T) {
	r := newRaw(t)
	ctx, by := context.Background(), Caller{Actor: "user:a"}
	put := func(name string, replace bool) {
		t.Helper()
		if _, _, err := r.fs.Put(ctx, by, Placement{Parent: r.inos["/d"], Name: name, Replace: replace}, 0o644, []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(from, to string) {
		t.Helper()
		if err := r.fs.Rename(ctx, by, r.inos["/d"], from, r.inos["/d"], to, 0); err != nil {
			t.Fatal(err)
		}
	}
	put("old", false)
	put("saved", false)
	records, err := r.fs.Timeline(ctx, Query{Limit: MaxRecords})
	if err != nil {
		t.Fatal(err)
	}
	from := records[len(records)-1].Position
	put("saved~", false)
	rename("saved~", "saved") // over what no record of the range has mentioned
	put("old", true)
	put("it's.txt", false)
	rename("sub", "sub2")
	want := []Difference{{Added, "/d/it's.txt", "", false}, {Modified, "/d/old", "", false}, {Modified, "/d/saved", "", false},
		{Renamed, "/d/sub2", "/d/sub", true}}
	got, _, _, err := r.fs.Diff(ctx, 0, from, 0)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	if faults := r.check(false).Faults; len(faults) != 0 {
		t.Errorf("faults: %+v", faults)
	}
}
