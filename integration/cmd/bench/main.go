// Command bench runs the benchmarks: one JSON object a line on standard output, progress on
// standard error. `make bench` sets up what it needs.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"humanwork.internal/integration/bench"
	"humanwork.internal/integration/harness"
	"humanwork.internal/integration/interop"
	"humanwork.internal/pkg/testkit"
)

const usage = `Usage: bench [flags]

Measures the system beside baselines, by turns in one run, and prints one JSON object a line:
{"name", "value", "unit", "baseline", "ratio"}; ratio is null where the baseline is 0.

` + testkit.PostgresVariable + ` names a Postgres server on which databases may be made,
` + harness.HermesVariable + ` a virtual environment with Hermes,
` + interop.PythonVariable + ` and ` + interop.NodeVariable + ` the AgentFS SDKs: "make bench" sets all.

Benchmarks:
`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage, bench.Usage(), "\nFlags:\n")
		flags.PrintDefaults()
	}
	only := flags.String("only", "", "run these `benchmarks` alone, names separated by commas")
	limit := flags.Duration("limit", 30*time.Minute, "give up after this `time`")
	opt := bench.Options{
		PostgresURL: os.Getenv(testkit.PostgresVariable), HermesVenv: os.Getenv(harness.HermesVariable),
		Progress: func(line string) { fmt.Fprintln(stderr, "  "+line) },
	}
	flags.IntVar(&opt.Turns, "turns", 1000, "measured warm turns on each side")
	flags.IntVar(&opt.PerConversation, "per-conversation", 50, "measured turns in each conversation")
	flags.IntVar(&opt.Rounds, "rounds", 5, "measurements of each side of the relay and of a listing")
	flags.IntVar(&opt.Files, "files", 10_000, "small files that each side puts and gets")
	flags.IntVar(&opt.StreamMiB, "stream-mib", 1024, "size of a streamed file in MiB")
	flags.IntVar(&opt.StreamRounds, "stream-rounds", 2, "times that a streamed file goes up and down on each side")
	flags.IntVar(&opt.Entries, "entries", 100_000, "files in the listed directory")
	flags.IntVar(&opt.FlatFiles, "flat-files", 1_000_000, "files in the largest database for the cost of single operations")
	flags.StringVar(&opt.Dir, "dir", "", "`directory` for the files of both sides, on a disk; the system's for temporary files if empty")
	flags.StringVar(&opt.Humanwork, "humanwork", beside("humanwork"), "`file` of the humanwork binary")
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	if *only != "" {
		opt.Only = strings.Split(*only, ",")
	}
	if err := opt.Validate(); err != nil {
		return err
	}
	if opt.PostgresURL == "" || opt.HermesVenv == "" {
		return fmt.Errorf("%s and %s must be set: run with `make bench`", testkit.PostgresVariable, harness.HermesVariable)
	}
	log, err := os.CreateTemp("", "hwbench-*.log")
	if err != nil {
		return fmt.Errorf("make the system's log: %w", err)
	}
	opt.Log = log.Name()
	if err := log.Close(); err != nil {
		return fmt.Errorf("make the system's log: %w", err)
	}
	out := json.NewEncoder(stdout)
	opt.Report = func(r bench.Result) error { return out.Encode(r) }
	ctx, cancel := context.WithTimeoutCause(ctx, *limit, fmt.Errorf("not done within %v", *limit))
	defer cancel()
	if err := bench.Run(ctx, opt); err != nil {
		return err
	}
	return os.Remove(opt.Log)
}

func beside(name string) string {
	self, err := os.Executable()
	if err != nil {
		return name
	}
	return filepath.Join(filepath.Dir(self), name)
}
