package fscli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListing(t *testing.T) {
	f := start(t)
	f.put("workspace/a", "workspace/a.txt", "workspace/b", "workspace/src/main.go", "workspace/src/util/x.go", "artifacts/inbound/1/r.pdf", "workspace/\x1b[2J\u202e", `workspace/"q"`, "workspace/it's é")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{nil, "artifacts/\nworkspace/\n"},
		{[]string{"workspace"}, "\"workspace/\\x1b[2J\\u202e\"\nworkspace/\"q\"\nworkspace/a\nworkspace/a.txt\nworkspace/b\nworkspace/it's é\nworkspace/src/\n"},
		{[]string{"workspace/src/"}, "workspace/src/main.go\nworkspace/src/util/\n"},
		{[]string{"-R", "workspace/src"}, "workspace/src/main.go\nworkspace/src/util/x.go\n"},
		{[]string{"workspace/a"}, "workspace/a\n"},
		{[]string{"file:///workspace/a"}, "workspace/a\n"},
		{[]string{"artifacts/outbound"}, ""},
	} {
		if got := must(t, append([]string{"ls"}, tc.args...)...); got != tc.want {
			t.Errorf("ls %q printed\n%s\nwant\n%s", tc.args, got, tc.want)
		}
	}
	if f.pages < 10 {
		t.Errorf("%d pages were asked for; the listings have more", f.pages)
	}
	got := must(t, "ls", "-l", "workspace/a")
	if !strings.HasPrefix(got, "-rw-r--r--  22  2026-11-30") || !strings.HasSuffix(got, "  workspace/a\n") {
		t.Errorf("ls -l printed %q", got)
	}
	all := lines(t, must(t, "ls", "--json", "workspace"))
	if len(all) != 7 || all[0]["path"] != "workspace/\x1b[2J\u202e" || all[0]["version"] != "1-1" || all[6]["directory"] != true {
		t.Errorf("ls --json printed %v", all)
	}
	fails(t, []string{"no file or directory workspace/none", "FILE_NOT_FOUND", "humanwork fs ls -R"}, "ls", "workspace/none")
	fails(t, []string{"no file or directory workspace/a/"}, "ls", "workspace/a/")
}

func TestPutAndGet(t *testing.T) {
	f := start(t)
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.WriteFile("it's é?.txt", []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := must(t, "put", "it's é?.txt", "workspace/"); got != "workspace/it's é?.txt  5 B  version 1-1  created\n" {
		t.Errorf("put printed %q", got)
	}
	if got := string(f.files["workspace/it's é?.txt"]); got != "hello" {
		t.Errorf("the server has %q", got)
	}
	out, _, err := run(t, "from a pipe", "fs", "put", "--json", "-", "workspace/it's é?.txt")
	if err != nil || lines(t, out)[0]["size"] != "11" {
		t.Errorf("put - printed %q, %v", out, err)
	}
	if got := must(t, "cat", "file:///workspace/it's%20%C3%A9%3F.txt"); got != "from a pipe" {
		t.Errorf("cat printed %q", got)
	}
	if got := must(t, "get", "workspace/it's é?.txt", "-"); got != "from a pipe" {
		t.Errorf("get - printed %q", got)
	}
	if got := must(t, "get", "workspace/it's é?.txt"); got != "" {
		t.Errorf("get printed %q", got)
	}
	holds(t, "it's é?.txt", "from a pipe")
	if info, err := os.Stat("it's é?.txt"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the replaced file has mode %v, want that of before", info.Mode())
	}
	if err := os.Mkdir("sub", 0o700); err != nil {
		t.Fatal(err)
	}
	if got := lines(t, must(t, "get", "--json", "workspace/it's é?.txt", "sub"))[0]; got["file"] != "sub/it's é?.txt" || got["size"] != "11" || got["version"] != "1-1" {
		t.Errorf("get --json printed %v", got)
	}
	must(t, "get", "workspace/it's é?.txt", "/dev/null")

	// A link stays one.
	if err := os.Symlink("sub/it's é?.txt", "link"); err != nil {
		t.Fatal(err)
	}
	f.put("workspace/new")
	must(t, "get", "workspace/new", "link")
	holds(t, filepath.Join("sub", "it's é?.txt"), "content of workspace/new")

	// A download that breaks off leaves what was there, and nothing else.
	f.cut = true
	fails(t, []string{"broke off after", "to fix it"}, "get", "workspace/new", "link")
	holds(t, "link", "content of workspace/new")
	left, err := filepath.Glob("**/.humanwork-*")
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	fails(t, []string{"VERSION_MISMATCH", "to fix it"}, "put", "--if-absent", "link", "workspace/new")
	fails(t, []string{"VERSION_MISMATCH"}, "put", "--if-version", "1-2", "link", "workspace/new")
	must(t, "put", "--if-version", "1-1", "link", "workspace/new")
	fails(t, []string{"directory"}, "put", "sub", "workspace/sub")
	fails(t, []string{"no such file"}, "put", "none", "workspace/none")
	for _, bad := range []string{"/workspace/a", "workspace/../a", "workspace//a", "etc/passwd", "file:///workspace/%2e%2e/a", "workspace"} {
		fails(t, []string{"the "}, "put", "link", bad)
		fails(t, []string{"the "}, "cat", bad)
		fails(t, []string{"the "}, "rm", bad)
	}
	if len(f.files) != 2 {
		t.Errorf("the server has %d files, want 2", len(f.files))
	}
}

func holds(t *testing.T, path, want string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s holds %q, %v; want %q", path, got, err, want)
	}
}

func TestRemoveTellsEachFailure(t *testing.T) {
	f := start(t)
	f.put("workspace/a", "workspace/held", "workspace/z")
	fails(t, []string{"remove workspace/no\\x1bne: no file", "turn t9, which waits, needs it", "to fix it"}, "rm", "workspace/no\x1bne", "workspace/held", "workspace/z")
	if _, ok := f.files["workspace/z"]; ok {
		t.Error("the file after the failures is still there")
	}
	must(t, "rm", "workspace/a")
}

func TestAttach(t *testing.T) {
	start(t)
	t.Chdir(t.TempDir())
	if err := os.WriteFile("report.txt", []byte("figures"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := must(t, "attach", "--block", "report.txt"); !strings.HasPrefix(got, `{"name":"report.txt","type":"resource_link","uri":"file:///artifacts/inbound/`) {
		t.Errorf("attach --block printed %q", got)
	}
	if got := must(t, "attach", "report.txt"); !strings.Contains(got, "size    7 B\n") {
		t.Errorf("attach printed %q", got)
	}
	out, _, err := run(t, "piped", "fs", "attach", "--json", "--name", "p.txt", "-")
	if err != nil || !strings.HasSuffix(lines(t, out)[0]["uri"].(string), "/p.txt") {
		t.Errorf("attach - printed %q, %v", out, err)
	}
	fails(t, []string{"--name"}, "attach", "-")
}

func TestAudit(t *testing.T) {
	start(t)
	if got := must(t, "timeline"); !strings.HasPrefix(got, "7  2026-11-30 ") || !strings.HasSuffix(got, "  user:ann  rename  2.0 KiB  workspace/a -> \"workspace/b\\nc\"\n") {
		t.Errorf("timeline printed %q", got)
	}
	got := lines(t, must(t, "timeline", "--json", "--path", "file:///workspace/a", "--after", "3"))[0]
	if got["about"] != listed+"/audit/timeline?after=3&pageSize=1000&path=workspace%2Fa" {
		t.Errorf("timeline asked for %v", got["about"])
	}
	if got := lines(t, must(t, "timeline", "--json", "-c", ""))[0]["about"]; got != "/v1/organizations/acme/audit/timeline?pageSize=1000" {
		t.Errorf("the organization's timeline asked for %v", got)
	}
	if got, want := must(t, "diff", "--from", "3"), "renamed  workspace/old -> workspace/new/\nadded    workspace/it's.txt\n"; got != want {
		t.Errorf("diff printed %q, want %q", got, want)
	}
	if got := must(t, "toolcalls"); !strings.Contains(got, "  1.5s  success  terminal  {\"command\":\"xxx") || !strings.HasSuffix(got, "x...\n") {
		t.Errorf("toolcalls printed %q", got)
	}
}

func TestBackup(t *testing.T) {
	f := start(t)
	t.Chdir(t.TempDir())
	if got := must(t, "fsck"); got != "10 inodes, 2.0 KiB and 5 ledger records checked; 0 faults, 0 of them remain\n" {
		t.Errorf("fsck printed %q", got)
	}
	f.faults = `[{"kind":"ENTRY_WITHOUT_INODE","message":"entry \u001b[1m","repaired":true},{"kind":"SHORT_CHUNK","message":"chunk 3","repaired":false}]`
	out, _, err := run(t, "", "fs", "fsck", "--repair")
	if err == nil || !strings.Contains(err.Error(), "1 faults could not be repaired") || !strings.Contains(out, "repaired  ENTRY_WITHOUT_INODE  entry \\x1b[1m\nfound     SHORT_CHUNK") ||
		!strings.Contains(out, "snapshot before-repair") {
		t.Errorf("fsck --repair printed %q, %v", out, err)
	}
	fails(t, []string{"--repair"}, "fsck", "--json")
	if got := must(t, "snapshot", "s1"); !strings.HasPrefix(got, "s1  2026-11-30 ") {
		t.Errorf("snapshot printed %q", got)
	}
	fails(t, []string{"SNAPSHOT_EXISTS", "another name"}, "snapshot", "s1")
	fails(t, []string{"a-z"}, "snapshot", "Before the change")
	must(t, "snapshot", "s2")
	must(t, "snapshots", "rm", "s1")
	if got := lines(t, must(t, "snapshots", "--json")); len(got) != 1 || got[0]["name"] != "s2" {
		t.Errorf("snapshots printed %v", got)
	}
	must(t, "export", "acme.db")
	holds(t, "acme.db", "database ")
	if info, err := os.Stat("acme.db"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the export has mode %v; it holds credentials", info.Mode())
	}
	if got := must(t, "export", "--snapshot", "s2", "-"); got != "database s2" {
		t.Errorf("export - printed %q", got)
	}

	// Restoring needs the id, or --yes.
	for _, answer := range []string{"", "y\n", "acme2\n"} {
		if _, _, err := run(t, answer, "fs", "restore", "--snapshot", "s2"); err == nil || f.restored != "" {
			t.Errorf("restore after %q = %v, restored %q", answer, err, f.restored)
		}
	}
	out, prompt, err := run(t, "acme\n", "fs", "restore", "--snapshot", "s2")
	if err != nil || f.restored != "s2" || !strings.Contains(out, "snapshot before-restore") || !strings.Contains(prompt, "all files of acme") {
		t.Errorf("restore printed %q and %q, %v; restored %q", out, prompt, err, f.restored)
	}
	must(t, "restore", "--yes", "acme.db")
	if f.restored != "database " {
		t.Errorf("restored %q", f.restored)
	}
	if err := os.WriteFile("empty.db", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	f.restored = ""
	fails(t, []string{"empty.db is empty"}, "restore", "--yes", "empty.db")
	fails(t, []string{"--yes"}, "restore", "-")
	fails(t, []string{"either a file or a --snapshot"}, "restore", "--yes")
	fails(t, []string{"either a file or a --snapshot"}, "restore", "--yes", "--snapshot", "s2", "acme.db")
	if f.restored != "" {
		t.Errorf("restored %q", f.restored)
	}
}

func TestWhoToAskAndAsWhom(t *testing.T) {
	f := start(t)
	f.put("workspace/a")
	fails(t, []string{"TOKEN_INVALID", "HUMANWORK_TOKEN"}, "ls", "--token", "another-token")
	fails(t, []string{"CONVERSATION_NOT_FOUND", "--conversation"}, "ls", "-c", "other")
	fails(t, []string{"no organization", "HUMANWORK_ORGANIZATION"}, "ls", "-o", "")
	fails(t, []string{"no conversation", "HUMANWORK_CONVERSATION"}, "ls", "-c", "")
	fails(t, []string{"no answer from http://127.0.0.1:1", "humanwork run"}, "ls", "--addr", "127.0.0.1:1")
	for _, bad := range []string{"ftp://127.0.0.1", "http://", "http://user@127.0.0.1", ":::"} {
		fails(t, []string{"write host:port"}, "ls", "--addr", bad)
	}

	// The token of an instance's directory is for this machine only.
	t.Setenv("HUMANWORK_TOKEN", "")
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "secrets"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secrets", "token"), []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := must(t, "ls", "--data-dir", dir, "workspace"); got != "workspace/a\n" {
		t.Errorf("ls with the directory's token printed %q", got)
	}
	fails(t, []string{"no token"}, "ls", "--data-dir", dir, "--addr", "192.0.2.1:80")
	fails(t, []string{"no token"}, "ls", "--data-dir", t.TempDir())
}

func TestCompletion(t *testing.T) {
	f := start(t)
	f.put("workspace/src/a.go", "workspace/some file", "workspace/s\n", "artifacts/inbound/1/x")
	f.snapshots = []string{"s1", "t1"}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"cat", "workspace/s"}, "workspace/some file\nworkspace/src/\n:6\n"},
		{[]string{"cat", "workspace/src"}, "workspace/src/\n:6\n"},
		{[]string{"rm", "workspace/src/a.go", "art"}, "artifacts/\n:6\n"},
		{[]string{"put", "local", "workspace/src/"}, "workspace/src/a.go\n:4\n"},
		{[]string{"put", "lo"}, ":0\n"},
		{[]string{"get", "workspace/src/a.go", ""}, ":0\n"},
		{[]string{"restore", "--snapshot", "s"}, "s1\n:4\n"},
		{[]string{"ls", "--conversation", "d"}, "d2\n:4\n"},
	} {
		got, _, err := run(t, "", append([]string{"__complete", "fs"}, tc.args...)...)
		if err != nil || got != tc.want {
			t.Errorf("completion of %q = %q, %v; want %q", tc.args, got, err, tc.want)
		}
	}
}

func TestEveryCommandExplainsItself(t *testing.T) {
	for _, cmd := range Command().Commands() {
		out, _, err := run(t, "", "fs", cmd.Name(), "--help")
		if err != nil || !strings.Contains(out, "Examples:\n  humanwork fs "+cmd.Name()) {
			t.Errorf("fs %s --help has no example: %v\n%s", cmd.Name(), err, out)
		}
	}
}
