// Package bench measures the running system beside a baseline. A system and its baseline are
// measured by turns in one run, so that what else the machine does weighs on both.
package bench

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Result is one measured value beside its baseline's, both in Unit.
type Result struct {
	Name     string  `json:"name"`
	Value    float64 `json:"value"`
	Unit     string  `json:"unit"`
	Baseline float64 `json:"baseline"`
	// Ratio is Value by Baseline, nil where Baseline is 0.
	Ratio *float64 `json:"ratio"`
}

func result(name, unit string, value, baseline float64) Result {
	r := Result{Name: name, Value: value, Unit: unit, Baseline: baseline}
	if baseline != 0 {
		ratio := value / baseline
		r.Ratio = &ratio
	}
	return r
}

// Options say what to measure, and with what.
type Options struct {
	// Only names the benchmarks to run; empty: all.
	Only []string
	// Turns is how many warm turns are measured on each side.
	Turns int
	// PerConversation is after how many measured turns both sides begin a new conversation: Hermes
	// sends the whole history with each turn, so that long ones are slower.
	PerConversation int
	// Rounds is how often each side of the relay and of a listing is measured.
	Rounds int
	// Files is how many small files each side writes and reads, Entries how many a listed directory
	// has, FlatFiles how many the largest database for the cost of single operations.
	Files, Entries, FlatFiles int
	// StreamMiB is the size of a streamed file, StreamRounds how often it goes up and down.
	StreamMiB, StreamRounds int

	// Humanwork is the binary of the system.
	Humanwork string
	// PostgresURL is a server on which databases may be made.
	PostgresURL string
	// HermesVenv is the virtual environment with Hermes, for both sides.
	HermesVenv string
	// Dir gets the files of both sides: it must be on a disk, or a sync costs nothing. Empty: the
	// system's directory for temporary files.
	Dir string
	// Log gets the output of the system, and is kept when a benchmark fails.
	Log string
	// Progress is told, in short lines, how far it is.
	Progress func(string)
	// Report gets each result as soon as it is measured.
	Report func(Result) error
}

type benchmark struct {
	name, about string
	run         func(context.Context, Options) ([]Result, error)
}

var benchmarks = []benchmark{
	{"warm_turn", "a warm REST turn (POST turns, then GET with wait=) by the same prompt on a bare hermes-acp", warmTurn},
	{"relay", "the relay of a child's bytes by a plain copy between pipes", relayCopy},
	{"files", "small files put and got through REST and in process by plain files with fsync, and by the Python SDK", smallFiles},
	{"stream", "a large file up and down through REST by a plain file with fsync, and the memory it takes", streamed},
	{"list", "a listing of many files through REST and in process by a plain directory", listing},
	{"flat", "stat, open and listing among many files by the same among 1,000", flatness},
}

// Usage lists the benchmarks, one a line.
func Usage() string {
	var out strings.Builder
	for _, b := range benchmarks {
		fmt.Fprintf(&out, "  %-10s  %s\n", b.name, b.about)
	}
	return out.String()
}

// Validate reports what is wrong with the options.
func (o Options) Validate() error {
	for _, name := range o.Only {
		if !slices.ContainsFunc(benchmarks, func(b benchmark) bool { return b.name == name }) {
			return fmt.Errorf("there is no benchmark %q; there are\n%s", name, Usage())
		}
	}
	if o.Turns < 1 || o.PerConversation < 1 || o.Rounds < 1 {
		return fmt.Errorf("turns, turns per conversation and rounds are %d, %d and %d, want at least 1", o.Turns, o.PerConversation, o.Rounds)
	}
	if o.Files < 1 || o.Entries < 1 || o.FlatFiles < least || o.StreamMiB < 1 || o.StreamRounds < 1 {
		return fmt.Errorf("files, entries, flat files, MiB and rounds of a stream are %d, %d, %d, %d and %d, want at least 1, 1, %d, 1 and 1",
			o.Files, o.Entries, o.FlatFiles, o.StreamMiB, o.StreamRounds, least)
	}
	return nil
}

// Run runs the chosen benchmarks one after another.
func Run(ctx context.Context, opt Options) error {
	for _, b := range benchmarks {
		if len(opt.Only) > 0 && !slices.Contains(opt.Only, b.name) {
			continue
		}
		results, err := b.run(ctx, opt)
		if err != nil {
			return fmt.Errorf("benchmark %s: %w", b.name, err)
		}
		for _, r := range results {
			if err := opt.Report(r); err != nil {
				return fmt.Errorf("report %s: %w", r.Name, err)
			}
		}
	}
	return nil
}
