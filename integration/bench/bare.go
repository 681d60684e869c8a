package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// bareExit is how long a bare Hermes may take to exit once its input is closed.
const bareExit = 10 * time.Second

// bare is a hermes-acp with one session, spoken to over its standard streams and nothing else.
type bare struct {
	process *process
	stdin   io.WriteCloser
	lines   *bufio.Reader
	id      int
	session string
}

// modelConfig is the configuration of a bare Hermes: the same as the system gives its own
// (services/agentfs/internal/home), or the two would not do the same work.
func modelConfig(baseURL, key, name string) []byte {
	return fmt.Appendf(nil, `model:
  default: %q
  provider: custom
  base_url: %q
  api_key: %q
compression:
  in_place: true
approvals:
  mode: manual
security:
  tirith_enabled: false
  allow_lazy_installs: false
`, name, baseURL, key)
}

// startBare starts Hermes with a home in dir and makes a session.
func startBare(ctx context.Context, venv, dir string, config []byte) (_ *bare, err error) {
	home, work := filepath.Join(dir, "home"), filepath.Join(dir, "work")
	if err := errors.Join(os.MkdirAll(home, 0o700), os.MkdirAll(work, 0o700)); err != nil {
		return nil, fmt.Errorf("make the directories of a bare Hermes: %w", err)
	}
	if err := os.WriteFile(filepath.Join(home, "config.yaml"), config, 0o600); err != nil {
		return nil, fmt.Errorf("configure a bare Hermes: %w", err)
	}
	cmd := exec.Command(filepath.Join(venv, "bin", "hermes-acp")) //nolint:noctx // ended by stop, and by this process's own end
	cmd.Dir = work
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "HERMES_HOME=" + home, "LANG=C.UTF-8", "TERM=dumb"}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start a bare Hermes: %w", err)
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start a bare Hermes: %w", err)
	}
	cmd.Stdout = out
	p, err := start(cmd)
	out.Close()
	if err != nil {
		stdout.Close()
		return nil, fmt.Errorf("start a bare Hermes: %w", err)
	}
	b := &bare{process: p, stdin: stdin, lines: bufio.NewReaderSize(stdout, 64<<10)}
	defer context.AfterFunc(ctx, func() { _ = p.cmd.Process.Kill() })()
	err = func() error {
		if _, _, err := b.call("initialize", map[string]any{"protocolVersion": 1, "clientCapabilities": map[string]any{}}); err != nil {
			return err
		}
		answer, _, err := b.call("session/new", map[string]any{"cwd": work, "mcpServers": []any{}})
		if err != nil {
			return err
		}
		var made struct {
			SessionID string `json:"sessionId"`
		}
		if err := json.Unmarshal(answer, &made); err != nil {
			return fmt.Errorf("read the answer of session/new: %w", err)
		}
		b.session = made.SessionID
		return nil
	}()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start a bare Hermes: %w", err), b.stop())
	}
	return b, nil
}

// turn prompts and returns Hermes's text and the time from the prompt to its answer.
func (b *bare) turn(ctx context.Context, text string) (reply string, took time.Duration, err error) {
	defer context.AfterFunc(ctx, func() { _ = b.process.cmd.Process.Kill() })()
	began := time.Now()
	answer, updates, err := b.call("session/prompt", map[string]any{
		"sessionId": b.session, "prompt": []any{map[string]string{"type": "text", "text": text}}})
	took = time.Since(began)
	if err != nil {
		return "", 0, err
	}
	var end struct {
		StopReason string `json:"stopReason"`
	}
	if err := json.Unmarshal(answer, &end); err != nil || end.StopReason != "end_turn" {
		return "", 0, fmt.Errorf("a bare Hermes answered %s (%w)", answer, err)
	}
	for _, line := range updates {
		var u struct {
			Params struct {
				Update struct {
					Kind    string          `json:"sessionUpdate"`
					Content json.RawMessage `json:"content"` // an array in some kinds
				} `json:"update"`
			} `json:"params"`
		}
		if err := json.Unmarshal(line, &u); err != nil {
			return "", 0, fmt.Errorf("read an update of a bare Hermes: %w", err)
		}
		if u.Params.Update.Kind != "agent_message_chunk" {
			continue
		}
		var c struct{ Text string }
		if err := json.Unmarshal(u.Params.Update.Content, &c); err != nil {
			return "", 0, fmt.Errorf("read an update of a bare Hermes: %w", err)
		}
		reply += c.Text
	}
	return reply, took, nil
}

// call sends a request and returns its answer and the lines before it. Only lines that can be the
// answer are decoded: what is measured is Hermes.
func (b *bare) call(method string, params any) (answer json.RawMessage, before [][]byte, err error) {
	b.id++
	line, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": b.id, "method": method, "params": params})
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", method, err)
	}
	if _, err := b.stdin.Write(append(line, '\n')); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", method, err)
	}
	for {
		line, err := b.lines.ReadBytes('\n')
		if err != nil {
			return nil, nil, fmt.Errorf("%s: read the answer: %w", method, err)
		}
		if strings.Contains(string(line), `"method"`) {
			before = append(before, line)
			continue
		}
		var m struct {
			ID     int             `json:"id"`
			Result json.RawMessage `json:"result"`
			Error  json.RawMessage `json:"error"`
		}
		if err := json.Unmarshal(line, &m); err != nil {
			return nil, nil, fmt.Errorf("%s: read the answer: %w", method, err)
		}
		if m.ID != b.id {
			continue
		}
		if m.Error != nil {
			return nil, nil, fmt.Errorf("%s: answered %s", method, m.Error)
		}
		return m.Result, before, nil
	}
}

// stop ends Hermes as its protocol does, by the end of its input.
func (b *bare) stop() error {
	if err := b.process.stop(b.stdin.Close, bareExit); err != nil {
		return fmt.Errorf("stop a bare Hermes: %w", err)
	}
	return nil
}
