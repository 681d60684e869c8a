// Package strictjson reads JSON that strangers wrote and keeps its exact bytes. It refuses what
// encoding/json repairs in silence: bad UTF-8 and lone surrogates (replaced there), a name twice in
// one object (the last wins there), and it bounds nesting. Every error names the path.
package strictjson

import (
	"encoding/json"
	"fmt"
	"iter"
	"unicode/utf8"

	"humanwork.internal/pkg/errs"
)

// Reasons of the errors; all are of kind errs.Invalid.
const (
	ReasonInvalidJSON    errs.Reason = "INVALID_JSON"
	ReasonInvalidUnicode errs.Reason = "INVALID_UNICODE"
	ReasonDuplicateField errs.Reason = "DUPLICATE_FIELD"
	ReasonUnknownField   errs.Reason = "UNKNOWN_FIELD"
	ReasonInvalidField   errs.Reason = "INVALID_FIELD"
)

// MaxDepth is how deep arrays and objects may nest.
const MaxDepth = 128

// Kind is the type of a JSON value.
type Kind uint8

// The kinds.
const (
	Null Kind = iota
	Bool
	Number
	String
	Array
	Object
)

var kindNames = [...]string{"null", "a boolean", "a number", "a string", "an array", "an object"}

// String returns the kind with its article, as messages need it.
func (k Kind) String() string { return kindNames[k] }

// Value is one value of a document that Parse has accepted.
type Value struct {
	// Raw is exactly the value's bytes, without the white space around it. It shares the
	// document's memory.
	Raw []byte
	// Path says where in the document the value is, such as "messages[0].blocks[1]"; "" is the
	// document itself.
	Path string
}

// Parse checks the whole document and returns its one value.
func Parse(raw []byte) (Value, error) {
	if !utf8.Valid(raw) {
		return Value{}, errs.New(errs.Invalid, ReasonInvalidUnicode, "the body is not valid UTF-8")
	}
	s := scanner{b: raw}
	s.space()
	start := s.i
	if err := s.value(nil, 0); err != nil {
		return Value{}, err
	}
	end := s.i
	s.space()
	if s.i != len(raw) {
		return Value{}, s.syntax("unexpected data after the JSON value")
	}
	return Value{Raw: raw[start:end:end]}, nil
}

// Kind returns the value's type.
func (v Value) Kind() Kind {
	switch v.Raw[0] {
	case '{':
		return Object
	case '[':
		return Array
	case '"':
		return String
	case 't', 'f':
		return Bool
	case 'n':
		return Null
	}
	return Number
}

// Text returns the decoded string; the value must be a String.
func (v Value) Text() string {
	var s string
	// Parse has checked the syntax and the escapes; nothing is left to fail or to be replaced.
	_ = json.Unmarshal(v.Raw, &s)
	return s
}

// Elements returns the elements of an Array in order.
func (v Value) Elements() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		s := scanner{b: v.Raw, i: 1}
		for n := 0; ; n++ {
			if s.space(); s.b[s.i] == ']' {
				return
			}
			raw := s.take()
			if !yield(Value{Raw: raw, Path: fmt.Sprintf("%s[%d]", v.Path, n)}) {
				return
			}
			s.separator()
		}
	}
}

// Members returns the decoded names and the values of an Object in order.
func (v Value) Members() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		s := scanner{b: v.Raw, i: 1}
		for {
			if s.space(); s.b[s.i] == '}' {
				return
			}
			name := Value{Raw: s.take()}.Text()
			s.space()
			s.i++ // the colon
			s.space()
			raw := s.take()
			if !yield(name, Value{Raw: raw, Path: join(v.Path, name)}) {
				return
			}
			s.separator()
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// Field is what a name in an object must hold.
type Field struct {
	Name     string
	Kind     Kind
	Required bool
	// Values, if set, is the kind of every value of a field that is itself an object with free
	// names.
	Values *Kind
}

// Fields checks that v is an object of only these fields with values of their kinds, and returns
// those that are there.
func (v Value) Fields(fields ...Field) (map[string]Value, error) {
	if err := v.Want(Object); err != nil {
		return nil, err
	}
	got := make(map[string]Value, len(fields))
	for name, value := range v.Members() {
		f, ok := find(fields, name)
		if !ok {
			return nil, errs.New(errs.Invalid, ReasonUnknownField, "%s: unknown field", value.Path).With("field", value.Path)
		}
		if err := value.Want(f.Kind); err != nil {
			return nil, err
		}
		if f.Values != nil {
			for _, member := range value.Members() {
				if err := member.Want(*f.Values); err != nil {
					return nil, err
				}
			}
		}
		got[name] = value
	}
	for _, f := range fields {
		if _, ok := got[f.Name]; f.Required && !ok {
			path := join(v.Path, f.Name)
			return nil, errs.New(errs.Invalid, ReasonInvalidField, "%s: is required", path).With("field", path)
		}
	}
	return got, nil
}

func find(fields []Field, name string) (Field, bool) {
	for _, f := range fields {
		if f.Name == name {
			return f, true
		}
	}
	return Field{}, false
}

// Want returns an error that names the path unless v is of kind k.
func (v Value) Want(k Kind) error {
	if got := v.Kind(); got != k {
		path := v.Path
		if path == "" {
			path = "the body"
		}
		return errs.New(errs.Invalid, ReasonInvalidField, "%s: must be %s, not %s", path, k, got).With("field", path)
	}
	return nil
}
