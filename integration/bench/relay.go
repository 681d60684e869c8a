package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"humanwork.internal/integration/harness"
)

const relayPackage = "./services/supervisor/internal/relay"

// copied is what a Go benchmark says of one way to copy.
type copied struct{ throughput, allocations float64 } // MB/s, per message

// relayCopy runs the relay package's own benchmarks: no other package may import the relay.
func relayCopy(ctx context.Context, opt Options) (_ []Result, err error) {
	root, err := harness.Root()
	if err != nil {
		return nil, fmt.Errorf("find the repository: %w", err)
	}
	dir, err := os.MkdirTemp("", "hwbench-")
	if err != nil {
		return nil, fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	opt.Progress("Building the relay's benchmarks")
	binary := filepath.Join(dir, "relay.test")
	if _, err := output(ctx, root, "go", "test", "-c", "-o", binary, relayPackage); err != nil {
		return nil, err
	}
	var relayed, plain []copied
	for i := range opt.Rounds {
		sides := []struct {
			name string
			into *[]copied
		}{{"BenchmarkRelay", &relayed}, {"BenchmarkPlainCopy", &plain}}
		if i%2 == 1 {
			sides[0], sides[1] = sides[1], sides[0]
		}
		for _, s := range sides {
			text, err := output(ctx, dir, binary, "-test.run=^$", "-test.bench=^"+s.name+"$", "-test.benchtime=1s")
			if err != nil {
				return nil, err
			}
			c, err := parseBenchmark(text, s.name)
			if err != nil {
				return nil, err
			}
			*s.into = append(*s.into, c)
		}
		opt.Progress(fmt.Sprintf("Relay %d of %d: %.0f MB/s, plain copy %.0f MB/s", i+1, opt.Rounds, relayed[i].throughput, plain[i].throughput))
	}
	middle := func(all []copied, of func(copied) float64) float64 {
		var values []float64
		for _, c := range all {
			values = append(values, of(c))
		}
		return percentile(values, 50)
	}
	throughput := func(c copied) float64 { return c.throughput }
	allocations := func(c copied) float64 { return c.allocations }
	return []Result{
		result("relay_throughput", "MB/s", middle(relayed, throughput), middle(plain, throughput)),
		result("relay_allocations", "allocations/message", middle(relayed, allocations), middle(plain, allocations)),
	}, nil
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s%s", filepath.Base(name), strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out), nil
}

// parseBenchmark reads a line such as
//
//	BenchmarkRelay-2   3000   4100 ns/op   999.0 MB/s   0 B/op   0 allocs/op
func parseBenchmark(text, name string) (copied, error) {
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] != name && !strings.HasPrefix(f[0], name+"-") {
			continue
		}
		values := map[string]float64{}
		for i := 2; i+1 < len(f); i += 2 {
			v, err := strconv.ParseFloat(f[i], 64)
			if err != nil {
				return copied{}, fmt.Errorf("read the benchmark's line %q: %w", line, err)
			}
			values[f[i+1]] = v
		}
		throughput, ok := values["MB/s"]
		allocations, counted := values["allocs/op"]
		if !ok || !counted {
			return copied{}, fmt.Errorf("the benchmark's line %q has no throughput or no allocations", line)
		}
		return copied{throughput, allocations}, nil
	}
	return copied{}, fmt.Errorf("no line of %s in\n%s", name, text)
}
