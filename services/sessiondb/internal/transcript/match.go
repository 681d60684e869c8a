package transcript

import (
	"encoding/json"
	"strings"
)

// identity is what must be equal for one row to be a later copy of another. Time is no part of it:
// copies carry the original's time or the rewrite's own, depending on which process made them.
type identity struct {
	role  string
	texts [2]string // stripped content and api_content; a copy may hold either as its content
	calls string
}

func identityOf(r Row) identity {
	id := identity{role: r.Role, calls: callIDs(r)}
	id.texts[0] = Strip(flatten(r.Content))
	id.texts[1] = Strip(r.APIContent)
	return id
}

func (a identity) equal(b identity) bool {
	if a.role != b.role || a.calls != b.calls {
		return false
	}
	if a.texts[0] == b.texts[0] {
		return true
	}
	return a.texts[0] != "" && a.texts[0] == b.texts[1] ||
		a.texts[1] != "" && (a.texts[1] == b.texts[0] || a.texts[1] == b.texts[1])
}

// callIDs names a row's tool calls without their arguments, which compaction shortens in its copies.
func callIDs(r Row) string {
	if !r.callsTools() {
		return ""
	}
	var calls []struct {
		ID     string `json:"id"`
		CallID string `json:"call_id"`
	}
	if json.Unmarshal([]byte(r.ToolCalls), &calls) != nil {
		return r.ToolCalls
	}
	var b strings.Builder
	for _, c := range calls {
		b.WriteString(c.ID)
		b.WriteByte(0)
		b.WriteString(c.CallID)
		b.WriteByte(0)
	}
	return b.String()
}

// maxAlignment bounds the table of the exact alignment (cells); beyond it a greedy one is used.
const maxAlignment = 4 << 20

// align pairs the rows of a batch with the removed rows they copy, in order. It returns, per batch
// row, the index of its original or -1. A rewrite keeps a head and a tail and puts a summary in
// between, or keeps everything and merges some neighbours; both ends are therefore matched first,
// and within the rest the longest common order wins, later originals before earlier ones.
//
// What was removed last is always kept, but need not come last: a prompt that was not stored yet
// and reminders may follow it.
func align(removed, batch []identity) []int {
	pairs := make([]int, len(batch))
	for i := range pairs {
		pairs[i] = -1
	}
	end, run := tail(removed, batch)
	for k := 1; k <= run; k++ {
		pairs[end-k] = len(removed) - k
	}
	r, b := len(removed)-run, len(batch)
	if run > 0 {
		b = end - run
	}
	head := 0
	for head < r && head < b && removed[head].equal(batch[head]) {
		pairs[head] = head
		head++
	}
	alignMiddle(removed[head:r], batch[head:b], pairs[head:b], head)
	return pairs
}

// tail finds the longest run in the batch that equals the end of the removed rows, the last one of
// several; it ends before index end.
func tail(removed, batch []identity) (end, run int) {
	for q := range batch {
		n := 0
		for n <= q && n < len(removed) && batch[q-n].equal(removed[len(removed)-1-n]) {
			n++
		}
		if n > 0 && n >= run {
			end, run = q+1, n
		}
	}
	return end, run
}

func alignMiddle(removed, batch []identity, pairs []int, offset int) {
	n, m := len(removed), len(batch)
	if n == 0 || m == 0 {
		return
	}
	if n*m > maxAlignment {
		next := 0
		for i := range batch {
			for j := next; j < n; j++ {
				if removed[j].equal(batch[i]) {
					pairs[i], next = offset+j, j+1
					break
				}
			}
		}
		return
	}
	// longest[i][j] is the longest common order of batch[:i] and removed[:j].
	longest := make([][]int32, m+1)
	for i := range longest {
		longest[i] = make([]int32, n+1)
	}
	for i := 1; i <= m; i++ {
		for j := 1; j <= n; j++ {
			best := max(longest[i-1][j], longest[i][j-1])
			if batch[i-1].equal(removed[j-1]) {
				best = max(best, longest[i-1][j-1]+1)
			}
			longest[i][j] = best
		}
	}
	for i, j := m, n; i > 0 && j > 0; {
		switch {
		case batch[i-1].equal(removed[j-1]) && longest[i][j] == longest[i-1][j-1]+1:
			pairs[i-1] = offset + j - 1
			i, j = i-1, j-1
		case longest[i-1][j] == longest[i][j]:
			i--
		default:
			j--
		}
	}
}
