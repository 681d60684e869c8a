package checks

import (
	"os"
	"testing"

	"humanwork.internal/integration/harness"
)

func run(t *testing.T, check Check) {
	t.Helper()
	if testing.Short() {
		t.Skip("runs the whole system")
	}
	if os.Getenv(harness.HermesVariable) == "" {
		t.Skipf("%s is not set: run with make test", harness.HermesVariable)
	}
	if figures := check(t); figures != "" {
		t.Log(figures)
	}
}

// The checks named TestClause are also what the evidence runner runs, with more turns.

func TestClauseMessageBoundary(t *testing.T) { run(t, E1) }
func TestClauseAttachments(t *testing.T)     { run(t, E2) }
func TestClauseFileSDKs(t *testing.T)        { run(t, F1) }
func TestClauseSDKs(t *testing.T)            { run(t, F1) }
func TestClauseFileRefusals(t *testing.T)    { run(t, F2) }
func TestClauseFileShapes(t *testing.T)      { run(t, F3) }
func TestClauseFileKills(t *testing.T)       { run(t, FileKills) }
func TestClauseDatabases(t *testing.T)       { run(t, RefusedDatabases) }
func TestClauseToolSchemas(t *testing.T)     { run(t, E6) }
func TestQueue(t *testing.T)                 { run(t, Queue) }
func TestOutcomes(t *testing.T)              { run(t, Outcomes) }
func TestClauseKillStorm(t *testing.T)       { run(t, Storm) }
func TestClauseCancels(t *testing.T)         { run(t, Cancels) }
func TestClauseCompaction(t *testing.T)      { run(t, Compaction) }
func TestClauseIngressDeath(t *testing.T)    { run(t, IngressDeath) }
func TestClauseClaimRaces(t *testing.T)      { run(t, ClaimRaces) }
func TestClauseDelivery(t *testing.T)        { run(t, DeliveryHasNoGate) }
func TestEvents(t *testing.T)                { run(t, Events) }
func TestBadInput(t *testing.T)              { run(t, BadInput) }
func TestShutdown(t *testing.T)              { run(t, Shutdown) }
func TestWrongHermes(t *testing.T)           { run(t, WrongHermes) }
func TestHermesLost(t *testing.T)            { run(t, HermesLost) }
func TestPostgresGone(t *testing.T)          { run(t, PostgresGone) }

func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounts a small disk: needs root")
	}
	run(t, FullDisk)
}
