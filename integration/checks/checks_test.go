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

func TestMessageBoundary(t *testing.T) { run(t, E1) }
func TestToolSchemas(t *testing.T)     { run(t, E6) }
func TestQueue(t *testing.T)           { run(t, Queue) }
func TestOutcomes(t *testing.T)        { run(t, Outcomes) }
func TestKillStorm(t *testing.T)       { run(t, Storm) }
func TestCancels(t *testing.T)         { run(t, Cancels) }
func TestCompaction(t *testing.T)      { run(t, Compaction) }
func TestIngressDeath(t *testing.T)    { run(t, IngressDeath) }
func TestClaimRaces(t *testing.T)      { run(t, ClaimRaces) }
func TestDelivery(t *testing.T)        { run(t, DeliveryHasNoGate) }
func TestEvents(t *testing.T)          { run(t, Events) }
func TestBadInput(t *testing.T)        { run(t, BadInput) }
func TestShutdown(t *testing.T)        { run(t, Shutdown) }
func TestWrongHermes(t *testing.T)     { run(t, WrongHermes) }
func TestHermesLost(t *testing.T)      { run(t, HermesLost) }
func TestPostgresGone(t *testing.T)    { run(t, PostgresGone) }
