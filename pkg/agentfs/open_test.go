package agentfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"testing"
)

// TestOpenPathWhileTheNameIsReplaced opens a name that always is there, and always gets one whole
// content.
func TestOpenPathWhileTheNameIsReplaced(t *testing.T) {
	f := create(t, options(t))
	ctx, by := t.Context(), someone
	put := func(i int) error {
		_, _, err := f.Put(ctx, by, Placement{Parent: Root, Name: "a", Replace: true}, 0o644, bytes.Repeat([]byte{byte(i)}, 5000))
		return err
	}
	if err := put(0); err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for i := range 300 {
			if err := put(i); err != nil {
				t.Error(err)
			}
		}
	})
	group.Go(func() {
		for range 300 {
			if err := readWhole(ctx, f, by); err != nil {
				t.Error(err)
			}
		}
	})
	group.Wait()
}

func readWhole(ctx context.Context, f *FS, by Caller) error {
	x, err := f.OpenPath(ctx, by, "/a", os.O_RDONLY, nil)
	if err != nil {
		return err
	}
	p := make([]byte, 5000)
	n, err := x.ReadAt(p, 0)
	if err != nil || n != 5000 || !bytes.Equal(p, bytes.Repeat(p[:1], 5000)) {
		return fmt.Errorf("read %d bytes, %w", n, err)
	}
	return x.Close()
}

func TestOpenPathRefuses(t *testing.T) {
	f := create(t, options(t))
	ctx, by := t.Context(), someone
	if _, err := f.Symlink(ctx, by, Root, "link", "/a"); err != nil {
		t.Fatal(err)
	}
	refusal := errors.New("refused")
	for _, c := range []struct {
		path  string
		check func(Attr) error
		want  error
	}{
		{"/missing", nil, syscall.ENOENT},
		{"/link", nil, syscall.ELOOP},
		{"/", nil, syscall.EISDIR},
		{"/", func(Attr) error { return refusal }, refusal},
	} {
		if _, err := f.OpenPath(ctx, by, c.path, os.O_RDONLY, c.check); !errors.Is(err, c.want) {
			t.Errorf("open %s: got %v, want %v", c.path, err, c.want)
		}
	}
}
