// Package fileuritest tries the parser of file URIs on made-up ones: mostly right, then broken the
// ways that escape elsewhere. What the parser says is compared with what Go's net/url and path
// packages make of the same text, which share nothing with it.
package fileuritest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"

	"humanwork.internal/pkg/fileuri"
)

// Stats counts what was tried. URIs and paths are tried in turn.
type Stats struct {
	Tried, AcceptedURIs, AcceptedPaths int
}

// Run tries n texts, the same ones for the same seed, on every processor. The error is the first
// text found that the parser and the reference disagree about, that escapes, or that panics.
func Run(ctx context.Context, seed uint64, n int) (Stats, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	const block = 10_000 // texts made from one state of the generator
	blocks := make(chan int)
	go func() {
		defer close(blocks)
		for start := 0; start < n; start += block {
			select {
			case blocks <- start:
			case <-ctx.Done():
				return
			}
		}
	}()
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		total Stats
	)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			var s Stats
			for start := range blocks {
				g := generator{rand.New(rand.NewPCG(seed, uint64(start)))}
				for i := start; i < min(start+block, n); i++ {
					if err := s.try(&g, i%2 == 0); err != nil {
						cancel(err)
						return
					}
				}
			}
			mu.Lock()
			defer mu.Unlock()
			total.Tried += s.Tried
			total.AcceptedURIs += s.AcceptedURIs
			total.AcceptedPaths += s.AcceptedPaths
		})
	}
	wg.Wait()
	return total, context.Cause(ctx)
}

func (s *Stats) try(g *generator, uri bool) (err error) {
	text, check := g.path(), CheckPath
	if uri {
		text, check = g.uri(), CheckURI
	}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%q: the parser panics: %v", text, r)
		}
	}()
	s.Tried++
	accepted, err := check(text)
	if accepted && uri {
		s.AcceptedURIs++
	} else if accepted {
		s.AcceptedPaths++
	}
	return err
}

// CheckURI parses one URI and reports whether it was accepted. The error says how the parser is
// wrong.
func CheckURI(s string) (accepted bool, err error) {
	p, err := fileuri.ParseURI(s)
	want, ok := referenceURI(s)
	return judge(s, p, err, want, ok)
}

// CheckPath is CheckURI for a public path.
func CheckPath(s string) (accepted bool, err error) {
	p, err := fileuri.ParsePath(s)
	return judge(s, p, err, s, referencePath(s))
}

func judge(s string, p fileuri.Path, err error, want string, ok bool) (bool, error) {
	switch {
	case err != nil && ok:
		return false, fmt.Errorf("%q is refused: %w", s, err)
	case err != nil:
		return false, nil
	case !ok:
		return true, fmt.Errorf("%q is accepted as %q", s, p)
	case p.String() != want:
		return true, fmt.Errorf("%q is taken for %q, want %q", s, p, want)
	}
	return true, consistent(p)
}
