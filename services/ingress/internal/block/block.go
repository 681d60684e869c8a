// Package block checks ACP content blocks from their raw JSON bytes. A block is never decoded and
// encoded again: what is accepted is kept as the bytes received, less the white space between
// tokens. It is strict because Hermes is not: Hermes drops unknown fields, reads any URI without
// a scheme as a local path, and its JSON reader takes lone surrogates.
package block

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"unicode"
	"unicode/utf8"
)

// Limits bound what one turn may hold; each is inclusive and must be positive.
type Limits struct {
	Blocks     int // of all messages of a turn together
	TextBytes  int // of one text block's text, decoded
	TotalBytes int // of all blocks of a turn together, compacted
	Depth      int // of nested arrays and objects in one block
}

// DefaultLimits are those of the public contract.
func DefaultLimits() Limits {
	return Limits{Blocks: 64, TextBytes: 1 << 20, TotalBytes: 16 << 20, Depth: 64}
}

// The ACP kinds of a content block.
const (
	Text         = "text"
	Image        = "image"
	Audio        = "audio"
	ResourceLink = "resource_link"
	Resource     = "resource"
)

// Block is one accepted content block.
type Block struct {
	Type   string
	Raw    []byte   // compacted JSON
	SHA256 [32]byte // of Raw
	Text   string   // decoded text of a text block

	// URI is the canonical file URI the block names, FilePath where: "messages[0].blocks[1].uri".
	// Empty: none.
	URI, FilePath string
	// Name and MimeType are what the block says of its file or data; empty: nothing.
	Name, MimeType string
	// Inline is the path of the string that holds base64 data: {"data"} or {"resource", "blob"};
	// nil: none, or an empty one.
	Inline []string
}

// Code says which kind of problem an Error is.
type Code uint8

// The codes.
const (
	Malformed Code = iota // not one strict ACP content block
	FileURI               // names a file that is not one of the conversation's
	TooLarge              // beyond a limit
	Empty                 // nothing to say
)

// Error is why a block or turn was refused. Path is where, for example
// "messages[0].blocks[2].annotations.foo".
type Error struct {
	Code    Code
	Path    string
	Message string
}

// Error returns the path and the message.
func (e *Error) Error() string { return e.Path + ": " + e.Message }

func fail(c Code, path, format string, args ...any) error {
	return &Error{c, path, fmt.Sprintf(format, args...)}
}

// ParseTurn checks the messages of one turn, each a list of raw blocks.
func ParseTurn(messages [][][]byte, lim Limits) ([][]Block, error) {
	if len(messages) == 0 {
		return nil, fail(Empty, "messages", "at least one message is required")
	}
	count, total, blank := 0, 0, true
	out := make([][]Block, len(messages))
	for i, raws := range messages {
		if len(raws) == 0 {
			return nil, fail(Empty, fmt.Sprintf("messages[%d].blocks", i), "at least one block is required")
		}
		if count += len(raws); count > lim.Blocks {
			return nil, fail(TooLarge, "messages", "more than %d blocks", lim.Blocks)
		}
		for j, raw := range raws {
			b, err := Parse(raw, fmt.Sprintf("messages[%d].blocks[%d]", i, j), lim)
			if err != nil {
				return nil, err
			}
			if total += len(b.Raw); total > lim.TotalBytes {
				return nil, fail(TooLarge, "messages", "more than %d bytes of blocks", lim.TotalBytes)
			}
			blank = blank && b.Type == Text && Blank(b.Text)
			out[i] = append(out[i], b)
		}
	}
	if blank {
		return nil, fail(Empty, "messages", "the turn holds only white space")
	}
	return out, nil
}

// Blank reports whether Hermes, which strips as Python does, would see nothing in s.
func Blank(s string) bool {
	for _, r := range s {
		if !Space(r) {
			return false
		}
	}
	return true
}

// Space reports whether Python, and so Hermes, takes r for white space.
func Space(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f }

// Parse checks one block. path names it in errors.
func Parse(raw []byte, path string, lim Limits) (Block, error) {
	if !utf8.Valid(raw) {
		return Block{}, fail(Malformed, path, "is not valid UTF-8")
	}
	if !json.Valid(raw) {
		return Block{}, fail(Malformed, path, "is not valid JSON")
	}
	var compact bytes.Buffer
	compact.Grow(len(raw))
	if err := json.Compact(&compact, raw); err != nil {
		return Block{}, fail(Malformed, path, "is not valid JSON")
	}
	s := &scanner{data: compact.Bytes(), depth: lim.Depth}
	if err := s.check(path); err != nil {
		return Block{}, err
	}
	o, err := asObject(s.data, path)
	if err != nil {
		return Block{}, err
	}
	b := Block{Raw: s.data, SHA256: sha256.Sum256(s.data)}
	if b.Type, err = o.text("type"); err != nil {
		return Block{}, err
	}
	kind, ok := kinds[b.Type]
	if !ok {
		return Block{}, fail(Malformed, o.at("type"), "unknown block type %s", quote(b.Type))
	}
	if err := kind(o, &b, lim); err != nil {
		return Block{}, err
	}
	return b, nil
}
