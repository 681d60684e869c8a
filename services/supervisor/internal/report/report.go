// Package report turns what the holder tells into log lines and metrics.
package report

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"humanwork.internal/services/supervisor/internal/holder"
)

// Reporter implements holder.Observer.
type Reporter struct {
	log *zap.Logger

	machines prometheus.Gauge
	dropped  *prometheus.CounterVec
	turns    *prometheus.CounterVec
	phases   *prometheus.HistogramVec
}

// New registers the metrics.
func New(log *zap.Logger, registry prometheus.Registerer) (*Reporter, error) {
	r := &Reporter{
		log: log,
		machines: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "humanwork_supervisor_machines", Help: "Resident machines that live."}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "humanwork_supervisor_acp_dropped_total", Help: "ACP lines and messages of ended children that were dropped, by what was wrong."}, []string{"what"}),
		turns: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "humanwork_supervisor_turns_total", Help: "Attempts ended, by stop reason or failure."}, []string{"end"}),
		phases: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "humanwork_supervisor_phase_seconds", Help: "Phases of attempts; see the contract's Timings.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 18)}, []string{"phase"}),
	}
	for _, c := range []prometheus.Collector{r.machines, r.dropped, r.turns, r.phases} {
		if err := registry.Register(c); err != nil {
			return nil, err
		}
	}
	return r, nil
}

func conversation(organization, id string) []zap.Field {
	return []zap.Field{zap.String("organization_id", organization), zap.String("conversation_id", id)}
}

// MachineStarted implements holder.Observer.
func (r *Reporter) MachineStarted(organization string, took time.Duration) {
	r.machines.Inc()
	r.log.Info("Started a machine", zap.String("organization_id", organization), zap.Duration("took", took))
}

// MachineEnded implements holder.Observer.
func (r *Reporter) MachineEnded(organization string) {
	r.machines.Dec()
	r.log.Info("A machine ended", zap.String("organization_id", organization))
}

// ChildStarted implements holder.Observer.
func (r *Reporter) ChildStarted(organization, id string, took time.Duration) {
	r.log.Info("Started a child", append(conversation(organization, id), zap.Duration("took", took))...)
}

// ChildLine implements holder.Observer. The line is redacted.
func (r *Reporter) ChildLine(organization, id, line string) {
	if r.log.Core().Enabled(zap.DebugLevel) {
		r.log.Debug("A child wrote to standard error", append(conversation(organization, id), zap.String("line", line))...)
	}
}

// ChildEnded implements holder.Observer.
func (r *Reporter) ChildEnded(c holder.ChildReport) {
	for what, n := range map[string]int64{
		"bad_line": c.Dropped.BadLines, "long_line": c.Dropped.LongLines, "stray_update": c.Dropped.StrayUpdates,
		"stray_answer": c.Dropped.StrayAnswers, "unknown_request": c.Dropped.UnknownRequests,
	} {
		r.dropped.WithLabelValues(what).Add(float64(n))
	}
	fields := append(conversation(c.Organization, c.Conversation), zap.String("exit", c.Exit), zap.Duration("lived", c.Lived),
		zap.Int64("bad_lines", c.Dropped.BadLines), zap.Int64("long_lines", c.Dropped.LongLines))
	if len(c.Stderr) > 0 && c.Exit != "exit code 0" {
		fields = append(fields, zap.Strings("stderr", c.Stderr[max(0, len(c.Stderr)-5):]))
	}
	r.log.Info("A child ended", fields...)
}

// TurnEnded implements holder.Observer.
func (r *Reporter) TurnEnded(a holder.Attempt, t holder.Result) {
	end := t.StopReason
	if t.End != holder.EndAnswered {
		end = t.Reason
	}
	r.turns.WithLabelValues(end).Inc()
	for phase, d := range map[string]time.Duration{
		"attach": t.Timings.Attach, "cold_admission": t.Timings.ColdAdmission,
		"first_model_request": t.Timings.FirstModelRequest, "model_tool_loop": t.Timings.ModelToolLoop,
	} {
		if d > 0 {
			r.phases.WithLabelValues(phase).Observe(d.Seconds())
		}
	}
	r.log.Info("An attempt ended", append(conversation(a.Organization, a.Conversation), zap.String("turn_id", a.Turn),
		zap.String("attempt", strconv.Itoa(int(a.Number))), zap.String("stop_reason", t.StopReason), zap.String("reason", t.Reason),
		zap.Bool("cancel_sent", t.CancelSent), zap.Bool("child_ended", t.ChildEnded), zap.Duration("took", t.Timings.Attach+t.Timings.ModelToolLoop))...)
}
