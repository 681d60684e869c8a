// Package home says which files an organization and a conversation begin with, and what is in
// them. They are written once; nothing here is rendered again for a turn.
package home

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/tree"
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

// Organization returns the canonical hierarchy of a new organization, parents first.
func Organization(d Defaults) ([]tree.Node, error) {
	config, err := renderConfig(d.Model)
	if err != nil {
		return nil, err
	}
	return []tree.Node{
		tree.File("/"+EnvName, nil),
		tree.File("/"+SoulName, []byte(d.Soul)),
		tree.File("/"+ConfigName, config),
		tree.Dir("/memory"),
		tree.Dir("/skills"),
		tree.Dir("/conversations"),
	}, nil
}

// Private is the content of one level's private files.
type Private struct{ Env, Soul, Config []byte }

// Paths returns the private files of a conversation, or of the organization if it is empty, in the
// order of Private's fields.
func Paths(conversation string) []string {
	root := "/"
	if conversation != "" {
		root = Root(conversation) + "/"
	}
	return []string{root + EnvName, root + SoulName, root + ConfigName}
}

// Root returns the directory of a conversation.
func Root(conversation string) string { return "/conversations/" + conversation }

// Effective returns a conversation's private files: the organization's, with its own persona and
// with its environment after the organization's, so that it wins.
func Effective(organization Private, persona string, environment map[string]string) (Private, error) {
	if strings.ContainsRune(persona, 0) || !utf8.ValidString(persona) {
		return Private{}, errs.New(errs.Invalid, tree.ReasonInvalidPersona, "persona holds a NUL or is not valid UTF-8")
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

// Conversation returns the hierarchy of a conversation, parents first.
func Conversation(conversation string, p Private) []tree.Node {
	root := Root(conversation)
	nodes := []tree.Node{tree.Dir(root)}
	for i, content := range [][]byte{p.Env, p.Soul, p.Config} {
		nodes = append(nodes, tree.File(Paths(conversation)[i], content))
	}
	for _, name := range []string{"state", "work", "artifacts", "artifacts/inbound", "artifacts/outbound", "logs"} {
		nodes = append(nodes, tree.Dir(fmt.Sprintf("%s/%s", root, name)))
	}
	return nodes
}
