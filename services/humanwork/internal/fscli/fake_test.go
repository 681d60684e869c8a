package fscli

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
)

const (
	token  = "a-token-for-these-tests"
	listed = "/v1/organizations/acme/conversations/c1"
)

// fake is the file routes of the public contract over a map.
type fake struct {
	mu        sync.Mutex
	files     map[string][]byte
	faults    string // JSON of agentfs:check
	snapshots []string
	restored  string // what the last restore was given
	cut       bool   // downloads end in the middle
	pages     int    // listing pages answered
	url       string
}

func start(t *testing.T) *fake {
	t.Helper()
	f := &fake{files: map[string][]byte{}, faults: `[]`}
	srv := httptest.NewServer(f)
	t.Cleanup(srv.Close)
	f.url = srv.URL
	t.Setenv("HUMANWORK_HTTP_ADDR", srv.URL)
	t.Setenv("HUMANWORK_TOKEN", token)
	t.Setenv("HUMANWORK_ORGANIZATION", "acme")
	t.Setenv("HUMANWORK_CONVERSATION", "c1")
	return f
}

func refuse(w http.ResponseWriter, status int, reason, message string, metadata map[string]string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"code": 5, "message": message, "details": []any{map[string]any{
		"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": reason, "domain": "humanwork", "metadata": metadata}}})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer "+token {
		refuse(w, 401, "TOKEN_INVALID", "the token is not known", nil)
		return
	}
	q := r.URL.Query()
	path, inFiles := strings.CutPrefix(r.URL.EscapedPath(), listed+"/files/")
	switch {
	case inFiles:
		name, err := url.PathUnescape(path)
		if err != nil {
			panic(err)
		}
		f.file(w, r, name)
	case r.URL.Path == listed+"/files":
		f.list(w, q)
	case r.URL.Path == listed+"/attachments":
		raw, _ := io.ReadAll(r.Body)
		sum := sha256.Sum256(raw)
		hash := hex.EncodeToString(sum[:])
		name := "artifacts/inbound/" + hash[:16] + "/" + q.Get("filename")
		f.files[name] = raw
		uri := "file:///" + name
		answer(w, 201, map[string]any{"uri": uri, "size": strconv.Itoa(len(raw)), "mimeType": mime.TypeByExtension(".txt"), "sha256": hash,
			"block": map[string]any{"type": "resource_link", "uri": uri, "name": q.Get("filename")}})
	case r.URL.Path == listed+"/audit/timeline", r.URL.Path == "/v1/organizations/acme/audit/timeline":
		answer(w, 200, map[string]any{"records": []any{
			map[string]any{"position": "7", "time": "2026-11-30T10:00:00Z", "actor": "user:ann", "action": "rename", "path": "workspace/a", "target": "workspace/b\nc", "size": "2048", "about": r.URL.String()}}})
	case r.URL.Path == listed+"/audit/diff":
		answer(w, 200, map[string]any{"from": q.Get("from"), "to": "9", "differences": []any{
			map[string]any{"kind": "KIND_RENAMED", "path": "workspace/new", "previousPath": "workspace/old", "directory": true},
			map[string]any{"kind": "KIND_ADDED", "path": "workspace/it's.txt"}}})
	case r.URL.Path == listed+"/audit/toolcalls":
		answer(w, 200, map[string]any{"toolCalls": []any{map[string]any{"id": "3", "name": "terminal", "parameters": `{"command":"` + strings.Repeat("x", 100) + `"}`,
			"status": "success", "startTime": "2026-11-30T10:00:00Z", "endTime": "2026-11-30T10:00:01Z", "durationMs": "1500"}}})
	case r.URL.Path == "/v1/organizations/acme/agentfs:check":
		body := struct{ Repair bool }{}
		_ = json.NewDecoder(r.Body).Decode(&body)
		snapshot := ""
		if body.Repair {
			snapshot = "before-repair"
		}
		answer(w, 200, map[string]any{"faults": json.RawMessage(f.faults), "truncated": false, "inodes": "10", "bytes": "2048", "ledgerRecords": "5", "snapshot": snapshot})
	case r.URL.Path == "/v1/organizations/acme/agentfs/snapshots" && r.Method == http.MethodPost:
		body := struct{ Name string }{}
		_ = json.NewDecoder(r.Body).Decode(&body)
		if slices.Contains(f.snapshots, body.Name) {
			refuse(w, 409, "SNAPSHOT_EXISTS", "there is a snapshot "+body.Name, nil)
			return
		}
		f.snapshots = append(f.snapshots, body.Name)
		answer(w, 200, map[string]any{"name": body.Name, "createTime": "2026-11-30T10:00:00Z", "size": "4096"})
	case r.URL.Path == "/v1/organizations/acme/agentfs/snapshots":
		list := []any{}
		for _, n := range f.snapshots {
			list = append(list, map[string]any{"name": n, "createTime": "2026-11-30T10:00:00Z", "size": "4096"})
		}
		answer(w, 200, map[string]any{"snapshots": list})
	case strings.HasPrefix(r.URL.Path, "/v1/organizations/acme/agentfs/snapshots/"):
		f.snapshots = slices.DeleteFunc(f.snapshots, func(n string) bool { return strings.HasSuffix(r.URL.Path, "/"+n) })
		answer(w, 200, map[string]any{})
	case r.URL.Path == "/v1/organizations/acme/agentfs/export":
		_, _ = w.Write([]byte("database " + q.Get("snapshot")))
	case r.URL.Path == "/v1/organizations/acme/agentfs:restore":
		raw, _ := io.ReadAll(r.Body)
		f.restored = q.Get("snapshot") + string(raw)
		answer(w, 200, map[string]any{"previous": map[string]any{"name": "before-restore", "createTime": "2026-11-30T10:00:00Z", "size": "1"}})
	case r.URL.Path == "/v1/organizations/acme/conversations":
		answer(w, 200, map[string]any{"conversations": []any{map[string]any{"conversationId": "c1"}, map[string]any{"conversationId": "d2"}}, "nextPageToken": ""})
	default:
		refuse(w, 404, "CONVERSATION_NOT_FOUND", "no such conversation", nil)
	}
}

func (f *fake) file(w http.ResponseWriter, r *http.Request, name string) {
	old, there := f.files[name]
	switch {
	case strings.HasSuffix(name, "held"):
		refuse(w, 409, "FILE_HELD", "a turn needs the file", map[string]string{"turnId": "t9"})
		return
	case r.Header.Get("If-None-Match") == "*" && there, r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != `"1-1"`:
		refuse(w, 412, "VERSION_MISMATCH", "the file has another version", nil)
		return
	case r.Method != http.MethodPut && !there:
		refuse(w, 404, "FILE_NOT_FOUND", "no file "+name, nil)
		return
	}
	switch r.Method {
	case http.MethodPut:
		raw, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.files[name] = raw
		status := 201
		if there {
			status = 200
		}
		answer(w, status, f.describe(name))
	case http.MethodDelete:
		delete(f.files, name)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.Header().Set("ETag", `"1-1"`)
		w.Header().Set("Content-Length", strconv.Itoa(len(old)))
		if f.cut {
			_, _ = w.Write(old[:len(old)/2])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		_, _ = w.Write(old)
	}
}

func (f *fake) describe(name string) map[string]any {
	return map[string]any{"uri": "file:///" + name, "path": name, "size": strconv.Itoa(len(f.files[name])), "mode": 0o100644,
		"modifyTime": "2026-11-30T10:00:00Z", "version": "1-1", "sha256": ""}
}

// list answers two entries a page.
func (f *fake) list(w http.ResponseWriter, q url.Values) {
	f.pages++
	prefix := q.Get("prefix")
	dir := prefix[:strings.LastIndexByte(prefix, '/')+1]
	seen := map[string]bool{}
	var all []string
	for name := range maps.Keys(f.files) {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		if below := name[len(dir):]; q.Get("shallow") == "true" && strings.Contains(below, "/") {
			name = dir + below[:strings.IndexByte(below, '/')+1]
		}
		if !seen[name] {
			seen[name] = true
			all = append(all, name)
		}
	}
	slices.Sort(all)
	from, _ := strconv.Atoi(q.Get("pageToken"))
	to := min(from+2, len(all))
	files, dirs, next := []any{}, []string{}, ""
	for _, n := range all[from:to] {
		if strings.HasSuffix(n, "/") {
			dirs = append(dirs, n)
		} else {
			files = append(files, f.describe(n))
		}
	}
	if to < len(all) {
		next = strconv.Itoa(to)
	}
	answer(w, 200, map[string]any{"files": files, "directories": dirs, "nextPageToken": next})
}

// run runs a command as a shell would.
func run(t *testing.T, stdin string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	root := &cobra.Command{Use: "humanwork", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(Command())
	var out, errOut bytes.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&out)
	root.SetErr(&errOut)
	root.SetArgs(args)
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

func must(t *testing.T, args ...string) string {
	t.Helper()
	out, _, err := run(t, "", append([]string{"fs"}, args...)...)
	if err != nil {
		t.Fatalf("fs %q = %v", args, err)
	}
	return out
}

// fails runs a command that has to fail with an error that holds all of want.
func fails(t *testing.T, want []string, args ...string) {
	t.Helper()
	out, _, err := run(t, "", append([]string{"fs"}, args...)...)
	if err == nil {
		t.Errorf("fs %q printed %q, want an error", args, out)
		return
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("fs %q = %q, want %q in it", args, err, w)
		}
	}
}

func lines(t *testing.T, out string) (all []map[string]any) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%q is not JSON: %v", line, err)
		}
		all = append(all, v)
	}
	return all
}

func (f *fake) put(names ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, n := range names {
		f.files[n] = fmt.Appendf(nil, "content of %s", n)
	}
}
