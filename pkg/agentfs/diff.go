package agentfs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrPosition says that the ledger has no such position, or that from is after to.
var ErrPosition = errors.New("no such position in the ledger")

// DifferenceKind says how a path differs.
type DifferenceKind int

// Kinds of differences.
const (
	Added DifferenceKind = iota + 1
	// Modified: content, attributes or extended attributes; or replaced by another file.
	Modified
	Removed
	// Renamed: a directory is one difference, the names below it are none.
	Renamed
)

// Difference is one path that differs between two points. What was renamed and modified is two.
type Difference struct {
	Kind DifferenceKind
	// Path is absolute: of a removed one where it was at the earlier point.
	Path string
	// Previous is the path at the earlier point; Renamed only.
	Previous  string
	Directory bool
}

// Diff says what differs in a quota directory (0: the whole database) between two positions of the
// ledger, by path and kind. From 0 is the base: what was provisioned and nothing else; to 0 is now.
// It folds the records between the two, and needs memory for those paths only. It returns the
// positions that were compared. ErrPosition for one that does not exist.
func (f *FS) Diff(ctx context.Context, project Ino, from, to int64) ([]Difference, int64, int64, error) {
	d := newFold(from == 0)
	err := f.view(ctx, func(t *tx) error {
		r, err := t.row(`SELECT coalesce(max(position), 0) FROM hw_ledger`)
		if err != nil {
			return err
		}
		last := r.int(0)
		if to == 0 {
			to = last
		}
		if from < 0 || from > to || to > last {
			return fmt.Errorf("from %d to %d of %d: %w", from, to, last, ErrPosition)
		}
		where, args := `l.position > ? AND l.position <= ?`, []any{from, to}
		if project != 0 {
			where, args = `l.project = ? AND `+where, append([]any{project}, args...)
		}
		return t.each(`SELECT l.position, CAST(l.action AS BLOB), l.mode, CAST(l.path AS BLOB), CAST(l.target AS BLOB)
			FROM hw_ledger l WHERE `+where+` ORDER BY l.position`, func(r row) error {
			if r.int(0)%4096 == 0 && ctx.Err() != nil {
				return ctx.Err()
			}
			d.apply(r.text(1), uint32(r.int(2)), r.text(3), r.text(4))
			return nil
		}, args...)
	})
	if err != nil {
		return nil, 0, 0, fail("compare", "", err)
	}
	return d.differences(), from, to, nil
}

// fold is the part of the tree that the records touched. It knows nothing of the rest: a path that
// no record has mentioned is what was there at the earlier point, and stays so.
type fold struct {
	base bool // provisioning is the base
	root *object
	// objects are all that the earlier point had or that came later, in order of appearance.
	objects []*object
}

// object is a name with what it leads to.
type object struct {
	// name and parent are where it is now, parent nil if it is gone; was and wasIn where it was at
	// the earlier point, wasIn nil if it was not there.
	name, was     string
	parent, wasIn *object
	children      map[string]*object // by name now
	origins       map[string]*object // by name then; those that were mentioned
	directory     bool
	modified      bool
}

func newFold(base bool) *fold {
	root := &object{directory: true}
	root.wasIn = root
	return &fold{base: base, root: root}
}

func (d *fold) apply(action string, mode uint32, path, target string) {
	directory := mode&TypeMask == TypeDir
	switch action {
	case ActionProvision:
		if !d.base {
			d.create(path, directory)
		}
	case ActionCreate, ActionMkdir, ActionSymlink:
		d.create(path, directory)
	case ActionReplace:
		d.take(path, false)
		d.create(path, directory)
	case ActionLink:
		d.create(target, false)
	case ActionRemove, ActionRmdir:
		d.take(path, directory || action == ActionRmdir)
	case ActionRename:
		d.put(target, d.take(path, directory))
	case ActionExchange:
		one, other := d.take(path, directory), d.take(target, false)
		d.put(target, one)
		d.put(path, other)
	case ActionWrite, ActionTruncate, ActionSetAttr, ActionSetXattr, ActionRemoveXattr:
		d.modify(path, directory)
	case ActionRepair:
		switch {
		case mode == 0:
			d.take(path, false)
		case strings.HasPrefix(path, "/"+lostAndFound+"/") && target != FaultLinks && target != FaultProject:
			d.create(path, directory)
		default:
			d.modify(path, directory)
		}
	}
}

// find returns the directory of the path, as the records have it so far, and the last name; false
// for the root and for an inode without a name.
func (d *fold) find(path string) (in *object, name string, ok bool) {
	names := strings.Split(strings.Trim(path, "/"), "/")
	at := d.root
	for _, n := range names[:len(names)-1] {
		at = d.child(at, n, true)
	}
	name = names[len(names)-1]
	return at, name, name != ""
}

// child returns what has the name in the directory now. What no record mentioned before was there
// at the earlier point, if the directory was.
func (d *fold) child(in *object, name string, directory bool) *object {
	if c := in.children[name]; c != nil {
		return c
	}
	c := &object{directory: directory}
	if _, mentioned := in.origins[name]; !mentioned && in.wasIn != nil {
		c.was, c.wasIn = name, in
		in.origins = with(in.origins, name, c)
	}
	d.objects = append(d.objects, c)
	attach(c, in, name)
	return c
}

func with(m map[string]*object, name string, o *object) map[string]*object {
	if m == nil {
		m = map[string]*object{}
	}
	m[name] = o
	return m
}

func attach(o, in *object, name string) {
	o.parent, o.name = in, name
	in.children = with(in.children, name, o)
}

// create makes an object that the earlier point did not have.
func (d *fold) create(path string, directory bool) {
	o := &object{directory: directory}
	d.objects = append(d.objects, o)
	d.put(path, o)
}

// put gives the object a name that is free.
func (d *fold) put(path string, o *object) {
	in, name, ok := d.find(path)
	if !ok || o == nil {
		return
	}
	if _, mentioned := in.origins[name]; !mentioned && in.wasIn != nil {
		in.origins = with(in.origins, name, nil) // it was free at the earlier point too
	}
	if old := in.children[name]; old != nil {
		old.parent = nil
	}
	attach(o, in, name)
}

// take removes the name and returns what had it.
func (d *fold) take(path string, directory bool) *object {
	in, name, ok := d.find(path)
	if !ok {
		return nil
	}
	o := d.child(in, name, directory)
	o.parent = nil
	delete(in.children, name)
	return o
}

func (d *fold) modify(path string, directory bool) {
	if in, name, ok := d.find(path); ok {
		d.child(in, name, directory).modified = true
	}
}

// now is the path at the later point, false if it is gone.
func (d *fold) now(o *object) (string, bool) {
	path := ""
	for ; o != d.root; o = o.parent {
		if o.parent == nil {
			return "", false
		}
		path = "/" + o.name + path
	}
	return path, true
}

// then is the path at the earlier point, of an object that was there.
func (d *fold) then(o *object) string {
	path := ""
	for ; o != d.root; o = o.wasIn {
		path = "/" + o.was + path
	}
	return path
}

// expected is where an object of the earlier point would be if only directories above it had moved.
func (d *fold) expected(o *object) string {
	path := ""
	for {
		path = "/" + o.was + path
		o = o.wasIn
		if now, ok := d.now(o); ok {
			return now + path
		}
	}
}

func (d *fold) differences() []Difference {
	gone := map[string]*object{} // by where it would be
	for _, o := range d.objects {
		if _, here := d.now(o); !here && o.wasIn != nil {
			gone[d.expected(o)] = o
		}
	}
	var list []Difference
	add := func(kind DifferenceKind, path, previous string, directory bool) {
		list = append(list, Difference{Kind: kind, Path: path, Previous: previous, Directory: directory})
	}
	for _, o := range d.objects {
		path, here := d.now(o)
		if !here {
			continue
		}
		// A file in the place of another is that one modified, a directory in the place of a
		// directory is no difference.
		old := gone[path]
		replaced := old != nil && old.directory == o.directory
		if replaced {
			delete(gone, path)
		}
		renamed := o.wasIn != nil && path != d.expected(o)
		switch {
		case o.wasIn == nil && !replaced:
			add(Added, path, "", o.directory)
		case renamed:
			add(Renamed, path, d.then(o), o.directory)
		}
		if replaced && !o.directory || o.wasIn != nil && o.modified {
			add(Modified, path, "", o.directory)
		}
	}
	for _, o := range gone {
		add(Removed, d.then(o), "", o.directory)
	}
	slices.SortFunc(list, func(a, b Difference) int {
		return cmp.Or(strings.Compare(a.Path, b.Path), cmp.Compare(a.Kind, b.Kind))
	})
	return list
}
