package home

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
)

func TestConfigCarriesHostileValues(t *testing.T) {
	for _, m := range []Model{
		{BaseURL: "http://127.0.0.1:8080/v1", Name: "m", APIKey: "sk-1"},
		{BaseURL: "https://model.example/v1?a=b#c", Name: "yes", APIKey: "0x1F", ContextLength: 131072},
		{BaseURL: "https://h/", Name: "a: b # c", APIKey: `'"\{[&*!|>%@` + "`"},
		{BaseURL: "https://h/", Name: "2024-01-05", APIKey: "null"},
		{BaseURL: "https://h/", Name: "naïve 名 \u202e", APIKey: "- x"},
	} {
		nodes, err := Organization(Defaults{Model: m})
		if err != nil {
			t.Errorf("%+v: %v", m, err)
			continue
		}
		var got map[string]map[string]any
		if err := yaml.Unmarshal(nodes[2].Content, &got); err != nil {
			t.Fatalf("%+v: %v\n%s", m, err, nodes[2].Content)
		}
		want := map[string]any{"default": m.Name, "provider": "custom", "base_url": m.BaseURL, "api_key": m.APIKey}
		if m.ContextLength > 0 {
			want["context_length"] = int(m.ContextLength)
		}
		if fmt.Sprintf("%#v", got["model"]) != fmt.Sprintf("%#v", want) {
			t.Errorf("model = %#v, want %#v", got["model"], want)
		}
		if got["compression"]["in_place"] != true || got["approvals"]["mode"] != "manual" ||
			got["security"]["tirith_enabled"] != false || got["security"]["allow_lazy_installs"] != false {
			t.Errorf("pinned values are %v", got)
		}
	}
}

func TestModelRefusesWhatHermesWouldChange(t *testing.T) {
	good := Model{BaseURL: "http://h/v1", Name: "m", APIKey: "k"}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Model){
		"no URL": func(m *Model) { m.BaseURL = "" }, "file URL": func(m *Model) { m.BaseURL = "file:///etc" },
		"no host": func(m *Model) { m.BaseURL = "http://" }, "no name": func(m *Model) { m.Name = "" }, "no key": func(m *Model) { m.APIKey = "" },
		"reference in name": func(m *Model) { m.Name = "x${HOME}" }, "reference in key": func(m *Model) { m.APIKey = "${OPENAI_API_KEY}" },
		"two-line key": func(m *Model) { m.APIKey = "a\nb" }, "key that is not ASCII": func(m *Model) { m.APIKey = "schlüssel" },
		"negative context": func(m *Model) { m.ContextLength = -1 },
	} {
		m := good
		change(&m)
		if err := m.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestEffectiveFiles(t *testing.T) {
	org := Private{Env: []byte("A=1"), Soul: []byte("ours"), Config: []byte("model: {}\n")}
	got, err := Effective(org, "", map[string]string{"B": "2", "A": "3"})
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Env) != "A=1\nA=3\nB=2\n" || string(got.Soul) != "ours" || string(got.Config) != "model: {}\n" {
		t.Errorf("without persona: got %q", got)
	}
	got, err = Effective(org, " its own\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if string(got.Env) != "A=1\n" || string(got.Soul) != " its own\n" {
		t.Errorf("with persona: got %q", got)
	}
	if string(org.Env) != "A=1" {
		t.Errorf("the organization's .env became %q", org.Env)
	}
}

func TestEffectiveRefuses(t *testing.T) {
	many := map[string]string{}
	for i := range maxVariables + 1 {
		many[fmt.Sprintf("V%d", i)] = ""
	}
	for name, env := range map[string]map[string]string{
		"digit first": {"1A": ""}, "empty name": {"": ""}, "line end in name": {"A\n": ""}, "equals sign in name": {"A=B": ""}, "dash": {"A-B": ""},
		"home": {"HERMES_HOME": "/x"}, "no approvals": {"HERMES_YOLO_MODE": "1"}, "loader": {"LD_PRELOAD": "/x"}, "path": {"PATH": "/x"},
		"python": {"PYTHONPATH": "/x"}, "shell start": {"BASH_ENV": "/x"}, "backend": {"TERMINAL_ENV": "ssh"},
		"NUL": {"A": "a\x00b"}, "bad UTF-8": {"A": "\xff"}, "too long": {"A": strings.Repeat("x", maxValueBytes+1)}, "too many": many,
	} {
		if _, err := Effective(Private{}, "", env); !errors.Is(err, errs.Invalid) || !errors.Is(err, fault.InvalidEnvironment) {
			t.Errorf("%s: got %v, want INVALID_ENVIRONMENT", name, err)
		}
	}
	if _, err := Effective(Private{}, "a\x00b", nil); !errors.Is(err, fault.InvalidPersona) {
		t.Errorf("persona with NUL: got %v, want INVALID_PERSONA", err)
	}
}

func TestConversationTree(t *testing.T) {
	nodes := Conversation("c1", Private{Env: []byte("e"), Soul: []byte("s"), Config: []byte("c")})
	var got []string
	for _, n := range nodes {
		kind := "/"
		if n.Mode&agentfs.TypeMask == agentfs.TypeFile {
			kind = "=" + string(n.Content)
		}
		got = append(got, strings.TrimPrefix(n.Path, "/conversations/c1")+kind)
	}
	if !nodes[0].Project {
		t.Error("a conversation has no quota of its own")
	}
	want := "/ /.env=e /SOUL.md=s /config.yaml=c /state/ /work/ /artifacts/ /artifacts/inbound/ /artifacts/outbound/ /logs/"
	if s := strings.Join(got, " "); s != want {
		t.Errorf("got  %s\nwant %s", s, want)
	}
}
