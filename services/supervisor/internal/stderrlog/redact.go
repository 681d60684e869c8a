package stderrlog

import (
	"bytes"
	"cmp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// minSecret keeps short values such as "1" or "true" from blotting out ordinary text.
const minSecret = 6

const mask = "***"

// Redactor masks the secrets of one conversation's home.
type Redactor struct{ replacer *strings.Replacer }

// NewRedactor takes the secrets from the files themselves: every value of .env, and every value
// of config.yaml under a key that names a credential. Files that cannot be parsed give what can
// be found.
func NewRedactor(env, config []byte) *Redactor {
	secrets := envValues(env)
	var document yaml.Node
	if yaml.Unmarshal(config, &document) == nil {
		secrets = append(secrets, credentials(&document, false)...)
	}
	// The longest first: a secret may contain another.
	slices.SortFunc(secrets, func(a, b string) int { return cmp.Or(cmp.Compare(len(b), len(a)), cmp.Compare(a, b)) })
	var pairs []string
	for _, s := range slices.Compact(secrets) {
		if len(s) >= minSecret {
			pairs = append(pairs, s, mask)
		}
	}
	return &Redactor{replacer: strings.NewReplacer(pairs...)}
}

// Line masks secrets in one line and cuts it to what a log should hold. A secret that the reader
// cut in half lies behind the cut.
func (r *Redactor) Line(raw []byte) string {
	line := r.replacer.Replace(strings.ToValidUTF8(string(bytes.TrimRight(raw, "\r\n")), "\uFFFD"))
	if len(line) > lineBytes {
		line = strings.ToValidUTF8(line[:lineBytes], "")
	}
	return line
}

func envValues(env []byte) []string {
	var values []string
	for line := range strings.Lines(string(env)) {
		_, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		if !ok {
			value = strings.TrimSpace(line) // a further line of a quoted value
		}
		value = strings.Trim(strings.TrimSpace(value), `"'`)
		for part := range strings.SplitSeq(value, `\n`) {
			values = append(values, part)
		}
	}
	return values
}

func credentials(n *yaml.Node, secret bool) []string {
	var values []string
	switch n.Kind {
	case yaml.ScalarNode:
		if secret {
			values = append(values, n.Value)
		}
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			values = append(values, credentials(n.Content[i+1], secret || namesCredential(n.Content[i].Value))...)
		}
	case yaml.DocumentNode, yaml.SequenceNode:
		for _, c := range n.Content {
			values = append(values, credentials(c, secret)...)
		}
	}
	return values
}

func namesCredential(key string) bool {
	key = strings.ToLower(key)
	for _, word := range []string{"key", "token", "secret", "password", "authorization", "headers", "env"} {
		if strings.Contains(key, word) {
			return true
		}
	}
	return false
}
