// Package inline cuts the base64 data out of a content block's JSON and puts it back, byte for
// byte. What could not be put back exactly is refused.
package inline

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
)

// Errors of blocks that cannot be cut, and of cuts that fit no block.
var (
	// ErrEncoding: not padded standard base64, spelled plainly. A slash may be spelled \/, as some
	// JSON writers do, if each slash of the data is; any other escape could not be told from its
	// plain spelling afterwards.
	ErrEncoding = errors.New(`is not base64 with padding, spelled without escapes (or with \/ for every slash)`)
	// ErrMember: the block has no such string, or holds white space between tokens.
	ErrMember = errors.New("the block has no such member")
	// ErrCut: the cut lies outside the block.
	ErrCut = errors.New("the cut lies outside the block")
)

// Cut says where and how Split took data out.
type Cut struct {
	// Offset is where the base64 text began, in bytes of the block that remains.
	Offset int64
	// Escaped: each slash of it was spelled \/.
	Escaped bool
}

// Decode reads the base64 text between the quotes of a JSON string.
func Decode(text []byte) (data []byte, escaped bool, err error) {
	plain := text
	if escaped = bytes.IndexByte(text, '\\') >= 0; escaped {
		plain = bytes.ReplaceAll(text, []byte(`\/`), []byte("/"))
		if bytes.Count(plain, []byte("/")) != bytes.Count(text, []byte(`\/`)) {
			return nil, false, ErrEncoding
		}
	}
	// Go's decoder skips line ends, and so would not give them back.
	if bytes.ContainsAny(plain, "\r\n") {
		return nil, false, ErrEncoding
	}
	data = make([]byte, base64.StdEncoding.DecodedLen(len(plain)))
	n, err := base64.StdEncoding.Strict().Decode(data, plain)
	if err != nil {
		return nil, false, ErrEncoding
	}
	return data[:n], escaped, nil
}

// Split cuts the string at path, a member of objects within each other, out of a block's compacted
// JSON. It returns the block with an empty string in its place, and the decoded data; raw is not
// changed.
func Split(raw []byte, path ...string) (rest []byte, cut Cut, data []byte, err error) {
	start, end, err := find(raw, path)
	if err != nil {
		return nil, Cut{}, nil, err
	}
	data, escaped, err := Decode(raw[start:end])
	if err != nil {
		return nil, Cut{}, nil, err
	}
	rest = make([]byte, 0, len(raw)-(end-start))
	rest = append(append(rest, raw[:start]...), raw[end:]...)
	return rest, Cut{Offset: int64(start), Escaped: escaped}, data, nil
}

// Join undoes Split.
func Join(rest []byte, cut Cut, data []byte) ([]byte, error) {
	if cut.Offset < 0 || cut.Offset > int64(len(rest)) {
		return nil, ErrCut
	}
	text := make([]byte, base64.StdEncoding.EncodedLen(len(data)))
	base64.StdEncoding.Encode(text, data)
	if cut.Escaped {
		text = bytes.ReplaceAll(text, []byte("/"), []byte(`\/`))
	}
	raw := make([]byte, 0, len(rest)+len(text))
	raw = append(append(raw, rest[:cut.Offset]...), text...)
	return append(raw, rest[cut.Offset:]...), nil
}

// find returns where the text of the string at path begins and ends, without its quotes.
func find(raw []byte, path []string) (start, end int, err error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	for _, name := range path {
		if t, err := dec.Token(); err != nil || t != json.Delim('{') {
			return 0, 0, ErrMember
		}
		for key := ""; key != name; {
			t, err := dec.Token()
			k, ok := t.(string)
			if err != nil || !ok {
				return 0, 0, ErrMember
			}
			// Between compacted tokens stands the colon alone.
			key, start = k, int(dec.InputOffset())+1
			if key == name {
				continue
			}
			var other json.RawMessage
			if err := dec.Decode(&other); err != nil {
				return 0, 0, ErrMember
			}
		}
	}
	var value json.RawMessage
	if err := dec.Decode(&value); err != nil {
		return 0, 0, ErrMember
	}
	end = int(dec.InputOffset())
	if len(path) == 0 || end-start != len(value) || len(value) < 2 || raw[start] != '"' {
		return 0, 0, ErrMember
	}
	return start + 1, end - 1, nil
}
