package agentfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/pkg/rpc"
	agentfsv1 "humanwork.internal/proto/gen/humanwork/agentfs/v1"
	"humanwork.internal/services/agentfs/internal/fault"
)

type backup struct{ agentfsv1.BackupServiceClient }

func (s *system) backup() backup { return backup{agentfsv1.NewBackupServiceClient(s.dial(admin))} }

func (b backup) export(t *testing.T, snapshot string) []byte {
	t.Helper()
	stream, err := b.ExportOrganization(t.Context(), &agentfsv1.ExportOrganizationRequest{OrganizationId: "acme", Snapshot: snapshot})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	size := int64(-1)
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("export: %v", err)
		}
		if size < 0 {
			size = m.GetSize()
		}
		out.Write(m.GetData())
	}
	if int64(out.Len()) != size {
		t.Errorf("export has %d bytes, %d were announced", out.Len(), size)
	}
	return out.Bytes()
}

func (b backup) restore(ctx context.Context, organization string, content []byte, snapshot string) (*agentfsv1.RestoreOrganizationResponse, error) {
	stream, err := b.RestoreOrganization(ctx)
	if err != nil {
		return nil, err
	}
	if err := stream.Send(&agentfsv1.RestoreOrganizationRequest{OrganizationId: organization, Snapshot: snapshot, Size: -1}); err != nil {
		return nil, err
	}
	for _, p := range pieces(string(content)) {
		if err := stream.Send(&agentfsv1.RestoreOrganizationRequest{OrganizationId: organization, Data: []byte(p)}); err != nil {
			break // the answer says why
		}
	}
	return stream.CloseAndRecv()
}

func TestSnapshots(t *testing.T) {
	s := established(t, testConfig(t))
	b, c := s.backup(), s.files(member)
	c.put(t, "workspace/f", "one")
	for _, name := range []string{"first", ""} {
		made, err := b.CreateSnapshot(t.Context(), &agentfsv1.CreateSnapshotRequest{OrganizationId: "acme", Name: name})
		if err != nil || made.GetSnapshot().GetSize() == 0 || name != "" && made.GetSnapshot().GetName() != name {
			t.Fatalf("snapshot %q: got %v, %v", name, made, err)
		}
	}
	_, err := b.CreateSnapshot(t.Context(), &agentfsv1.CreateSnapshotRequest{OrganizationId: "acme", Name: "first"})
	want(t, "the same name", err, errs.Conflict, fault.SnapshotExists)
	c.put(t, "workspace/f", "two")
	list, err := b.ListSnapshots(t.Context(), &agentfsv1.ListSnapshotsRequest{OrganizationId: "acme"})
	if err != nil || len(list.GetSnapshots()) != 2 || list.GetSnapshots()[1].GetName() != "first" {
		t.Errorf("list: got %v, %v, want two, the first one last", list, err)
	}
	if list, err := b.ListSnapshots(t.Context(), &agentfsv1.ListSnapshotsRequest{OrganizationId: "other"}); err != nil || len(list.GetSnapshots()) != 0 {
		t.Errorf("list of another organization: got %v, %v", list, err)
	}
	r, err := b.restore(t.Context(), "acme", nil, "first")
	if err != nil || !strings.HasPrefix(r.GetPrevious().GetName(), "before-restore-") {
		t.Fatalf("restore: got %v, %v", r, err)
	}
	if got := c.get(t, "workspace/f"); got != "one" {
		t.Errorf("after the restore f = %q, want one", got)
	}
	c.put(t, "workspace/new", "x")
	if _, err := b.restore(t.Context(), "acme", nil, r.GetPrevious().GetName()); err != nil {
		t.Fatal(err)
	}
	if got := c.get(t, "workspace/f"); got != "two" {
		t.Errorf("after the second restore f = %q, want two", got)
	}
	_, err = c.stat(t.Context(), "workspace/new")
	want(t, "what was written between", err, errs.NotFound, fault.FileNotFound)
	if _, err := b.DeleteSnapshot(t.Context(), &agentfsv1.DeleteSnapshotRequest{OrganizationId: "acme", Name: "first"}); err != nil {
		t.Fatal(err)
	}
	_, err = b.DeleteSnapshot(t.Context(), &agentfsv1.DeleteSnapshotRequest{OrganizationId: "acme", Name: "first"})
	want(t, "delete again", err, errs.NotFound, fault.SnapshotNotFound)
	_, err = b.restore(t.Context(), "acme", nil, "first")
	want(t, "restore of none", err, errs.NotFound, fault.SnapshotNotFound)
}

func TestExportAndBack(t *testing.T) {
	cfg := testConfig(t)
	s := established(t, cfg)
	b, c := s.backup(), s.files(member)
	large := strings.Repeat("large ", 1<<20)
	c.put(t, "workspace/large", pieces(large)...)
	c.put(t, "workspace/f", "one")
	copied := b.export(t, "")
	c.put(t, "workspace/f", "two")
	if _, err := b.restore(t.Context(), "acme", copied, ""); err != nil {
		t.Fatal(err)
	}
	if got := c.get(t, "workspace/f"); got != "one" {
		t.Errorf("f = %q, want one", got)
	}
	if got := c.get(t, "workspace/large"); got != large {
		t.Errorf("large has %d bytes, want %d", len(got), len(large))
	}
	for name, w := range map[string]struct {
		content []byte
		reason  errs.Reason
	}{
		"text": {[]byte("no database"), fault.Foreign}, "cut": {copied[:len(copied)/2/4096*4096], fault.Damaged},
		"damaged": {slices.Concat(copied[:3*4096], bytes.Repeat([]byte("\xde\xad"), 4096), copied[5*4096:]), fault.Damaged},
	} {
		_, err := b.restore(t.Context(), "acme", w.content, "")
		want(t, name, err, errs.Precondition, w.reason)
	}
	_, err := b.restore(t.Context(), "nobody", copied, "")
	want(t, "unknown organization", err, errs.NotFound, rpc.ReasonOrganizationNotFound)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := b.RestoreOrganization(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&agentfsv1.RestoreOrganizationRequest{OrganizationId: "acme", Size: -1, Data: copied[:4096]}); err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := stream.CloseAndRecv(); !errors.Is(err, errs.Canceled) {
		t.Errorf("cut restore: got %v", err)
	}
	c.put(t, "workspace/f", "three")
	s.stop()
	if left, err := os.ReadDir(filepath.Join(cfg.DataDir, "tmp")); err != nil || len(left) > 0 {
		t.Errorf("temporary files: %v, %v, want none", left, err)
	}
	// A database that is lost, or damaged, is restored all the same.
	path := filepath.Join(cfg.DataDir, "organizations", "acme.db")
	if err := os.WriteFile(path, []byte("this was a database"), 0o600); err != nil {
		t.Fatal(err)
	}
	again := startBeside(t, cfg, s.others)
	_, err = again.files(member).stat(t.Context(), "workspace/f")
	want(t, "damaged", err, errs.Precondition, fault.Foreign)
	r, err := again.backup().restore(t.Context(), "acme", copied, "")
	if err != nil {
		t.Fatal(err)
	}
	kept, err := os.ReadFile(filepath.Join(cfg.DataDir, "snapshots", "acme", r.GetPrevious().GetName()+".db"))
	if err != nil || string(kept) != "this was a database" {
		t.Errorf("kept %q, %v, want the damaged file as it was", kept, err)
	}
	if got := again.files(member).get(t, "workspace/f"); got != "one" {
		t.Errorf("f = %q, want one", got)
	}
}

// TestARestoreEndsStreams restores while an upload and a download are under way.
func TestARestoreEndsStreams(t *testing.T) {
	s := established(t, testConfig(t))
	b, c := s.backup(), s.files(member)
	c.put(t, "workspace/f", pieces(strings.Repeat("x", 20<<20))...)
	if _, err := b.CreateSnapshot(t.Context(), &agentfsv1.CreateSnapshotRequest{OrganizationId: "acme", Name: "s"}); err != nil {
		t.Fatal(err)
	}
	upload, err := c.WriteFile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := upload.Send(&agentfsv1.WriteFileRequest{OrganizationId: "acme", ConversationId: "c1", Header: to("workspace/g", nil), Data: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	if _, err := upload.Header(); err != nil {
		t.Fatal(err)
	}
	if _, err := b.restore(t.Context(), "acme", nil, "s"); err != nil {
		t.Fatal(err)
	}
	err = upload.RecvMsg(&agentfsv1.WriteFileResponse{})
	want(t, "the upload", err, errs.Unavailable, fault.Replaced)
	c.put(t, "workspace/g", "again")
}

func TestCheckAndRepair(t *testing.T) {
	s := established(t, testConfig(t))
	b, c := s.backup(), s.files(member)
	c.put(t, "workspace/f", "one")
	r, err := b.CheckOrganization(t.Context(), &agentfsv1.CheckOrganizationRequest{OrganizationId: "acme", Repair: true})
	if err != nil || len(r.GetFaults()) != 0 || r.GetInodes() == 0 || r.GetLedgerRecords() == 0 || r.GetSnapshot() != "" {
		t.Errorf("check: got %v, %v, want no fault and no snapshot", r, err)
	}
	_, err = b.CheckOrganization(t.Context(), &agentfsv1.CheckOrganizationRequest{OrganizationId: "nobody"})
	want(t, "unknown organization", err, errs.NotFound, fault.NotProvisioned)
}

func TestRemoteDatabasesAreCopiedByTheirServer(t *testing.T) {
	cfg := testConfig(t)
	cfg.DataDir, cfg.Databases.URL = "", "http://127.0.0.1:1/{organization}"
	b := start(t, cfg).backup()
	_, err := b.CreateSnapshot(t.Context(), &agentfsv1.CreateSnapshotRequest{OrganizationId: "acme"})
	want(t, "snapshot", err, errs.Precondition, fault.Remote)
	_, err = b.ListSnapshots(t.Context(), &agentfsv1.ListSnapshotsRequest{OrganizationId: "acme"})
	want(t, "list", err, errs.Precondition, fault.Remote)
	_, err = b.restore(t.Context(), "acme", []byte("x"), "")
	want(t, "restore", err, errs.Precondition, fault.Remote)
	stream, err := b.ExportOrganization(t.Context(), &agentfsv1.ExportOrganizationRequest{OrganizationId: "acme"})
	if err == nil {
		_, err = stream.Recv()
	}
	want(t, "export", err, errs.Precondition, fault.Remote)
}

func TestRefusedDatabasesStayAsTheyAre(t *testing.T) {
	for name, w := range map[string]struct {
		content string
		reason  errs.Reason
	}{"text": {"hello", fault.Foreign}, "empty": {"", fault.NotProvisioned}} {
		cfg := testConfig(t)
		path := filepath.Join(cfg.DataDir, "organizations", "acme.db")
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(w.content), 0o600); err != nil {
			t.Fatal(err)
		}
		s := start(t, cfg)
		_, err := s.files(member).stat(t.Context(), "workspace/f")
		if errs.ReasonOf(err) != w.reason {
			t.Errorf("%s: got %v, want %s", name, err, w.reason)
		}
		s.stop()
		if got, err := os.ReadFile(path); err != nil || string(got) != w.content {
			t.Errorf("%s: the file holds %q, %v, want it unchanged", name, got, err)
		}
	}
}

func TestOneProcessHoldsTheDataDirectory(t *testing.T) {
	cfg := testConfig(t)
	first := start(t, cfg)
	second, err := New(cfg, first.environment(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, fault.DataDirInUse) {
		t.Errorf("second process: got %v, want DATA_DIR_IN_USE", err)
	}
	cfg.DataDir = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(cfg.DataDir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	third, err := New(cfg, first.environment(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := third.Run(t.Context()); !errors.Is(err, fault.DataDir) {
		t.Errorf("a file as directory: got %v, want DATA_DIR_UNUSABLE", err)
	}
}
