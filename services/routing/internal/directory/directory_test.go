package directory

import (
	"fmt"
	"slices"
	"testing"
)

func TestChooseSpreadsAndMovesOnlyTheShareOfARemovedCell(t *testing.T) {
	cells := []Cell{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d"}}
	reversed := slices.Clone(cells)
	slices.Reverse(reversed)
	count := map[string]int{}
	for i := range 2000 {
		org := fmt.Sprintf("org-%d", i)
		got := Choose(cells, org).ID
		count[got]++
		if other := Choose(reversed, org).ID; other != got {
			t.Fatalf("%s: order of cells changed the choice from %s to %s", org, got, other)
		}
		if without := Choose(cells[:3], org).ID; got != "d" && without != got {
			t.Fatalf("%s: removing d moved it from %s to %s", org, got, without)
		}
	}
	for _, c := range cells {
		if n := count[c.ID]; n < 400 || n > 600 {
			t.Errorf("cell %s got %d of 2000 organizations, want about 500", c.ID, n)
		}
	}
}
