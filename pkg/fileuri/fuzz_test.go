package fileuri_test

import (
	"os"
	"strconv"
	"testing"

	"humanwork.internal/pkg/fileuri"
	"humanwork.internal/pkg/fileuri/fileuritest"
)

// fuzzVariable says how many made-up URIs and paths to try.
const fuzzVariable = "HUMANWORK_FUZZ_URIS"

func TestMadeUpURIsAndPaths(t *testing.T) {
	n := 200_000
	if v := os.Getenv(fuzzVariable); v != "" {
		var err error
		if n, err = strconv.Atoi(v); err != nil || n < 1000 {
			t.Fatalf("%s is %q, want a number from 1000", fuzzVariable, v)
		}
	}
	got, err := fileuritest.Run(t.Context(), 1, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", got)
	if got.Tried != n {
		t.Errorf("tried %d, want %d", got.Tried, n)
	}
	// Both answers must be common, or the texts try nothing.
	for name, accepted := range map[string]int{"URIs": got.AcceptedURIs, "paths": got.AcceptedPaths} {
		if accepted < n/10 || accepted > n*4/10 {
			t.Errorf("%d of %d %s were accepted", accepted, n/2, name)
		}
	}
}

func FuzzParseURI(f *testing.F) {
	for _, s := range []string{"file:///workspace/a%20b.txt", "file:///artifacts/inbound/%C3%A9/..a", "file:///workspace/%2e%2e/x", "file://host/workspace/a", "file:///workspace/a%2Fb"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := fileuritest.CheckURI(s); err != nil {
			t.Error(err)
		}
	})
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"workspace/a b.txt", "artifacts/outbound/é/..a", "workspace/../x", "/workspace/a", "workspace/a\x00b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if _, err := fileuritest.CheckPath(s); err != nil {
			t.Error(err)
		}
	})
}

func BenchmarkParseURI(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := fileuri.ParseURI("file:///artifacts/inbound/0123456789abcdef/quarterly%20report.pdf"); err != nil {
			b.Fatal(err)
		}
	}
}
