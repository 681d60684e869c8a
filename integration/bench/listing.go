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
	// planted is how many files one transaction makes.
	planted = 10_000
	// listed is the number of names that pkg/agentfs is asked for at a time, as by a listing over REST.
	listed = 1000
)

// listing lists a large directory through REST and in process, and as a plain directory, by turns.
func listing(ctx context.Context, opt Options) (out []Result, err error) {
	err = withFiles(ctx, opt, func(w *files, dir string) error {
		core := filepath.Join(dir, "core.db")
		if err := w.stock(ctx, opt, dir, core); err != nil {
			return err
		}
		fs, err := agentfs.Open(ctx, agentfs.Options{Location: agentfs.Location{Path: core}})
		if err != nil {
			return fmt.Errorf("open an AgentFS: %w", err)
		}
		err = func() error {
			plain := filepath.Join(dir, "plain")
			if err := os.Mkdir(plain, 0o700); err != nil {
				return err
			}
			for i := range opt.Entries {
				if err := os.WriteFile(filepath.Join(plain, fileName(i)), nil, 0o600); err != nil {
					return err
				}
			}
			var took [3]time.Duration
			for i := range opt.Rounds {
				opt.Progress(fmt.Sprintf("Listing of %d entries: round %d of %d", opt.Entries, i+1, opt.Rounds))
				sides := []func() (int, error){
					func() (int, error) {
						all, _, err := w.client.Files(ctx, w.conversation, "workspace/many/")
						return len(all), err
					},
					func() (int, error) { return listCore(ctx, fs) },
					func() (int, error) { return listPlain(plain) },
				}
				for j := range sides {
					k := (i + j) % len(sides)
					began := time.Now()
					n, err := sides[k]()
					if err == nil && n != opt.Entries {
						err = fmt.Errorf("%d entries, want %d", n, opt.Entries)
					}
					if err != nil {
						return fmt.Errorf("list: %w", err)
					}
					took[k] += time.Since(began)
				}
			}
			per := func(k int) float64 { return millis(took[k]) / float64(opt.Rounds) }
			out = []Result{result("list_rest", "ms", per(0), per(2)), result("list_core", "ms", per(1), per(2))}
			return nil
		}()
		return errors.Join(err, fs.Close())
	})
	return out, err
}

const manyPath = "/conversations/c-1/work/many"

// stock fills the conversation's workspace, in a copy that is restored afterwards and stays at core.
func (w *files) stock(ctx context.Context, opt Options, dir, core string) error {
	opt.Progress(fmt.Sprintf("Making %d entries", opt.Entries))
	file, err := os.Create(core)
	if err != nil {
		return err
	}
	if err := errors.Join(w.client.ExportAgentFS(ctx, organization, "", file), file.Close()); err != nil {
		return fmt.Errorf("export the AgentFS: %w", err)
	}
	if err := agentfs.Adopt(ctx, core); err != nil {
		return fmt.Errorf("adopt the AgentFS: %w", err)
	}
	fs, err := agentfs.Open(ctx, agentfs.Options{Location: agentfs.Location{Path: core}})
	if err != nil {
		return fmt.Errorf("open the AgentFS: %w", err)
	}
	restored := filepath.Join(dir, "restored.db")
	err = func() error {
		if _, err := fs.MkdirAll(ctx, writer, manyPath, 0o755); err != nil {
			return err
		}
		if err := plant(ctx, fs, manyPath, 0, opt.Entries); err != nil {
			return err
		}
		return fs.Snapshot(ctx, restored)
	}()
	if err := errors.Join(err, fs.Close()); err != nil {
		return fmt.Errorf("fill the AgentFS: %w", err)
	}
	file, err = os.Open(restored)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := w.client.RestoreAgentFS(ctx, organization, file, info.Size()); err != nil {
		return fmt.Errorf("restore the AgentFS: %w", err)
	}
	return nil
}

// plant makes empty files from first up to last, without it.
func plant(ctx context.Context, fs *agentfs.FS, dir string, first, last int) error {
	for first < last {
		nodes := make([]agentfs.Node, min(planted, last-first))
		for i := range nodes {
			nodes[i] = agentfs.Node{Path: dir + "/" + fileName(first+i), Mode: agentfs.TypeFile | 0o644}
		}
		if err := fs.Plant(ctx, writer, nodes); err != nil {
			return fmt.Errorf("make %d files: %w", len(nodes), err)
		}
		first += len(nodes)
	}
	return nil
}

func listCore(ctx context.Context, fs *agentfs.FS) (int, error) {
	dir, err := fs.Resolve(ctx, manyPath)
	if err != nil {
		return 0, err
	}
	n := 0
	for after := ""; ; {
		page, err := fs.ReadDir(ctx, dir.Ino, after, listed)
		if err != nil || len(page) == 0 {
			return n, err
		}
		n += len(page)
		after = page[len(page)-1].Name
	}
}

// listPlain reads names and attributes, as the other sides do.
func listPlain(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if _, err := e.Info(); err != nil {
			return 0, err
		}
	}
	return len(entries), nil
}
