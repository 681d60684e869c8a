package gateway

import (
	"fmt"
	"slices"
	"time"

	"humanwork.internal/pkg/config"
	"humanwork.internal/pkg/rpc"
)

// Config is the service's part of its configuration file. Durations are written like 15s.
type Config struct {
	// Routing, Ingress and AgentFS are the gRPC targets of the services behind the gateway.
	Routing string `yaml:"routing"`
	Ingress string `yaml:"ingress"`
	AgentFS string `yaml:"agentfs"`
	// Watched are further services whose health /readyz reports, beside those.
	Watched []Watched `yaml:"watched"`
	// Tokens are the bearer tokens that sign in.
	Tokens []Token `yaml:"tokens"`
	// MaxBodyBytes bounds a JSON body; default 16 MiB.
	MaxBodyBytes int64 `yaml:"max_body_bytes"`
	// MaxFileBytes bounds a file, default 5 GiB; MaxAttachmentBytes an attachment, default 256 MiB.
	// agentfs has limits of its own; these spare it what it would refuse.
	MaxFileBytes       int64 `yaml:"max_file_bytes"`
	MaxAttachmentBytes int64 `yaml:"max_attachment_bytes"`
	// BodyTimeout bounds the arrival of a JSON body; a file's may take any time, but no longer than
	// this without a byte; default 1m.
	BodyTimeout time.Duration `yaml:"body_timeout"`
	// WriteTimeout bounds the sending of an answer, of each event, and of each part of a file;
	// default 30s.
	WriteTimeout time.Duration `yaml:"write_timeout"`
	// RequestTimeout bounds the work for a request that does not wait, and how long agentfs may make
	// no progress in a transfer; default 2m, which has room for the start of an agent.
	RequestTimeout time.Duration `yaml:"request_timeout"`
	// MaintenanceTimeout bounds each step of work on an organization's whole AgentFS: check,
	// snapshot, export, restore; default 1h.
	MaintenanceTimeout time.Duration `yaml:"maintenance_timeout"`
	// AttachTimeout bounds the attaching of an event stream; default 10s.
	AttachTimeout time.Duration `yaml:"attach_timeout"`
	// Heartbeat is the longest silence of an event stream; default 15s. Proxies cut silent
	// connections, commonly after 60s.
	Heartbeat time.Duration `yaml:"heartbeat"`
}

// Watched names a service and its gRPC target.
type Watched struct {
	Name   string `yaml:"name"`
	Target string `yaml:"target"`
}

// Token is one bearer token and whom it stands for.
type Token struct {
	// TokenFile holds the token: 16 or more visible ASCII characters.
	TokenFile string `yaml:"token_file"`
	// Subject names the caller in logs and records.
	Subject string `yaml:"subject"`
	// Organization is the one a member belongs to.
	Organization string `yaml:"organization"`
	// Roles are admin or member.
	Roles []string `yaml:"roles"`
}

// maxBody keeps a turn below what one gRPC message takes.
const maxBody = rpc.MaxMessageBytes / 2

// Validate checks the configuration, fills in defaults and makes paths absolute.
func (c *Config) Validate(base string) error {
	var p config.Problems
	p.Require("routing", c.Routing)
	p.Require("ingress", c.Ingress)
	p.Require("agentfs", c.AgentFS)
	if c.MaxBodyBytes == 0 {
		c.MaxBodyBytes = 16 << 20
	}
	if c.MaxBodyBytes < 0 || c.MaxBodyBytes > maxBody {
		p.Addf("max_body_bytes", "is %d, want 1 to %d", c.MaxBodyBytes, maxBody)
	}
	for _, b := range []struct {
		key    string
		value  *int64
		preset int64
	}{{"max_file_bytes", &c.MaxFileBytes, 5 << 30}, {"max_attachment_bytes", &c.MaxAttachmentBytes, 256 << 20}} {
		if *b.value == 0 {
			*b.value = b.preset
		}
		if *b.value < 0 {
			p.Addf(b.key, "is %d, want more than 0", *b.value)
		}
	}
	for _, d := range []struct {
		key    string
		value  *time.Duration
		preset time.Duration
	}{
		{"body_timeout", &c.BodyTimeout, time.Minute},
		{"write_timeout", &c.WriteTimeout, 30 * time.Second},
		{"request_timeout", &c.RequestTimeout, 2 * time.Minute},
		{"maintenance_timeout", &c.MaintenanceTimeout, time.Hour},
		{"attach_timeout", &c.AttachTimeout, 10 * time.Second},
		{"heartbeat", &c.Heartbeat, 15 * time.Second},
	} {
		if *d.value == 0 {
			*d.value = d.preset
		}
		if *d.value < 0 {
			p.Addf(d.key, "is %v, want more than 0", *d.value)
		}
	}
	for i, w := range c.Watched {
		p.Require(fmt.Sprintf("watched[%d].name", i), w.Name)
		p.Require(fmt.Sprintf("watched[%d].target", i), w.Target)
	}
	if len(c.Tokens) == 0 {
		p.Addf("tokens", "lists no token, so nobody could sign in")
	}
	for i := range c.Tokens {
		c.Tokens[i].validate(&p, fmt.Sprintf("tokens[%d]", i), base)
	}
	return p.Err()
}

func (t *Token) validate(p *config.Problems, key, base string) {
	p.Require(key+".token_file", t.TokenFile)
	p.Require(key+".subject", t.Subject)
	t.TokenFile = config.Path(base, t.TokenFile)
	if len(t.Roles) == 0 {
		p.Addf(key+".roles", "is empty, want %s or %s", rpc.RoleAdmin, rpc.RoleMember)
	}
	for _, role := range t.Roles {
		// A token must never speak for a service.
		if role != rpc.RoleAdmin && role != rpc.RoleMember {
			p.Addf(key+".roles", "has %q, want %s or %s", role, rpc.RoleAdmin, rpc.RoleMember)
		}
	}
	if slices.Contains(t.Roles, rpc.RoleMember) {
		p.Require(key+".organization", t.Organization)
	}
}
