package outboxprom

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/decide"
	"github.com/txoutbox/outbox/internal/taskview"
	"github.com/txoutbox/outbox/relay"
)

var (
	tasksDesc  = desc("outbox_tasks", "Tasks by type and state.", "type", "state")
	oldestDesc = desc("outbox_oldest_ready_seconds",
		"For how long the ready task of a type that has waited longest has been due.", "type")
	finishedDesc = desc("outbox_tasks_finished_total", "Tasks that are done, of all relays.", "type")
	failedDesc   = desc("outbox_runs_failed_total", "Runs that failed, of all relays.", "type")
	handlersDesc = desc("outbox_type_relays", "Relays that are alive and have a handler for the type.", "type")
	pausedDesc   = desc("outbox_type_paused", "Whether the type is paused.", "type")
	failingDesc  = desc("outbox_type_failing",
		"Whether more runs of the type fail than tasks finish, see admin.Failing.", "type")
	aliveDesc   = desc("outbox_relays_alive", "Relays that are alive, in all processes.")
	successDesc = desc("outbox_scrape_success", "Whether the database could be read.")
	tookDesc    = desc("outbox_scrape_duration_seconds", "How long the reading of the database took.")

	databaseDescs = []*prometheus.Desc{
		tasksDesc, oldestDesc, finishedDesc, failedDesc, handlersDesc, pausedDesc, failingDesc, aliveDesc,
		successDesc, tookDesc,
	}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// other is the type of the sum of further types.
const other = "(other)"

// reading is the result of one read of the database, once done is closed.
type reading struct {
	done  chan struct{}
	at    time.Time // when it ended, under the Collector's mu; zero: it goes on
	took  time.Duration
	types []admin.Type
	alive int
	err   error
}

// read returns a reading that is young enough, or nil if there is none in time. One at a time is
// under way.
func (c *Collector) read() *reading {
	c.mu.Lock()
	r := c.latest
	if r == nil || !r.at.IsZero() && time.Since(r.at) > c.config.MaxAge {
		r = &reading{done: make(chan struct{})}
		c.latest = r
		go c.fill(r)
	}
	c.mu.Unlock()
	late := time.NewTimer(c.config.Timeout + c.config.Timeout/10) // a driver may not see the end of its context
	defer late.Stop()
	select {
	case <-r.done:
		return r
	case <-late.C:
		return nil
	}
}

func (c *Collector) fill(r *reading) {
	defer close(r.done)
	ctx, cancel := context.WithTimeout(context.Background(), c.config.Timeout)
	defer cancel()
	start := time.Now()
	r.types, r.err = c.client.Types(ctx)
	if r.err == nil {
		var relays []admin.Relay
		relays, r.err = c.client.Relays(ctx)
		for _, one := range relays {
			if one.Alive {
				r.alive++
			}
		}
	}
	r.took = time.Since(start)
	c.mu.Lock()
	r.at = time.Now()
	c.mu.Unlock()
}

func (c *Collector) collectDatabase(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v int64, taskType string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), taskType)
	}
	r := c.read()
	if r == nil {
		gauge(successDesc, 0)
		return
	}
	gauge(tookDesc, r.took.Seconds())
	if r.err != nil {
		gauge(successDesc, 0)
		return
	}
	gauge(successDesc, 1)
	gauge(aliveDesc, float64(r.alive))
	for _, t := range c.bounded(r.types) {
		for _, of := range []struct {
			state string
			tasks int64
		}{{"ready", t.Ready}, {"scheduled", t.Scheduled}, {"retrying", t.Retrying}, {"leased", t.Leased},
			{"waiting", t.Waiting}, {"dead", t.Dead}} {
			gauge(tasksDesc, float64(of.tasks), t.Type, of.state)
		}
		gauge(oldestDesc, t.OldestReady.Seconds(), t.Type)
		if t.Type != other { // whose types change, so that its counters would go backwards
			counter(finishedDesc, t.Finished, t.Type)
			counter(failedDesc, t.Failed, t.Type)
			gauge(handlersDesc, float64(t.Relays), t.Type)
			gauge(pausedDesc, flag(t.Paused), t.Type)
			gauge(failingDesc, flag(t.Failing != nil), t.Type)
		}
	}
}

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// bounded are at most MaxTypes types, those of this process' relays first, and the sum of all
// others.
func (c *Collector) bounded(all []admin.Type) []admin.Type {
	if len(all) <= c.config.MaxTypes {
		return all
	}
	all = slices.Clone(all)
	c.mu.Lock()
	rank := func(t admin.Type) int {
		switch {
		case t.Type == other: // somebody's own; it must not be there beside the sum
			return 2
		case c.known[t.Type]:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(all, func(a, b admin.Type) int { return cmp.Compare(rank(a), rank(b)) })
	c.mu.Unlock()
	sum := taskview.Sum(all[c.config.MaxTypes:])
	sum.Type = other
	return append(all[:c.config.MaxTypes:c.config.MaxTypes], sum)
}

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

var (
	eventsDesc = prometheus.NewDesc("outbox_events_total",
		"Events that were handed to a publisher, by outcome.", []string{"type", "outcome"}, nil)
	pauseDesc = prometheus.NewDesc("outbox_publisher_pause_seconds",
		"Time until events are sent again to an unavailable broker or target; 0 if all are available.",
		[]string{"type"}, nil)
)

func collectForwarders(to chan<- prometheus.Metric, all []*forward.Forwarder) {
	for _, f := range all {
		s := f.Stats()
		count := func(outcome string, n int64) {
			to <- prometheus.MustNewConstMetric(eventsDesc, prometheus.CounterValue, float64(n), f.TaskType(), outcome)
		}
		count("published", s.Published)
		count("permanent", s.Permanent)
		count("temporary", s.Temporary)
		count("unavailable", s.Unavailable)
		to <- prometheus.MustNewConstMetric(pauseDesc, prometheus.GaugeValue, s.Pause.Seconds(), f.TaskType())
	}
}
