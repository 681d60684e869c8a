package block

import (
	"encoding/json"
	"strconv"
	"strings"
	"unicode"

	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/ingress/internal/inline"
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
	Image: func(o object, b *Block, _ Limits) error {
		if err := o.only("type", "data", "mimeType", "uri", "annotations", "_meta"); err != nil {
			return err
		}
		if err := data(o, b); err != nil {
			return err
		}
		if o.present("uri") {
			if err := uri(o, b); err != nil {
				return err
			}
		}
		return common(o)
	},
	Audio: func(o object, b *Block, _ Limits) error {
		if err := o.only("type", "data", "mimeType", "annotations", "_meta"); err != nil {
			return err
		}
		if err := data(o, b); err != nil {
			return err
		}
		return common(o)
	},
	ResourceLink: func(o object, b *Block, _ Limits) (err error) {
		if err := o.only("type", "uri", "name", "mimeType", "title", "description", "size", "annotations", "_meta"); err != nil {
			return err
		}
		if b.Name, err = nonEmpty(o, "name"); err != nil {
			return err
		}
		if err := uri(o, b); err != nil {
			return err
		}
		if err := o.optionalText("title", "description"); err != nil {
			return err
		}
		if err := mimeType(o, b); err != nil {
			return err
		}
		if o.present("size") {
			if _, err := strconv.ParseUint(string(o.fields["size"]), 10, 63); err != nil {
				return fail(Malformed, o.at("size"), "must be a whole number of bytes")
			}
		}
		return common(o)
	},
	Resource: func(o object, b *Block, _ Limits) error {
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
		if err := resource(contents, b); err != nil {
			return err
		}
		return common(o)
	},
}

// resource checks embedded contents: text or blob, exactly one.
func resource(o object, b *Block) error {
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
		// Without data there is nothing to cut out, and no file of it.
		if string(o.fields["blob"]) != `""` {
			b.Inline = []string{"resource", "blob"}
		}
	}
	if err := uri(o, b); err != nil {
		return err
	}
	if err := mimeType(o, b); err != nil {
		return err
	}
	return meta(o)
}

func data(o object, b *Block) (err error) {
	if err := encoded(o, "data"); err != nil {
		return err
	}
	if string(o.fields["data"]) == `""` {
		return fail(Malformed, o.at("data"), "must not be empty")
	}
	b.Inline = []string{"data"}
	b.MimeType, err = nonEmpty(o, "mimeType")
	return err
}

// mimeType reads an optional MIME type.
func mimeType(o object, b *Block) (err error) {
	if o.present("mimeType") {
		b.MimeType, err = o.text("mimeType")
	}
	return err
}

func nonEmpty(o object, key string) (string, error) {
	s, err := o.text(key)
	if err == nil && s == "" {
		err = fail(Malformed, o.at(key), "must not be empty")
	}
	return s, err
}

// encoded checks base64 in a spelling that can be made again from the data.
func encoded(o object, key string) error {
	raw, ok := o.fields[key]
	if !ok || raw[0] != '"' {
		_, err := o.text(key)
		return err
	}
	if _, _, err := inline.Decode(raw[1 : len(raw)-1]); err != nil {
		return fail(Malformed, o.at(key), "%s", err)
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

// uri checks the member "uri". Hermes opens file URIs, and takes anything without a scheme, after
// dropping white space and control characters, for a path; so both must be plain to see.
func uri(o object, b *Block) error {
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
	scheme, _, ok := strings.Cut(s, ":")
	if !ok || !isScheme(scheme) {
		return fail(FileURI, at, "has no scheme; a file is named by a file URI")
	}
	if !strings.EqualFold(scheme, "file") {
		return nil
	}
	p, err := fileuri.ParseURI(s)
	if err != nil {
		return fail(FileURI, at, "%s", strings.TrimPrefix(err.Error(), "the file URI "))
	}
	if b.URI, b.FilePath = s, at; b.Name == "" {
		b.Name = p.Name()
	}
	return nil
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
