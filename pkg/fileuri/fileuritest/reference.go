package fileuritest

import (
	"fmt"
	"net/url"
	"path"
	"regexp"
	"strings"
	"unicode/utf8"

	"humanwork.internal/pkg/fileuri"
)

// escaped is what a canonical URI may consist of after its scheme.
var escaped = regexp.MustCompile(`^///(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-F]{2})*$`)

// referenceURI decodes a URI with net/url. ok is false if it is not the one spelling of a public
// path.
func referenceURI(s string) (public string, ok bool) {
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "file" || u.Host != "" || u.User != nil || u.Opaque != "" ||
		u.RawQuery != "" || u.ForceQuery || u.Fragment != "" {
		return "", false
	}
	rest, ok := strings.CutPrefix(s, "file:")
	if !ok || !escaped.MatchString(rest) || spell(u.Path) != rest {
		return "", false
	}
	public, ok = strings.CutPrefix(u.Path, "/")
	return public, ok && referencePath(public)
}

// spell escapes with net/url, then undoes what it escapes beyond the canonical form.
func spell(p string) string {
	names := strings.Split(p, "/")
	for i, n := range names {
		names[i] = unescape.Replace(url.PathEscape(n))
	}
	return "//" + strings.Join(names, "/")
}

var unescape = strings.NewReplacer("%21", "!", "%27", "'", "%28", "(", "%29", ")", "%2A", "*", "%2C", ",", "%3B", ";")

// referencePath decides by Go's path package whether a public path is one.
func referencePath(s string) bool {
	if len(s) > 4096 || !utf8.ValidString(s) || strings.Contains(s, "\x00") || path.Clean("/"+s) != "/"+s {
		return false
	}
	below := false
	for _, root := range []string{"workspace/", "artifacts/inbound/", "artifacts/outbound/"} {
		below = below || strings.HasPrefix(s, root) && s != root
	}
	for n := range strings.SplitSeq(s, "/") {
		below = below && len(n) <= 255
	}
	return below
}

// consistent checks what holds for every accepted path, whatever it was parsed from.
func consistent(p fileuri.Path) error {
	if again, err := fileuri.ParseURI(p.URI()); err != nil || again != p {
		return fmt.Errorf("%q does not survive its URI %q: %v, %w", p, p.URI(), again, err)
	}
	if again, err := fileuri.ParsePath(p.String()); err != nil || again != p {
		return fmt.Errorf("%q does not survive its public path: %v, %w", p, again, err)
	}
	root := path.Join("/conversations/c1", p.Root().String())
	full := path.Join(append([]string{root}, p.Names()...)...)
	if !strings.HasPrefix(full, root+"/") || full != root+"/"+strings.Join(p.Names(), "/") {
		return fmt.Errorf("%q resolves to %q, which is not below %q", p, full, root)
	}
	if path.Base(full) != p.Name() {
		return fmt.Errorf("%q has the name %q, want %q", p, p.Name(), path.Base(full))
	}
	return nil
}
