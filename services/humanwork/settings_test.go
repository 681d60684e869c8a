package humanwork

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func loadSettings(t *testing.T, env map[string]string, args ...string) (Settings, error) {
	t.Helper()
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	AddFlags(flags)
	if err := flags.Parse(args); err != nil {
		t.Fatal(err)
	}
	return LoadSettings(flags, func(k string) (string, bool) { v, ok := env[k]; return v, ok })
}

func TestSettingsPrecedence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "humanwork.yaml")
	if err := os.WriteFile(file, []byte("http_addr: 127.0.0.1:1\nmodel_name: of-file\nmodel_base_url: http://127.0.0.1:9/v1\ndata_dir: state\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loadSettings(t, map[string]string{"HUMANWORK_HTTP_ADDR": "127.0.0.1:2", "HUMANWORK_MODEL_NAME": "of-environment", "HUMANWORK_TOKEN": ""},
		"--config", file, "--http-addr", "127.0.0.1:3")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, got, want string }{
		{"flag over environment over file", got.HTTPAddr, "127.0.0.1:3"},
		{"environment over file", got.ModelName, "of-environment"},
		{"file over default", got.ModelBaseURL, "http://127.0.0.1:9/v1"},
		{"relative to the file", got.DataDir, filepath.Join(filepath.Dir(file), "state")},
		{"empty environment is unset", got.Token, ""},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.name, tc.got, tc.want)
		}
	}
}

func TestSettingsDefaults(t *testing.T) {
	got, err := loadSettings(t, nil)
	if err != nil {
		t.Fatal(err)
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	if want := filepath.Join(wd, ".humanwork"); got.DataDir != want || got.HTTPAddr != "127.0.0.1:8080" {
		t.Errorf("defaults = %q, %q, want %q, 127.0.0.1:8080", got.DataDir, got.HTTPAddr, want)
	}
}

func TestSettingsReportEveryProblem(t *testing.T) {
	_, err := loadSettings(t, nil, "--http-addr", ":8080", "--token", "short", "--model-base-url", "ftp://x", "--postgres-url", "mysql://x")
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"http-addr", "token", "model-base-url", "model-name", "postgres-url"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not name %s", err, want)
		}
	}
}

func TestUnknownKeysOfTheFileAreNamed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "humanwork.yaml")
	if err := os.WriteFile(file, []byte("http_adr: x\ntokn: y\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := loadSettings(t, nil, "--config", file)
	if err == nil || !strings.Contains(err.Error(), "http_adr") || !strings.Contains(err.Error(), "tokn") {
		t.Errorf("error = %v, want both unknown keys named", err)
	}
}
