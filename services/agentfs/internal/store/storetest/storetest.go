// Package storetest is the contract every store.Store must keep.
package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"humanwork.internal/pkg/errs"
	"humanwork.internal/services/agentfs/internal/store"
	"humanwork.internal/services/agentfs/internal/tree"
)

const limit = 1 << 20

// Run runs the contract on running stores made by open.
func Run(t *testing.T, open func(t *testing.T) store.Store) {
	for _, c := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"contents", contents}, {"write once", writeOnce}, {"missing", missing}, {"all or nothing", allOrNothing},
		{"concurrent", concurrent}, {"canceled", canceled},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, open(t)) })
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func want(t *testing.T, what string, err error, kind errs.Kind, reason errs.Reason) {
	t.Helper()
	if !errors.Is(err, kind) || !errors.Is(err, reason) {
		t.Errorf("%s: got %v, want %s %s", what, err, kind, reason)
	}
}

func read(t *testing.T, s store.Store, org string, paths ...string) [][]byte {
	t.Helper()
	got, err := s.ReadFiles(t.Context(), org, paths, limit)
	must(t, err)
	return got
}

func contents(t *testing.T, s store.Store) {
	names := map[string][]byte{
		"/empty": nil, "/one": []byte("x"), "/2024-01-05": []byte("2024-01-05"), "/it's.txt": []byte("a\x00b\xff"),
		"/d/naïve 名": []byte("\r\n"), "/d/chunk": bytes.Repeat([]byte("c"), 4096), "/d/more": bytes.Repeat([]byte("0123456789"), 1500),
	}
	nodes := []tree.Node{tree.Dir("/d")}
	for p, c := range names {
		nodes = append(nodes, tree.File(p, c))
	}
	must(t, s.Provision(t.Context(), "acme", nodes))
	for p, c := range names {
		if got := read(t, s, "acme", p)[0]; !bytes.Equal(got, c) {
			t.Errorf("%s: got %d bytes %.40q, want %d bytes %.40q", p, len(got), got, len(c), c)
		}
	}
	_, err := s.ReadFiles(t.Context(), "acme", []string{"/d/more"}, 100)
	want(t, "file above the limit", err, errs.Exhausted, tree.ReasonFileTooLarge)
	_, err = s.ReadFiles(t.Context(), "acme", []string{"/d"}, limit)
	want(t, "directory", err, errs.Precondition, tree.ReasonNotAFile)
}

func writeOnce(t *testing.T, s store.Store) {
	must(t, s.Provision(t.Context(), "acme", []tree.Node{tree.File("/a", []byte("first"))}))
	must(t, s.Provision(t.Context(), "acme", []tree.Node{tree.File("/a", []byte("second")), tree.File("/b", nil)}))
	if got := read(t, s, "acme", "/a")[0]; string(got) != "first" {
		t.Errorf("/a after a second Provision = %q, want first", got)
	}
	_, err := s.ReadFiles(t.Context(), "acme", []string{"/b"}, limit)
	want(t, "file of a second Provision", err, errs.NotFound, tree.ReasonFileNotFound)
	must(t, s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/c"), tree.File("/c/x", []byte("first"))}))
	must(t, s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/c"), tree.File("/c/x", []byte("second")), tree.File("/c/y", nil)}))
	if got := read(t, s, "acme", "/c/x")[0]; string(got) != "first" {
		t.Errorf("/c/x after a second Plant = %q, want first", got)
	}
	_, err = s.ReadFiles(t.Context(), "acme", []string{"/c/y"}, limit)
	want(t, "file of a second Plant", err, errs.NotFound, tree.ReasonFileNotFound)
}

func missing(t *testing.T, s store.Store) {
	want(t, "Plant", s.Plant(t.Context(), "none", []tree.Node{tree.Dir("/c")}), errs.NotFound, tree.ReasonNotProvisioned)
	_, err := s.ReadFiles(t.Context(), "none", []string{"/a"}, limit)
	want(t, "ReadFiles", err, errs.NotFound, tree.ReasonNotProvisioned)
	must(t, s.Provision(t.Context(), "none", nil))
	_, err = s.ReadFiles(t.Context(), "none", []string{"/a"}, limit)
	want(t, "ReadFiles", err, errs.NotFound, tree.ReasonFileNotFound)
	_, err = s.ReadFiles(t.Context(), "none", []string{"/../a"}, limit)
	if err == nil {
		t.Error("a path that is not canonical was read")
	}
}

func allOrNothing(t *testing.T, s store.Store) {
	broken := []tree.Node{tree.Dir("/c"), tree.File("/c/x", []byte("1")), tree.File("/nowhere/y", nil)}
	if err := s.Provision(t.Context(), "acme", broken); err == nil {
		t.Fatal("Provision below a missing directory succeeded")
	}
	want(t, "Plant after a failed Provision", s.Plant(t.Context(), "acme", broken[:1]), errs.NotFound, tree.ReasonNotProvisioned)
	must(t, s.Provision(t.Context(), "acme", nil))
	if err := s.Plant(t.Context(), "acme", broken); err == nil {
		t.Fatal("Plant below a missing directory succeeded")
	}
	_, err := s.ReadFiles(t.Context(), "acme", []string{"/c/x"}, limit)
	want(t, "file of a failed Plant", err, errs.NotFound, tree.ReasonFileNotFound)
	must(t, s.Plant(t.Context(), "acme", broken[:2]))
	read(t, s, "acme", "/c/x")
}

func concurrent(t *testing.T, s store.Store) {
	var wg sync.WaitGroup
	for i := range 24 {
		org, conv := fmt.Sprintf("org-%d", i%3), fmt.Sprintf("/conv-%d", i%6)
		wg.Go(func() {
			if err := s.Provision(t.Context(), org, []tree.Node{tree.File("/a", []byte(org))}); err != nil {
				t.Errorf("Provision: %v", err)
			}
			mine := []byte(fmt.Sprint(i))
			if err := s.Plant(t.Context(), org, []tree.Node{tree.Dir(conv), tree.File(conv+"/x", mine), tree.File(conv+"/y", mine)}); err != nil {
				t.Errorf("Plant: %v", err)
			}
			got, err := s.ReadFiles(t.Context(), org, []string{conv + "/x", conv + "/y", "/a"}, limit)
			if err != nil {
				t.Errorf("ReadFiles: %v", err)
				return
			}
			if !bytes.Equal(got[0], got[1]) || string(got[2]) != org {
				t.Errorf("read %q, want files of one writer and of %s", got, org)
			}
		})
	}
	wg.Wait()
}

func canceled(t *testing.T, s store.Store) {
	must(t, s.Provision(t.Context(), "acme", nil))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	// A caller that gave up gets either answer; what follows must not notice.
	err := s.Plant(ctx, "acme", []tree.Node{tree.Dir("/c"), tree.File("/c/x", []byte("1"))})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Plant: got %v, want nil or context.Canceled", err)
	}
	must(t, s.Plant(t.Context(), "acme", []tree.Node{tree.Dir("/c"), tree.File("/c/x", []byte("1"))}))
	if got := read(t, s, "acme", "/c/x")[0]; string(got) != "1" {
		t.Errorf("/c/x = %q, want 1", got)
	}
}
