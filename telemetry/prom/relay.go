package outboxprom

import (
	"context"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/taskview"
	"github.com/txoutbox/outbox/relay"
)

type relayMetrics struct {
	claim, wait, handler       *prometheus.HistogramVec
	claimed, runs, deadLetters *prometheus.CounterVec
	running, outage, refused   prometheus.Gauge
}

// Bounds of histograms, in seconds. Handlers take up to minutes, and tasks wait up to days.
var (
	claimBuckets   = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10}
	handlerBuckets = []float64{0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300}
	waitBuckets    = []float64{0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 24 * 3600}
)

func newRelayMetrics() relayMetrics {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets},
			[]string{"type"})
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help},
			append([]string{"type"}, labels...))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	return relayMetrics{
		claim: histogram("outbox_claim_duration_seconds",
			"How long claims took, those that found nothing included.", claimBuckets),
		wait: histogram("outbox_wait_duration_seconds",
			"For how long tasks had been due when they were claimed.", waitBuckets),
		handler: histogram("outbox_handler_duration_seconds", "How long calls of handlers took; one for a batch.",
			handlerBuckets),
		claimed:     counter("outbox_claimed_tasks_total", "Tasks that were claimed."),
		runs:        counter("outbox_runs_total", "Ends of runs of tasks, by what became of the task.", "outcome"),
		deadLetters: counter("outbox_dead_letters_total", "Tasks that became dead letters.", "reason"),
		running:     gauge("outbox_relay_running", "Relays of this process that run."),
		outage:      gauge("outbox_relay_outage", "Relays of this process that cannot work with PostgreSQL."),
		refused: gauge("outbox_relay_refused",
			"Relays of this process of which PostgreSQL refuses work, which no waiting mends."),
	}
}

func (m *relayMetrics) all() []prometheus.Collector {
	return []prometheus.Collector{m.claim, m.wait, m.handler, m.claimed, m.runs, m.deadLetters, m.running, m.outage,
		m.refused}
}

// Observer counts the work of relays. Any number of relays of this process may have it in
// relay.Config.Observers.
func (c *Collector) Observer() relay.Observer {
	m := &c.relays
	return relay.Observer{
		Claimed: func(_ context.Context, claim relay.Claim) {
			m.claim.WithLabelValues(claim.Type).Observe(claim.Duration.Seconds())
			m.claimed.WithLabelValues(claim.Type).Add(float64(claim.Tasks))
		},
		Ended: func(_ context.Context, end relay.RunEnd) {
			if !end.Start.IsZero() {
				m.handler.WithLabelValues(end.Type).Observe(end.Duration.Seconds())
			}
			wait := m.wait.WithLabelValues(end.Type)
			for _, task := range end.Tasks {
				wait.Observe(task.Waited.Seconds())
				m.runs.WithLabelValues(end.Type, string(task.Outcome)).Inc()
				if task.Outcome == relay.OutcomeDead {
					m.deadLetters.WithLabelValues(end.Type, string(task.Reason)).Inc()
				}
			}
		},
		Changed: c.changed,
	}
}

func (c *Collector) changed(_ context.Context, change relay.Change) {
	m := &c.relays
	switch change.Event {
	case relay.EventStarted:
		m.running.Inc()
		c.mu.Lock()
		for _, t := range change.Types {
			c.known[t] = true
		}
		c.mu.Unlock()
		for _, t := range change.Types { // else a first dead letter would be no increase
			m.claim.WithLabelValues(t)
			m.wait.WithLabelValues(t)
			m.handler.WithLabelValues(t)
			m.claimed.WithLabelValues(t)
			for _, outcome := range decide.Outcomes() {
				m.runs.WithLabelValues(t, outcome)
			}
			for reason := range taskview.Reasons {
				m.deadLetters.WithLabelValues(t, string(reason))
			}
		}
	case relay.EventStopped:
		m.running.Dec()
	case relay.EventOutageBegan:
		m.outage.Inc()
	case relay.EventOutageEnded:
		m.outage.Dec()
	case relay.EventRefusalBegan:
		m.refused.Inc()
	case relay.EventRefusalEnded:
		m.refused.Dec()
	}
}
