package checks

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/pkg/fileuri/fileuritest"
)

const madeUpURIs = 10_000_000

// Quotas of F2's system.
const (
	conversationBytes = 8 << 20
	conversationFiles = 60
	organizationBytes = 20 << 20
	organizationFiles = 200
	fileBytes         = 4 << 20
	attachmentBytes   = 2 << 20
)

// refusals is a system with what must not be reached, and a fingerprint of it.
type refusals struct {
	*world
	own, sibling, foreign harness.Conversation
	member                *harness.Client // of the organization of own and sibling
	stranger              *harness.Client // of the organization of foreign
	secret                string          // in private files, another conversation and another organization
	requests              int
}

// F2 tries to reach files past the API's authority: nothing is read and nothing is written.
func F2(t harness.T) string {
	tokens, err := os.MkdirTemp("", "hwtokens-")
	if err != nil {
		t.Fatalf("make a directory for tokens: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(tokens) })
	org, other := "o-"+unique(), "o-"+unique()
	client := func(organization string) (token string, entry map[string]any) {
		token = "member-" + unique() + unique() + unique()
		path := filepath.Join(tokens, organization)
		if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
			t.Fatalf("write a token: %v", err)
		}
		return token, map[string]any{"token_file": path, "subject": "member-of-" + organization, "organization": organization, "roles": []string{"member"}}
	}
	ownToken, ownEntry := client(org)
	otherToken, otherEntry := client(other)
	w := start(t, 4*time.Minute, harness.Options{Configure: func(service string, file map[string]any) {
		switch service {
		case harness.Gateway(0):
			file["tokens"] = append(file["tokens"].([]any), ownEntry, otherEntry)
		case harness.AgentFS:
			file["quota"] = map[string]any{"organization": map[string]any{"bytes": organizationBytes, "files": organizationFiles},
				"conversation": map[string]any{"bytes": conversationBytes, "files": conversationFiles}}
			file["max_file_bytes"], file["max_attachment_bytes"] = fileBytes, attachmentBytes
		}
	}})
	r := &refusals{world: w, secret: "secret-" + unique() + unique(), member: w.Client.As(ownToken), stranger: w.Client.As(otherToken)}
	r.settle(org, other)
	before := r.fingerprint()
	r.traversal()
	r.authority()
	r.blocks()
	r.objects()
	if after := r.fingerprint(); !slices.Equal(before, after) {
		t.Errorf("refused requests changed the AgentFS:\n%s", changes(before, after))
	}
	swaps := r.swapped()
	r.literals()
	r.conditions()
	r.quotas()
	return fmt.Sprintf("%d refused requests (traversal in every encoding, private files, other conversations and organizations, symlinks, FIFOs, sockets, devices, credentials, "+
		"URIs in blocks) left every row and the ledger as they were; %s; stale conditions 412; sizes and counts over quota refused for conversation and organization and given back",
		r.requests, swaps)
}

// MadeUpURIs tries the one parser of file URIs and public paths on ten million made-up ones.
func MadeUpURIs(t harness.T) string {
	began, seed := time.Now(), uint64(time.Now().UnixNano())
	made, err := fileuritest.Run(t.Context(), seed, madeUpURIs)
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	return fmt.Sprintf("%d made-up URIs and paths in %v without an escape or a panic, %d of them accepted", made.Tried, time.Since(began).Round(100*time.Millisecond),
		made.AcceptedURIs+made.AcceptedPaths)
}

// settle makes the organizations and plants what must not be reached.
func (r *refusals) settle(org, other string) {
	r.t.Helper()
	r.own, r.sibling, r.foreign = harness.Conversation{Organization: org, ID: "own"}, harness.Conversation{Organization: org, ID: "sibling"}, harness.Conversation{Organization: other, ID: "foreign"}
	for _, organization := range []string{org, other} {
		if err := r.Client.CreateOrganization(r.ctx, organization); err != nil {
			r.t.Fatalf("create organization: %v", err)
		}
	}
	for _, conv := range []harness.Conversation{r.own, r.sibling, r.foreign} {
		private := fmt.Sprintf(`{"conversationId":%q,"persona":%q,"environment":{"PLANTED":%q}}`, conv.ID, r.secret, r.secret)
		answer, err := r.Client.Raw(r.ctx, http.MethodPost, "/v1/organizations/"+conv.Organization+"/conversations", nil, []byte(private))
		if err == nil {
			err = answer.Err()
		}
		if err != nil {
			r.t.Fatalf("create conversation %s: %v", conv.ID, err)
		}
		text := "a file of " + conv.ID
		if conv != r.own {
			text = r.secret
		}
		for _, path := range []string{"workspace/only-" + conv.ID + ".txt", "workspace/dir/file.txt", "artifacts/outbound/out.txt"} {
			r.put(r.Client, conv, path, text)
		}
	}
	copied, err := r.Export(r.ctx, org)
	if err != nil {
		r.t.Fatalf("%v", err)
	}
	work, dir := "/conversations/own/work/", uint32(0o040755)
	secret := []byte(r.secret)
	planted := []harness.Planted{
		{Path: work + "to-env", Mode: 0o120777, Target: "../.env"}, {Path: work + "to-soul", Mode: 0o120777, Target: "/conversations/own/SOUL.md"},
		{Path: work + "to-sibling", Mode: 0o120777, Target: "../../sibling/work"}, {Path: work + "to-root", Mode: 0o120777, Target: "/"},
		{Path: work + "to-file", Mode: 0o120777, Target: "dir/file.txt"}, {Path: work + "to-dir", Mode: 0o120777, Target: "dir"},
		{Path: work + "loop", Mode: 0o120777, Target: "loop"}, {Path: work + "dangling", Mode: 0o120777, Target: "nowhere"},
		{Path: work + "character-device", Mode: 0o020666}, {Path: work + "block-device", Mode: 0o060666}, {Path: work + "fifo", Mode: 0o010644}, {Path: work + "socket", Mode: 0o140755},
		{Path: work + "sub", Mode: dir}, {Path: work + "sub/up", Mode: 0o120777, Target: "../.."},
		{Path: "/conversations/own/artifacts/outbound/to-state", Mode: 0o120777, Target: "../../state"},
		{Path: "/conversations/own/state/planted.db", Mode: 0o100600, Content: secret}, {Path: "/memory/planted.md", Mode: 0o100600, Content: secret},
		{Path: "/skills/planted.md", Mode: 0o100600, Content: secret},
	}
	if err := r.Plant(r.ctx, copied, planted...); err != nil {
		r.t.Fatalf("change the export: %v", err)
	}
	if err := r.Restore(r.ctx, org, copied); err != nil {
		r.t.Fatalf("restore the changed export: %v", err)
	}
	r.org = org
}

func (w *world) put(client *harness.Client, conv harness.Conversation, path, text string) harness.File {
	w.t.Helper()
	f, _, err := client.PutFile(w.ctx, conv, path, nil, strings.NewReader(text), int64(len(text)))
	if err != nil {
		w.t.Fatalf("write %q: %v", path, err)
	}
	return f
}

// fingerprint is every inode and name of both organizations, and every record of their ledgers.
func (r *refusals) fingerprint() []string {
	r.t.Helper()
	var all []string
	for _, org := range []string{r.own.Organization, r.foreign.Organization} {
		copied, err := r.Export(r.ctx, org)
		if err != nil {
			r.t.Fatalf("%v", err)
		}
		inodes, err := r.Inodes(r.ctx, copied)
		if err != nil {
			r.t.Fatalf("%v", err)
		}
		os.RemoveAll(copied)
		for _, i := range inodes {
			all = append(all, fmt.Sprintf("%s %+v", org, i))
		}
		records, err := r.Client.Timeline(r.ctx, harness.Conversation{Organization: org}, 0)
		if err != nil {
			r.t.Fatalf("read the ledger: %v", err)
		}
		for _, rec := range records {
			all = append(all, fmt.Sprintf("%s %+v", org, rec))
		}
	}
	return all
}

func changes(before, after []string) string {
	var out []string
	for _, l := range before {
		if !slices.Contains(after, l) {
			out = append(out, "- "+l)
		}
	}
	for _, l := range after {
		if !slices.Contains(before, l) {
			out = append(out, "+ "+l)
		}
	}
	return strings.Join(out[:min(len(out), 20)], "\n")
}

// refused judges one answer: an error of one of the reasons, in which no secret is.
func (r *refusals) refused(what string, a harness.Answer, err error, reasons ...string) {
	r.t.Helper()
	r.requests++
	switch reason := harness.ReasonOf(a.Err()); {
	case err != nil:
		r.t.Errorf("%s: %v", what, err)
	case bytes.Contains(a.Body, []byte(r.secret)):
		r.t.Errorf("%s = %d: the answer holds a secret", what, a.Status)
	case a.Status < 400 || a.Status >= 500:
		r.t.Errorf("%s = %d %.200q, want it refused", what, a.Status, a.Body)
	case bytes.HasPrefix(a.Body, []byte("400 Bad Request")): // net/http's own, before the gateway
	case len(a.Body) > 0 && !slices.Contains(reasons, reason): // HEAD has no body
		r.t.Errorf("%s = %d %s, want one of %v", what, a.Status, reason, reasons)
	}
}

// literal are paths that lead out only for a reader that decodes twice, or for another system's: here they are odd names.
var literal = map[string]string{
	"workspace/%252e%252e/.env": "workspace/%2e%2e/.env", "workspace/%252e%252e%252f.env": "workspace/%2e%2e%2f.env", "workspace/..%252f.env": "workspace/..%2f.env",
	"workspace/..%5c.env": `workspace/..\.env`, "workspace/..;/.env": "workspace/..;/.env", "workspace/%EF%BC%8E%EF%BC%8E/.env": "workspace/\uff0e\uff0e/.env",
}

// literals writes to such paths, which makes files of exactly these names.
func (r *refusals) literals() {
	r.t.Helper()
	for path, name := range literal {
		a, err := r.member.Wire(r.ctx, http.MethodPut, r.own.Path()+"/files/"+path, nil, "written")
		if err != nil || a.Status != http.StatusCreated {
			r.t.Errorf("PUT %q = %d %.100q (%v), want 201", path, a.Status, a.Body, err)
		}
		if files, _, err := r.member.Files(r.ctx, r.own, name); err != nil || len(files) != 1 || files[0].Path != name {
			r.t.Errorf("PUT %q: the list has %+v (%v), want %q", path, files, err, name)
		}
		if _, err := r.member.DeleteFile(r.ctx, r.own, name, nil); err != nil {
			r.t.Errorf("remove %q: %v", name, err)
		}
	}
}

// traversal spells ways out of the roots, for every method.
func (r *refusals) traversal() {
	r.t.Helper()
	base := r.own.Path() + "/files/"
	long := strings.Repeat("n", 256)
	for _, path := range []string{
		"workspace/../.env", "workspace/../../sibling/work/only-sibling.txt", "workspace/..", "workspace/.", "workspace/./dir/file.txt", "workspace/dir/../dir/file.txt",
		"workspace/%2e%2e/.env", "workspace/%2E%2E/.env", "workspace/.%2e/.env", "workspace/%2e./SOUL.md", "workspace/..%2f.env", "workspace/..%2F.env", "workspace%2f..%2f.env",
		"workspace%2F..%2Fconfig.yaml", "..%2f.env", "%2e%2e%2f.env", `workspace\..\.env`, "workspace/%c0%ae%c0%ae/.env", "workspace/..%c0%af.env", "workspace/%e0%80%ae%e0%80%ae/.env", "workspace/%ff", "workspace/%u002e%u002e/.env",
		"workspace/..%00/.env", "workspace/a%00b", "workspace/%00", "workspace/only-own.txt%00.png", "workspace/only-own.txt/", "workspace//only-own.txt",
		"workspace/dir%2ffile.txt", "workspace/dir%2Ffile.txt", "/workspace/only-own.txt", "%2fworkspace/only-own.txt", "/etc/passwd", "%2fetc%2fpasswd", "file:///workspace/only-own.txt",
		"", "workspace", "workspace/", "artifacts", "artifacts/", "artifacts/inbound", "artifacts/inbound/", "artifacts/other/x", "artifacts/../.env", "artifacts/x",
		".env", "SOUL.md", "config.yaml", "state/state.db", "state/planted.db", "logs/x", "work/only-own.txt", "memory/planted.md", "skills/planted.md", "../.env", "../../../.env",
		"conversations/own/.env", "conversations/sibling/work/only-sibling.txt", "Workspace/only-own.txt", "WORKSPACE/only-own.txt", "workspace%20/x", "workspace/" + long,
		"workspace/" + strings.Repeat("d/", 2100) + "x", "workspace/%", "workspace/%zz", "workspace/%2", "workspace/x?version=1", "workspace/%E2%80%AE/%2e%2e/.env",
	} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodDelete} {
			body := ""
			if method == http.MethodPut {
				body = "written"
			}
			a, err := r.member.Wire(r.ctx, method, base+path, nil, body)
			r.refused(fmt.Sprintf("%s %.80q", method, path), a, err, "INVALID_PATH", "FILE_NOT_FOUND", "NOT_A_FILE", "ROUTE_NOT_FOUND", "METHOD_NOT_ALLOWED", "UNKNOWN_PARAMETER",
				"INVALID_UNICODE", "INVALID_PARAMETER", "INVALID_URL")
		}
	}
	for path := range literal {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodDelete} {
			a, err := r.member.Wire(r.ctx, method, base+path, nil, "")
			r.refused(fmt.Sprintf("%s %.80q", method, path), a, err, "FILE_NOT_FOUND")
		}
	}
	for _, prefix := range []string{"../", "workspace/../", "workspace/../../", "state/", ".env", "/", "memory", "conversations/", "workspace/%2e%2e/", "artifacts/../", "workspace/\x00", "workspace/dir/../../"} {
		files, _, err := r.member.Files(r.ctx, r.own, prefix)
		r.requests++
		if len(files) > 0 || err != nil && harness.ReasonOf(err) != "INVALID_PATH" && harness.ReasonOf(err) != "INVALID_UNICODE" {
			r.t.Errorf("list %q = %d files, %v; want none", prefix, len(files), err)
		}
	}
	for _, name := range []string{"", ".", "..", "../x", "a/b", "a\x00b", "a\xffb", long, "/etc/passwd", "%2e%2e/x\x00"} {
		if _, err := r.member.Attach(r.ctx, r.own, name, strings.NewReader("x"), 1); err == nil || harness.ReasonOf(err) == "" {
			r.t.Errorf("an attachment named %.20q = %v, want a reason", name, err)
		}
		r.requests++
	}
}

// authority uses missing, wrong and foreign credentials, and a member's for what is an administrator's.
func (r *refusals) authority() {
	r.t.Helper()
	file := r.own.FileURL("workspace/only-own.txt")
	routes := []struct{ method, path, body string }{
		{"GET", file, ""}, {"HEAD", file, ""}, {"PUT", file, "x"}, {"DELETE", file, ""}, {"GET", r.own.Path() + "/files", ""},
		{"POST", r.own.Path() + "/attachments?filename=x", "x"}, {"GET", r.own.Path() + "/audit/timeline", ""}, {"GET", r.own.Path() + "/audit/diff", ""}, {"GET", r.own.Path() + "/audit/toolcalls", ""},
	}
	organization := "/v1/organizations/" + r.own.Organization
	administrative := []struct{ method, path, body string }{
		{"GET", organization + "/audit/timeline", ""}, {"GET", organization + "/agentfs/export", ""}, {"POST", organization + "/agentfs:restore", "x"},
		{"POST", organization + "/agentfs:check", `{"repair":true}`}, {"POST", organization + "/agentfs/snapshots", `{"name":"stolen"}`}, {"GET", organization + "/agentfs/snapshots", ""},
		{"DELETE", organization + "/agentfs/snapshots/stolen", ""},
	}
	for _, c := range slices.Concat(routes, administrative) {
		header := http.Header{}
		if strings.HasPrefix(c.body, "{") {
			header.Set("Content-Type", "application/json")
		}
		send := func(who string, client *harness.Client, reasons ...string) {
			a, err := client.Wire(r.ctx, c.method, c.path, header, c.body)
			r.refused(fmt.Sprintf("%s: %s %s", who, c.method, c.path), a, err, reasons...)
		}
		send("no credential", r.Client.As(""), "TOKEN_MISSING")
		send("a wrong credential", r.Client.As("wrong-wrong-wrong-wrong"), "TOKEN_INVALID")
		send("another organization's member", r.stranger, "ORGANIZATION_NOT_FOUND", "CONVERSATION_NOT_FOUND", "PERMISSION_DENIED")
	}
	for _, c := range administrative {
		header := http.Header{}
		if strings.HasPrefix(c.body, "{") {
			header.Set("Content-Type", "application/json")
		}
		a, err := r.member.Wire(r.ctx, c.method, c.path, header, c.body)
		r.refused("a member: "+c.method+" "+c.path, a, err, "PERMISSION_DENIED")
	}
	for name, conv := range map[string]harness.Conversation{
		"an unknown conversation":                        {Organization: r.own.Organization, ID: "none"},
		"a conversation of another organization":         {Organization: r.own.Organization, ID: r.foreign.ID},
		"another organization's conversation":            r.foreign,
		"a conversation below another organization's id": {Organization: r.foreign.Organization, ID: r.own.ID},
	} {
		for _, method := range []string{"GET", "PUT", "DELETE"} {
			a, err := r.member.Wire(r.ctx, method, conv.FileURL("workspace/only-foreign.txt"), nil, "x")
			r.refused(method+" in "+name, a, err, "CONVERSATION_NOT_FOUND", "ORGANIZATION_NOT_FOUND")
		}
	}
	for _, path := range []string{"workspace/only-sibling.txt", "workspace/only-foreign.txt"} {
		a, err := r.member.Wire(r.ctx, "GET", r.own.FileURL(path), nil, "")
		r.refused("a file that another conversation has", a, err, "FILE_NOT_FOUND")
	}
}
