package fscli

import (
	"strings"

	"humanwork.internal/pkg/fileuri"
)

// remote reads the argument that names a file on the server: a public path or a file URI.
func remote(arg string) (fileuri.Path, error) {
	if strings.HasPrefix(arg, "file:") {
		return fileuri.ParseURI(arg)
	}
	return fileuri.ParsePath(arg)
}
