// Command evidence shows the acceptance evidence: one line a clause with what was seen. `make evidence`
// runs it with the real Hermes and Postgres.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"humanwork.internal/integration/checks"
)

// clause is one row of the acceptance table with the checks that show it.
type clause struct {
	id string
	// part says what is not shown yet; empty: everything is.
	part   string
	checks []checks.Check
}

var clauses = []clause{
	{"E1", "", []checks.Check{checks.E1}},
	{"E2", "up to the child's standard input; Hermes reads the file once the mount exists", []checks.Check{checks.E2}},
	{"E6", "without MCP servers", []checks.Check{checks.E6}},
	{"E7", "", []checks.Check{checks.DeliveryHasNoGate}},
	{"E15", "no mount yet", []checks.Check{checks.Storm, checks.IngressDeath, checks.ClaimRaces, checks.Cancels, checks.Compaction, checks.FileKills}},
	{"F1", "through REST and both SDKs; Hermes's shell once the mount exists", []checks.Check{checks.F1}},
	{"F2", "the API's side", []checks.Check{checks.F2, checks.RefusedDatabases, checks.MadeUpURIs}},
	{"F3", "through REST", []checks.Check{checks.F3}},
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("evidence", flag.ContinueOnError)
	flags.SetOutput(stderr)
	names := flags.String("clauses", "", "comma-separated `clauses` to run, such as E1,E6; empty: all that exist")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	chosen, err := choose(*names)
	if err != nil {
		fmt.Fprintln(stderr, "evidence:", err)
		return 2
	}
	code := 0
	for _, c := range chosen {
		began := time.Now()
		figures, failures := show(ctx, c, stderr)
		took := time.Since(began).Round(time.Second)
		if len(failures) > 0 {
			code = 1
			fmt.Fprintf(stdout, "%s FAIL %s (%v)\n", c.id, oneLine(failures), took)
			continue
		}
		part := ""
		if c.part != "" {
			part = "(" + c.part + ") "
		}
		fmt.Fprintf(stdout, "%s pass %s%s (%v)\n", c.id, part, strings.Join(figures, "; "), took)
	}
	return code
}

// choose returns the clauses of a list, in the order of the table.
func choose(names string) ([]clause, error) {
	if strings.TrimSpace(names) == "" {
		return clauses, nil
	}
	var known, wanted []string
	for _, c := range clauses {
		known = append(known, c.id)
	}
	for name := range strings.SplitSeq(names, ",") {
		name = strings.TrimSpace(name)
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("clause %q has no evidence here; there is %s", name, strings.Join(known, ", "))
		}
		wanted = append(wanted, name)
	}
	return slices.DeleteFunc(slices.Clone(clauses), func(c clause) bool { return !slices.Contains(wanted, c.id) }), nil
}

// show runs a clause's checks; one that fails does not keep the others from running.
func show(ctx context.Context, c clause, stderr io.Writer) (figures, failures []string) {
	for _, check := range c.checks {
		r := newReport(ctx, c.id, stderr)
		got := r.run(check)
		failures = append(failures, r.failures...)
		if got != "" {
			figures = append(figures, got)
		}
		if ctx.Err() != nil {
			return figures, append(failures, "interrupted")
		}
	}
	return figures, failures
}

// oneLine keeps the first failure and counts the others, which went to standard error.
func oneLine(failures []string) string {
	first, _, _ := strings.Cut(failures[0], "\n")
	if len(failures) > 1 {
		return fmt.Sprintf("%s (and %d more)", first, len(failures)-1)
	}
	return first
}
