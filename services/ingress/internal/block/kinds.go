package block

import (
	"encoding/base64"
	"encoding/json"
	"net/url"
	"path"
	"strconv"
	"strings"
	"unicode"
)

// kinds holds the check of each ACP block type.
var kinds = map[string]func(o object, b *Block, lim Limits) error{
	Text: func(o object, b *Block, lim Limits) (err error) {
		if err := o.only("type", "text", "annotations", "_meta"); err != nil {
			return err
		}
		if b.Text, err = o.text("text"); err != nil {
			return err
		}
		if len(b.Text) > lim.TextBytes {
			return fail(TooLarge, o.at("text"), "more than %d bytes of text", lim.TextBytes)
		}
		return common(o)
	},
	Image: func(o object, _ *Block, _ Limits) error {
		if err := o.only("type", "data", "mimeType", "uri", "annotations", "_meta"); err != nil {
			return err
		}
		if err := data(o); err != nil {
			return err
		}
		if o.present("uri") {
			if err := uri(o); err != nil {
				return err
			}
		}
		return common(o)
	},
	Audio: func(o object, _ *Block, _ Limits) error {
		if err := o.only("type", "data", "mimeType", "annotations", "_meta"); err != nil {
			return err
		}
		if err := data(o); err != nil {
			return err
		}
		return common(o)
	},
	ResourceLink: func(o object, _ *Block, _ Limits) error {
		if err := o.only("type", "uri", "name", "mimeType", "title", "description", "size", "annotations", "_meta"); err != nil {
			return err
		}
		if _, err := nonEmpty(o, "name"); err != nil {
			return err
		}
		if err := uri(o); err != nil {
			return err
		}
		if err := o.optionalText("mimeType", "title", "description"); err != nil {
			return err
		}
		if o.present("size") {
			if _, err := strconv.ParseUint(string(o.fields["size"]), 10, 63); err != nil {
				return fail(Malformed, o.at("size"), "must be a whole number of bytes")
			}
		}
		return common(o)
	},
	Resource: func(o object, _ *Block, _ Limits) error {
		if err := o.only("type", "resource", "annotations", "_meta"); err != nil {
			return err
		}
		raw, ok := o.fields["resource"]
		if !ok {
			return fail(Malformed, o.at("resource"), "is required")
		}
		contents, err := asObject(raw, o.at("resource"))
		if err != nil {
			return err
		}
		if err := resource(contents); err != nil {
			return err
		}
		return common(o)
	},
}

// resource checks embedded contents: text or blob, exactly one.
func resource(o object) error {
	_, text := o.fields["text"]
	_, blob := o.fields["blob"]
	switch {
	case text == blob:
		return fail(Malformed, o.path, "needs exactly one of text and blob")
	case text:
		if err := o.only("uri", "text", "mimeType", "_meta"); err != nil {
			return err
		}
		if _, err := o.text("text"); err != nil {
			return err
		}
	default:
		if err := o.only("uri", "blob", "mimeType", "_meta"); err != nil {
			return err
		}
		if err := encoded(o, "blob"); err != nil {
			return err
		}
	}
	if err := uri(o); err != nil {
		return err
	}
	if err := o.optionalText("mimeType"); err != nil {
		return err
	}
	return meta(o)
}

func data(o object) error {
	if _, err := nonEmpty(o, "data"); err != nil {
		return err
	}
	if err := encoded(o, "data"); err != nil {
		return err
	}
	_, err := nonEmpty(o, "mimeType")
	return err
}

func nonEmpty(o object, key string) (string, error) {
	s, err := o.text(key)
	if err == nil && s == "" {
		err = fail(Malformed, o.at(key), "must not be empty")
	}
	return s, err
}

// encoded checks padded standard base64, without the line ends Go's decoder would skip.
func encoded(o object, key string) error {
	s, err := o.text(key)
	if err != nil {
		return err
	}
	if strings.ContainsAny(s, "\r\n") {
		return fail(Malformed, o.at(key), "is not base64: it holds line ends")
	}
	if _, err := base64.StdEncoding.Strict().DecodeString(s); err != nil {
		return fail(Malformed, o.at(key), "is not base64 with padding")
	}
	return nil
}

func common(o object) error {
	if o.present("annotations") {
		a, err := asObject(o.fields["annotations"], o.at("annotations"))
		if err != nil {
			return err
		}
		if err := annotations(a); err != nil {
			return err
		}
	}
	return meta(o)
}

func annotations(o object) error {
	if err := o.only("audience", "lastModified", "priority", "_meta"); err != nil {
		return err
	}
	if o.present("audience") {
		var roles []json.RawMessage
		if err := json.Unmarshal(o.fields["audience"], &roles); err != nil {
			return fail(Malformed, o.at("audience"), "must be an array, not %s", typeName(o.fields["audience"]))
		}
		for i, r := range roles {
			if s := string(r); s != `"user"` && s != `"assistant"` {
				return fail(Malformed, o.at("audience")+"["+strconv.Itoa(i)+"]", `must be "user" or "assistant"`)
			}
		}
	}
	if err := o.optionalText("lastModified"); err != nil {
		return err
	}
	if o.present("priority") {
		if t := typeName(o.fields["priority"]); t != "a number" {
			return fail(Malformed, o.at("priority"), "must be a number, not %s", t)
		}
	}
	return meta(o)
}

// meta checks that _meta is an object; what it holds is the client's.
func meta(o object) error {
	if o.present("_meta") && o.fields["_meta"][0] != '{' {
		return fail(Malformed, o.at("_meta"), "must be an object, not %s", typeName(o.fields["_meta"]))
	}
	return nil
}

// Roots are the only places a file URI may name.
var roots = []string{"/artifacts/inbound/", "/artifacts/outbound/", "/workspace/"}

// uri checks the member "uri". Hermes opens file URIs, and takes anything without a scheme, after
// dropping white space and control characters, for a path; so both must be plain to see.
func uri(o object) error {
	at := o.at("uri")
	s, err := nonEmpty(o, "uri")
	if err != nil {
		return err
	}
	for _, r := range s {
		if unicode.IsSpace(r) || unicode.IsControl(r) {
			return fail(Malformed, at, "holds white space or a control character")
		}
	}
	scheme, rest, ok := strings.Cut(s, ":")
	if !ok || !isScheme(scheme) {
		return fail(FileURI, at, "has no scheme; a file is named by a file URI")
	}
	if !strings.EqualFold(scheme, "file") {
		return nil
	}
	if scheme != "file" || !canonical(rest) {
		return fail(FileURI, at, "is not a canonical file URI below /artifacts/inbound, /artifacts/outbound or /workspace")
	}
	return fail(FileURI, at, "no such file in this conversation")
}

func isScheme(s string) bool {
	for i := range len(s) {
		c := s[i] | 0x20
		letter := c >= 'a' && c <= 'z'
		if !letter && (i == 0 || !(s[i] >= '0' && s[i] <= '9' || s[i] == '+' || s[i] == '-' || s[i] == '.')) {
			return false
		}
	}
	return len(s) > 1 // one letter is a Windows drive to Hermes
}

// canonical reports whether rest, what follows "file:", is the one spelling of a path below a root.
func canonical(rest string) bool {
	raw, ok := strings.CutPrefix(rest, "//")
	if !ok || strings.ContainsAny(raw, "?#") {
		return false
	}
	p, err := url.PathUnescape(raw)
	if err != nil || path.Clean(p) != p || strings.ContainsRune(p, 0) || (&url.URL{Path: p}).EscapedPath() != raw {
		return false
	}
	for _, root := range roots {
		if strings.HasPrefix(p, root) && len(p) > len(root) {
			return true
		}
	}
	return false
}
