package entity

import (
	"fmt"
	"strings"
)

// Attachment returns the Content-Disposition (RFC 6266) of a file to save under name, which may hold
// anything: filename is plain ASCII for old readers, filename* exact.
func Attachment(name string) string {
	var plain, exact strings.Builder
	for _, c := range name {
		if c < ' ' || c > '~' || strings.ContainsRune(`"\%/`, c) {
			// A reader that undoes escapes in filename would be misled by a percent sign.
			c = '_'
		}
		plain.WriteRune(c)
	}
	for i := range len(name) {
		if c := name[i]; attrChar(c) {
			exact.WriteByte(c)
		} else {
			fmt.Fprintf(&exact, "%%%02X", c)
		}
	}
	return fmt.Sprintf(`attachment; filename="%s"; filename*=UTF-8''%s`, plain.String(), exact.String())
}

// attrChar says whether RFC 8187 lets a character stand for itself.
func attrChar(c byte) bool {
	switch {
	case '0' <= c && c <= '9', 'A' <= c && c <= 'Z', 'a' <= c && c <= 'z':
		return true
	}
	return strings.IndexByte("!#$&+-.^_`|~", c) >= 0
}
