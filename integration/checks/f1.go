package checks

import (
	"fmt"
	"os"
	"strings"
	"time"

	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/interop"
)

// F1 writes files through REST, lets both official SDKs read and change copied-out databases, and reads what they changed through REST.
func F1(t harness.T) string {
	env, err := interop.FromEnvironment()
	if err != nil {
		t.Fatalf("%v", err)
	}
	w := start(t, 4*time.Minute, harness.Options{})
	conv, _ := w.conversation("sdks")
	for i, name := range awkward {
		w.put(w.Client, conv, "workspace/"+name, strings.Repeat(name, i*i))
	}
	copied, err := w.Export(w.ctx, w.org)
	if err != nil {
		t.Fatalf("%v", err)
	}
	dir, err := os.MkdirTemp(w.Dir, "sdks-")
	if err != nil {
		t.Fatalf("make a directory for the SDKs: %v", err)
	}
	root := "/conversations/" + conv.ID + "/work"
	shown, err := interop.Run(w.ctx, env, copied, dir, root)
	if err != nil {
		t.Fatalf("the official SDKs: %v", err)
	}
	read := 0
	for sdk, changed := range shown.Changed {
		if err := w.Restore(w.ctx, w.org, changed); err != nil {
			t.Errorf("restore what the %s SDK changed: %v", sdk, err)
			continue
		}
		for path, sum := range shown.After[sdk] {
			below, inside := strings.CutPrefix(path, root+"/")
			if !inside || sum == "" || strings.HasPrefix(sum, "-> ") {
				continue
			}
			if got, _, err := w.read(conv, "workspace/"+below); err != nil || got != sum {
				t.Errorf("%q as the %s SDK left it has the digest %.12q (%v) through REST, want %.12q", below, sdk, got, err, sum)
			}
			read++
		}
	}
	return fmt.Sprintf("%v; %d files that the SDKs left read with equal bytes through REST", shown, read)
}
