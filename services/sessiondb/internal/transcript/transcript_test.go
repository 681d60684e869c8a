package transcript_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"humanwork.internal/services/sessiondb/internal/store/storetest"
	"humanwork.internal/services/sessiondb/internal/transcript"
)

// rows builds a session from short notations: "u text", "a text" (stop), "n text" (no finish
// reason), "l text" (cut off), "t text" (calls a tool), "o text" (tool row). Ids count from 1.
func rows(notation ...string) []transcript.Row {
	var list []transcript.Row
	for i, s := range notation {
		kind, text, _ := strings.Cut(s, " ")
		r := transcript.Row{ID: int64(i + 1), SessionID: "s", Content: text, Active: true, Timestamp: 1}
		switch kind {
		case "u":
			r.Role = "user"
		case "o":
			r.Role = "tool"
		default:
			r.Role = "assistant"
			r.FinishReason = map[string]string{"a": "stop", "l": "length", "t": "tool_calls", "n": ""}[kind]
			if kind == "t" {
				r.ToolCalls = fmt.Sprintf(`[{"id":"call_%d","type":"function","function":{"name":"terminal","arguments":"{\"x\": 1}"}}]`, i)
			}
		}
		list = append(list, r)
	}
	return list
}

func listed(h *transcript.History) []string {
	var list []string
	for _, m := range h.List() {
		mark := ""
		if m.Doubtful {
			mark = "?"
		}
		list = append(list, fmt.Sprintf("%d%s %s", m.ID, mark, m.Text))
	}
	return list
}

func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}

func describe(o transcript.Outcome) string {
	s := fmt.Sprintf("own %d users %v replies", o.UserID, o.UserIDs)
	for _, r := range o.Replies {
		s += fmt.Sprintf(" %d:%s", r.ID, r.FinishReason)
	}
	return s
}

func TestOutcome(t *testing.T) {
	for _, test := range []struct {
		name   string
		rows   []transcript.Row
		mark   int64
		prompt string
		want   string
	}{
		{"plain", rows("u q", "a r"), 0, "q", "own 1 users [1] replies 2:stop"},
		{"outer white space", rows("u q", "a r"), 0, "  q \x1f\u2003\r\n", "own 1 users [1] replies 2:stop"},
		{"earlier turns are below the watermark", rows("u q", "a r", "u q", "a r2"), 2, "q", "own 3 users [3] replies 4:stop"},
		{"tools", rows("u q", "t ", "o out", "t look", "o out", "a r"), 0, "q", "own 1 users [1] replies 6:stop"},
		{"killed in a tool call", rows("u q", "t "), 0, "q", "own 1 users [1] replies"},
		{"outage", rows("u q"), 0, "q", "own 1 users [1] replies"},
		{"native command", rows("u q", "a r"), 2, "/help", "own 0 users [] replies"},
		{"cancelled in a stream", rows("u q", "n par"), 0, "q", "own 1 users [1] replies 2:"},
		{"cancelled in a tool call", rows("u q", "t ", "o x", "n Operation interrupted."), 0, "q", "own 1 users [1] replies 4:"},
		{"queued", rows("u q", "a r", "u queued", "t ", "o x", "a r2"), 0, "q", "own 1 users [1 3] replies 2:stop 6:stop"},
		{"queued before, the same text", rows("u q", "a r", "u q", "a r2"), 0, "q", "own 1 users [1 3] replies 2:stop 4:stop"},
		{"steer", rows("u go left", "a r"), 0, "/steer  go left ", "own 1 users [1] replies 2:stop"},
		{"steer after a cancel", rows("u old\n\nUser correction/guidance after interrupt: x", "a r"), 0, "/steer x", "own 1 users [1] replies 2:stop"},
		{"cut off and continued", rows("u q", "l par", "u [System: go on]", "a tial"), 0, "q", "own 1 users [1] replies 4:stop"},
		{"cut off, continued with tools", rows("u q", "l par", "u [System: go on]", "t ", "o x", "a tial"), 0, "q", "own 1 users [1] replies 6:stop"},
		{"cut off until Hermes gives up", rows("u q", "l 1", "u g", "l 2", "u g", "l 3", "u g", "l 4"), 0, "q", "own 1 users [1] replies 8:length"},
		{"cut off until Hermes gives up, then a queued text", rows("u q", "l 1", "u g", "l 2", "u g", "l 3", "u g", "l 4", "u x", "a r"), 0, "q", "own 1 users [1] replies 8:length 10:stop"},
		{"killed while continuing", rows("u q", "l par", "u [System: go on]"), 0, "q", "own 1 users [1] replies"},
		{"killed while continuing again", rows("u q", "l par", "u [System: go on]", "l ti", "u [System: go on]"), 0, "q", "own 1 users [1] replies"},
		{"no text", rows("u q", "a "), 0, "q", "own 1 users [1] replies"},
		{"two assistant rows in a run", rows("u q", "a draft", "a r"), 0, "q", "own 1 users [1] replies 3:stop"},
		{"an assistant row without its user row", rows("a late"), 0, "q", "own 0 users [] replies"},
		{"a late row before the prompt's", rows("u late", "u q", "a r"), 0, "q", "own 2 users [2] replies 3:stop"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := describe(transcript.New(test.rows, nil).Outcome(test.mark, transcript.Prompt{Text: test.prompt}))
			if got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestOutcomeOfImageAlone(t *testing.T) {
	got := describe(transcript.New(rows("u [screenshot]", "a r"), nil).Outcome(0, transcript.Prompt{OtherBlocks: true}))
	if want := "own 1 users [1] replies 2:stop"; got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}

func TestContinuedReplies(t *testing.T) {
	h := transcript.New(rows("u q", "l par", "u go on", "l ti", "u go on", "t ", "o x", "a al", "u q2", "a r2"), nil)
	compare(t, "transcript", listed(h), []string{"1 q", "3? go on", "5? go on", "6 ", "8 partial", "9 q2", "10 r2"})
	// After the fourth cut-off row Hermes gives up: what follows is a real message and its reply.
	h = transcript.New(rows("u q", "l 1", "u g", "l 2", "u g", "l 3", "u g", "l 4", "u real", "a r"), nil)
	compare(t, "transcript after giving up", listed(h), []string{"1 q", "3? g", "5? g", "7? g", "8 1234", "9? real", "10 r"})
	// The user row after an answer that never came is no continuation of what came before.
	h = transcript.New(rows("u q", "l par", "u go on", "u q2", "a r2"), nil)
	compare(t, "transcript after a kill", listed(h), []string{"1 q", "2 par", "3? go on", "4 q2", "5 r2"})
}

// archived marks the first n rows as summarized away.
func archived(n int, list []transcript.Row) []transcript.Row {
	for i := range list[:n] {
		list[i].Active, list[i].Compacted = false, true
	}
	return list
}

// deleted marks the first n rows as deleted when that many ids were given.
func deleted(n int, list []transcript.Row) []transcript.Row {
	for i := range list[:n] {
		list[i].DeletedAt = int64(n)
	}
	return list
}

func TestRewrites(t *testing.T) {
	for _, test := range []struct {
		name     string
		rows     []transcript.Row
		rewrites []transcript.Rewrite
		want     []string
		same     map[int64]int64 // an id and the text of another
	}{
		{"compaction with a summary", archived(6, rows("u a", "a b", "u c", "a d", "u e", "a f", "u a", "a b", "u summary", "u e", "a f", "u g", "a h")),
			[]transcript.Rewrite{{Boundary: 6, BatchEnd: 11}},
			[]string{"1 a", "2 b", "3 c", "4 d", "5 e", "6 f", "12 g", "13 h"}, map[int64]int64{7: 1, 10: 5, 11: 6}},
		{"the prompt in the batch only, and a reminder", archived(4, rows("u a", "a b", "u c", "a d", "u a", "a sum", "u c", "a d", "u new", "u todo", "a r")),
			[]transcript.Rewrite{{Boundary: 4, BatchEnd: 10}},
			[]string{"1 a", "2 b", "3 c", "4 d", "9? new", "10? todo", "11 r"}, map[int64]int64{5: 1, 7: 3, 8: 4}},
		{"unrecorded compaction", archived(5, rows("u a", "a b", "u c", "a d", "u e", "u a", "a sum", "a d", "u e", "a f")), nil,
			[]string{"1 a", "2 b", "3 c", "4 d", "5 e", "10 f"}, map[int64]int64{6: 1, 8: 4, 9: 5}},
		{"copies with the sent text as content", archived(2, []transcript.Row{
			{ID: 1, Role: "user", Content: "cap", APIContent: "[Attached file]\nbody\ncap", Active: true},
			{ID: 2, Role: "user", Content: "pic\n[screenshot]", Active: true},
			{ID: 3, Role: "user", Content: "[Attached file]\nbody\ncap ", Active: true},
			{ID: 4, Role: "user", Content: "\x00json:" + `[{"type":"text","text":"pic"},{"type":"image_url"}]`, Active: true},
		}), []transcript.Rewrite{{Boundary: 2, BatchEnd: 4}}, []string{"1 cap", "2 pic\n[screenshot]"}, map[int64]int64{3: 1, 4: 2}},
		{"session/load merges neighbours", deleted(5, rows("u a", "a b", "a human", "u c", "a d", "u a", "a b\nhuman", "u c", "a d", "u c", "a d")),
			[]transcript.Rewrite{{Boundary: 5, BatchEnd: 9}},
			[]string{"1 a", "2 b", "3 human", "4 c", "5 d", "10 c", "11 d"}, map[int64]int64{6: 1, 8: 4, 9: 5}},
		{"a reset, then the same again", deleted(2, rows("u a", "a b", "u a", "a b")),
			[]transcript.Rewrite{{Boundary: 2, BatchEnd: 2}}, []string{"1 a", "2 b", "3 a", "4 b"}, nil},
		{"unknown end of a batch", deleted(2, rows("u a", "a b", "u a", "a b", "u new", "a r")),
			[]transcript.Rewrite{{Boundary: 2}}, []string{"1 a", "2 b", "5 new", "6 r"}, map[int64]int64{3: 1, 4: 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := transcript.New(test.rows, test.rewrites)
			compare(t, "transcript", listed(h), test.want)
			for copied, original := range test.same {
				c, ok := h.Find(copied)
				o, known := h.Find(original)
				if !ok || !known || c.Text != o.Text || c.Version != o.Version || c.ID != copied {
					t.Errorf("message %d is %+v, want the text of %d: %+v", copied, c, original, o)
				}
			}
			for _, r := range test.rows {
				if _, ok := h.Find(r.ID); !ok {
					t.Errorf("message %d is not found", r.ID)
				}
			}
		})
	}
}

func TestUndoneRowsAreNotShown(t *testing.T) {
	list := rows("u a", "a b", "u c", "a d")
	list[2].Active, list[3].Active = false, false
	h := transcript.New(list, nil)
	compare(t, "transcript", listed(h), []string{"1 a", "2 b"})
	if _, ok := h.Find(3); !ok {
		t.Error("an undone row's locator no longer resolves")
	}
}

func TestMessageParts(t *testing.T) {
	list := rows("u a", "t look", "o x", "a b")
	list[1].ToolCalls = `[{"id":"1","function":{"name":"terminal","arguments":"{\"a\": 1}"}},{"call_id":"2","name":"todo","arguments":{"b": 2}}]`
	list[3].Timestamp = 1700000000.25
	m := transcript.New(list, nil).List()
	want := []transcript.ToolCall{{ID: "1", Name: "terminal", Arguments: `{"a": 1}`}, {ID: "2", Name: "todo", Arguments: `{"b": 2}`}}
	if !slices.Equal(m[1].ToolCalls, want) {
		t.Errorf("tool calls %+v, want %+v", m[1].ToolCalls, want)
	}
	if got := m[2].CreateTime.Format("2006-01-02T15:04:05.000Z07:00"); got != "2023-11-14T22:13:20.250Z" {
		t.Errorf("create time %s", got)
	}
	if m[0].Version == m[2].Version || len(m[0].Version) != 64 {
		t.Errorf("versions %s and %s", m[0].Version, m[2].Version)
	}
	list[3].Content = "b2"
	if again := transcript.New(list, nil).List(); again[2].Version == m[2].Version || again[0].Version != m[0].Version {
		t.Error("the version does not follow the content")
	}
}

// TestRecordings checks what the real Hermes 0.19.0 wrote: the rows of a session after
// everything that renumbers them.
func TestRecordings(t *testing.T) {
	for _, test := range []struct {
		name string
		want []string
	}{
		{"turns", []string{
			"1   hello there \n", "2 echo(11): hello there",
			"3 LENGTH please", "5? [System: Your previous response was truncate", "6 echo(13): LENGTH pleaseand the rest of it",
			"7 BREAK please", "9? [System: The previous response was cut off b", "10 echo(12):and the rest of it",
			"11 RUN:echo hi", "12 ", "14 tool said: {\"output\": \"hi\", \"exit_code\": 0",
			"15 main prompt", "16 echo(11): main prompt", "17 queued one", "18 echo(10): queued one",
			"19 go left", "20 echo(7): go left", "21 [screenshot]", "22 echo(126): [The user attached an image. Here's",
			"23 SLOWSTREAM x", "24 echo(12): SLOWSTREAM x echo(12):", "25 RUN:sleep 20", "26 ", "28 Operation interrupted.",
			"29 resumed", "30 echo(7): resumed", "91 hello", "92 echo(5): hello",
			"93 hello", "94 echo(5): hello", "95 hello", "96 echo(5): hello"}},
		{"compaction", []string{
			"1 TODO: please keep", "2 ", "4 tool said: {\"todos\": [{\"id\": \"1\", \"content\": \"", "5 cap", "6 echo(62): cap \n[Attached file: a.txt]\nURI: file:",
			"7 p0 lorem*", "8 echo(16202): p0 lorem*", "9 p1 lorem*", "10 echo(16202): p1 lorem*", "11 p2 lorem*", "12 echo(16202): p2 lorem*",
			"13 p3 lorem*", "14 echo(16202): p3 lorem*", "15 p4 lorem*", "16 echo(16202): p4 lorem*", "17 p5 lorem*", "18 echo(16202): p5 lorem*",
			"19 p6 lorem*", "20 echo(16202): p6 lorem*", "21 p7 lorem*", "22 echo(16202): p7 lorem*", "23 p8 lorem*", "24 echo(16202): p8 lorem*",
			"25 p9 lorem*", "26 echo(16202): p9 lorem*", "27 p10 lorem*", "28 echo(16203): p10 lorem*", "29 p11 lorem*", "30 echo(16203): p11 lorem*",
			"31 p12 lorem*", "32 echo(16203): p12 lorem*", "44? p13 lorem*", "45? [Your active task list was preserved across con", "46 echo(16294): p13 lorem*",
			"47 q0 lorem*", "48 echo(16202): q0 lorem*", "49 q1 lorem*", "50 echo(16202): q1 lorem*", "51 q2 lorem*", "52 echo(16202): q2 lorem*",
			"53 q3 lorem*", "54 echo(16202): q3 lorem*", "55 q4 lorem*", "56 echo(16202): q4 lorem*", "57 q5 lorem*", "58 echo(16202): q5 lorem*",
			"59 q6 lorem*", "60 echo(16202): q6 lorem*", "61 q7 FAIL500 lorem*", "70? q8 FAIL500 lorem*", "71? [Your active task list was preserved across con",
			"72 short", "73 short", "74 r0 lorem*", "75 r1 lorem*", "76 r2 lorem*", "77 r3 lorem*", "78 r4 lorem*",
			"79 r5 lorem*", "80 r6 lorem*", "81 r7 lorem*", "82 r8 lorem*"}},
		{"compact_command", []string{
			"1  cap ", "2 echo(131): [The user attached an image. Here's w", "3 p0 lorem*", "4 echo(16202): p0 lorem*", "5 p1 lorem*", "6 echo(16202): p1 lorem*",
			"7 p2 lorem*", "8 echo(16202): p2 lorem*", "9 p3 lorem*", "10 echo(16202): p3 lorem*", "11 p4 lorem*", "12 echo(16202): p4 lorem*",
			"13 p5 lorem*", "14 echo(16202): p5 lorem*", "15 p6 lorem*", "16 echo(16202): p6 lorem*", "17 p7 lorem*", "18 echo(16202): p7 lorem*",
			"19 p8 lorem*", "20 echo(16202): p8 lorem*", "21 p9 lorem*", "22 echo(16202): p9 lorem*", "23 p10 lorem*", "24 echo(16203): p10 lorem*",
			"25 p11 lorem*", "26 echo(16203): p11 lorem*", "37? p12 lorem*", "38 echo(16203): p12 lorem*", "39 r0 lorem*", "40 echo(16202): r0 lorem*",
			"41 r1 lorem*", "42 echo(16202): r1 lorem*", "43 r2 lorem*", "44 echo(16202): r2 lorem*", "45 r3 lorem*", "46 echo(16202): r3 lorem*",
			"47 r4 lorem*", "48 echo(16202): r4 lorem*", "49 r5 lorem*", "50 echo(16202): r5 lorem*", "51 r6 lorem*", "52 echo(16202): r6 lorem*",
			"60? r7 lorem*", "61 echo(16202): r7 lorem*", "62 short", "63 echo(5): short", "73 short", "74 echo(5): short",
			"75 short", "76 echo(5): short", "90 short", "91 echo(5): short", "103 last", "104 echo(4): last",
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			rows, rewrites := storetest.Recorded(t, test.name)
			h := transcript.New(rows, rewrites)
			got, want := listed(h), test.want
			if len(got) != len(want) {
				t.Errorf("%d messages, want %d", len(got), len(want))
			}
			for i := range min(len(got), len(want)) {
				if !strings.HasPrefix(got[i], want[i]) { // long texts are given by their beginning
					t.Errorf("message %d: got %q, want %q", i, got[i], want[i])
				}
			}
			for _, r := range rows {
				if _, ok := h.Find(r.ID); !ok && r.Role != "tool" {
					t.Errorf("message %d is not found", r.ID)
				}
			}
		})
	}
}

// TestRecordedFailure is the turn in which a compaction ran and then the model failed: its own row
// stands in the compaction's batch only, and old replies have copies above the watermark.
func TestRecordedFailure(t *testing.T) {
	rows, rewrites := storetest.Recorded(t, "compaction")
	rows = slices.DeleteFunc(rows, func(r transcript.Row) bool { return r.ID > 71 })
	var prompt string
	for _, r := range rows {
		if r.ID == 70 {
			prompt = r.Content
		}
	}
	got := describe(transcript.New(rows, rewrites).Outcome(61, transcript.Prompt{Text: prompt}))
	if want := "own 70 users [70] replies"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzHistory feeds contradictory rows and rewrites: nothing may panic, and no id may get lost.
func FuzzHistory(f *testing.F) {
	f.Add([]byte("uaua"), []byte{2, 2}, int64(1))
	f.Add([]byte("uaUAlul\x00json:a"), []byte{3, 9, 1, 0}, int64(3))
	f.Fuzz(func(t *testing.T, kinds, boundaries []byte, mark int64) {
		if len(kinds) > 300 {
			kinds = kinds[:300]
		}
		var list []transcript.Row
		for i, k := range kinds {
			r := transcript.Row{ID: int64(i)/2*2 + 1, SessionID: "s", Role: []string{"user", "assistant", "tool", "?"}[k%4], Timestamp: float64(k) * 1e300}
			r.Content = []string{"", "a", "b", "\x00json:[{\"type\":\"text\"}]", "\x00json:{", "\xff"}[k/4%6]
			r.FinishReason = []string{"", "stop", "length"}[k/8%3]
			r.ToolCalls = []string{"", "", "[]", `[{"id":3}]`, `[{"id":"x","function":null}]`}[k/16%5]
			r.Active, r.Compacted = k&1 == 0, k&3 == 3
			if k > 200 {
				r.DeletedAt = int64(k) - 200
			}
			list = append(list, r)
		}
		var rewrites []transcript.Rewrite
		for i := 0; i+1 < len(boundaries); i += 2 {
			rewrites = append(rewrites, transcript.Rewrite{Boundary: int64(boundaries[i]), BatchEnd: int64(boundaries[i+1])})
		}
		h := transcript.New(list, rewrites)
		messages := h.List()
		last := int64(-1)
		for _, m := range messages {
			if m.ID <= last {
				t.Fatalf("message %d comes after %d", m.ID, last)
			}
			last = m.ID
		}
		for _, r := range list {
			if _, ok := h.Find(r.ID); !ok && (r.Role == "user" || r.Role == "assistant") {
				first := slices.IndexFunc(list, func(o transcript.Row) bool { return o.ID == r.ID && (o.Role == "user" || o.Role == "assistant") })
				if list[first].Role == r.Role {
					t.Fatalf("message %d is lost", r.ID)
				}
			}
		}
		out := h.Outcome(mark, transcript.Prompt{Text: "/steer a"})
		for _, reply := range out.Replies {
			if reply.ID <= out.UserID || out.UserID <= mark {
				t.Fatalf("outcome %+v above %d", out, mark)
			}
		}
	})
}
