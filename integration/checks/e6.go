package checks

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"humanwork.internal/integration/harness"
)

// E6 compares the tool schemas that the model is shown with those of a bare hermes-acp that has the
// same configuration.
func E6(t harness.T) string {
	w := start(t, 4*time.Minute, harness.Options{})
	conv, _ := w.conversation("tools")
	config := w.configuration(conv)
	prompts := []string{"hello", "RUN:echo tool-use", "STEPS:\nWRITE:a.txt|x\nTOOL:read_file {\"path\": \"a.txt\"}", "good bye"}
	for _, p := range prompts {
		if turn := w.turn(conv, p); turn.State != "REPLIED" {
			t.Errorf("turn %.40q: %s, want REPLIED", p, describe(turn))
		}
	}
	ours := w.requests(0)
	seen := w.lastRequest()
	runBare(w.ctx, t, os.Getenv(harness.HermesVariable), config, prompts)
	bare := w.requests(seen)
	if len(ours) != len(bare) || len(ours) < len(prompts) {
		t.Fatalf("%d model requests through Humanwork, %d of a bare hermes-acp; want as many, at least one a turn", len(ours), len(bare))
	}
	var names []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	if err := json.Unmarshal(bare[0].Tools, &names); err != nil || len(names) < 10 {
		t.Errorf("a bare hermes-acp shows %d tools (%v), want its whole set", len(names), err)
	}
	for i := range ours {
		if !bytes.Equal(ours[i].Tools, bare[i].Tools) {
			t.Errorf("request %d: the tools differ at byte %d: %s", i, differsAt(ours[i].Tools, bare[i].Tools), around(ours[i].Tools, bare[i].Tools))
		}
	}
	return fmt.Sprintf("%d tools, %d bytes, equal to a bare hermes-acp's byte for byte in %d of %d requests of %d turns (no MCP servers yet)",
		len(names), len(bare[0].Tools), len(ours), len(bare), len(prompts))
}

// configuration reads the config.yaml that the conversation's Hermes runs with, out of its own view.
func (w *world) configuration(conv harness.Conversation) []byte {
	w.t.Helper()
	pids := w.Below(harness.HermesProcess, w.org, conv.ID)
	if len(pids) != 1 {
		w.t.Fatalf("%d Hermes processes of %s, want 1", len(pids), conv.ID)
	}
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/root/hermes/config.yaml", pids[0]))
	if err != nil {
		w.t.Fatalf("read the conversation's config.yaml: %v", err)
	}
	return raw
}

// view gives a bare hermes-acp the paths a child has, because Hermes writes the path of its home into
// a tool's description. $1 is a directory with home/ and work/, the rest the command.
const view = `set -eu
dir=$1; shift
mkdir "$dir/view"
mount -t tmpfs none "$dir/view"
for path in /*; do
	if [ -L "$path" ]; then cp -P "$path" "$dir/view/"
	elif [ -d "$path" ]; then mkdir "$dir/view$path"; mount --rbind "$path" "$dir/view$path"
	fi
done
mkdir -p "$dir/view/hermes" "$dir/view/workspace"
mount --bind "$dir/home" "$dir/view/hermes"
mount --bind "$dir/work" "$dir/view/workspace"
exec chroot "$dir/view" /bin/sh -c 'cd /workspace && exec "$@"' sh "$@"
`

// runBare runs prompts on hermes-acp alone, with the same environment and paths as a child's.
func runBare(ctx context.Context, t harness.T, venv string, config []byte, prompts []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "hwbare-")
	if err != nil {
		t.Fatalf("make a home for a bare hermes-acp: %v", err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the home of a bare hermes-acp: %v", err)
		}
	}()
	for _, d := range []string{"home", "work", "user"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatalf("make a home for a bare hermes-acp: %v", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "home", "config.yaml"), config, 0o600); err != nil {
		t.Fatalf("configure a bare hermes-acp: %v", err)
	}
	args := []string{"--mount", "--propagation", "private"}
	if os.Geteuid() != 0 {
		args = append(args, "--map-root-user")
	}
	args = append(args, "sh", "-c", view, "sh", dir, filepath.Join(venv, "bin", "python"), filepath.Join(venv, "bin", "hermes-acp"))
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + filepath.Join(dir, "user"),
		"HERMES_HOME=/hermes", "LANG=C.UTF-8", "PYTHONUNBUFFERED=1", "PYTHONDONTWRITEBYTECODE=1", "TERM=dumb"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatalf("start a bare hermes-acp: %v", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatalf("start a bare hermes-acp: %v", err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start a bare hermes-acp: %v", err)
	}
	c := &bareClient{t: t, in: json.NewEncoder(in), out: bufio.NewReaderSize(out, 1<<20)}
	defer func() {
		if t.Failed() {
			t.Logf("a bare hermes-acp wrote: %s", stderr.Bytes()[max(0, stderr.Len()-2000):])
		}
	}()
	c.call("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}})
	session := c.call("session/new", map[string]any{"cwd": "/workspace", "mcpServers": []any{}}).SessionID
	for _, p := range prompts {
		c.call("session/prompt", map[string]any{"sessionId": session, "prompt": []any{map[string]any{"type": "text", "text": p}}})
	}
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("a bare hermes-acp ended with %v", err)
	}
}

type bareClient struct {
	t   harness.T
	in  *json.Encoder
	out *bufio.Reader
	id  int
}

type bareResult struct {
	SessionID string `json:"sessionId"`
}

func (c *bareClient) call(method string, params any) bareResult {
	c.t.Helper()
	c.id++
	if err := c.in.Encode(map[string]any{"jsonrpc": "2.0", "id": c.id, "method": method, "params": params}); err != nil {
		c.t.Fatalf("bare %s: %v", method, err)
	}
	for {
		line, err := c.out.ReadBytes('\n')
		if err != nil {
			c.t.Fatalf("bare %s: %v", method, err)
		}
		var m struct {
			ID     json.RawMessage `json:"id"`
			Method string          `json:"method"`
			Result bareResult      `json:"result"`
			Error  json.RawMessage `json:"error"`
			Params struct {
				Options []struct {
					OptionID string `json:"optionId"`
					Kind     string `json:"kind"`
				} `json:"options"`
			} `json:"params"`
		}
		if json.Unmarshal(line, &m) != nil {
			continue
		}
		if m.Method == "session/request_permission" {
			for _, o := range m.Params.Options {
				if o.Kind == "allow_once" {
					c.allow(m.ID, o.OptionID)
					break
				}
			}
		}
		if m.Method != "" || string(m.ID) != fmt.Sprint(c.id) {
			continue
		}
		if m.Error != nil {
			c.t.Fatalf("bare %s: %s", method, m.Error)
		}
		return m.Result
	}
}

func (c *bareClient) allow(id json.RawMessage, option string) {
	c.t.Helper()
	answer := map[string]any{"outcome": map[string]any{"outcome": "selected", "optionId": option}}
	if err := c.in.Encode(map[string]any{"jsonrpc": "2.0", "id": id, "result": answer}); err != nil {
		c.t.Fatalf("bare permission: %v", err)
	}
}

func differsAt(a, b []byte) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

func around(a, b []byte) string {
	i := differsAt(a, b)
	cut := func(s []byte) []byte { return s[max(0, min(i-40, len(s))):min(i+80, len(s))] }
	return fmt.Sprintf("%q against %q", cut(a), cut(b))
}
