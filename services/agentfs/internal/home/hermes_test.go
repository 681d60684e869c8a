package home

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hermesVariable names the directory of a virtual environment with the real Hermes.
const hermesVariable = "HUMANWORK_TEST_HERMES"

func python(t *testing.T) string {
	t.Helper()
	venv := os.Getenv(hermesVariable)
	if venv == "" {
		t.Skipf("%s is not set", hermesVariable)
	}
	return filepath.Join(venv, "bin", "python")
}

// hostile returns values that quoting gets wrong, each once under a name Hermes knows as its own
// setting and once under one it does not.
func hostile() map[string]string {
	values := []string{
		"", " ", "plain", "with space", " outer ", "line\nend", "\n", "\r\n", "cr\rlf", "tab\t", "\v\f\a\b",
		"#not a comment", "a #b", "a=b", "==", "'", "''", `"`, `""`, `\`, `\\`, `\\\`, `\n`, `\"`, `"\`, `\'`, `'\`, `a\`, `"a"\`,
		"$HOME", "${HOME}", "${HOME:-x}", "$", "${", "${}", "$${HOME}", `\${HOME}`, "}{", "${:-$}",
		"***", "export A=b", "a\n#b\n c=d\n", "abcOPENAI_BASE_URL=http://x", "xOPENAI_API_KEY=yTELEGRAM_BOT_TOKEN=z",
		"naïve 名 😀", "\u2028\u0085", "=", "a\nOPENAI_API_KEY=stolen", "'single'", "`id`", "$(id)", "%PATH%",
	}
	alphabet := []rune("aB_=$\\\"'{}:-# \n\r\t*é")
	// The same texts in every run.
	random := rand.New(rand.NewPCG(1, 2))
	for range 40 {
		var b strings.Builder
		for range random.IntN(24) {
			b.WriteRune(alphabet[random.IntN(len(alphabet))])
		}
		values = append(values, b.String())
	}
	out := map[string]string{}
	for i, v := range values {
		if len(out) < maxVariables {
			out[fmt.Sprintf("V_%03d", i)] = v
		}
	}
	return out
}

func TestEnvRoundTripsThroughHermes(t *testing.T) {
	bin := python(t)
	all := hostile()
	all["OPENAI_API_KEY"] = "abcOPENAI_BASE_URL=http://x"
	all["TELEGRAM_BOT_TOKEN"] = "***"
	if len(all) > maxVariables {
		delete(all, "V_097")
		delete(all, "V_098")
		delete(all, "V_099")
	}
	env, err := appendEnv(nil, all)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, EnvName), env, 0o600); err != nil {
		t.Fatal(err)
	}
	// Hermes's own loader, which first rewrites what it takes for a corrupt file, and python-dotenv.
	const script = `
import json, os, sys
from dotenv import dotenv_values
from hermes_cli.env_loader import load_hermes_dotenv
home = sys.argv[1]
path = home + "/.env"
before = open(path, "rb").read()
plain = dotenv_values(path)
load_hermes_dotenv(hermes_home=home)
json.dump({"dotenv": plain, "hermes": {k: os.environ.get(k) for k in plain},
           "unchanged": open(path, "rb").read() == before}, sys.stdout)
`
	cmd := exec.Command(bin, "-c", script, home)
	cmd.Env = []string{"HOME=" + home, "HERMES_HOME=" + home, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var got struct {
		Dotenv, Hermes map[string]string
		Unchanged      bool
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, loader := range []struct {
		name   string
		values map[string]string
	}{{"python-dotenv", got.Dotenv}, {"Hermes", got.Hermes}} {
		if len(loader.values) != len(all) {
			t.Errorf("%s read %d variables, want %d", loader.name, len(loader.values), len(all))
		}
		for name, want := range all {
			if v := loader.values[name]; v != want {
				t.Errorf("%s: %s = %q, want %q", loader.name, name, v, want)
			}
		}
	}
	if !got.Unchanged {
		t.Error("Hermes rewrote .env")
	}
}

func TestConfigIsWhatHermesReads(t *testing.T) {
	bin := python(t)
	m := Model{BaseURL: "http://127.0.0.1:9/v1?x=y", Name: "a: b # 'c' \"d\"", APIKey: `k'"\{[`, ContextLength: 131072}
	nodes, err := Organization(Defaults{Model: m})
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	if err := os.WriteFile(filepath.Join(home, ConfigName), nodes[2].Content, 0o600); err != nil {
		t.Fatal(err)
	}
	const script = `
import json, sys
from hermes_cli.config import load_config
from tools.approval import _get_approval_mode
from tools.lazy_deps import _allow_lazy_installs
from tools.tirith_security import _load_security_config
c = load_config()
json.dump([c["model"], c["compression"]["in_place"], _get_approval_mode(), _allow_lazy_installs(),
           _load_security_config()["tirith_enabled"]], sys.stdout)
`
	cmd := exec.Command(bin, "-c", script)
	cmd.Env = []string{"HOME=" + home, "HERMES_HOME=" + home, "PATH=/usr/bin:/bin", "LANG=C.UTF-8"}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	var got []any
	if err := json.Unmarshal(out, &got); err != nil || len(got) != 5 {
		t.Fatalf("%v\n%s", err, out)
	}
	model, _ := got[0].(map[string]any)
	for key, want := range map[string]any{"default": m.Name, "provider": "custom", "base_url": m.BaseURL, "api_key": m.APIKey, "context_length": 131072.0} {
		if model[key] != want {
			t.Errorf("model.%s = %v, want %v", key, model[key], want)
		}
	}
	if got[1] != true || got[2] != "manual" || got[3] != false || got[4] != false {
		t.Errorf("in_place, approvals, lazy installs, tirith = %v, want true manual false false", got[1:])
	}
}
