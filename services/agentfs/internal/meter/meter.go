// Package meter counts what the service does, for Prometheus.
package meter

import "github.com/prometheus/client_golang/prometheus"

// Meter counts bytes.
type Meter struct{ received, sent prometheus.Counter }

// New registers the metrics; a nil registerer registers none. databases says how many are open.
func New(r prometheus.Registerer, databases func() int) (*Meter, error) {
	bytes := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "humanwork_agentfs_bytes_total",
		Help: "Bytes of file contents, exports and restores, by direction."}, []string{"direction"})
	open := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "humanwork_agentfs_open_databases",
		Help: "AgentFS databases this process has open."}, func() float64 { return float64(databases()) })
	if r != nil {
		for _, c := range []prometheus.Collector{bytes, open} {
			if err := r.Register(c); err != nil {
				return nil, err
			}
		}
	}
	return &Meter{received: bytes.WithLabelValues("in"), sent: bytes.WithLabelValues("out")}, nil
}

// Received counts bytes that came in.
func (m *Meter) Received(n int) { m.received.Add(float64(n)) }

// Sent counts bytes that went out.
func (m *Meter) Sent(n int) { m.sent.Add(float64(n)) }
