package agentfs

import (
	"net/url"
	"strings"
	"time"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/config"
	"humanwork.internal/services/agentfs/internal/home"
	"humanwork.internal/services/agentfs/internal/store"
)

// Config is the service's part of its configuration file. A limit left out has the default that
// is named.
type Config struct {
	// DataDir holds organizations/<id>.db, snapshots/<id>/<name>.db, and the lock of this process.
	DataDir string `yaml:"data_dir"`
	// Databases are remote ones, instead of DataDir.
	Databases Databases `yaml:"databases"`
	// Routing and Ingress are gRPC targets: who exists, and who is told of changed files.
	Routing string `yaml:"routing"`
	Ingress string `yaml:"ingress"`
	// Model is written into the private configuration of new organizations.
	Model Model `yaml:"model"`
	// Soul is the SOUL.md of new organizations; empty: Hermes's own identity.
	Soul string `yaml:"soul"`
	// Quota bounds what is kept.
	Quota struct {
		Organization Quota `yaml:"organization"`
		Conversation Quota `yaml:"conversation"`
	} `yaml:"quota"`
	// MaxFileBytes and MaxAttachmentBytes bound one upload; default 5 GiB and 256 MiB.
	MaxFileBytes       int64 `yaml:"max_file_bytes"`
	MaxAttachmentBytes int64 `yaml:"max_attachment_bytes"`
	// MaxTransfers bounds the uploads that run at once, and the downloads; those above wait. Each
	// upload keeps up to 6 MiB in memory. Default 64.
	MaxTransfers int `yaml:"max_transfers"`
	// StallTimeout is how long a running upload may send nothing; default 1m.
	StallTimeout time.Duration `yaml:"stall_timeout"`
	// RememberedConversations bounds the memory of which conversations exist; default 100000.
	RememberedConversations int `yaml:"remembered_conversations"`
}

// Databases says where remote libSQL databases are.
type Databases struct {
	// URL has {organization} where the organization's id belongs: libsql, https or http.
	URL string `yaml:"url"`
	// TokenFile holds the token that the server asks for; empty: none.
	TokenFile string `yaml:"token_file"`
}

// Quota bounds bytes and files; 0: no limit.
type Quota struct {
	Bytes int64 `yaml:"bytes"`
	Files int64 `yaml:"files"`
}

func (q Quota) limits() core.Limits { return core.Limits{Bytes: q.Bytes, Files: q.Files} }

// Model is an OpenAI-compatible endpoint.
type Model struct {
	BaseURL string `yaml:"base_url"`
	Name    string `yaml:"name"`
	// APIKeyFile holds the key; read once, at start.
	APIKeyFile string `yaml:"api_key_file"`
	// ContextLength in tokens; 0: Hermes asks the endpoint, and openrouter.ai, when a session starts.
	ContextLength int64 `yaml:"context_length"`
}

func (m Model) home(key string) home.Model {
	return home.Model{BaseURL: m.BaseURL, Name: m.Name, APIKey: key, ContextLength: m.ContextLength}
}

// Validate checks the configuration, fills in defaults and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("routing", c.Routing)
	p.Require("ingress", c.Ingress)
	p.Require("model.api_key_file", c.Model.APIKeyFile)
	c.DataDir = config.Path(base, c.DataDir)
	c.Model.APIKeyFile = config.Path(base, c.Model.APIKeyFile)
	c.Databases.TokenFile = config.Path(base, c.Databases.TokenFile)
	switch {
	case c.DataDir == "" && c.Databases.URL == "":
		p.Addf("data_dir", "is required, or databases.url")
	case c.DataDir != "" && c.Databases.URL != "":
		p.Addf("databases.url", "is given beside data_dir; want one of them")
	case c.Databases.URL != "":
		// The placeholder's braces are no part of any URL.
		u, err := url.Parse(strings.ReplaceAll(c.Databases.URL, store.Placeholder, "x"))
		if err != nil || u.Scheme != "libsql" && u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			p.Addf("databases.url", "is not a libsql, https or http URL")
		}
		if !strings.Contains(c.Databases.URL, store.Placeholder) {
			p.Addf("databases.url", "holds no %s: organizations would share a database", store.Placeholder)
		}
	}
	// The key is not read here: a file's absence is the start's to report.
	if err := c.Model.home("unread").Check(); err != nil {
		p.Addf("model", "%v", err)
	}
	if _, err := home.Effective(home.Private{}, c.Soul, nil); err != nil {
		p.Addf("soul", "holds a NUL or is not valid UTF-8")
	}
	for _, n := range []struct {
		key       string
		value     *int64
		otherwise int64
	}{
		{"max_file_bytes", &c.MaxFileBytes, 5 << 30}, {"max_attachment_bytes", &c.MaxAttachmentBytes, 256 << 20},
		{"quota.organization.bytes", &c.Quota.Organization.Bytes, 0}, {"quota.organization.files", &c.Quota.Organization.Files, 0},
		{"quota.conversation.bytes", &c.Quota.Conversation.Bytes, 0}, {"quota.conversation.files", &c.Quota.Conversation.Files, 0},
	} {
		if *n.value < 0 {
			p.Addf(n.key, "is %d, want at least 0", *n.value)
		}
		if *n.value == 0 {
			*n.value = n.otherwise
		}
	}
	if c.MaxFileBytes > core.MaxSize {
		p.Addf("max_file_bytes", "is %d, want at most %d", c.MaxFileBytes, int64(core.MaxSize))
	}
	for _, n := range []struct {
		key            string
		value          *int
		otherwise, max int
	}{{"max_transfers", &c.MaxTransfers, 64, 10_000}, {"remembered_conversations", &c.RememberedConversations, 100_000, 10_000_000}} {
		if *n.value == 0 {
			*n.value = n.otherwise
		}
		if *n.value < 1 || *n.value > n.max {
			p.Addf(n.key, "is %d, want 1 to %d", *n.value, n.max)
		}
	}
	if c.StallTimeout == 0 {
		c.StallTimeout = time.Minute
	}
	if c.StallTimeout < 0 {
		p.Addf("stall_timeout", "is %s, want more than 0", c.StallTimeout)
	}
	return p.Err()
}
