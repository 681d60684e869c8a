package files

import (
	"context"
	"encoding/base64"
	"errors"
	"path"
	"strings"
	"syscall"
	"unicode/utf8"

	"humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/services/agentfs/internal/fault"
	"humanwork.internal/services/agentfs/internal/namespace"
)

const (
	// listed is how many entries are read in one transaction.
	listed = 256
	// maxLooked bounds the entries one page looks at: of a tree of empty directories a page is
	// short, or empty, and there is a next one.
	maxLooked = 20_000
)

// Listing says what to list.
type Listing struct {
	// Prefix is the beginning of public paths.
	Prefix string
	// Shallow names the directories below the prefix's directory instead of descending.
	Shallow bool
	Size    int
	Token   string
}

// Page is a part of a listing, ordered by path, component by component.
type Page struct {
	Files       []File
	Directories []string // with a slash at the end
	Next        string   // empty on the last page
}

// public is the tree of directories above the roots, which is the same for every conversation.
var public = map[string][]string{"": {"artifacts", "workspace"}, "artifacts": {"inbound", "outbound"}}

var rootOf = map[string]fileuri.Root{fileuri.Workspace.String(): fileuri.Workspace,
	fileuri.Inbound.String(): fileuri.Inbound, fileuri.Outbound.String(): fileuri.Outbound}

// List returns the regular files whose path begins with the prefix. A token names the last path of
// the page before, which may be gone: the next page begins after where it was.
func (t Tree) List(ctx context.Context, l Listing) (Page, error) {
	dir, name, err := splitPrefix(l.Prefix)
	if err != nil {
		return Page{}, err
	}
	after, err := decodeToken(l)
	if err != nil {
		return Page{}, err
	}
	w := walk{tree: t, listing: l, looked: maxLooked}
	at, err := w.enter(ctx, dir)
	if err != nil || at == nil {
		return Page{}, err
	}
	switch err := w.directory(ctx, *at, name, after); {
	case errors.Is(err, errFull):
		w.page.Next = encodeToken(l, w.last)
	case err != nil:
		return Page{}, err
	}
	return w.page, nil
}

// splitPrefix returns the directory of the prefix, without a slash at the end, and the beginning of
// names in it.
func splitPrefix(prefix string) (dir, name string, err error) {
	bad := func(why string) (string, string, error) {
		return "", "", errs.New(errs.Invalid, fault.InvalidPath, "the prefix %s", why)
	}
	if !utf8.ValidString(prefix) || strings.ContainsRune(prefix, 0) {
		return bad("is not UTF-8, or holds a NUL byte")
	}
	i := strings.LastIndexByte(prefix, '/')
	if i < 0 {
		return "", prefix, nil
	}
	dir, name = prefix[:i], prefix[i+1:]
	for n := range strings.SplitSeq(dir, "/") {
		if n == "" || n == "." || n == ".." {
			return bad("is not the beginning of a canonical public path")
		}
	}
	return dir, name, nil
}

// errFull ends a walk whose page is full.
var errFull = errors.New("the page is full")

// node is a directory of the walk: one of the roots' or above them, ino 0, or one below.
type node struct {
	path string // public, without a slash at the end; "" for the top
	ino  agentfs.Ino
}

type child struct {
	name string
	attr agentfs.Attr
	dir  bool
}

type walk struct {
	tree    Tree
	listing Listing
	page    Page
	last    string // the last path that is done with
	looked  int
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// enter finds the directory with the public path; nil: there is none.
func (w *walk) enter(ctx context.Context, dir string) (*node, error) {
	if _, ok := public[dir]; ok {
		return &node{path: dir}, nil
	}
	private := ""
	if r, ok := rootOf[dir]; ok {
		private = namespace.Directory(w.tree.Conversation.ID, r)
	} else if p, err := fileuri.ParsePath(dir); err == nil {
		private = w.tree.private(p)
	} else {
		return nil, nil // no public path begins so
	}
	a, err := w.tree.FS.Resolve(ctx, private)
	switch {
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		return nil, nil
	case err != nil:
		return nil, fault.From(err, dir)
	case a.Mode&agentfs.TypeMask != agentfs.TypeDir:
		return nil, nil
	}
	return &node{path: dir, ino: a.Ino}, nil
}

// directory adds what is below d, names that begin with prefix only, after the path after (its names
// below d; none: from the beginning).
func (w *walk) directory(ctx context.Context, d node, prefix string, after []string) error {
	from := ""
	if len(after) > 0 {
		from = after[0]
	}
	// The page before ended within that directory; or, at the first page, the name equal to the
	// prefix comes before those that begin with it.
	if len(after) > 1 || from < prefix {
		if from < prefix {
			from, after = prefix, nil
		}
		c, err := w.lookup(ctx, d, from)
		if err != nil {
			return err
		}
		if c != nil {
			if err := w.child(ctx, d, *c, after[min(1, len(after)):]); err != nil {
				return err
			}
		}
	}
	for {
		children, err := w.read(ctx, d, from)
		if err != nil {
			return err
		}
		for _, c := range children {
			if !strings.HasPrefix(c.name, prefix) {
				return nil
			}
			if err := w.child(ctx, d, c, nil); err != nil {
				return err
			}
			from = c.name
		}
		if len(children) < listed {
			return nil
		}
	}
}

// child adds a file, or what is below a directory, from after on.
func (w *walk) child(ctx context.Context, d node, c child, after []string) error {
	at := join(d.path, c.name)
	w.looked--
	if w.looked < 0 {
		return errFull
	}
	switch {
	case c.dir && !w.listing.Shallow:
		n, err := w.enterChild(ctx, at, c)
		if err != nil {
			return err
		}
		if n != nil {
			if err := w.directory(ctx, *n, "", after); err != nil {
				return err
			}
		}
	case len(after) > 0: // listed as a directory, or was one when the page before was made
	case c.dir:
		if err := w.room(); err != nil {
			return err
		}
		w.page.Directories = append(w.page.Directories, at+"/")
	default:
		p, err := fileuri.ParsePath(at)
		if err != nil || c.attr.Mode&agentfs.TypeMask != agentfs.TypeFile {
			break
		}
		if err := w.room(); err != nil {
			return err
		}
		f, err := w.tree.describe(ctx, p, c.attr)
		if err != nil {
			return err
		}
		w.page.Files = append(w.page.Files, f)
	}
	// Only what is done with may end a page: the next one begins after it.
	w.last = at
	return nil
}

func (w *walk) enterChild(ctx context.Context, at string, c child) (*node, error) {
	if c.attr.Ino == 0 {
		return w.enter(ctx, at)
	}
	return &node{path: at, ino: c.attr.Ino}, nil
}

// room ends the walk when one more would be too many.
func (w *walk) room() error {
	if len(w.page.Files)+len(w.page.Directories) >= w.listing.Size {
		return errFull
	}
	return nil
}

func (w *walk) lookup(ctx context.Context, d node, name string) (*child, error) {
	if d.ino == 0 {
		for _, c := range public[d.path] {
			if c == name {
				return &child{name: name, dir: true}, nil
			}
		}
		return nil, nil
	}
	a, err := w.tree.FS.Lookup(ctx, d.ino, name)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENAMETOOLONG) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fault.From(err, path.Join(d.path, name))
	}
	return &child{name: name, attr: a, dir: a.Mode&agentfs.TypeMask == agentfs.TypeDir}, nil
}

func (w *walk) read(ctx context.Context, d node, after string) ([]child, error) {
	var list []child
	if d.ino == 0 {
		for _, name := range public[d.path] {
			if name > after {
				list = append(list, child{name: name, dir: true})
			}
		}
		return list, nil
	}
	entries, err := w.tree.FS.ReadDir(ctx, d.ino, after, listed)
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.ENOTDIR) {
		return nil, nil // removed meanwhile
	}
	if err != nil {
		return nil, fault.From(err, d.path)
	}
	for _, e := range entries {
		list = append(list, child{name: e.Name, attr: e.Attr, dir: e.Attr.Mode&agentfs.TypeMask == agentfs.TypeDir})
	}
	return list, nil
}

// A token is what the page before ended with, for a listing of the same kind.
func encodeToken(l Listing, last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind(l) + last))
}

func kind(l Listing) string {
	if l.Shallow {
		return "s"
	}
	return "d"
}

func decodeToken(l Listing) (after []string, err error) {
	if l.Token == "" {
		return nil, nil
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(l.Token)
	last, ok := strings.CutPrefix(string(raw), kind(l))
	if err == nil && ok && strings.HasPrefix(last, l.Prefix) && utf8.ValidString(last) && !strings.ContainsRune(last, 0) {
		dir, _, _ := splitPrefix(l.Prefix)
		rest := last
		if dir != "" {
			rest = last[len(dir)+1:]
		}
		after = strings.Split(rest, "/")
	}
	for _, n := range after {
		if n == "" || n == "." || n == ".." {
			after = nil
			break
		}
	}
	if after == nil {
		return nil, errs.New(errs.Invalid, fault.InvalidPageToken, "the page token is not one of this listing's")
	}
	return after, nil
}
