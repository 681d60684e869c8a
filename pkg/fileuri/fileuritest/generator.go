package fileuritest

import (
	"math/rand/v2"
	"strings"
)

// generator makes texts that are right in most parts, so that what is wrong gets past the first
// check of whoever reads them.
type generator struct{ *rand.Rand }

var (
	rightRoots = []string{"workspace", "workspace", "artifacts/inbound", "artifacts/outbound"}
	wrongRoots = []string{"", "Workspace", "workspacex", "work", "artifacts", "artifacts/inboundx", "artifacts/private", "etc",
		"conversations/c2/work", "proc/self", ".", "..", "artifacts/../workspace", "workspace/../artifacts/inbound", "%77orkspace"}
	// names are hard for somebody; most are right.
	names = []string{"a", "b.txt", "src", "main.go", "0123456789abcdef", "a b", " a ", "2024-01-05", "it's.txt", `"q"`, "-rf", ".git", "...",
		"..a", "a..", ". ", "%2e%2e", "%2F", "%", "%00", "a:b", "C:", "a@b", "a;b", "a,b", "a=b", "a&b", "a+b", "a?b", "a#b", "~", "$HOME",
		"*", "(x)", "[x]", "{x}", "<x>", "|", "^", "`", `\`, `..\..`, "é", "e\u0301", "ﬁ", "日本", "👩‍💻", "\u202etxt", "\u200b", "\ufeff", "\uffff",
		"\n", "\r\n", "\t", "\x01", "\x7f", "\u0085", "\u2028", "..", "/", "．．", "\u2024\u2024", "con", "workspace", "artifacts"}
	// tokens are what is put into a text to break it.
	tokens = []string{"..", ".", "/", "//", "/../", "/./", "/..", "../", "../../..", "%2e%2e", "%2E%2E", "%2e.", ".%2E", "%2F", "%2f", "%5C", `\`, "/%2e%2e/",
		"%252e%252e", "%252F", "%00", "\x00", "?", "?x=1", "#", "#f", "%", "%4", "%zz", "%u002e", "%C0%AE", "%C0%AF", "%E0%80%AF", "%ED%A0%80",
		"%F4%90%80%80", "%FF", "\xc0\xae", "\xc0\xaf", "\xed\xa0\x80", "\xff", "\xef\xbb\xbf", "%EF%BC%8F", "／", "．", "%41", "%61", "%7E", "%2D", "%27", "%3A",
		"%40", "%20", "%0A", "%0a", " ", "\n", "\r", "\t", "+", ":", "@", "user@", "localhost", ":80", ";", "&", "workspace/", "artifacts/inbound/", "é"}
	prefixes = []string{"", "file:", "file:/", "file://", "file:////", "File:///", "FILE:///", "file://localhost/", "file://127.0.0.1/", "file://user@/", "file://:80/",
		"file://%2F", "http:///", " file:///", "\tfile:///", "\ufefffile:///", "file ///", "file%3A///", "file:\\\\\\", "file:///file:///", "file:///../", "vfile:///"}
)

func pick(g *generator, from []string) string { return from[g.IntN(len(from))] }

// one reports true once in n.
func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

func (g *generator) path() string {
	s := g.plain()
	if g.one(6) {
		s = pick(g, []string{"/", "./", "../", " ", "//", "file:///", `\`}) + s
	}
	return g.damage(s)
}

func (g *generator) uri() string {
	prefix := "file:///"
	if g.one(5) {
		prefix = pick(g, prefixes)
	}
	s := g.escape(g.plain())
	return g.damage(prefix + s)
}

// plain is a public path, usually a right one.
func (g *generator) plain() string {
	var b strings.Builder
	if g.one(6) {
		b.WriteString(pick(g, wrongRoots))
	} else {
		b.WriteString(pick(g, rightRoots))
	}
	for range 1 + g.IntN(4) {
		b.WriteByte('/')
		g.name(&b)
	}
	if g.one(500) { // around the limit of a path
		for b.Len() < 4050 {
			b.WriteString("/d")
		}
		b.WriteByte('/')
		b.WriteString(strings.Repeat("f", 4093+g.IntN(6)-b.Len()))
	}
	return b.String()
}

func (g *generator) name(b *strings.Builder) {
	switch g.IntN(24) {
	case 0: // around the limit of a name
		b.WriteString(strings.Repeat("n", 253+g.IntN(4)))
	case 1: // any bytes at all
		for range 1 + g.IntN(6) {
			b.WriteByte(byte(g.Uint32()))
		}
	case 2: // any characters at all
		for range 1 + g.IntN(4) {
			b.WriteRune(rune(g.IntN(0x110000)))
		}
	default:
		for range 1 + g.IntN(2) {
			b.WriteString(pick(g, names))
		}
	}
}

const capitals, smalls = "0123456789ABCDEF", "0123456789abcdef"

// escape spells a path as RFC 3986 allows: usually as canonical URIs do, sometimes in another way.
func (g *generator) escape(s string) string {
	odd := g.one(5)
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		digits, need := capitals, !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~!$&'()*+,;=:@/", rune(c))
		if odd && g.one(8) {
			if g.one(2) {
				digits = smalls
			} else {
				need = !need
			}
		}
		if need {
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// damage leaves half of the texts as they are, and changes the others one to four times.
func (g *generator) damage(s string) string {
	if g.one(2) {
		return s
	}
	for range 1 + g.IntN(4) {
		i := g.IntN(len(s) + 1)
		j := min(len(s), i+1+g.IntN(4))
		switch g.IntN(6) {
		case 0, 1:
			s = s[:i] + pick(g, tokens) + s[i:]
		case 2:
			s = s[:i] + pick(g, tokens) + s[j:]
		case 3:
			s = s[:i] + s[j:]
		case 4:
			s = s[:i] + s[i:j] + s[i:]
		default: // one bit
			if i < len(s) {
				s = s[:i] + string([]byte{s[i] ^ 1<<g.IntN(8)}) + s[i+1:]
			}
		}
	}
	return s
}
