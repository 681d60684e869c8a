package agentfs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// modelNode is an inode of the model: what POSIX says there is.
type modelNode struct {
	ino     Ino
	kind    uint32
	data    []byte // a file's content, a link's target
	names   map[string]*modelNode
	parent  *modelNode // of a directory
	links   int
	handles int
}

// model runs the same operations on an FS and in memory and compares what they answer.
type model struct {
	t     *testing.T
	f     *FS
	r     *rand.Rand
	root  *modelNode
	nodes []*modelNode // all that have a name or are open
	open  map[*File]*modelNode
	temps map[*File]bool
	log   []string
}

// TestModel runs random operations against a model of POSIX. A failure prints the seed and the
// operations; AGENTFS_TEST_SEED repeats it.
func TestModel(t *testing.T) {
	seeds := []uint64{1, 2, 3, uint64(time.Now().UnixNano())}
	if s := os.Getenv("AGENTFS_TEST_SEED"); s != "" {
		var seed uint64
		if _, err := fmt.Sscan(s, &seed); err != nil {
			t.Fatal(err)
		}
		seeds = []uint64{seed}
	}
	for i, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			runModel(t, seed, []int64{7, 64, chunkSize, 16}[i%4], 700)
		})
	}
}

func runModel(t *testing.T, seed uint64, chunk int64, operations int) {
	o := options(t)
	f := withChunk(t, o, chunk)
	root := &modelNode{ino: Root, kind: TypeDir, names: map[string]*modelNode{}, links: 2}
	root.parent = root
	m := &model{t: t, f: f, r: rand.New(rand.NewPCG(seed, 1)), root: root, nodes: []*modelNode{root},
		open: map[*File]*modelNode{}, temps: map[*File]bool{}}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, chunk %d, last operations:\n%s", seed, chunk, strings.Join(m.log[max(0, len(m.log)-30):], "\n"))
		}
	}()
	for i := range operations {
		m.step()
		if i%50 == 49 {
			m.compare()
		}
		if t.Failed() {
			return
		}
	}
	for x, n := range m.open {
		m.close(x, n)
	}
	m.compare()
	if n := number(t, f, "SELECT count(*) FROM hw_orphan"); n != 0 {
		t.Errorf("%d orphans after all were closed", n)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if m.f, _ = Open(t.Context(), o); m.f == nil {
		t.Fatal("it cannot be opened again")
	}
	defer m.f.Close()
	m.compare()
}

func (m *model) note(format string, args ...any) { m.log = append(m.log, fmt.Sprintf(format, args...)) }

// expect compares an operation's error with the errno of the model, 0 for none.
func (m *model) expect(err error, want syscall.Errno) bool {
	m.t.Helper()
	m.log[len(m.log)-1] += fmt.Sprintf(" = %v", want)
	if want == 0 && err != nil || want != 0 && !errors.Is(err, want) {
		m.t.Errorf("%s: got %v, want %v", m.log[len(m.log)-1], err, want)
	}
	return want == 0 && err == nil
}

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func (m *model) dir() *modelNode {
	dirs := slices.DeleteFunc(slices.Clone(m.nodes), func(n *modelNode) bool { return n.kind != TypeDir && m.r.IntN(8) > 0 })
	return pick(m.r, dirs)
}

func (m *model) name() string { return pick(m.r, []string{"a", "b", "2024-01-05", "it's"}) }

// place says what making a name answers.
func (n *modelNode) free(name string) syscall.Errno {
	if n.kind != TypeDir {
		return syscall.ENOTDIR
	}
	if n.names[name] != nil {
		return syscall.EEXIST
	}
	return 0
}

func (n *modelNode) lookup(name string) (*modelNode, syscall.Errno) {
	if n.kind != TypeDir {
		return nil, syscall.ENOTDIR
	}
	if c := n.names[name]; c != nil {
		return c, 0
	}
	return nil, syscall.ENOENT
}

func (m *model) add(parent *modelNode, name string, n *modelNode) {
	if n.kind == TypeDir {
		n.names, n.parent, n.links = map[string]*modelNode{}, parent, 2
		parent.links++
	} else {
		n.links = 1
	}
	parent.names[name] = n
	m.nodes = append(m.nodes, n)
}

func (m *model) drop(n *modelNode) {
	if n.kind == TypeDir {
		n.parent.links--
		n.links = 0
	} else {
		n.links--
	}
	m.forget(n)
}

func (m *model) forget(n *modelNode) {
	if n.links == 0 && n.handles == 0 {
		m.nodes = slices.DeleteFunc(m.nodes, func(o *modelNode) bool { return o == n })
	}
}

func (m *model) bytes() []byte {
	b := make([]byte, m.r.IntN(int(min(m.f.chunk*3, 40000))))
	for i := range b {
		b[i] = byte(m.r.IntN(255) + 1)
	}
	return b
}

func (m *model) step() {
	ctx := m.t.Context()
	dir, name := m.dir(), m.name()
	at := func(op string) { m.note("%s %d/%s", op, dir.ino, name) }
	switch m.r.IntN(16) {
	case 0, 1:
		at("mkdir")
		a, err := m.f.Mkdir(ctx, someone, dir.ino, name, 0o755)
		if m.expect(err, dir.free(name)) {
			m.add(dir, name, &modelNode{ino: a.Ino, kind: TypeDir})
		}
	case 2:
		at("symlink")
		a, err := m.f.Symlink(ctx, someone, dir.ino, name, "../x")
		if m.expect(err, dir.free(name)) {
			m.add(dir, name, &modelNode{ino: a.Ino, kind: TypeSymlink, data: []byte("../x")})
		}
	case 3:
		at("mknod")
		a, err := m.f.Mknod(ctx, someone, dir.ino, name, TypeFIFO|0o600)
		if m.expect(err, dir.free(name)) {
			m.add(dir, name, &modelNode{ino: a.Ino, kind: TypeFIFO})
		}
	case 4, 5:
		m.create(dir, name)
	case 6:
		m.link(dir, name)
	case 7:
		at("unlink")
		want := syscall.Errno(0)
		n, errno := dir.lookup(name)
		if want = errno; errno == 0 && n.kind == TypeDir {
			want = syscall.EISDIR
		}
		if m.expect(m.f.Unlink(ctx, someone, dir.ino, name), want) {
			delete(dir.names, name)
			m.drop(n)
		}
	case 8:
		at("rmdir")
		n, want := dir.lookup(name)
		if want == 0 && n.kind != TypeDir {
			want = syscall.ENOTDIR
		} else if want == 0 && len(n.names) > 0 {
			want = syscall.ENOTEMPTY
		}
		if m.expect(m.f.Rmdir(ctx, someone, dir.ino, name), want) {
			delete(dir.names, name)
			m.drop(n)
		}
	case 9, 10:
		m.rename(dir, name)
	case 11:
		m.put(dir, name)
	default:
		m.handle()
	}
}

func (m *model) create(dir *modelNode, name string) {
	flags := os.O_RDWR | pick(m.r, []int{0, os.O_EXCL, os.O_TRUNC})
	m.note("create %d/%s flags %x", dir.ino, name, flags)
	n, want := dir.lookup(name)
	switch {
	case want == syscall.ENOENT:
		want = 0
	case want != 0:
	case flags&os.O_EXCL != 0:
		want = syscall.EEXIST
	case n.kind == TypeDir:
		want = syscall.EISDIR
	case n.kind == TypeSymlink:
		want = syscall.ELOOP
	case n.kind != TypeFile:
		want = syscall.ENXIO
	}
	x, err := m.f.Create(m.t.Context(), someone, dir.ino, name, 0o644, flags)
	if !m.expect(err, want) {
		return
	}
	if n == nil {
		n = &modelNode{ino: x.Ino(), kind: TypeFile}
		m.add(dir, name, n)
	} else if flags&os.O_TRUNC != 0 {
		n.data = nil
	}
	n.handles++
	m.open[x] = n
}

func (m *model) link(dir *modelNode, name string) {
	n := pick(m.r, m.nodes)
	m.note("link %d to %d/%s", n.ino, dir.ino, name)
	want := dir.free(name)
	if want == 0 && n.kind == TypeDir {
		want = syscall.EPERM
	} else if want == 0 && n.links == 0 {
		want = syscall.ENOENT
	}
	_, err := m.f.Link(m.t.Context(), someone, n.ino, dir.ino, name)
	if m.expect(err, want) {
		dir.names[name] = n
		n.links++
	}
}

func (n *modelNode) within(dir *modelNode) bool {
	for ; ; n = n.parent {
		if n == dir {
			return true
		}
		if n.parent == n {
			return false
		}
	}
}

func (m *model) rename(from *modelNode, old string) {
	to, name := m.dir(), m.name()
	flags := pick(m.r, []uint{0, 0, 0, unix.RENAME_NOREPLACE, unix.RENAME_EXCHANGE})
	m.note("rename %d/%s to %d/%s flags %d", from.ino, old, to.ino, name, flags)
	source, want := from.lookup(old)
	var target *modelNode
	if want == 0 {
		if target, want = to.lookup(name); want == syscall.ENOENT && flags != unix.RENAME_EXCHANGE {
			want = 0
		}
	}
	exchange := flags == unix.RENAME_EXCHANGE
	switch {
	case want != 0:
	case target != nil && flags == unix.RENAME_NOREPLACE:
		want = syscall.EEXIST
	case source.kind == TypeDir && to.within(source), exchange && target.kind == TypeDir && from.within(target):
		want = syscall.EINVAL
	case target != nil && from != to && target.kind == TypeDir && from.within(target):
		want = syscall.ENOTEMPTY
	case target == source || target == nil || exchange:
	case source.kind == TypeDir && target.kind != TypeDir:
		want = syscall.ENOTDIR
	case source.kind != TypeDir && target.kind == TypeDir:
		want = syscall.EISDIR
	case target.kind == TypeDir && len(target.names) > 0:
		want = syscall.ENOTEMPTY
	}
	if !m.expect(m.f.Rename(m.t.Context(), someone, from.ino, old, to.ino, name, flags), want) || target == source {
		return
	}
	adopt := func(n, parent *modelNode) {
		if n.kind == TypeDir {
			n.parent.links--
			parent.links++
			n.parent = parent
		}
	}
	if exchange {
		from.names[old], to.names[name] = target, source
		adopt(source, to)
		adopt(target, from)
		return
	}
	if target != nil {
		m.drop(target)
	}
	delete(from.names, old)
	to.names[name] = source
	adopt(source, to)
}

func (m *model) put(dir *modelNode, name string) {
	content := m.bytes()
	m.note("put %d/%s %d bytes", dir.ino, name, len(content))
	old, want := dir.lookup(name)
	if want == syscall.ENOENT {
		want = 0
	} else if want == 0 && old.kind == TypeDir {
		want = syscall.EISDIR
	}
	var a Attr
	var created bool
	var err error
	p := Placement{Parent: dir.ino, Name: name, Replace: true}
	if m.r.IntN(2) == 0 {
		a, created, err = m.f.Put(m.t.Context(), someone, p, 0o644, content)
	} else {
		x, terr := m.f.Temp(m.t.Context(), someone, 0, 0o644)
		if terr != nil {
			m.t.Fatal(terr)
		}
		if _, err := x.WriteAt(content, 0); err != nil {
			m.t.Fatal(err)
		}
		a, created, err = m.f.Place(m.t.Context(), someone, x, p)
		if err := x.Close(); err != nil {
			m.t.Fatal(err)
		}
	}
	if !m.expect(err, want) {
		return
	}
	if created != (old == nil) {
		m.t.Errorf("put: got created %v, want %v", created, old == nil)
	}
	if old != nil {
		m.drop(old)
	}
	m.add(dir, name, &modelNode{ino: a.Ino, kind: TypeFile, data: content})
}

func (m *model) handle() {
	if len(m.open) == 0 {
		return
	}
	files := make([]*File, 0, len(m.open))
	for x := range m.open {
		files = append(files, x)
	}
	sort.Slice(files, func(i, j int) bool { return files[i].ino < files[j].ino })
	x := pick(m.r, files)
	n := m.open[x]
	off := m.r.Int64N(m.f.chunk * 4)
	grow := func(size int64) {
		if size > int64(len(n.data)) {
			n.data = append(n.data, make([]byte, size-int64(len(n.data)))...)
		}
	}
	switch m.r.IntN(8) {
	case 0, 1, 2:
		p := m.bytes()
		m.note("write %d at %d, %d bytes", n.ino, off, len(p))
		_, err := x.WriteAt(p, off)
		if m.expect(err, 0) && len(p) > 0 {
			grow(off + int64(len(p)))
			copy(n.data[off:], p)
		}
	case 3:
		m.note("truncate %d to %d", n.ino, off)
		if m.expect(x.Truncate(off), 0) {
			grow(off)
			n.data = n.data[:off:off]
		}
	case 4:
		length := m.r.Int64N(m.f.chunk*3) + 1
		mode := pick(m.r, []uint32{unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE, unix.FALLOC_FL_ZERO_RANGE, 0})
		m.note("allocate %d mode %d at %d, %d bytes", n.ino, mode, off, length)
		if !m.expect(x.Allocate(mode, off, length), 0) {
			return
		}
		if mode&unix.FALLOC_FL_KEEP_SIZE == 0 {
			grow(off + length)
		}
		if mode != 0 && off < int64(len(n.data)) {
			clear(n.data[off:min(off+length, int64(len(n.data)))])
		}
	case 5, 6:
		m.note("read %d at %d", n.ino, off)
		p := make([]byte, m.r.Int64N(m.f.chunk*3)+1)
		got, err := x.ReadAt(p, off)
		want := 0
		if off < int64(len(n.data)) {
			want = min(len(p), len(n.data)-int(off))
		}
		if got != want || errors.Is(err, io.EOF) != (want < len(p)) || want > 0 && !bytes.Equal(p[:got], n.data[off:int(off)+want]) {
			m.t.Errorf("%s: got %d bytes, %v, want %d, or other bytes", m.log[len(m.log)-1], got, err, want)
		}
	default:
		m.close(x, n)
	}
}

func (m *model) close(x *File, n *modelNode) {
	m.note("close %d", n.ino)
	m.expect(x.Close(), 0)
	delete(m.open, x)
	n.handles--
	m.forget(n)
}

// compare looks at everything: names, attributes, contents, counters, the shape of the chunks.
func (m *model) compare() {
	m.t.Helper()
	ctx := m.t.Context()
	var size int64
	for _, n := range m.nodes {
		a, err := m.f.Stat(ctx, n.ino)
		if err != nil {
			m.t.Fatalf("stat %d: %v", n.ino, err)
		}
		if a.Type() != n.kind || int(a.Nlink) != n.links || n.kind != TypeDir && a.Size != int64(len(n.data)) {
			m.t.Errorf("inode %d: got %o, %d links, %d bytes; want %o, %d, %d", n.ino, a.Mode, a.Nlink, a.Size, n.kind, n.links, len(n.data))
		}
		size += int64(len(n.data))
		if n.kind != TypeDir {
			continue
		}
		entries, err := m.f.ReadDir(ctx, n.ino, "", 100)
		if err != nil || len(entries) != len(n.names) {
			m.t.Errorf("readdir %d: got %v, %v, want %d names", n.ino, entries, err, len(n.names))
		}
		for _, e := range entries {
			if c := n.names[e.Name]; c == nil || c.ino != e.Attr.Ino {
				m.t.Errorf("%s in %d is %d", e.Name, n.ino, e.Attr.Ino)
			}
		}
	}
	for _, n := range m.nodes {
		if n.kind != TypeFile {
			continue
		}
		var got []byte
		if err := m.f.read(ctx, func(t *tx) (err error) {
			got = make([]byte, len(n.data)+1)
			k, _, err := t.readAt(n.ino, got, 0)
			got = got[:k]
			return err
		}); err != nil || !bytes.Equal(got, n.data) {
			m.t.Errorf("content of %d: got %d bytes, %v, want %d, or they differ", n.ino, len(got), err, len(n.data))
		}
	}
	for what, query := range map[string]string{
		"inodes":                "SELECT count(*) - ? FROM fs_inode",
		"files in the quota":    "SELECT files - ? FROM hw_project WHERE project = 0",
		"rows of lost contents": "SELECT count(*) - ? + ? FROM fs_data WHERE ino NOT IN (SELECT ino FROM fs_inode)",
		"short chunks":          fmt.Sprintf("SELECT count(*) - ? + ? FROM fs_data d JOIN fs_inode i USING (ino) WHERE length(d.data) <> min(%d, i.size - d.chunk_index * %d)", m.f.chunk, m.f.chunk),
		"chain":                 "SELECT count(*) - max(sequence) - ? + ? FROM hw_ledger",
	} {
		args := []any{int64(len(m.nodes))}
		if strings.Contains(query, "+ ?") {
			args = append(args, args[0])
		}
		if n := number(m.t, m.f, query, args...); n != 0 {
			m.t.Errorf("%s: %d too many", what, n)
		}
	}
	if n := number(m.t, m.f, "SELECT bytes FROM hw_project WHERE project = 0"); n != size {
		m.t.Errorf("bytes in the quota: got %d, want %d", n, size)
	}
}
