package humanwork

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"

	"github.com/spf13/pflag"

	"humanwork.internal/pkg/config"
)

// Settings are what a person may choose about one instance of the development command. Each is a
// flag, an environment variable and a key of the configuration file; a flag wins over the
// environment, that over the file, and that over the default.
type Settings struct {
	DataDir      string `yaml:"data_dir"`
	HTTPAddr     string `yaml:"http_addr"`
	Token        string `yaml:"token"`
	ModelBaseURL string `yaml:"model_base_url"`
	ModelName    string `yaml:"model_name"`
	ModelAPIKey  string `yaml:"model_api_key"`
	PostgresURL  string `yaml:"postgres_url"`
	HermesVenv   string `yaml:"hermes_venv"`
}

// setting binds one field to its flag; the environment variable is HUMANWORK_ and the flag's name
// in capitals.
type setting struct {
	flag, env, fallback, usage string
	field                      func(*Settings) *string
}

var settings = []setting{
	{"data-dir", "HUMANWORK_DATA_DIR", ".humanwork", "`directory` of everything the instance keeps", func(s *Settings) *string { return &s.DataDir }},
	{"http-addr", "HUMANWORK_HTTP_ADDR", "127.0.0.1:8080", "`address` of the REST API; port 0 chooses a free one", func(s *Settings) *string { return &s.HTTPAddr }},
	{"token", "HUMANWORK_TOKEN", "", "the development administrator's bearer `token`; made and kept in the data directory when unset", func(s *Settings) *string { return &s.Token }},
	{"model-base-url", "HUMANWORK_MODEL_BASE_URL", "", "`URL` of an OpenAI-compatible endpoint for new organizations; a scripted demo model when unset", func(s *Settings) *string { return &s.ModelBaseURL }},
	{"model-name", "HUMANWORK_MODEL_NAME", "", "`name` of the model to ask for", func(s *Settings) *string { return &s.ModelName }},
	{"model-api-key", "HUMANWORK_MODEL_API_KEY", "", "`key` of the endpoint; prefer the environment, flags can be seen by other users", func(s *Settings) *string { return &s.ModelAPIKey }},
	{"postgres-url", "HUMANWORK_POSTGRES_URL", "", "`URL` of an existing database instead of the embedded one", func(s *Settings) *string { return &s.PostgresURL }},
	{"hermes-venv", "HUMANWORK_HERMES_VENV", "", "existing virtual environment, a `directory`, with Hermes instead of an own one; it is checked and never changed", func(s *Settings) *string { return &s.HermesVenv }},
}

// AddFlags declares the settings' flags and --config.
func AddFlags(flags *pflag.FlagSet) {
	flags.String("config", "", "YAML `file` with the same settings, keys with underscores")
	for _, s := range settings {
		usage := s.usage + " [$" + s.env + "]"
		flags.String(s.flag, s.fallback, usage)
	}
}

// LoadSettings reads the settings that AddFlags declared. The error names every problem.
func LoadSettings(flags *pflag.FlagSet, lookupEnv func(string) (string, bool)) (Settings, error) {
	var out Settings
	for _, s := range settings {
		*s.field(&out) = s.fallback
	}
	path, err := flags.GetString("config")
	if err != nil {
		return Settings{}, fmt.Errorf("read flags: %w", err)
	}
	base := "."
	if path != "" {
		if err := config.Load(path, &fileSettings{&out}); err != nil {
			return Settings{}, err
		}
		base = filepath.Dir(path)
	}
	if out.DataDir != settings[0].fallback {
		out.DataDir = config.Path(base, out.DataDir)
	}
	out.HermesVenv = config.Path(base, out.HermesVenv)
	for _, s := range settings {
		if v, ok := lookupEnv(s.env); ok && v != "" {
			*s.field(&out) = v
		}
		if f := flags.Lookup(s.flag); f.Changed {
			*s.field(&out) = f.Value.String()
		}
	}
	return out, out.validate()
}

// fileSettings checks nothing by itself: the environment and flags may still change every value.
type fileSettings struct{ *Settings }

func (*fileSettings) Validate(string) error { return nil }

// UnmarshalYAML reads into the settings with their defaults in place.
func (f *fileSettings) UnmarshalYAML(decode func(any) error) error { return decode(f.Settings) }

func (s *Settings) validate() error {
	var p config.Problems
	p.Require("data-dir", s.DataDir)
	if host, _, err := net.SplitHostPort(s.HTTPAddr); err != nil {
		p.Addf("http-addr", "is %q, want host:port", s.HTTPAddr)
	} else if host == "" {
		p.Addf("http-addr", "is %q: name the host, for example 127.0.0.1%s, so that the API is not served to the whole network by accident", s.HTTPAddr, s.HTTPAddr)
	}
	if s.Token != "" && len(s.Token) < 16 {
		p.Addf("token", "has %d characters, want at least 16", len(s.Token))
	}
	if s.ModelBaseURL == "" && (s.ModelName != "" || s.ModelAPIKey != "") {
		p.Addf("model-base-url", "is required when model-name or model-api-key is set")
	}
	if s.ModelBaseURL != "" {
		if u, err := url.Parse(s.ModelBaseURL); err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
			p.Addf("model-base-url", "is %q, want http:// or https://", s.ModelBaseURL)
		}
		p.Require("model-name", s.ModelName)
	}
	if s.PostgresURL != "" {
		if u, err := url.Parse(s.PostgresURL); err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
			p.Addf("postgres-url", "is not a postgres:// URL")
		}
	}
	abs, err := filepath.Abs(s.DataDir)
	s.DataDir = abs
	return errors.Join(p.Err(), err)
}
