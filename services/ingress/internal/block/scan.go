package block

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
)

// scanner walks compacted, syntactically valid JSON and refuses what encoding/json would quietly
// mend: duplicate keys, lone surrogates, NUL, and nesting beyond depth.
type scanner struct {
	data  []byte
	pos   int
	depth int
}

func (s *scanner) check(path string) error { return s.value(path, 0) }

func (s *scanner) value(path string, depth int) error {
	switch s.data[s.pos] {
	case '{':
		return s.object(path, depth+1)
	case '[':
		return s.array(path, depth+1)
	case '"':
		return s.str(path)
	}
	s.scalar()
	return nil
}

// scalar skips a number or a literal.
func (s *scanner) scalar() {
	for s.pos < len(s.data) && !strings.ContainsRune(",]}", rune(s.data[s.pos])) {
		s.pos++
	}
}

func (s *scanner) object(path string, depth int) error {
	if depth > s.depth {
		return fail(TooLarge, path, "nested deeper than %d", s.depth)
	}
	s.pos++ // {
	var seen map[string]struct{}
	for s.data[s.pos] != '}' {
		if s.data[s.pos] == ',' {
			s.pos++
		}
		start := s.pos
		if err := s.str(path); err != nil {
			return err
		}
		key := decode(s.data[start:s.pos])
		at := join(path, key)
		if _, twice := seen[key]; twice {
			return fail(Malformed, at, "duplicate key")
		}
		if seen == nil {
			seen = make(map[string]struct{}, 8)
		}
		seen[key] = struct{}{}
		s.pos++ // :
		if err := s.value(at, depth); err != nil {
			return err
		}
	}
	s.pos++
	return nil
}

func (s *scanner) array(path string, depth int) error {
	if depth > s.depth {
		return fail(TooLarge, path, "nested deeper than %d", s.depth)
	}
	s.pos++ // [
	for i := 0; s.data[s.pos] != ']'; i++ {
		if s.data[s.pos] == ',' {
			s.pos++
		}
		// The element's path is made only for containers and strings: an array of a million
		// numbers must not make a million paths.
		if c := s.data[s.pos]; c != '{' && c != '[' && c != '"' {
			s.scalar()
			continue
		}
		if err := s.value(path+"["+strconv.Itoa(i)+"]", depth); err != nil {
			return err
		}
	}
	s.pos++
	return nil
}

// str passes over one string, checking its escapes.
func (s *scanner) str(path string) error {
	for s.pos++; s.data[s.pos] != '"'; s.pos++ {
		if s.data[s.pos] != '\\' {
			continue
		}
		s.pos++
		if s.data[s.pos] != 'u' {
			continue
		}
		r := s.hex(s.pos + 1)
		s.pos += 4
		switch {
		case r == 0:
			return fail(Malformed, path, "NUL is not allowed")
		case !utf16.IsSurrogate(r):
		case s.data[s.pos+1] == '\\' && s.data[s.pos+2] == 'u' && utf16.DecodeRune(r, s.hex(s.pos+3)) != '\uFFFD':
			s.pos += 6
		default:
			return fail(Malformed, path, "lone surrogate \\u%04x is not valid Unicode", r)
		}
	}
	s.pos++
	return nil
}

func (s *scanner) hex(at int) rune {
	n, err := strconv.ParseUint(string(s.data[at:at+4]), 16, 32)
	if err != nil {
		return 0xD800 // not reached in valid JSON; refused as a lone surrogate
	}
	return rune(n)
}

// decode returns the value of a JSON string that was checked.
func decode(raw []byte) string {
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw[1 : len(raw)-1])
	}
	var v string
	if err := json.Unmarshal(raw, &v); err != nil {
		return string(raw)
	}
	return v
}

// object is one JSON object's members, undecoded.
type object struct {
	path   string
	fields map[string]json.RawMessage
}

func asObject(raw []byte, path string) (object, error) {
	if raw[0] != '{' {
		return object{}, fail(Malformed, path, "must be an object, not %s", typeName(raw))
	}
	o := object{path: path}
	if err := json.Unmarshal(raw, &o.fields); err != nil {
		return object{}, fail(Malformed, path, "is not valid JSON")
	}
	return o, nil
}

func (o object) at(key string) string { return join(o.path, key) }

// only refuses members that are not named, with the first in order of the names' text.
func (o object) only(names ...string) error {
	unknown, found := "", false
next:
	for key := range o.fields {
		for _, n := range names {
			if key == n {
				continue next
			}
		}
		if !found || key < unknown {
			unknown, found = key, true
		}
	}
	if found {
		return fail(Malformed, o.at(unknown), "unknown field")
	}
	return nil
}

// present reports whether an optional member is there; ACP lets optional members be null.
func (o object) present(key string) bool {
	raw, ok := o.fields[key]
	return ok && string(raw) != "null"
}

// text returns a required string.
func (o object) text(key string) (string, error) {
	raw, ok := o.fields[key]
	if !ok {
		return "", fail(Malformed, o.at(key), "is required")
	}
	if raw[0] != '"' {
		return "", fail(Malformed, o.at(key), "must be a string, not %s", typeName(raw))
	}
	return decode(raw), nil
}

// optionalText checks optional strings.
func (o object) optionalText(keys ...string) error {
	for _, key := range keys {
		if o.present(key) {
			if _, err := o.text(key); err != nil {
				return err
			}
		}
	}
	return nil
}

func typeName(raw []byte) string {
	switch raw[0] {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// join extends a path by a key of hostile text, shortened and quoted unless it is a plain name.
func join(path, key string) string {
	for _, r := range key {
		if !(r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z') {
			return path + "[" + quote(key) + "]"
		}
	}
	if key == "" || len(key) > 64 {
		return path + "[" + quote(key) + "]"
	}
	return path + "." + key
}

func quote(s string) string {
	r := []rune(s)
	if len(r) > 64 {
		return fmt.Sprintf("%+q...", string(r[:64]))
	}
	return fmt.Sprintf("%+q", s)
}
