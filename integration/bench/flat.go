package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"humanwork.internal/pkg/agentfs"
)

const (
	// least is the number of files that the larger directories are compared with.
	least = 1000
	// flatRounds and flatOps are how often each size has its turn, and how many operations that is.
	flatRounds, flatOps = 20, 50
	// flatPage is how many names a listing returns, from a place in the middle.
	flatPage = 100
)

// flatness measures single operations in directories of 1,000 files and of more, by turns.
func flatness(ctx context.Context, opt Options) (out []Result, err error) {
	dir, err := os.MkdirTemp(opt.Dir, "hwbench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var all []*sized
	defer func() {
		for _, s := range all {
			err = errors.Join(err, s.fs.Close())
		}
	}()
	for n := least; n <= opt.FlatFiles; n *= 10 {
		opt.Progress(fmt.Sprintf("Making %d files", n))
		fs, err := agentfs.Create(ctx, agentfs.Options{Location: agentfs.Location{Path: filepath.Join(dir, fmt.Sprintf("%d.db", n))}}, writer,
			[]agentfs.Node{{Path: "/d", Mode: agentfs.TypeDir | 0o755}})
		if err != nil {
			return nil, fmt.Errorf("make an AgentFS: %w", err)
		}
		s := &sized{fs: fs, n: n}
		all = append(all, s)
		if err := plant(ctx, fs, "/d", 0, n); err != nil {
			return nil, err
		}
	}
	opt.Progress("Measuring stat, open and listing")
	for range flatRounds {
		for _, s := range all {
			if err := s.round(ctx); err != nil {
				return nil, fmt.Errorf("%d files: %w", s.n, err)
			}
		}
		all = append(all[1:], all[0])
	}
	for len(all) > 1 && all[0].n != least {
		all = append(all[1:], all[0])
	}
	for i, operation := range flatOperations {
		for _, s := range all[1:] {
			micros := func(s *sized) float64 { return float64(percentile(s.took[i], 50)) / float64(time.Microsecond) }
			out = append(out, result(fmt.Sprintf("%s_of_%d", operation, s.n), "us", micros(s), micros(all[0])))
		}
	}
	return out, nil
}

var flatOperations = []string{"stat", "open", "list"}

// sized is an AgentFS with n files in one directory, and how long each operation took there.
type sized struct {
	fs   *agentfs.FS
	n    int
	next int
	took [3][]time.Duration
}

func (s *sized) round(ctx context.Context) error {
	for range flatOps {
		// Far from the last one, so that a page that happens to be near does not help.
		s.next = (s.next + s.n*61/100 + 7) % s.n
		path := "/d/" + fileName(s.next)
		for i, operation := range []func() error{
			func() error {
				_, err := s.fs.Resolve(ctx, path)
				return err
			},
			func() error {
				a, err := s.fs.Resolve(ctx, path)
				if err != nil {
					return err
				}
				file, err := s.fs.Open(ctx, writer, a.Ino, os.O_RDONLY)
				if err != nil {
					return err
				}
				return file.Close()
			},
			func() error {
				d, err := s.fs.Resolve(ctx, "/d")
				if err != nil {
					return err
				}
				_, err = s.fs.ReadDir(ctx, d.Ino, fileName(s.next%(s.n-flatPage)), flatPage)
				return err
			},
		} {
			began := time.Now()
			if err := operation(); err != nil {
				return fmt.Errorf("%s: %w", flatOperations[i], err)
			}
			s.took[i] = append(s.took[i], time.Since(began))
		}
	}
	return nil
}
