package strictjson

import (
	"bytes"
	"fmt"

	"humanwork.internal/pkg/errs"
)

// scanner walks one document of valid UTF-8. value checks everything; take trusts what value has
// checked and only finds where a value ends.
type scanner struct {
	b []byte
	i int
}

// place is where the scanner is, linked outwards and turned into text only for an error.
type place struct {
	parent *place
	name   []byte // the raw name in an object, quotes included; nil in an array
	index  int
}

func (p *place) String() string {
	if p == nil {
		return ""
	}
	outer := p.parent.String()
	if p.name == nil {
		return fmt.Sprintf("%s[%d]", outer, p.index)
	}
	return join(outer, Value{Raw: p.name}.Text())
}

func (s *scanner) syntax(format string, args ...any) error {
	return errs.New(errs.Invalid, ReasonInvalidJSON, "not valid JSON at byte %d: %s", s.i, fmt.Sprintf(format, args...)).
		With("offset", fmt.Sprint(s.i))
}

func (s *scanner) space() {
	for s.i < len(s.b) && (s.b[s.i] == ' ' || s.b[s.i] == '\t' || s.b[s.i] == '\n' || s.b[s.i] == '\r') {
		s.i++
	}
}

// peek returns the next byte, 0 at the end; a NUL in the document is as wrong as its end.
func (s *scanner) peek() byte {
	if s.i < len(s.b) {
		return s.b[s.i]
	}
	return 0
}

func (s *scanner) unexpected(want string) error {
	if s.i >= len(s.b) {
		return s.syntax("it ends where %s should be", want)
	}
	return s.syntax("%q where %s should be", s.b[s.i], want)
}

func (s *scanner) value(at *place, depth int) error {
	switch c := s.peek(); {
	case c == '{':
		return s.object(at, depth+1)
	case c == '[':
		return s.array(at, depth+1)
	case c == '"':
		return s.text(at)
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	}
	return s.unexpected("a value")
}

func (s *scanner) literal(word string) error {
	if !bytes.HasPrefix(s.b[s.i:], []byte(word)) {
		return s.unexpected("a value")
	}
	s.i += len(word)
	return nil
}

func (s *scanner) tooDeep() error {
	return s.syntax("it nests deeper than %d levels", MaxDepth)
}

func (s *scanner) array(at *place, depth int) error {
	if depth > MaxDepth {
		return s.tooDeep()
	}
	s.i++
	if s.space(); s.peek() == ']' {
		s.i++
		return nil
	}
	here := place{parent: at}
	for ; ; here.index++ {
		s.space()
		if err := s.value(&here, depth); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case ']':
			s.i++
			return nil
		default:
			return s.unexpected("a comma or the end of the array")
		}
	}
}

func (s *scanner) object(at *place, depth int) error {
	if depth > MaxDepth {
		return s.tooDeep()
	}
	s.i++
	if s.space(); s.peek() == '}' {
		s.i++
		return nil
	}
	var seen names
	for {
		s.space()
		if s.peek() != '"' {
			return s.unexpected("a name")
		}
		start := s.i
		if err := s.text(at); err != nil {
			return err
		}
		here := place{parent: at, name: s.b[start:s.i]}
		if seen.add(here.name) {
			return errs.New(errs.Invalid, ReasonDuplicateField, "%s: is there twice", &here).With("field", here.String())
		}
		if s.space(); s.peek() != ':' {
			return s.unexpected("a colon")
		}
		s.i++
		s.space()
		if err := s.value(&here, depth); err != nil {
			return err
		}
		s.space()
		switch s.peek() {
		case ',':
			s.i++
		case '}':
			s.i++
			return nil
		default:
			return s.unexpected("a comma or the end of the object")
		}
	}
}

// names remembers the names of one object: a list while they are few, which nearly all objects
// are, then a set, so that a hostile object costs no quadratic time.
type names struct {
	list  [fewNames][]byte
	count int
	set   map[string]struct{}
}

const fewNames = 16

// add reports whether the name, given raw with its quotes, was there before.
func (n *names) add(raw []byte) bool {
	name := raw[1 : len(raw)-1]
	if bytes.IndexByte(name, '\\') >= 0 {
		name = []byte(Value{Raw: raw}.Text())
	}
	if n.set != nil {
		_, ok := n.set[string(name)]
		n.set[string(name)] = struct{}{}
		return ok
	}
	for _, old := range n.list[:n.count] {
		if bytes.Equal(old, name) {
			return true
		}
	}
	if n.count < fewNames {
		n.list[n.count] = name
		n.count++
		return false
	}
	n.set = make(map[string]struct{}, 2*fewNames)
	for _, old := range n.list {
		n.set[string(old)] = struct{}{}
	}
	n.set[string(name)] = struct{}{}
	return false
}

func (s *scanner) text(at *place) error {
	s.i++
	for s.i < len(s.b) {
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return nil
		case c < 0x20:
			return s.syntax("control character %q inside a string", c)
		case c == '\\':
			if err := s.escape(at); err != nil {
				return err
			}
		default:
			s.i++
		}
	}
	return s.unexpected("the end of a string")
}

func (s *scanner) escape(at *place) error {
	s.i++
	switch s.peek() {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i++
		return nil
	case 'u':
	default:
		return s.unexpected("an escape")
	}
	r, err := s.hex4()
	if err != nil {
		return err
	}
	if r < 0xD800 || r > 0xDFFF {
		return nil
	}
	if r < 0xDC00 && bytes.HasPrefix(s.b[s.i:], []byte(`\u`)) {
		s.i++
		low, err := s.hex4()
		if err != nil {
			return err
		}
		if low >= 0xDC00 && low <= 0xDFFF {
			return nil
		}
	}
	path := at.String()
	if path == "" {
		path = "the body"
	}
	return errs.New(errs.Invalid, ReasonInvalidUnicode, "%s: holds the lone surrogate \\u%04x, which is no character", path, r).
		With("field", path)
}

// hex4 reads the u and four digits.
func (s *scanner) hex4() (rune, error) {
	s.i++
	var r rune
	for range 4 {
		c := s.peek()
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c >= 'a' && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case c >= 'A' && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, s.unexpected("a hexadecimal digit")
		}
		s.i++
	}
	return r, nil
}

func (s *scanner) number() error {
	if s.peek() == '-' {
		s.i++
	}
	if s.peek() == '0' {
		s.i++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.peek() == '.' {
		s.i++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.peek(); c == 'e' || c == 'E' {
		s.i++
		if c := s.peek(); c == '+' || c == '-' {
			s.i++
		}
		return s.digits()
	}
	return nil
}

func (s *scanner) digits() error {
	start := s.i
	for c := s.peek(); c >= '0' && c <= '9'; c = s.peek() {
		s.i++
	}
	if s.i == start {
		return s.unexpected("a digit")
	}
	return nil
}

// take returns the value that begins here, in a document that value has accepted.
func (s *scanner) take() []byte {
	start := s.i
	depth := 0
	for {
		switch s.b[s.i] {
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		case '"':
			for s.i++; s.b[s.i] != '"'; s.i++ {
				if s.b[s.i] == '\\' {
					s.i++
				}
			}
		}
		s.i++
		if depth == 0 && (s.i == len(s.b) || s.closed(start)) {
			return s.b[start:s.i:s.i]
		}
	}
}

// closed reports whether the value that began at start has its last byte behind it: strings,
// arrays and objects end with their closing byte, numbers and words before what cannot be theirs.
func (s *scanner) closed(start int) bool {
	switch s.b[start] {
	case '{', '[', '"':
		return true
	}
	switch s.b[s.i] {
	case ',', ']', '}', ' ', '\t', '\n', '\r':
		return true
	}
	return false
}

// separator moves past the white space and the comma after a value, if there is one.
func (s *scanner) separator() {
	if s.space(); s.b[s.i] == ',' {
		s.i++
	}
}
