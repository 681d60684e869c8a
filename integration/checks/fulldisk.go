package checks

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"humanwork.internal/integration/harness"
)

const (
	diskBytes    = 64 << 20
	ballastBytes = 16 << 20
)

// FullDisk fills the disk of agentfs: a write is acknowledged or refused with the reason, what was acknowledged stays readable, also
// after a kill, and with space again all goes on. It needs the right to mount.
func FullDisk(t harness.T) string {
	disk, err := os.MkdirTemp("", "hwdisk-")
	if err != nil {
		t.Fatalf("make a mount point: %v", err)
	}
	t.Cleanup(func() { os.RemoveAll(disk) })
	if err := syscall.Mount("hwdisk", disk, "tmpfs", 0, fmt.Sprintf("size=%d", diskBytes)); err != nil {
		t.Fatalf("mount a small disk: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Errorf("unmount the small disk: %v", err)
		}
	})
	ballast := filepath.Join(disk, "ballast")
	if err := os.WriteFile(ballast, make([]byte, ballastBytes), 0o600); err != nil {
		t.Fatalf("%v", err)
	}
	w := start(t, 3*time.Minute, harness.Options{Configure: func(service string, file map[string]any) {
		if service == harness.AgentFS {
			file["data_dir"] = filepath.Join(disk, "agentfs")
		}
	}})
	conv, _ := w.conversation("full")
	written := map[string]string{}
	random := rand.New(rand.NewPCG(1, 2))
	write := func(size int) error {
		raw := content(random, size)
		path := fmt.Sprintf("workspace/%d.bin", len(written))
		_, _, err := w.Client.PutFile(w.ctx, conv, path, nil, bytes.NewReader(raw), int64(len(raw)))
		if err == nil {
			written[path] = digest(raw)
		}
		return err
	}
	refused := 0
	for size := 4 << 20; size >= 4<<10 && w.ctx.Err() == nil; {
		var api *harness.APIError
		switch err := write(size); {
		case err == nil && len(written) > 10_000:
			t.Fatalf("the disk of %d MiB never fills", diskBytes>>20)
		case err == nil:
		case errors.As(err, &api) && api.Status == http.StatusInsufficientStorage && api.Reason() == "STORAGE_FULL":
			refused++
			size /= 4
		default:
			t.Fatalf("write to a full disk: %v, want 507 STORAGE_FULL", err)
		}
	}
	same := func(when string) {
		t.Helper()
		files, _, err := w.Client.Files(w.ctx, conv, "")
		if err != nil || len(files) != len(written) {
			t.Errorf("%s: the list has %d files (%v), want the %d acknowledged", when, len(files), err, len(written))
		}
		for path, sum := range written {
			if got, _, err := w.read(conv, path); err != nil || got != sum {
				t.Errorf("%s: %s has the digest %.12q (%v), want %.12q", when, path, got, err, sum)
			}
		}
	}
	same("on a full disk")
	w.Restart(harness.AgentFS)
	if _, err := harness.Durably(w.ctx, func() (harness.Answer, error) { return w.Client.HeadFile(w.ctx, conv, "workspace/0.bin") }); err != nil {
		t.Fatalf("after a kill on a full disk: %v", err)
	}
	same("after a kill on a full disk")
	if err := os.Remove(ballast); err != nil {
		t.Fatalf("%v", err)
	}
	if err := write(4 << 20); err != nil {
		t.Errorf("write with space again: %v", err)
	}
	same("with space again")
	if report, err := w.Client.CheckAgentFS(w.ctx, w.org, false); err != nil || len(report.Faults) > 0 {
		t.Errorf("the check afterwards: %+v, %v; want no fault", report.Faults, err)
	}
	return fmt.Sprintf("%d files filled the disk, %d writes refused STORAGE_FULL, all acknowledged ones read then, after a kill and with space again", len(written), refused)
}
