package filelock

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestTryIsExclusive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("second Try: got %v, want ErrHeld", err)
	}
	first.Unlock()
	second, err := Try(path)
	if err != nil {
		t.Fatalf("Try after Unlock: %v", err)
	}
	second.Unlock()
}

func TestWaitGetsTheLockWhenItIsFreed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		lock, err := Wait(t.Context(), path)
		if err == nil {
			lock.Unlock()
		}
		got <- err
	}()
	first.Drop()
	if err := <-got; err != nil {
		t.Errorf("Wait: %v", err)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Wait(ctx, path); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Wait on a held lock: got %v, want DeadlineExceeded", err)
	}
	first.Unlock()
	// The abandoned wait must hand the lock back.
	lock, err := Wait(t.Context(), path)
	if err != nil {
		t.Fatalf("Wait after an abandoned one: %v", err)
	}
	lock.Unlock()
}

func TestChildHoldsADroppedLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	lock, err := Try(path)
	if err != nil {
		t.Fatal(err)
	}
	child := exec.Command("cat")
	child.ExtraFiles = []*os.File{lock.File()}
	stdin, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	lock.Drop()
	if _, err := Try(path); !errors.Is(err, ErrHeld) {
		t.Errorf("Try while the child lives: got %v, want ErrHeld", err)
	}
	stdin.Close()
	if err := child.Wait(); err != nil {
		t.Fatal(err)
	}
	again, err := Try(path)
	if err != nil {
		t.Fatalf("Try after the child ended: %v", err)
	}
	again.Unlock()
}
