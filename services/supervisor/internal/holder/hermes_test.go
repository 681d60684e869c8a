package holder

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// model answers every chat completion with an echo of the last user text; the text HANG waits
// until the client is gone.
func model(t *testing.T, hanging chan<- struct{}) string {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/chat/completions") {
			_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"fake-1","object":"model","context_length":200000}]}`)
			return
		}
		var body struct {
			Stream   bool
			Messages []struct {
				Role    string
				Content any
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Errorf("model request: %v", err)
		}
		last := ""
		for _, m := range body.Messages {
			if m.Role == "user" {
				last = fmt.Sprint(m.Content)
			}
		}
		if last == "HANG" && body.Stream {
			hanging <- struct{}{}
			<-r.Context().Done()
			return
		}
		content, _ := json.Marshal("echo: " + last)
		if !body.Stream {
			_, _ = fmt.Fprintf(w, `{"id":"c","object":"chat.completion","created":1,"model":"fake-1","choices":[{"index":0,"message":{"role":"assistant","content":%s},"finish_reason":"stop"}],"usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}}`, content)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		const chunk = `data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"fake-1","choices":[{"index":0,"delta":%s,"finish_reason":%s}]}` + "\n\n"
		_, _ = fmt.Fprintf(w, chunk, `{"role":"assistant","content":`+string(content)+`}`, "null")
		_, _ = fmt.Fprintf(w, chunk+"data: [DONE]\n\n", "{}", `"stop"`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/v1"
}

func TestHermesWarmTurnsOnOneChild(t *testing.T) {
	f := withHermes(t, testConfig(), model(t, nil))
	session, err := f.Establish(t.Context(), "org", "conv", 1)
	if err != nil {
		t.Fatal(err)
	}
	// Unusual spacing, an escape and a large number: the SDK's types would write all three anew.
	exact := `{"type":"text" , "text":"  one \u00e9 <b> ","_meta":{"n":9007199254740993}}`
	r, got := f.turnOf(t, attempt("conv", "t1"), session, [][]byte{[]byte(exact)})
	if r.End != EndAnswered || r.StopReason != "end_turn" || !r.TextStreamed {
		t.Fatalf("first turn = %+v", r)
	}
	if !strings.Contains(got, "echo: ") {
		t.Errorf("streamed %q", got)
	}
	if !strings.Contains(f.cell.sent("conv"), exact) {
		t.Error("the block's exact bytes did not reach the child's input")
	}
	if r.Timings.FirstModelRequest <= 0 || r.Timings.ModelToolLoop <= r.Timings.FirstModelRequest || r.Timings.ColdAdmission != 0 {
		t.Errorf("timings of a warm turn = %+v", r.Timings)
	}
	r, _ = f.turnOf(t, attempt("conv", "t2"), session, text("two"))
	if r.End != EndAnswered || r.ChildEnded {
		t.Errorf("second turn = %+v", r)
	}
	t.Logf("warm turn: %+v", r.Timings)
	if n := len(f.cell.machines[0].children); n != 1 || f.cell.machineCount() != 1 {
		t.Errorf("%d children on %d machines, want 1 and 1", n, f.cell.machineCount())
	}
}

func TestHermesResumesAfterItsChildWasKilled(t *testing.T) {
	f := withHermes(t, testConfig(), model(t, nil))
	session, err := f.Establish(t.Context(), "org", "conv", 1)
	if err != nil {
		t.Fatal(err)
	}
	f.turnOf(t, attempt("conv", "t1"), session, text("remember the walrus"))
	child := f.cell.lastChild()
	if err := child.Kill(); err != nil {
		t.Fatal(err)
	}
	<-child.done
	r, got := f.turnOf(t, attempt("conv", "t2"), session, text("two"))
	if r.End != EndAnswered || r.StopReason != "end_turn" || !strings.Contains(got, "echo: two") {
		t.Errorf("the turn of the new child = %+v with %q", r, got)
	}
	if r.Timings.ColdAdmission == 0 || r.Timings.Attach < r.Timings.ColdAdmission {
		t.Errorf("timings of a cold turn = %+v", r.Timings)
	}
	for _, method := range []string{"session/load", "session/resume"} {
		if strings.Contains(f.cell.sent("conv"), method) {
			t.Errorf("%s was sent: it gives every row a new id", method)
		}
	}
}

func TestHermesCancelWhileTheModelHangs(t *testing.T) {
	hanging := make(chan struct{}, 1)
	f := withHermes(t, testConfig(), model(t, hanging))
	session, err := f.Establish(t.Context(), "org", "conv", 1)
	if err != nil {
		t.Fatal(err)
	}
	a := attempt("conv", "t1")
	s, err := f.Prompt(a, session, text("HANG"))
	if err != nil {
		t.Fatal(err)
	}
	<-hanging
	if err := f.Cancel(a); err != nil {
		t.Fatal(err)
	}
	if r, _ := follow(t, s); r.End != EndAnswered || r.StopReason != "cancelled" || !r.CancelSent {
		t.Errorf("the cancelled turn = %+v", r)
	}
	if r, _ := f.turnOf(t, attempt("conv", "t2"), session, text("two")); r.End != EndAnswered || r.StopReason != "end_turn" {
		t.Errorf("the next turn = %+v", r)
	}
}

// Hermes answers a cancel that reaches it before its first model request with an internal error.
// It stopped, so the turn must end at once all the same, and the next child takes the next one.
func TestHermesCancelRightAfterThePrompt(t *testing.T) {
	hanging := make(chan struct{}, 16)
	f := withHermes(t, testConfig(), model(t, hanging))
	session, err := f.Establish(t.Context(), "org", "conv", 1)
	if err != nil {
		t.Fatal(err)
	}
	a := attempt("conv", "t1")
	s, err := f.Prompt(a, session, text("HANG"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.untilSent("conv", "HANG"); err != nil {
		t.Fatal(err)
	}
	if err := f.Cancel(a); err != nil {
		t.Fatal(err)
	}
	r, _ := follow(t, s)
	cancelled := r.End == EndAnswered && r.StopReason == "cancelled"
	failed := r.End == EndError && r.Reason == "PROMPT_ERROR" && r.ChildEnded
	if !cancelled && !failed || !r.CancelSent {
		t.Errorf("the cancelled turn = %+v", r)
	}
	if r, _ := f.turnOf(t, attempt("conv", "t2"), session, text("two")); r.End != EndAnswered || r.StopReason != "end_turn" {
		t.Errorf("the next turn = %+v", r)
	}
}

func TestHermesRefusesAnUnknownSession(t *testing.T) {
	f := withHermes(t, testConfig(), model(t, nil))
	r, got := f.turnOf(t, attempt("conv", "t1"), "no-such-session", text("x"))
	if r.End != EndAnswered || r.StopReason != "refusal" || r.Reason != "SESSION_UNKNOWN" || got != "" {
		t.Errorf("turn = %+v with %q, want a refusal", r, got)
	}
}
