package checks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"humanwork.internal/integration/harness"
)

// blocks names files that a message may not name: no turn is made.
func (r *refusals) blocks() {
	r.t.Helper()
	before, err := r.Client.Turns(r.ctx, r.own)
	if err != nil {
		r.t.Fatalf("list turns: %v", err)
	}
	for _, uri := range []string{
		"file:///workspace/../.env", "file:///workspace/%2e%2e/.env", "file:///workspace/%2E%2E/.env", "file:///workspace/..%2F.env", "file:///workspace/..%2f.env",
		"file:///workspace/%252e%252e/.env", "file:///workspace//only-own.txt", "file:///workspace/./only-own.txt", "file:///workspace/only-own.txt/", "file:///workspace/",
		"file:///workspace", "file:///", "file:", "file:/workspace/only-own.txt", "file://localhost/workspace/only-own.txt", "file://host/workspace/only-own.txt",
		"FILE:///workspace/only-own.txt", "file:///workspace/only-own.txt?x", "file:///workspace/only-own.txt#x", "file:///workspace/only%2Down.txt", "file:///workspace/only%2down.txt",
		"file:///workspace/only-own.txt%00", "file:///workspace/%c0%ae%c0%ae/.env", `file:///workspace\\..\\.env`, "file:///etc/passwd", "file:///proc/self/environ", "file:///artifacts/only",
		"file:///artifacts/inbound", "file:///artifacts/other/x", "file:///artifacts/outbound/to-state/planted.db", "file:///workspace/to-env", "file:///workspace/to-file",
		"file:///workspace/to-dir/file.txt", "file:///workspace/to-sibling/only-sibling.txt", "file:///workspace/to-root/etc", "file:///workspace/loop", "file:///workspace/loop/x",
		"file:///workspace/dangling", "file:///workspace/fifo", "file:///workspace/socket", "file:///workspace/character-device", "file:///workspace/block-device", "file:///workspace/dir", "file:///workspace/none", "file:///workspace/only-sibling.txt",
		"file:///.env", "file:///SOUL.md", "file:///config.yaml", "file:///state/planted.db", "file:///memory/planted.md", "file:///conversations/own/.env",
		"file:///workspace/sub/up/.env", "file:///workspace/\u00e9", " file:///workspace/only-own.txt", "file:///workspace/only-own.txt ", "file:///workspace/" + strings.Repeat("n", 256),
	} {
		quoted := fmt.Sprintf("%q", uri)
		for _, b := range []string{
			`{"type":"resource_link","name":"x","uri":` + quoted + `}`, `{"type":"resource","resource":{"text":"x","uri":` + quoted + `}}`,
			`{"type":"image","mimeType":"image/png","data":"` + onePixel + `","uri":` + quoted + `}`,
		} {
			if strings.HasPrefix(uri, " ") && !strings.Contains(b, "resource_link") {
				continue
			}
			if !json.Valid([]byte(b)) {
				b = strings.ReplaceAll(b, quoted, `"file:///workspace/\u0000"`)
			}
			a, err := r.member.Raw(r.ctx, http.MethodPost, r.own.Path()+"/turns", nil, body(block("caption"), []byte(b)))
			r.refused(fmt.Sprintf("a block %.120s", b), a, err, "INVALID_FILE_URI", "INVALID_CONTENT_BLOCK")
		}
	}
	after, err := r.Client.Turns(r.ctx, r.own)
	if err != nil || len(after) != len(before) {
		r.t.Errorf("refused blocks made %d turns (%v), want none", len(after)-len(before), err)
	}
}

// objects asks for what is no regular file, or lies behind a symbolic link.
func (r *refusals) objects() {
	r.t.Helper()
	for path, reasons := range map[string][]string{
		"workspace/to-env": {"SYMLINK_REFUSED"}, "workspace/to-soul": {"SYMLINK_REFUSED"}, "workspace/to-file": {"SYMLINK_REFUSED"}, "workspace/loop": {"SYMLINK_REFUSED"},
		"workspace/dangling": {"SYMLINK_REFUSED"}, "workspace/to-sibling": {"SYMLINK_REFUSED"}, "workspace/to-sibling/only-sibling.txt": {"SYMLINK_REFUSED"},
		"workspace/to-dir/file.txt": {"SYMLINK_REFUSED"}, "workspace/to-dir/new.txt": {"SYMLINK_REFUSED"}, "workspace/to-root/conversations/own/.env": {"SYMLINK_REFUSED"},
		"workspace/sub/up/.env": {"SYMLINK_REFUSED"}, "workspace/loop/x": {"SYMLINK_REFUSED"}, "workspace/dangling/x": {"SYMLINK_REFUSED"},
		"artifacts/outbound/to-state/planted.db": {"SYMLINK_REFUSED"},
		"workspace/fifo":                         {"NOT_A_FILE"}, "workspace/socket": {"NOT_A_FILE"}, "workspace/dir": {"NOT_A_FILE"},
		"workspace/character-device": {"NOT_A_FILE"}, "workspace/block-device": {"NOT_A_FILE"},
		"workspace/fifo/x": {"NOT_A_FILE", "FILE_NOT_FOUND"}, "workspace/only-own.txt/x": {"NOT_A_FILE", "FILE_NOT_FOUND"},
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			a, err := r.member.Wire(r.ctx, method, r.own.FileURL(path), nil, map[bool]string{true: "written"}[method == http.MethodPut])
			r.refused(method+" "+path, a, err, reasons...)
		}
	}
	files, _, err := r.member.Files(r.ctx, r.own, "")
	if err != nil {
		r.t.Errorf("list all files: %v", err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Path)
	}
	if want := []string{"artifacts/outbound/out.txt", "workspace/dir/file.txt", "workspace/only-own.txt"}; !slices.Equal(got, want) {
		r.t.Errorf("the list is %q, want the regular files %q", got, want)
	}
}

// swapped replaces a file by a symbolic link to a secret, and a directory on the way by one, while a reader is in the middle: the reader gets the
// whole old content or an end, never anything else.
func (r *refusals) swapped() string {
	r.t.Helper()
	const size = 3 << 20
	content := bytes.Repeat([]byte("the old content\n"), size/16)
	swaps, whole := 0, 0
	for name, c := range map[string]struct {
		path, link, target string
	}{
		"a file":      {"workspace/swap/a/file", "workspace/swap/a/file", "../../../.env"},
		"a directory": {"workspace/swap/b/file", "workspace/swap/b", "../../../sibling/work/dir"},
	} {
		if _, _, err := r.member.PutFile(r.ctx, r.own, c.path, nil, bytes.NewReader(content), size); err != nil {
			r.t.Fatalf("write %s: %v", c.path, err)
		}
		copied, err := r.Export(r.ctx, r.own.Organization)
		if err != nil {
			r.t.Fatalf("%v", err)
		}
		below := strings.Replace("/conversations/own/"+c.path, "workspace", "work", 1)
		link := strings.Replace("/conversations/own/"+c.link, "workspace", "work", 1)
		changed := []harness.Planted{{Path: below}}
		if link != below {
			changed = append(changed, harness.Planted{Path: link})
		}
		if err := r.Plant(r.ctx, copied, append(changed, harness.Planted{Path: link, Mode: 0o120777, Target: c.target})...); err != nil {
			r.t.Fatalf("swap %s: %v", name, err)
		}
		reader, err := r.member.OpenFile(r.ctx, r.own, c.path, nil)
		if err != nil {
			r.t.Fatalf("open %s: %v", c.path, err)
		}
		head := make([]byte, 1000)
		if _, err := io.ReadFull(reader.Body, head); err != nil {
			r.t.Fatalf("begin to read %s: %v", c.path, err)
		}
		if err := r.Restore(r.ctx, r.own.Organization, copied); err != nil {
			r.t.Fatalf("swap %s: %v", name, err)
		}
		rest, err := io.ReadAll(reader.Body)
		reader.Body.Close()
		got := append(head, rest...)
		if !bytes.HasPrefix(content, got) || err == nil && len(got) != size {
			r.t.Errorf("%s swapped while it was read: %d bytes (%v), which are not the old content's", name, len(got), err)
		}
		if err == nil {
			whole++
		}
		a, err := r.member.Wire(r.ctx, http.MethodGet, r.own.FileURL(c.path), nil, "")
		r.refused("read "+name+" that was swapped", a, err, "SYMLINK_REFUSED")
		swaps++
	}
	return fmt.Sprintf("%d swaps for symlinks in the middle of a read gave the old bytes (%d whole) and then SYMLINK_REFUSED", swaps, whole)
}

// conditions writes on what has changed meanwhile.
func (r *refusals) conditions() {
	r.t.Helper()
	path := "workspace/conditions.txt"
	first := r.tagOf(r.put(r.member, r.own, path, "first"))
	second := r.tagOf(r.put(r.member, r.own, path, "second"))
	if first == second {
		r.t.Errorf("two contents have one ETag %s", first)
	}
	match := func(name, value string) http.Header { return http.Header{name: {value}} }
	write := func(header http.Header, path string) error {
		_, _, err := r.member.PutFile(r.ctx, r.own, path, header, strings.NewReader("third"), 5)
		return err
	}
	for name, do := range map[string]func() error{
		"write with a stale If-Match":                 func() error { return write(match("If-Match", first), path) },
		"write with If-None-Match * what is there":    func() error { return write(match("If-None-Match", "*"), path) },
		"write with If-Match * what is not there":     func() error { return write(match("If-Match", "*"), "workspace/not-there") },
		"write with an If-Match what is not there":    func() error { return write(match("If-Match", second), "workspace/not-there") },
		"write with If-None-Match of the present one": func() error { return write(match("If-None-Match", second), path) },
		"remove with a stale If-Match": func() error {
			_, err := r.member.DeleteFile(r.ctx, r.own, path, match("If-Match", first))
			return err
		},
		"read with a stale If-Match": func() error {
			_, err := r.member.GetFile(r.ctx, r.own, path, match("If-Match", first))
			return err
		},
	} {
		r.requests++
		var api *harness.APIError
		if err := do(); !errors.As(err, &api) || api.Status != http.StatusPreconditionFailed || api.Reason() != "VERSION_MISMATCH" {
			r.t.Errorf("%s = %v, want 412 VERSION_MISMATCH", name, err)
		}
	}
	got, err := r.member.GetFile(r.ctx, r.own, path, nil)
	if err != nil || string(got.Body) != "second" || got.Header.Get("ETag") != second {
		r.t.Errorf("after stale writes the file is %q with %s (%v), want \"second\" with %s", got.Body, got.Header.Get("ETag"), err, second)
	}
	if unchanged, err := r.member.GetFile(r.ctx, r.own, path, match("If-None-Match", second)); err != nil || unchanged.Status != http.StatusNotModified || len(unchanged.Body) > 0 {
		r.t.Errorf("read with If-None-Match of the present one = %d %q (%v), want 304", unchanged.Status, unchanged.Body, err)
	}
	if err := write(match("If-Match", second), path); err != nil {
		r.t.Errorf("write with the present If-Match: %v", err)
	}
	if err := write(match("If-None-Match", "*"), "workspace/new.txt"); err != nil {
		r.t.Errorf("write with If-None-Match * what is not there: %v", err)
	}
	for _, value := range []string{"unquoted", `"1-2`, `W/"1-2`, `"a" "b"`} {
		if err := write(match("If-Match", value), path); err == nil || harness.ReasonOf(err) == "" {
			r.t.Errorf("write with If-Match %s = %v, want it refused with a reason", value, err)
		}
	}
}

func (r *refusals) tagOf(f harness.File) string {
	r.t.Helper()
	a, err := r.member.HeadFile(r.ctx, r.own, f.Path)
	if err != nil {
		r.t.Fatalf("describe %s: %v", f.Path, err)
	}
	return a.Header.Get("ETag")
}

// quotas writes too much and too many, and sees that what was refused counts for nothing.
func (r *refusals) quotas() {
	r.t.Helper()
	write := func(conv harness.Conversation, path string, size, declared int64) error {
		_, _, err := r.member.PutFile(r.ctx, conv, path, nil, io.LimitReader(zeros{}, size), declared)
		return err
	}
	want := func(what string, err error, status int, reason string) {
		r.t.Helper()
		r.requests++
		var api *harness.APIError
		if !errors.As(err, &api) || api.Status != status || api.Reason() != reason {
			r.t.Errorf("%s = %v, want %d %s", what, err, status, reason)
		}
	}
	conv, _ := r.conversation("quota")
	want("a file over the limit", write(conv, "workspace/big", fileBytes+1, fileBytes+1), 413, "FILE_TOO_LARGE")
	want("a file over the limit of unknown size", write(conv, "workspace/big", fileBytes+1, -1), 413, "FILE_TOO_LARGE")
	_, err := r.member.Attach(r.ctx, conv, "big", io.LimitReader(zeros{}, attachmentBytes+1), attachmentBytes+1)
	want("an attachment over the limit", err, 413, "FILE_TOO_LARGE")
	for i := range 2 { // up to the conversation's 8 MiB, less a little that names and directories may take
		if err := write(conv, fmt.Sprintf("workspace/full-%d", i), fileBytes-1024, fileBytes-1024); err != nil {
			r.t.Errorf("fill the conversation's quota: %v", err)
		}
	}
	for _, declared := range []int64{1 << 20, -1} {
		want("a file over the conversation's quota", write(conv, "workspace/over", 1<<20, declared), 507, "QUOTA_EXCEEDED")
	}
	if err := write(conv, "workspace/full-0", 1<<20, 1<<20); err != nil {
		r.t.Errorf("replace a file by a smaller one in a full quota: %v", err)
	}
	if err := write(conv, "workspace/fits", 2<<20, 2<<20); err != nil {
		r.t.Errorf("a file that fits after refusals and a smaller replacement: %v", err)
	}
	made := 0
	for ; made < 2*conversationFiles; made++ {
		if err = write(conv, fmt.Sprintf("workspace/count-%03d", made), 0, 0); err != nil {
			break
		}
	}
	want("one file too many", err, 507, "QUOTA_EXCEEDED")
	files, _, err := r.member.Files(r.ctx, conv, "workspace/")
	if err != nil || len(files) != made+3 || len(files) > conversationFiles {
		r.t.Errorf("the conversation has %d files (%v), want the %d acknowledged, at most %d", len(files), err, made+3, conversationFiles)
	}
	if _, err := r.member.DeleteFile(r.ctx, conv, "workspace/count-000", nil); err != nil {
		r.t.Errorf("remove a file in a full quota: %v", err)
	}
	if err := write(conv, "workspace/count-again", 0, 0); err != nil {
		r.t.Errorf("a file after one was removed: %v", err)
	}
	// The organization's quota, through conversations that are each within their own.
	for i := 0; i < 6 && err == nil; i++ {
		var more harness.Conversation
		more, _ = r.conversation(fmt.Sprintf("quota-%d", i))
		for j := 0; j < 2 && err == nil; j++ {
			err = write(more, fmt.Sprintf("workspace/full-%d", j), 3<<20, 3<<20)
		}
	}
	want("a file over the organization's quota", err, 507, "QUOTA_EXCEEDED")
	report, err := r.Client.CheckAgentFS(r.ctx, r.own.Organization, false)
	if err != nil || len(report.Faults) > 0 {
		r.t.Errorf("the check after all refusals: %+v, %v; want no fault", report.Faults, err)
	}
	if report.Bytes > organizationBytes {
		r.t.Errorf("the organization holds %d bytes, over its quota of %d", report.Bytes, organizationBytes)
	}
}

// zeros is an endless source of zero bytes.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
