// Package docs keeps the documents equal to the code.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const root = "../.."

var (
	// typed and plain are how the code declares reasons.
	typed = regexp.MustCompile(`errs\.Reason\s*=\s*"([A-Z_]+)"`)
	plain = regexp.MustCompile(`\b[rR]eason[A-Z]\w*\s*=\s*"([A-Z_]+)"`)
	// documented is a reason in the first cell of a table's row.
	documented = regexp.MustCompile("`([A-Z_]{5,})`")
)

func TestReasonsAreDocumented(t *testing.T) {
	coded := map[string]string{}
	for _, dir := range []string{"pkg", "services"} {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			raw, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, re := range []*regexp.Regexp{typed, plain} {
				for _, m := range re.FindAllStringSubmatch(string(raw), -1) {
					coded[m[1]] = path
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	raw, err := os.ReadFile(filepath.Join(root, "docs", "errors.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for line := range strings.Lines(string(raw)) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range documented.FindAllStringSubmatch(cells[1], -1) {
			listed[m[1]] = true
		}
	}
	if len(coded) < 50 {
		t.Fatalf("found %d reasons in the code; the search is broken", len(coded))
	}
	for r, path := range coded {
		if !listed[r] {
			t.Errorf("%s, of %s, is not in docs/errors.md", r, path)
		}
	}
	for r := range listed {
		if coded[r] == "" {
			t.Errorf("docs/errors.md lists %s, which no code gives", r)
		}
	}
}
