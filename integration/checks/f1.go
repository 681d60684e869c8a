package checks

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/interop"
)

// F1 writes files through REST and reads them with the official AgentFS SDKs from an exported copy; what each SDK changes in its copy
// is there through REST once that was restored.
func F1(t harness.T) string {
	env, err := interop.FromEnvironment()
	if err != nil {
		t.Fatalf("%v", err)
	}
	w := start(t, 5*time.Minute, harness.Options{})
	conv, _ := w.conversation("shared")
	for i, name := range awkward {
		w.put(w.Client, conv, "workspace/"+name, strings.Repeat(name, i%5))
	}
	for _, size := range []int{0, 1, 4095, 4096, 4097, 5 << 20} {
		w.put(w.Client, conv, fmt.Sprintf("artifacts/outbound/%d bytes", size), strings.Repeat("x", size))
	}
	if _, err := w.Client.Attach(w.ctx, conv, "it's attached.txt", strings.NewReader("attached"), -1); err != nil {
		t.Fatalf("attach: %v", err)
	}
	first := w.sdks(env, conv)
	// What is exported now has the links, tool calls and pairs that the SDKs made.
	second := w.sdks(env, conv)
	report, err := w.Client.CheckAgentFS(w.ctx, w.org, false)
	if err != nil || len(report.Faults) > 0 {
		t.Errorf("the check afterwards: %+v, %v; want no fault", report.Faults, err)
	}
	return first + "; exported again: " + second
}

// sdks exports the organization's AgentFS, has both SDKs read and change copies, and restores these one after the other.
func (w *world) sdks(env interop.Environment, conv harness.Conversation) string {
	w.t.Helper()
	exported, err := w.Export(w.ctx, w.org)
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	dir, err := os.MkdirTemp(w.Dir, "interop-")
	if err != nil {
		w.t.Fatalf("make a directory for the SDKs: %v", err)
	}
	home := "/conversations/" + conv.ID
	shown, err := interop.Run(w.ctx, env, exported, dir, home+"/work")
	if err != nil {
		w.t.Fatalf("the official SDKs: %v", err)
	}
	files := w.equalOverREST(conv, home, interop.ExpectedOf(shown.Tree))
	restored := 0
	for _, sdk := range slices.Sorted(maps.Keys(shown.Changed)) {
		if err := w.Restore(w.ctx, w.org, shown.Changed[sdk]); err != nil {
			w.t.Errorf("restore what the %s SDK changed: %v", sdk, err)
			continue
		}
		restored += w.equalOverREST(conv, home, shown.After[sdk])
	}
	return fmt.Sprintf("%d files equal through REST; %s; restored, %d files equal through REST", files, shown, restored)
}

// equalOverREST compares a conversation's files, read through REST, with what is expected below its directory, and returns how many.
func (w *world) equalOverREST(conv harness.Conversation, home string, want interop.Expected) int {
	w.t.Helper()
	listed, _, err := w.Client.Files(w.ctx, conv, "")
	if err != nil {
		w.t.Fatalf("list: %v", err)
	}
	got := map[string]string{}
	for _, f := range listed {
		resp, err := w.Client.OpenFile(w.ctx, conv, f.Path, nil)
		if err != nil {
			w.t.Fatalf("read %q: %v", f.Path, err)
		}
		sum := sha256.New()
		n, err := io.Copy(sum, resp.Body)
		if cerr := resp.Body.Close(); err != nil || cerr != nil || n != f.Size {
			w.t.Errorf("read %q: %d bytes, %v, %v; want %d", f.Path, n, err, cerr, f.Size)
		}
		path := f.Path
		if below, ok := strings.CutPrefix(path, "workspace/"); ok {
			path = "work/" + below
		}
		got[home+"/"+path] = hex.EncodeToString(sum.Sum(nil))
	}
	public := 0
	for path, digest := range want {
		below, ok := strings.CutPrefix(path, home+"/")
		if !ok || !strings.HasPrefix(below, "work/") && !strings.HasPrefix(below, "artifacts/") || len(digest) != 2*sha256.Size {
			continue // private, a directory, or a symbolic link
		}
		public++
		if got[path] != digest {
			w.t.Errorf("%q has SHA-256 %q through REST, want %s", path, got[path], digest)
		}
	}
	if len(got) != public {
		w.t.Errorf("%d files through REST, want %d", len(got), public)
	}
	return public
}
