package postgres

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// oldestMajor is the oldest PostgreSQL that has everything the services use and still gets fixes.
const oldestMajor = 14

// installation is one set of PostgreSQL's programs.
type installation struct {
	bin     string // the directory of initdb and postgres, symbolic links resolved
	version string // as postgres prints it, e.g. "15.10"
	major   int
}

// statements says whether pg_stat_statements can be preloaded: naming a library that isn't there stops the server.
func (i *installation) statements() bool {
	for _, dir := range []string{"lib", "lib/postgresql", "lib64/pgsql", "lib64"} {
		if _, err := os.Stat(filepath.Join(i.bin, "..", dir, "pg_stat_statements.so")); err == nil {
			return true
		}
	}
	return false
}

// choose returns the newest installation of the machine, or fetches one. With made, an existing data directory's major
// version (0: none), only that version will do.
func choose(ctx context.Context, dir, cache string, made int) (*installation, error) {
	found := onMachine(ctx)
	var have []string
	for _, candidate := range found {
		have = append(have, candidate.version)
		if candidate.major == made || made == 0 && candidate.major >= oldestMajor {
			return candidate, nil
		}
	}
	if made != 0 && made != fetchedMajor {
		return nil, &ErrVersion{Dir: dir, Found: strconv.Itoa(made), Have: have}
	}
	fetched, err := fetch(ctx, cache)
	if err != nil {
		return nil, &ErrNoBinaries{Have: have, Err: err}
	}
	return fetched, nil
}

// onMachine lists the machine's installations, newest first; one that can't tell its version is left out.
func onMachine(ctx context.Context) []*installation {
	var dirs []string
	if out, err := exec.CommandContext(ctx, "pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, string(trimLine(out)))
	}
	debian, _ := filepath.Glob("/usr/lib/postgresql/*/bin") // the pattern is well formed
	dirs = append(dirs, debian...)
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	var found []*installation
	seen := map[string]bool{}
	for _, dir := range dirs {
		dir, err := filepath.EvalSymlinks(dir)
		if err != nil || seen[dir] {
			continue
		}
		seen[dir] = true
		if candidate, err := inspect(ctx, dir); err == nil {
			found = append(found, candidate)
		}
	}
	slices.SortStableFunc(found, func(a, b *installation) int { return b.major - a.major })
	return found
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) ((\d+)[.\w]*)`)

// inspect asks the programs in bin for their version.
func inspect(ctx context.Context, bin string) (*installation, error) {
	if _, err := os.Stat(filepath.Join(bin, "initdb")); err != nil {
		return nil, fmt.Errorf("look for initdb: %w", err)
	}
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask postgres for its version: %w", err)
	}
	match := versionLine.FindSubmatch(out)
	if match == nil {
		return nil, fmt.Errorf("ask postgres for its version: it said %.80q", out)
	}
	major, err := strconv.Atoi(string(match[2]))
	if err != nil {
		return nil, fmt.Errorf("read the version of postgres: %w", err)
	}
	return &installation{bin: bin, version: string(match[1]), major: major}, nil
}

// majorOf reads the major version that made a cluster; 0 when there is none.
func majorOf(base *os.Root) (int, error) {
	data, err := base.ReadFile(clusterName + "/PG_VERSION")
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: %w", err)
	}
	major, err := strconv.Atoi(string(trimLine(data)))
	if err != nil {
		return 0, fmt.Errorf("read the version of the data directory: PG_VERSION holds %.20q", data)
	}
	return major, nil
}
