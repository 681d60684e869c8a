// Package fileuri is the one parser of the two names a conversation's file has outside the
// database: its canonical URI, "file:///workspace/a%20b.txt", and its public path,
// "workspace/a b.txt". A name is identity, never authority: whoever parses one still authorizes
// the conversation.
//
// Exactly one spelling of each URI is accepted, so that equal strings, equal digests and equal
// files are the same thing, and no decoder further on can read anything else out of it.
package fileuri

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// MaxName is the longest name, in bytes, as on Linux.
	MaxName = 255
	// MaxPath is the longest public path, in bytes.
	MaxPath = 4096
	// MaxURI is the longest canonical URI, in bytes: every byte of the path escaped.
	MaxURI = len(prefix) + 3*MaxPath

	prefix = "file:///"
)

// Root is one of the three directories that hold a conversation's public files.
type Root int

// The roots.
const (
	Workspace Root = iota + 1
	Inbound
	Outbound
)

var roots = [...]string{Workspace: "workspace", Inbound: "artifacts/inbound", Outbound: "artifacts/outbound"}

// String is the root's public path, for example "artifacts/inbound".
func (r Root) String() string { return roots[r] }

// Path names one file, or what could be one, below a root. Paths are comparable. The zero Path is
// none and has no use.
type Path struct {
	root  Root
	names string // below the root, separated by slashes
}

// Root is the directory the path lies below.
func (p Path) Root() Root { return p.root }

// Names are the components below the root, at least one.
func (p Path) Names() []string { return strings.Split(p.names, "/") }

// Name is the last component.
func (p Path) Name() string { return p.names[strings.LastIndexByte(p.names, '/')+1:] }

// String is the public path, decoded: "artifacts/inbound/a b.txt". ParsePath reverses it.
func (p Path) String() string { return p.root.String() + "/" + p.names }

// URI is the canonical file URI: RFC 3986's unreserved characters and sub-delimiters, ':' and '@'
// stand for themselves, all other bytes are %XX in capitals. ParseURI reverses it.
func (p Path) URI() string {
	s := p.String()
	var b strings.Builder
	b.Grow(len(prefix) + len(s) + 16)
	b.WriteString(prefix)
	for i := range len(s) {
		if c := s[i]; c == '/' || plain[c] {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(hex[c>>4])
			b.WriteByte(hex[c&15])
		}
	}
	return b.String()
}

// Error says why a text names no file.
type Error struct {
	// Subject is what was parsed: "the file URI" or "the path".
	Subject string
	// Message follows a subject: what is wrong, and what to write instead.
	Message string
}

func (e *Error) Error() string { return e.Subject + " " + e.Message }

// ParseURI reads a canonical file URI. The error is an *Error.
func ParseURI(s string) (Path, error) {
	if len(s) > MaxURI {
		return Path{}, refuse(uri, "has %d bytes; at most %d can name a file", len(s), MaxURI)
	}
	raw, ok := strings.CutPrefix(s, prefix)
	if !ok {
		return Path{}, refuse(uri, "%s", beginning(s))
	}
	path, err := decode(raw)
	if err != nil {
		return Path{}, err
	}
	return parse(uri, path)
}

// ParsePath reads a public path, which is not escaped. The error is an *Error.
func ParsePath(s string) (Path, error) { return parse(path, s) }

const (
	uri  = "the file URI"
	path = "the path"
	hex  = "0123456789ABCDEF"
)

// plain are the bytes that stand for themselves in a canonical URI.
var plain = func() (set [256]bool) {
	for _, c := range "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@" {
		set[c] = true
	}
	return set
}()

func refuse(subject, format string, args ...any) error {
	return &Error{Subject: subject, Message: fmt.Sprintf(format, args...)}
}

// beginning says what is wrong with how a URI begins.
func beginning(s string) string {
	scheme, rest, _ := strings.Cut(s, ":")
	switch {
	case scheme != "file" && strings.EqualFold(scheme, "file"):
		return `spells its scheme with capitals; write "file:///workspace/..."`
	case scheme != "file":
		return `does not begin with "file:"; write "file:///workspace/..."`
	case strings.HasPrefix(rest, "//"):
		return `names a host; write "file:///workspace/...", with three slashes`
	}
	return `does not begin with "file:///"; write "file:///workspace/...", with three slashes`
}

// decode undoes the escapes of what follows the prefix, and takes no other spelling than URI's.
func decode(raw string) (string, error) {
	var b []byte // what came before i, decoded; nil as long as nothing was escaped
	for i := 0; i < len(raw); i++ {
		c := raw[i]
		if c == '/' || plain[c] {
			if b != nil {
				b = append(b, c)
			}
			continue
		}
		at := len(prefix) + i
		switch {
		case c == '?' || c == '#':
			return "", refuse(uri, "has a query or a fragment at byte %d; in a name write %q as %%%02X", at, c, c)
		case c != '%':
			return "", refuse(uri, "holds a byte at %d that must be escaped; write %%%02X", at, c)
		case i+2 >= len(raw):
			return "", refuse(uri, "has a broken escape at byte %d; in a name write '%%' as %%25", at)
		}
		high, low := strings.IndexByte(hex, raw[i+1]), strings.IndexByte(hex, raw[i+2])
		if high < 0 || low < 0 {
			return "", refuse(uri, "has a broken escape at byte %d; write two digits or capitals A to F, and '%%' in a name as %%25", at)
		}
		d := byte(high<<4 | low)
		switch {
		case d == '/':
			return "", refuse(uri, "escapes a slash at byte %d; no name holds one", at)
		case plain[d]:
			return "", refuse(uri, "escapes at byte %d what needs no escape; write %q", at, d)
		}
		if b == nil {
			b = append(make([]byte, 0, len(raw)), raw[:i]...)
		}
		b = append(b, d)
		i += 2
	}
	if b == nil {
		return raw, nil
	}
	return string(b), nil
}

// parse checks a decoded path without a slash before it.
func parse(subject, s string) (Path, error) {
	switch {
	case len(s) > MaxPath:
		return Path{}, refuse(subject, "has %d bytes; a path has at most %d", len(s), MaxPath)
	case !utf8.ValidString(s):
		return Path{}, refuse(subject, "is not UTF-8; names are")
	case strings.IndexByte(s, 0) >= 0:
		return Path{}, refuse(subject, "holds a NUL byte; no name does")
	}
	for root := Workspace; root <= Outbound; root++ {
		names, ok := strings.CutPrefix(s, roots[root])
		switch {
		case ok && (names == "" || names == "/"):
			return Path{}, refuse(subject, "names the directory %s; add the name of a file", roots[root])
		case ok && names[0] == '/':
			if err := check(subject, names[1:]); err != nil {
				return Path{}, err
			}
			return Path{root, names[1:]}, nil
		}
	}
	if strings.HasPrefix(s, "/") && subject == path {
		return Path{}, refuse(subject, `begins with a slash; write "workspace/...", "artifacts/inbound/..." or "artifacts/outbound/..."`)
	}
	return Path{}, refuse(subject, "is not below workspace, artifacts/inbound or artifacts/outbound; no other files are public")
}

func check(subject, names string) error {
	for name := range strings.SplitSeq(names, "/") {
		switch {
		case name == "":
			return refuse(subject, "has an empty name; write single slashes, and none at the end")
		case name == "." || name == "..":
			return refuse(subject, "holds the name %q; write the path without it", name)
		case len(name) > MaxName:
			return refuse(subject, "has a name of %d bytes; a name has at most %d", len(name), MaxName)
		}
	}
	return nil
}
