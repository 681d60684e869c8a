package agentfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"google.golang.org/protobuf/proto"

	core "humanwork.internal/pkg/agentfs"
	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

func TestFilesReturnWhatWasWritten(t *testing.T) {
	c := established(t, testConfig(t)).files(member)
	large := strings.Repeat("0123456789abcdef", 6<<20/16)
	var chunks []string
	for i := 0; i < len(large); i += 900_001 {
		chunks = append(chunks, large[i:min(i+900_001, len(large))])
	}
	for _, f := range []struct {
		path, mime string
		parts      []string
	}{
		{"workspace/a.txt", "text/plain; charset=utf-8", []string{"hello"}},
		{"workspace/empty", "text/plain; charset=utf-8", nil},
		{"workspace/2024-01-05", "text/plain; charset=utf-8", []string{"a date"}},
		{"workspace/deep/er/it's \"quoted\".PNG", "image/png", []string{"not really"}},
		{"workspace/-rf", "application/pdf", []string{"%PDF-1.7"}},
		{"artifacts/outbound/é", "text/plain; charset=utf-8", []string{"one form"}},
		{"artifacts/outbound/e\u0301", "text/plain; charset=utf-8", []string{"the other"}},
		{"artifacts/inbound/" + strings.Repeat("n", 255), "text/plain; charset=utf-8", []string{"long"}},
		{"workspace/large", "text/plain; charset=utf-8", chunks},
	} {
		content := strings.Join(f.parts, "")
		r := c.put(t, f.path, f.parts...)
		if !r.GetCreated() || r.GetMimeType() != f.mime || r.GetFile().GetSha256() != digest(content) || r.GetFile().GetSize() != int64(len(content)) || r.GetFile().GetPath() != f.path {
			t.Errorf("put %q: got %v, want it created as %s with its digest", f.path, r, f.mime)
		}
		if got := c.get(t, f.path); got != content {
			t.Errorf("get %q: %d bytes, want the %d written", f.path, len(got), len(content))
		}
		s, err := c.stat(t.Context(), f.path)
		if err != nil || !proto.Equal(s.GetFile(), r.GetFile()) || s.GetMimeType() != f.mime {
			t.Errorf("stat %q: got %v, %v, want as written %v", f.path, s, err, r)
		}
	}
	for _, w := range []struct {
		offset, length int64
		want           string
	}{{0, 0, ""}, {3, 4, large[3:7]}, {1<<20 - 1, 2 << 20, large[1<<20-1 : 3<<20-1]}, {int64(len(large)) - 2, 100, large[len(large)-2:]},
		{int64(len(large)), -1, ""}, {1 << 40, -1, ""}, {5 << 20, -1, large[5<<20:]}} {
		_, got, err := c.read(t.Context(), "workspace/large", w.offset, w.length, "")
		if err != nil || string(got) != w.want {
			t.Errorf("read %d from %d: got %d bytes, %v, want %d", w.length, w.offset, len(got), err, len(w.want))
		}
	}
}

func TestConditions(t *testing.T) {
	c := established(t, testConfig(t)).files(member)
	for name, w := range map[string]struct {
		path string
		p    func(old, now string) *agentfsv1.Precondition
		ok   bool
	}{
		"match": {"workspace/f", func(_, now string) *agentfsv1.Precondition {
			return &agentfsv1.Precondition{IfMatch: []string{"1-1", now}}
		}, true},
		"stale":                {"workspace/f", func(old, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfMatch: []string{old}} }, false},
		"match of nothing":     {"workspace/none", func(old, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfMatch: []string{old}} }, false},
		"exists":               {"workspace/f", func(_, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfExists: true} }, true},
		"nothing exists":       {"workspace/none", func(_, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfExists: true} }, false},
		"nothing exists below": {"workspace/d/none", func(_, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfExists: true} }, false},
		"not absent":           {"workspace/f", func(_, _ string) *agentfsv1.Precondition { return &agentfsv1.Precondition{IfAbsent: true} }, false},
		"none match": {"workspace/f", func(old, _ string) *agentfsv1.Precondition {
			return &agentfsv1.Precondition{IfNoneMatch: []string{old}}
		}, true},
		"one matches": {"workspace/f", func(_, now string) *agentfsv1.Precondition {
			return &agentfsv1.Precondition{IfNoneMatch: []string{now}}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			old := c.put(t, "workspace/f", "old").GetFile().GetVersion()
			p := func() *agentfsv1.Precondition {
				return w.p(old, c.put(t, "workspace/f", "now").GetFile().GetVersion())
			}
			_, written := c.write(t.Context(), to(w.path, p()), "written")
			removed := c.remove(t.Context(), w.path, p())
			for what, err := range map[string]error{"write": written, "remove": removed} {
				if w.ok && err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if !w.ok {
					want(t, what, err, errs.Precondition, fault.VersionMismatch)
				}
			}
		})
	}
	absent := &agentfsv1.Precondition{IfAbsent: true}
	if r, err := c.write(t.Context(), to("workspace/new/f", absent), "x"); err != nil || !r.GetCreated() {
		t.Errorf("write of a free name: got %v, %v, want it created", r, err)
	}
	_, err := c.write(t.Context(), to("workspace/new/f", absent), "x")
	want(t, "write of the name again", err, errs.Precondition, fault.VersionMismatch)
}

func TestReadsCheckTheVersion(t *testing.T) {
	c := established(t, testConfig(t)).files(member)
	old := c.put(t, "workspace/f", "one").GetFile().GetVersion()
	now := c.put(t, "workspace/f", "two").GetFile().GetVersion()
	_, _, err := c.read(t.Context(), "workspace/f", 0, -1, old)
	want(t, "read of an old version", err, errs.Precondition, fault.VersionMismatch)
	if _, got, err := c.read(t.Context(), "workspace/f", 0, -1, now); err != nil || string(got) != "two" {
		t.Errorf("read of the present version: got %q, %v", got, err)
	}
}

func TestRefusedPaths(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	c.put(t, "workspace/file", "x")
	c.put(t, "workspace/dir/file", "x")
	s.core(t, func(fs *core.FS) error {
		work, err := fs.Resolve(t.Context(), "/conversations/c1/work")
		if err != nil {
			return err
		}
		by := core.Caller{Actor: "agent:c1"}
		if _, err := fs.Mknod(t.Context(), by, work.Ino, "fifo", core.TypeFIFO|0o600); err != nil {
			return err
		}
		for name, target := range map[string]string{"link": "file", "up": "../.env", "linkdir": "dir", "other": "/conversations/c2/work"} {
			if _, err := fs.Symlink(t.Context(), by, work.Ino, name, target); err != nil {
				return err
			}
		}
		return nil
	})
	for _, w := range []struct {
		path   string
		kind   errs.Kind
		reason errs.Reason
	}{
		{"", errs.Invalid, fault.InvalidPath}, {"/workspace/file", errs.Invalid, fault.InvalidPath}, {"workspace", errs.Invalid, fault.InvalidPath},
		{"workspace/", errs.Invalid, fault.InvalidPath}, {"workspace/../.env", errs.Invalid, fault.InvalidPath}, {"workspace/./file", errs.Invalid, fault.InvalidPath},
		{"workspace//file", errs.Invalid, fault.InvalidPath}, {".env", errs.Invalid, fault.InvalidPath}, {"state/state.db", errs.Invalid, fault.InvalidPath},
		{"logs/x", errs.Invalid, fault.InvalidPath}, {"artifacts/x", errs.Invalid, fault.InvalidPath}, {"conversations/c2/work/x", errs.Invalid, fault.InvalidPath},
		{"workspace/a\x00b", errs.Invalid, fault.InvalidPath}, {"workspace/" + strings.Repeat("n", 256), errs.Invalid, fault.InvalidPath},
		{"workspace/dir", errs.Precondition, fault.NotAFile}, {"workspace/fifo", errs.Precondition, fault.NotAFile},
		{"workspace/file/below", errs.Precondition, fault.NotAFile},
		{"workspace/link", errs.Precondition, fault.SymlinkRefused}, {"workspace/up", errs.Precondition, fault.SymlinkRefused},
		{"workspace/linkdir/file", errs.Precondition, fault.SymlinkRefused}, {"workspace/other/x", errs.Precondition, fault.SymlinkRefused},
		{"workspace/none", errs.NotFound, fault.FileNotFound}, {"workspace/no/ne", errs.NotFound, fault.FileNotFound},
	} {
		_, err := c.stat(t.Context(), w.path)
		want(t, fmt.Sprintf("stat %.40q", w.path), err, w.kind, w.reason)
		_, _, err = c.read(t.Context(), w.path, 0, -1, "")
		want(t, fmt.Sprintf("read %.40q", w.path), err, w.kind, w.reason)
		want(t, fmt.Sprintf("remove %.40q", w.path), c.remove(t.Context(), w.path, nil), w.kind, w.reason)
		if w.kind == errs.NotFound {
			continue
		}
		_, err = c.write(t.Context(), to(w.path, nil), "content")
		want(t, fmt.Sprintf("write %.40q", w.path), err, w.kind, w.reason)
	}
	if got := c.get(t, "workspace/file"); got != "x" {
		t.Errorf("file = %q, want it untouched", got)
	}
}

func TestOnlyTheConversationsOwnPeople(t *testing.T) {
	s := established(t, testConfig(t))
	s.files(member).put(t, "workspace/f", "x")
	c2 := s.files(member)
	c2.conversation = "c2"
	_, err := c2.stat(t.Context(), "workspace/f")
	want(t, "another conversation", err, errs.NotFound, fault.FileNotFound)
	c2.conversation = "nobody"
	_, err = c2.stat(t.Context(), "workspace/f")
	want(t, "unknown conversation", err, errs.NotFound, fault.ConversationNotFound)
	_, err = c2.write(t.Context(), to("workspace/f", nil), "x")
	want(t, "write in an unknown conversation", err, errs.NotFound, fault.ConversationNotFound)
	eve := s.files(stranger)
	_, err = eve.stat(t.Context(), "workspace/f")
	want(t, "another organization", err, errs.NotFound, rpc.ReasonOrganizationNotFound)
	_, err = eve.write(t.Context(), to("workspace/f", nil), "x")
	want(t, "write in another organization", err, errs.NotFound, rpc.ReasonOrganizationNotFound)
	for _, p := range []rpc.Principal{*rpc.Service("supervisor"), *rpc.Service("ingress")} {
		_, err = s.files(p).stat(t.Context(), "workspace/f")
		want(t, "stat as "+p.Subject, err, errs.Denied, rpc.ReasonDenied)
	}
	if _, got, err := s.files(*rpc.Service("ingress")).read(t.Context(), "workspace/f", 0, -1, ""); err != nil || string(got) != "x" {
		t.Errorf("read as ingress: got %q, %v", got, err)
	}
	if got := s.files(admin).get(t, "workspace/f"); got != "x" {
		t.Errorf("read as administrator: %q", got)
	}
	_, err = agentfsv1.NewHoldServiceClient(s.dial(member)).HoldFiles(t.Context(), &agentfsv1.HoldFilesRequest{OrganizationId: "acme", ConversationId: "c1", Holder: "t"})
	want(t, "hold as a member", err, errs.Denied, rpc.ReasonDenied)
	_, err = agentfsv1.NewBackupServiceClient(s.dial(member)).ListSnapshots(t.Context(), &agentfsv1.ListSnapshotsRequest{OrganizationId: "acme"})
	want(t, "backup as a member", err, errs.Denied, rpc.ReasonDenied)
}

func TestTwoWritersOfOneFile(t *testing.T) {
	c := established(t, testConfig(t)).files(member)
	version := c.put(t, "workspace/f", "start").GetFile().GetVersion()
	var won atomic.Int32
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			// Half of them are too large for one transaction.
			content := strings.Repeat(fmt.Sprint(i), 1+i%2*(5<<20))
			_, err := c.write(t.Context(), to("workspace/f", &agentfsv1.Precondition{IfMatch: []string{version}}), pieces(content)...)
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, fault.VersionMismatch):
				t.Errorf("writer %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if won.Load() != 1 {
		t.Errorf("%d writers won, want one", won.Load())
	}
	got := c.get(t, "workspace/f")
	if strings.Trim(got, got[:1]) != "" {
		t.Error("the content mixes two writers")
	}
}

func pieces(s string) (parts []string) {
	for len(s) > 0 {
		n := min(len(s), 1<<20)
		parts, s = append(parts, s[:n]), s[n:]
	}
	return parts
}

// TestASwappedNameDoesNotReachAReader replaces a file by a symbolic link to a private one while it
// is read.
func TestASwappedNameDoesNotReachAReader(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	content := strings.Repeat("public. ", 3<<20/8)
	c.put(t, "workspace/f", pieces(content)...)
	stream, err := c.ReadFile(t.Context(), &agentfsv1.ReadFileRequest{OrganizationId: "acme", ConversationId: "c1", Path: "workspace/f", Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.core(t, func(fs *core.FS) error {
		work, err := fs.Resolve(t.Context(), "/conversations/c1/work")
		if err != nil {
			return err
		}
		by := core.Caller{Actor: "agent:c1"}
		if _, err := fs.Symlink(t.Context(), by, work.Ino, "swap", "../.env"); err != nil {
			return err
		}
		return fs.Rename(t.Context(), by, work.Ino, "swap", work.Ino, "f", 0)
	})
	var got bytes.Buffer
	for {
		m, err := stream.Recv()
		if err != nil {
			break
		}
		got.Write(m.GetData())
	}
	if got.String() != content {
		t.Errorf("read %d bytes, want the %d of the file that was opened", got.Len(), len(content))
	}
	_, _, err = c.read(t.Context(), "workspace/f", 0, -1, "")
	want(t, "read of the link", err, errs.Precondition, fault.SymlinkRefused)
}

func TestAFileThatChangesEndsItsReaders(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	// Larger than what the connection takes ahead.
	c.put(t, "workspace/f", pieces(strings.Repeat("x", 20<<20))...)
	stream, err := c.ReadFile(t.Context(), &agentfsv1.ReadFileRequest{OrganizationId: "acme", ConversationId: "c1", Path: "workspace/f", Length: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	s.core(t, func(fs *core.FS) error {
		a, err := fs.Resolve(t.Context(), "/conversations/c1/work/f")
		if err != nil {
			return err
		}
		f, err := fs.Open(t.Context(), core.Caller{Actor: "agent:c1"}, a.Ino, syscall.O_RDWR)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("y"), 0)
		return errors.Join(err, f.Close())
	})
	for err == nil {
		_, err = stream.Recv()
	}
	want(t, "the stream", err, errs.Precondition, fault.FileChanged)
}

func TestSizesAndQuotas(t *testing.T) {
	cfg := testConfig(t)
	cfg.MaxFileBytes, cfg.MaxAttachmentBytes = 9<<20, 1<<20
	cfg.Quota.Conversation = Quota{Bytes: 10 << 20, Files: 30}
	cfg.Quota.Organization = Quota{Bytes: 16 << 20, Files: 200}
	s := established(t, cfg)
	c, c2 := s.files(member), s.files(member)
	c2.conversation = "c2"
	large := func(mib int) []string { return pieces(strings.Repeat("x", mib<<20)) }
	_, err := c.write(t.Context(), to("workspace/f", nil), large(10)...)
	want(t, "file of 10 MiB", err, errs.Exhausted, fault.FileTooLarge)
	h := to("workspace/f", nil)
	h.Size = 10 << 20
	_, err = c.write(t.Context(), h)
	want(t, "announced file of 10 MiB", err, errs.Exhausted, fault.FileTooLarge)
	_, err = c.write(t.Context(), attachment("f"), large(2)...)
	want(t, "attachment of 2 MiB", err, errs.Exhausted, fault.FileTooLarge)
	for announced, sent := range map[int64]string{3: "four", 5: "four"} {
		h.Size = announced
		_, err = c.write(t.Context(), h, sent)
		want(t, fmt.Sprintf("%d bytes announced", announced), err, errs.Invalid, fault.SizeMismatch)
	}
	c.put(t, "workspace/seven", large(7)...)
	_, err = c.write(t.Context(), to("workspace/more", nil), large(6)...)
	want(t, "conversation's bytes", err, errs.Exhausted, fault.QuotaExceeded)
	h.Size = 6 << 20
	_, err = c.write(t.Context(), h)
	want(t, "conversation's bytes, announced", err, errs.Exhausted, fault.QuotaExceeded)
	c.put(t, "workspace/rest", large(2)...)
	c2.put(t, "workspace/five", large(5)...)
	_, err = c2.write(t.Context(), to("workspace/more", nil), large(3)...)
	want(t, "organization's bytes", err, errs.Exhausted, fault.QuotaExceeded)
	if err := c.remove(t.Context(), "workspace/seven", nil); err != nil {
		t.Fatal(err)
	}
	c2.put(t, "workspace/more", large(3)...)
	for i := 0; ; i++ {
		_, err := c.write(t.Context(), to(fmt.Sprintf("workspace/n%d", i), nil), "x")
		if err == nil && i < 30 {
			continue
		}
		want(t, "conversation's files", err, errs.Exhausted, fault.QuotaExceeded)
		break
	}
	list, err := c.ListFiles(t.Context(), &agentfsv1.ListFilesRequest{OrganizationId: "acme", ConversationId: "c1", PageSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range list.GetFiles() {
		if strings.HasSuffix(f.GetPath(), "/f") || strings.HasSuffix(f.GetPath(), "/more") {
			t.Errorf("%s is left of a refused upload", f.GetPath())
		}
	}
}

func TestAnUploadThatIsCutLeavesNothing(t *testing.T) {
	cfg := testConfig(t)
	cfg.Quota.Conversation.Bytes = 16 << 20
	s := established(t, cfg)
	c := s.files(member)
	c.put(t, "workspace/f", "old")
	before := s.usage(t)
	for range 3 { // thrice what would fill the quota if anything stayed
		ctx, cancel := context.WithCancel(t.Context())
		stream, err := c.WriteFile(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: "acme", ConversationId: "c1", Header: to("workspace/f", nil)}); err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Header(); err != nil { // let in
			t.Fatal(err)
		}
		for range 10 {
			if err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: "acme", ConversationId: "c1", Data: make([]byte, 1<<20)}); err != nil {
				t.Fatal(err)
			}
		}
		cancel()
		if _, err := stream.CloseAndRecv(); !errors.Is(err, errs.Canceled) {
			t.Errorf("cut upload: got %v", err)
		}
	}
	s.stop() // waits for what runs
	again := startBeside(t, cfg, s.others)
	if got := again.files(member).get(t, "workspace/f"); got != "old" {
		t.Errorf("f = %q, want the old content", got)
	}
	if after := again.usage(t); after != before {
		t.Errorf("usage %+v, want %+v as before", after, before)
	}
}

// usage is what acme's database holds.
func (s *system) usage(t *testing.T) (used core.Limits) {
	t.Helper()
	s.core(t, func(fs *core.FS) error {
		whole, _, err := fs.Statfs(t.Context(), core.Root)
		used = whole.Used
		return err
	})
	return used
}

func TestAStalledUploadEnds(t *testing.T) {
	cfg := testConfig(t)
	cfg.StallTimeout, cfg.MaxTransfers = 1, 1
	s := established(t, cfg)
	stream, err := s.files(member).WriteFile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: "acme", ConversationId: "c1", Header: to("workspace/f", nil)}); err != nil {
		t.Fatal(err)
	}
	err = stream.RecvMsg(&agentfsv1.WriteFileResponse{})
	want(t, "an upload without data", err, errs.Timeout, fault.UploadStalled)
}

func TestStreamsStayWithOneConversation(t *testing.T) {
	c := established(t, testConfig(t)).files(admin)
	for name, second := range map[string]*agentfsv1.WriteFileRequest{
		"conversation": {OrganizationId: "acme", ConversationId: "c2", Data: []byte("x")},
		"organization": {OrganizationId: "other", ConversationId: "c1", Data: []byte("x")},
		"header":       {OrganizationId: "acme", ConversationId: "c1", Header: to("workspace/g", nil)},
	} {
		stream, err := c.WriteFile(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range []*agentfsv1.WriteFileRequest{{OrganizationId: "acme", ConversationId: "c1", Header: to("workspace/f", nil)}, second} {
			if err := stream.Send(m); err != nil {
				t.Fatal(err)
			}
		}
		_, err = stream.CloseAndRecv()
		want(t, "second message with another "+name, err, errs.Invalid, rpc.ReasonInvalidArgument)
	}
	stream, err := c.WriteFile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&agentfsv1.WriteFileRequest{OrganizationId: "acme", ConversationId: "c1", Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	_, err = stream.CloseAndRecv()
	want(t, "no header", err, errs.Invalid, rpc.ReasonInvalidArgument)
	_, err = c.stat(t.Context(), "workspace/f")
	want(t, "after all", err, errs.NotFound, fault.FileNotFound)
}

func TestAttachmentsAreOneObject(t *testing.T) {
	s := established(t, testConfig(t))
	c := s.files(member)
	content := strings.Repeat("report", 300_000)
	path := "artifacts/inbound/" + digest(content)[:16] + "/a b.pdf"
	var wg sync.WaitGroup
	var created atomic.Int32
	for range 6 {
		wg.Go(func() {
			r, err := c.write(t.Context(), attachment("a b.pdf"), pieces(content)...)
			if err != nil {
				t.Error(err)
				return
			}
			if r.GetFile().GetPath() != path || r.GetFile().GetUri() != "file:///"+strings.ReplaceAll(path, " ", "%20") ||
				r.GetFile().GetSha256() != digest(content) || r.GetMimeType() != "application/pdf" {
				t.Errorf("got %v", r)
			}
			if r.GetCreated() {
				created.Add(1)
			}
		})
	}
	wg.Wait()
	if created.Load() != 1 {
		t.Errorf("created %d times, want once", created.Load())
	}
	first, err := c.stat(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	// An agent changes it in place, to something of the same size.
	s.rewrite(t, "/conversations/c1/"+path, "REPORT")
	r, err := c.write(t.Context(), attachment("a b.pdf"), pieces(content)...)
	other := "artifacts/inbound/" + digest(content)[:16] + "-2/a b.pdf"
	if err != nil || r.GetFile().GetPath() != other || !r.GetCreated() {
		t.Errorf("after the agent changed it: got %v, %v, want %s", r, err, other)
	}
	// And changes it back: the bytes are the same again, though no digest is known.
	s.rewrite(t, "/conversations/c1/"+path, "report")
	r, err = c.write(t.Context(), attachment("a b.pdf"), pieces(content)...)
	if err != nil || r.GetFile().GetPath() != path || r.GetCreated() || r.GetFile().GetVersion() == first.GetFile().GetVersion() {
		t.Errorf("after the agent changed it back: got %v, %v", r, err)
	}
	for _, name := range []string{"", "..", "a/b", "a\x00b", strings.Repeat("n", 256)} {
		_, err := c.write(t.Context(), attachment(name), "x")
		if !errors.Is(err, errs.Invalid) {
			t.Errorf("attachment %.20q: got %v, want it refused", name, err)
		}
	}
}

// rewrite writes the beginning of a file in place, as an agent would.
func (s *system) rewrite(t *testing.T, path, content string) {
	t.Helper()
	s.core(t, func(fs *core.FS) error {
		a, err := fs.Resolve(t.Context(), path)
		if err != nil {
			return err
		}
		f, err := fs.Open(t.Context(), core.Caller{Actor: "agent:c1"}, a.Ino, syscall.O_RDWR)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte(content), 0)
		return errors.Join(err, f.Close())
	})
}
