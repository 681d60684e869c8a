// Package home says which files an organization and a conversation begin with, and what is in
// them. They are written once; nothing here is rendered again for a turn.
package home

import (
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/namespace"
)

// Names of the private files at both levels.
const (
	EnvName    = ".env"
	SoulName   = "SOUL.md"
	ConfigName = "config.yaml"
)

// Defaults are what every new organization begins with.
type Defaults struct {
	Model Model
	// Soul is the text of SOUL.md; with none Hermes keeps its own identity.
	Soul string
}

func dir(path string) agentfs.Node { return agentfs.Node{Path: path, Mode: agentfs.TypeDir | 0o700} }

func file(path string, content []byte) agentfs.Node {
	return agentfs.Node{Path: path, Mode: agentfs.TypeFile | 0o600, Content: content}
}

// Organization returns the canonical hierarchy of a new organization, parents first.
func Organization(d Defaults) ([]agentfs.Node, error) {
	config, err := renderConfig(d.Model)
	if err != nil {
		return nil, err
	}
	return []agentfs.Node{
		file("/"+EnvName, nil),
		file("/"+SoulName, []byte(d.Soul)),
		file("/"+ConfigName, config),
		dir("/memory"),
		dir("/skills"),
		dir("/conversations"),
	}, nil
}

// Private is the content of one level's private files.
type Private struct{ Env, Soul, Config []byte }

// Paths returns the private files of a conversation, or of the organization if it is empty, in the
// order of Private's fields.
func Paths(conversation string) []string {
	root := "/"
	if conversation != "" {
		root = namespace.Home(conversation) + "/"
	}
	return []string{root + EnvName, root + SoulName, root + ConfigName}
}

// Effective returns a conversation's private files: the organization's, with its own persona and
// with its environment after the organization's, so that it wins.
func Effective(organization Private, persona string, environment map[string]string) (Private, error) {
	if strings.ContainsRune(persona, 0) || !utf8.ValidString(persona) {
		return Private{}, errs.New(errs.Invalid, fault.InvalidPersona, "persona holds a NUL or is not valid UTF-8")
	}
	env, err := appendEnv(organization.Env, environment)
	if err != nil {
		return Private{}, err
	}
	p := Private{Env: env, Soul: organization.Soul, Config: organization.Config}
	if persona != "" {
		p.Soul = []byte(persona)
	}
	return p, nil
}

// Conversation returns the hierarchy of a conversation, parents first. It has a quota of its own.
func Conversation(conversation string, p Private) []agentfs.Node {
	root := namespace.Home(conversation)
	nodes := []agentfs.Node{dir(root)}
	nodes[0].Project = true
	for i, content := range [][]byte{p.Env, p.Soul, p.Config} {
		nodes = append(nodes, file(Paths(conversation)[i], content))
	}
	for _, name := range []string{"state", "work", "artifacts", "artifacts/inbound", "artifacts/outbound", "logs"} {
		nodes = append(nodes, dir(root+"/"+name))
	}
	return nodes
}
