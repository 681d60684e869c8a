package home

import (
	"bytes"
	"fmt"
	"net/url"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Model is the OpenAI-compatible endpoint of an organization.
type Model struct {
	BaseURL string
	Name    string
	APIKey  string
	// ContextLength in tokens; with 0 Hermes probes the endpoint and openrouter.ai for it.
	ContextLength int64
}

// Check reports what could not be carried to Hermes as it is.
func (m Model) Check() error {
	u, err := url.Parse(m.BaseURL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("base URL is not an http or https URL")
	}
	for _, f := range []struct{ name, value string }{{"base URL", m.BaseURL}, {"name", m.Name}, {"API key", m.APIKey}} {
		if f.value == "" {
			return fmt.Errorf("%s is empty", f.name)
		}
		// Hermes replaces ${NAME} in every configuration value and has no escape for it.
		if strings.Contains(f.value, "${") {
			return fmt.Errorf("%s holds %q, which Hermes would expand", f.name, "${")
		}
		if strings.ContainsFunc(f.value, unicode.IsControl) {
			return fmt.Errorf("%s holds a control character", f.name)
		}
	}
	for _, r := range m.APIKey {
		if r > unicode.MaxASCII {
			return fmt.Errorf("API key is not ASCII, so no HTTP header can carry it")
		}
	}
	if m.ContextLength < 0 {
		return fmt.Errorf("context length is %d, want at least 0", m.ContextLength)
	}
	return nil
}

// hermesConfig is the part of Hermes's config.yaml that is set. Everything else is Hermes's own
// default: toolsets above all, which Humanwork never narrows.
type hermesConfig struct {
	Model struct {
		Default       string `yaml:"default"`
		Provider      string `yaml:"provider"`
		BaseURL       string `yaml:"base_url"`
		APIKey        string `yaml:"api_key"`
		ContextLength int64  `yaml:"context_length,omitempty"`
	} `yaml:"model"`
	Compression struct {
		InPlace bool `yaml:"in_place"`
	} `yaml:"compression"`
	Approvals struct {
		Mode string `yaml:"mode"`
	} `yaml:"approvals"`
	Security struct {
		TirithEnabled     bool `yaml:"tirith_enabled"`
		AllowLazyInstalls bool `yaml:"allow_lazy_installs"`
	} `yaml:"security"`
}

// renderConfig returns an organization's config.yaml. The pinned values, each tried on the real
// Hermes 0.19.0:
//   - compression.in_place: without it compaction changes the session id, and prompting the old one
//     forks the history;
//   - approvals.mode manual: "smart", the default, asks the model whether a dangerous command is
//     fine, which costs a model call and may skip the native permission request;
//   - security.tirith_enabled off: on, the first terminal call downloads a scanner from github.com;
//   - security.allow_lazy_installs off: on, a tool may run pip in the runtime's environment.
func renderConfig(m Model) ([]byte, error) {
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("model: %w", err)
	}
	var c hermesConfig
	c.Model.Default, c.Model.Provider = m.Name, "custom"
	c.Model.BaseURL, c.Model.APIKey, c.Model.ContextLength = m.BaseURL, m.APIKey, m.ContextLength
	c.Compression.InPlace = true
	c.Approvals.Mode = "manual"
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(c); err != nil {
		return nil, fmt.Errorf("render config.yaml: %w", err)
	}
	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("render config.yaml: %w", err)
	}
	return out.Bytes(), nil
}
