package agentfs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

// list reads all pages and returns files and directories, and how many pages there were. between is
// called after each.
func (c client) list(t *testing.T, r *agentfsv1.ListFilesRequest, between func()) (files, directories []string, pages int) {
	t.Helper()
	r.OrganizationId, r.ConversationId = c.organization, c.conversation
	for {
		page, err := c.ListFiles(t.Context(), r)
		if err != nil {
			t.Fatalf("list %q: %v", r.GetPrefix(), err)
		}
		pages++
		for _, f := range page.GetFiles() {
			files = append(files, f.GetPath())
		}
		directories = append(directories, page.GetDirectories()...)
		if r.PageToken = page.GetNextPageToken(); r.PageToken == "" {
			return files, directories, pages
		}
		if between != nil {
			between()
		}
	}
}

func TestListings(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	all := []string{"artifacts/inbound/x/1", "artifacts/outbound/-a", "artifacts/outbound/2024-01-05", "artifacts/outbound/it's.txt",
		"workspace/a", "workspace/src/m/z", "workspace/src/main/a", "workspace/src/main/b", "workspace/src/main.go", "workspace/src.txt", "workspace/é"}
	for i := range all { // in no order
		c.put(t, all[i*7%len(all)], "x")
	}
	s.core(t, func(fs *core.FS) error {
		by := core.Caller{Actor: "agent:c1"}
		work, err := fs.Resolve(t.Context(), "/conversations/c1/work")
		if err != nil {
			return err
		}
		if _, err := fs.MkdirAll(t.Context(), by, "/conversations/c1/work/empty/dirs/only", 0o755); err != nil {
			return err
		}
		if _, err := fs.Mknod(t.Context(), by, work.Ino, "fifo", core.TypeFIFO|0o600); err != nil {
			return err
		}
		_, err = fs.Symlink(t.Context(), by, work.Ino, "link", "src")
		return err
	})
	with := func(prefix string) (list []string) {
		for _, p := range all {
			if strings.HasPrefix(p, prefix) {
				list = append(list, p)
			}
		}
		return list
	}
	for _, prefix := range []string{"", "w", "workspace", "workspace/", "workspace/src", "workspace/src/", "workspace/src/main", "workspace/src/main/",
		"workspace/src/main.go", "artifacts", "artifacts/", "artifacts/in", "artifacts/outbound/", "artifacts/outbound/it's", "workspace/é", "none", "workspace/none/x",
		"workspace/link/", "workspace/a/", ".env", "state/", "x/y", "workspace/emp"} {
		for _, size := range []int32{1, 2, 100} {
			got, dirs, pages := c.list(t, &agentfsv1.ListFilesRequest{Prefix: prefix, PageSize: size}, nil)
			if want := with(prefix); !slices.Equal(got, want) || len(dirs) > 0 {
				t.Errorf("prefix %q by %d: got %q, %q\nwant %q", prefix, size, got, dirs, want)
			}
			if most := max(1, (len(with(prefix))+int(size)-1)/int(size)); pages > most {
				t.Errorf("prefix %q by %d: %d pages, want at most %d", prefix, size, pages, most)
			}
		}
	}
	for prefix, w := range map[string][2][]string{
		"":                   {nil, {"artifacts/", "workspace/"}},
		"artifacts/":         {nil, {"artifacts/inbound/", "artifacts/outbound/"}},
		"workspace/":         {{"workspace/a", "workspace/src.txt", "workspace/é"}, {"workspace/empty/", "workspace/src/"}},
		"workspace/src/main": {{"workspace/src/main.go"}, {"workspace/src/main/"}},
		"workspace/src/m":    {{"workspace/src/main.go"}, {"workspace/src/m/", "workspace/src/main/"}},
	} {
		for _, size := range []int32{1, 100} {
			got, dirs, _ := c.list(t, &agentfsv1.ListFilesRequest{Prefix: prefix, PageSize: size, Shallow: true}, nil)
			if !slices.Equal(got, w[0]) || !slices.Equal(dirs, w[1]) {
				t.Errorf("shallow %q by %d: got %q, %q, want %q", prefix, size, got, dirs, w)
			}
		}
	}
	first, err := c.ListFiles(t.Context(), &agentfsv1.ListFilesRequest{OrganizationId: "acme", ConversationId: "c1", PageSize: 1, Prefix: "workspace/src/"})
	if err != nil {
		t.Fatal(err)
	}
	for name, r := range map[string]*agentfsv1.ListFilesRequest{
		"garbage": {PageToken: "%%%"}, "of another prefix": {Prefix: "artifacts/", PageToken: first.GetNextPageToken()},
		"of another kind": {Prefix: "workspace/src/", Shallow: true, PageToken: first.GetNextPageToken()}, "with dots": {PageToken: "ZHdvcmtzcGFjZS8uLi94"},
	} {
		r.OrganizationId, r.ConversationId = "acme", "c1"
		_, err := c.ListFiles(t.Context(), r)
		want(t, "token "+name, err, errs.Invalid, fault.InvalidPageToken)
	}
	for _, prefix := range []string{"/", "/workspace", "workspace//", "workspace/../", "./", "a\x00b", "\xff"} {
		_, err := c.ListFiles(t.Context(), &agentfsv1.ListFilesRequest{OrganizationId: "acme", ConversationId: "c1", Prefix: prefix})
		if !strings.HasPrefix(prefix, "\xff") { // protobuf itself refuses it
			want(t, fmt.Sprintf("prefix %q", prefix), err, errs.Invalid, fault.InvalidPath)
		}
	}
}

// TestPagesSurviveChanges removes what each page ended with, and adds before and after it.
func TestPagesSurviveChanges(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	var stay []string
	for i := range 40 {
		stay = append(stay, fmt.Sprintf("workspace/d%d/f%02d", i/10, i))
		c.put(t, stay[i], "x")
	}
	n := 0
	got, _, _ := c.list(t, &agentfsv1.ListFilesRequest{Prefix: "workspace/", PageSize: 3}, func() {
		n++
		ended := stay[3*n-1]
		if err := c.remove(t.Context(), ended, nil); err != nil {
			t.Fatal(err)
		}
		c.put(t, "workspace/a-before", "x")
	})
	if !slices.Equal(got, stay) {
		t.Errorf("got %q\nwant %q", got, stay)
	}
}

func TestALargeDirectoryIsListedByPages(t *testing.T) {
	if testing.Short() {
		t.Skip("makes 5000 files")
	}
	s := established(t, testConfig(t))
	var nodes []core.Node
	const files = 5000
	nodes = append(nodes, core.Node{Path: "/conversations/c1/work/big", Mode: core.TypeDir | 0o755})
	for i := range files {
		nodes = append(nodes, core.Node{Path: fmt.Sprintf("/conversations/c1/work/big/%05d", i), Mode: core.TypeFile | 0o644})
	}
	s.core(t, func(fs *core.FS) error { return fs.Plant(t.Context(), core.Caller{Actor: "agent:c1"}, nodes) })
	got, _, pages := s.files(member).list(t, &agentfsv1.ListFilesRequest{Prefix: "workspace/big/", PageSize: 1000}, nil)
	if len(got) != files || pages != 5 || !slices.IsSorted(got) {
		t.Errorf("%d files on %d pages, want %d on 5, in order", len(got), pages, files)
	}
}
