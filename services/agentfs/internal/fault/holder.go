package fault

import "strings"

// Holder is how the database names a turn that holds files: by its conversation too, so that no
// conversation can end the holds of another one.
func Holder(conversation, turn string) string { return conversation + "/" + turn }

// Holding is the conversation and the turn of a Holder.
func Holding(holder string) (conversation, turn string) {
	conversation, turn, _ = strings.Cut(holder, "/")
	return conversation, turn
}
