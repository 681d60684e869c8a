// Package namespace maps the public paths of a conversation to the paths of its organization's
// database and back. What has no public path is private.
package namespace

import (
	"path"
	"strings"

	"humanwork.internal/pkg/fileuri"
)

const conversations = "/conversations/"

// directories of a conversation that hold its public files, below its own.
var directories = map[fileuri.Root]string{
	fileuri.Workspace: "work",
	fileuri.Inbound:   "artifacts/inbound",
	fileuri.Outbound:  "artifacts/outbound",
}

// Home is the directory of a conversation, whose quota its files count in.
func Home(conversation string) string { return conversations + conversation }

// Directory is the directory of one of the conversation's roots.
func Directory(conversation string, r fileuri.Root) string {
	return Home(conversation) + "/" + directories[r]
}

// Private is the path of p in the database.
func Private(conversation string, p fileuri.Path) string {
	return Directory(conversation, p.Root()) + "/" + path.Join(p.Names()...)
}

// Below is the path in the database of a public path that may also be a root, or "artifacts".
func Below(conversation, public string) (string, error) {
	if public == "artifacts" {
		return Home(conversation) + "/artifacts", nil
	}
	for root := range directories {
		if public == root.String() {
			return Directory(conversation, root), nil
		}
	}
	p, err := fileuri.ParsePath(public)
	if err != nil {
		return "", err
	}
	return Private(conversation, p), nil
}

// Public is the conversation and the public path of a path of the database. ok is false for what
// is private.
func Public(private string) (conversation string, p fileuri.Path, ok bool) {
	rest, ok := strings.CutPrefix(private, conversations)
	if !ok {
		return "", fileuri.Path{}, false
	}
	conversation, rest, _ = strings.Cut(rest, "/")
	for root, dir := range directories {
		if names, below := strings.CutPrefix(rest, dir+"/"); below {
			p, err := fileuri.ParsePath(root.String() + "/" + names)
			return conversation, p, err == nil
		}
	}
	return "", fileuri.Path{}, false
}
