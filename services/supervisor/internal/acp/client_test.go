package acp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	sdk "github.com/coder/acp-go-sdk"

	"humanwork.internal/pkg/errs"
)

// peer is the agent's end of a client.
type peer struct {
	*Client
	in  *bufio.Reader
	out *io.PipeWriter
	end func() error // closes both ends and returns Run's error
}

type duplex struct {
	io.Reader
	io.Writer
}

// connect must be called in a synctest bubble.
func connect(cfg Config) *peer {
	fromAgent, out := io.Pipe()
	in, toAgent := io.Pipe()
	p := &peer{Client: NewClient(duplex{fromAgent, toAgent}, cfg), in: bufio.NewReaderSize(in, 1<<20), out: out}
	ended := make(chan error, 1)
	go func() { ended <- p.Run() }()
	p.end = func() error {
		_ = out.Close()
		_ = in.Close()
		return <-ended
	}
	return p
}

func (p *peer) read(t *testing.T) string {
	t.Helper()
	line, err := p.in.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSuffix(line, "\n")
}

func (p *peer) write(lines ...string) {
	_, _ = io.WriteString(p.out, strings.Join(lines, "\n")+"\n")
}

func chunk(session, text string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":%q,"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":%q}}}}`, session, text)
}

func TestPromptCarriesTheBlocksExactBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{})
		blocks := []string{
			`{"type":"text" ,  "text":"a\u00e9\/<>&` + "\u2028" + ` ","_meta":{"n":9007199254740993,"f":1.0e2}}`,
			`{"text":"b","type":"text"}`,
		}
		prompt, err := p.StartPrompt(`s"1`, [][]byte{[]byte(blocks[0]), []byte(blocks[1])}, func(Update) {})
		if err != nil {
			t.Fatal(err)
		}
		want := `{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s\"1","prompt":[` + blocks[0] + `,` + blocks[1] + `]}}`
		if got := p.read(t); got != want {
			t.Errorf("the agent got\n%s\nwant\n%s", got, want)
		}
		p.write(`{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}`)
		<-prompt.Done()
		if stop, err := prompt.Answer(); stop != "end_turn" || err != nil {
			t.Errorf("Answer = %q, %v", stop, err)
		}
		if err := p.end(); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
}

// Why the prompt is built here: the SDK decodes the same blocks and writes other bytes.
func TestSDKEncodesBlocksAnew(t *testing.T) {
	for _, block := range []string{
		`{"type":"text" , "text":"a"}`,
		`{"type":"text","text":"<\u00e9>"}`,
		`{"type":"text","text":"a","_meta":{"n":9007199254740993}}`,
	} {
		var b sdk.ContentBlock
		if err := json.Unmarshal([]byte(block), &b); err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		if string(got) == block {
			t.Errorf("the SDK kept %s: it may carry prompts now", block)
		}
	}
}

// Why the connection is our own: the SDK's gives up at a line Hermes may well send.
func TestSDKConnectionEndsAtALongLine(t *testing.T) {
	fromAgent, out := io.Pipe()
	c := sdk.NewConnection(func(context.Context, string, json.RawMessage) (any, *sdk.RequestError) { return nil, nil }, io.Discard, fromAgent)
	go func() {
		_, _ = io.WriteString(out, `{"jsonrpc":"2.0","method":"x","params":"`+strings.Repeat("y", 11<<20)+"\"}\n")
		_ = out.Close()
	}()
	<-c.Done()
	if err := fromAgent.Close(); err != nil {
		t.Fatal(err)
	}

	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{})
		var got int
		prompt, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(u Update) { got += len(u.Text) })
		if err != nil {
			t.Fatal(err)
		}
		p.read(t)
		p.write(chunk("s", strings.Repeat("y", 11<<20)), `{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}`)
		<-prompt.Done()
		if _, err := prompt.Answer(); err != nil || got != 11<<20 {
			t.Errorf("%d bytes came through, %v", got, err)
		}
		_ = p.end()
	})
}

func TestUpdatesOutsideAPromptAreDiscarded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{})
		p.write(chunk("s", "before"))
		synctest.Wait()
		var got []string
		prompt, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(u Update) { got = append(got, u.Text) })
		if err != nil {
			t.Fatal(err)
		}
		p.read(t)
		p.write(chunk("s", "one"), chunk("other", "of another session"), chunk("s", "two"),
			`{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}`, chunk("s", "after"))
		<-prompt.Done()
		synctest.Wait()
		if strings.Join(got, ",") != "one,two" {
			t.Errorf("updates = %q, want one, two", got)
		}
		if c := p.Counters(); c.StrayUpdates != 3 {
			t.Errorf("counters = %+v, want 3 stray updates", c)
		}
		_ = p.end()
	})
}

func TestLongLineEndsWhatRunsAndNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{MaxLine: 1000})
		p.write(strings.Repeat("x", 5000)) // while nothing runs
		synctest.Wait()
		prompt, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(Update) {})
		if err != nil {
			t.Fatal(err)
		}
		p.read(t)
		p.write(strings.Repeat("x", 5000))
		<-prompt.Done()
		if _, err := prompt.Answer(); !errors.Is(err, ErrLineTooLong) {
			t.Errorf("Answer = %v, want %v", err, ErrLineTooLong)
		}
		next, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(Update) {})
		if err != nil {
			t.Fatal(err)
		}
		p.read(t)
		p.write(`{"jsonrpc":"2.0","id":2,"result":{"stopReason":"end_turn"}}`)
		<-next.Done()
		if _, err := next.Answer(); err != nil {
			t.Errorf("the next Answer = %v", err)
		}
		if c := p.Counters(); c.LongLines != 2 {
			t.Errorf("counters = %+v, want 2 long lines", c)
		}
		_ = p.end()
	})
}

func TestEndOfTheAgentEndsEveryCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{})
		prompt, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(Update) {})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(Update) {}); !errors.Is(err, ErrBusy) {
			t.Errorf("a second prompt = %v, want %v", err, ErrBusy)
		}
		session := make(chan error)
		go func() { _, err := p.NewSession(t.Context(), "/workspace"); session <- err }()
		synctest.Wait()
		if err := p.end(); err != nil {
			t.Errorf("Run = %v", err)
		}
		if _, err := prompt.Answer(); !errors.Is(err, ErrEnded) {
			t.Errorf("Answer = %v, want %v", err, ErrEnded)
		}
		if err := <-session; !errors.Is(err, ErrEnded) {
			t.Errorf("NewSession = %v, want %v", err, ErrEnded)
		}
		if _, err := p.StartPrompt("s", [][]byte{[]byte(`{}`)}, func(Update) {}); !errors.Is(err, ErrEnded) {
			t.Errorf("a prompt after the end = %v, want %v", err, ErrEnded)
		}
	})
}

// An agent that floods requests and reads nothing must not stop the reader, which would stop an
// agent that is waiting for it.
func TestAgentThatDoesNotReadIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := connect(Config{})
		for i := range writeQueue + 10 {
			p.write(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"fs/read_text_file"}`, i))
		}
		<-p.Done()
		_ = p.end()
	})
}

func TestPermissionPicksByKind(t *testing.T) {
	const yes, no = `{"outcome":{"optionId":"y","outcome":"selected"}}`, `{"outcome":{"outcome":"cancelled"}}`
	for _, tc := range []struct {
		params    string
		cancelled bool
		want      string
	}{
		{`{"options":[{"kind":"allow_once","optionId":"y"},{"kind":"allow_always","optionId":"a"}]}`, false, yes},
		{`{"options":[{"kind":"allow_always","optionId":"a"},{"kind":"allow_once","optionId":"y"},{"kind":"allow_once","optionId":"z"}]}`, false, yes},
		{`{"options":[{"kind":"allow_once","optionId":"y"}]}`, true, no},
		{`{"options":[{"kind":"allow_always","optionId":"allow_once"}]}`, false, no},
		{`{"options":[]}`, false, no},
		{`{}`, false, no},
		{`null`, false, no},
		{`[`, false, no},
	} {
		got, err := json.Marshal(decidePermission(json.RawMessage(tc.params), tc.cancelled))
		if err != nil || string(got) != tc.want {
			t.Errorf("decidePermission(%s, %t) = %s, %v, want %s", tc.params, tc.cancelled, got, err, tc.want)
		}
	}
}

func TestCheckBlock(t *testing.T) {
	for block, ok := range map[string]bool{
		`{"type":"text","text":"a\nb"}`: true,
		`{}`:                            true,
		` {}`:                           false,
		`{} `:                           false,
		"{\n}":                          false,
		"{\r}":                          false,
		`[]`:                            false,
		``:                              false,
		`{`:                             false,
		`{}{}`:                          false,
		`{"a":}`:                        false,
		"{\"a\":\"\xc3\"}":              false,
		`{"a":1}],"x":[{"b":1}`:         false,
	} {
		if err := CheckBlock([]byte(block)); (err == nil) != ok || err != nil && !errors.Is(err, errs.Invalid) {
			t.Errorf("CheckBlock(%q) = %v, want ok %t", block, err, ok)
		}
	}
}

func FuzzHandle(f *testing.F) {
	for _, s := range []string{chunk("s", "x"), `{"jsonrpc":"2.0","id":1,"result":{}}`, `{"id":"p","method":"session/request_permission","params":{}}`, `{"id":{},"method":"x"}`, "\xff", "[]"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(_ *testing.T, line []byte) {
		c := NewClient(nil, Config{})
		if _, err := c.StartPrompt("s", nil, func(Update) {}); err != nil {
			panic(err)
		}
		c.handle(line)
		c.handle(line)
	})
}
