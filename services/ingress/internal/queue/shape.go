package queue

import (
	"encoding/json"
	"slices"
	"strings"

	"humanwork.internal/services/ingress/internal/block"
	"humanwork.internal/services/ingress/internal/outcome"
	"humanwork.internal/services/ingress/internal/turn"
)

// shapeOf returns the prompt's text as Hermes joins it, what may become of such a prompt, and
// whether it has blocks that are not text.
func shapeOf(blocks []turn.Block) (text string, shape outcome.Shape, others bool) {
	var texts []string
	for _, b := range blocks {
		// Only what acceptance has checked is decoded here, so that nothing can be missing.
		var v struct {
			Text     string `json:"text"`
			Resource struct {
				MimeType string `json:"mimeType"`
				Blob     string `json:"blob"`
			} `json:"resource"`
		}
		switch b.Type {
		case block.Text:
			_ = json.Unmarshal(b.Raw, &v)
			texts = append(texts, v.Text)
			continue
		case block.Image:
			shape.Readable = true
		case block.Resource:
			_ = json.Unmarshal(b.Raw, &v)
			// Hermes makes an image of these.
			image := strings.HasPrefix(strings.ToLower(strings.TrimSpace(v.Resource.MimeType)), "image/")
			shape.Readable = shape.Readable || image && (v.Resource.Blob != "" || b.Data != nil)
		}
		others = true
	}
	text = strings.Join(texts, "\n")
	shape.Readable = shape.Readable || !block.Blank(text)
	shape.Command = !others && isCommand(text)
	return text, shape, others
}

// commands are the words Hermes 0.19.0 answers itself. Any other text with a slash in front is a
// message like all others, which a wedged child would only announce to have queued.
var commands = []string{"compact", "context", "help", "model", "queue", "reset", "steer", "tools", "version"}

// isCommand reads the first word as Hermes does: any number of slashes, any case.
func isCommand(text string) bool {
	word := strings.FieldsFunc(text, block.Space)
	if len(word) == 0 || word[0][0] != '/' {
		return false
	}
	return slices.Contains(commands, strings.ToLower(strings.TrimLeft(word[0], "/")))
}
