package outboxprom

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/taskview"
)

var (
	tasksDesc  = desc("outbox_tasks", "Tasks by type and state.", "type", "state")
	oldestDesc = desc("outbox_oldest_ready_seconds",
		"For how long the ready task of a type that has waited longest has been due.", "type")
	finishedDesc = desc("outbox_tasks_finished_total", "Tasks that are done, of all relays.", "type")
	failedDesc   = desc("outbox_runs_failed_total", "Runs that failed, of all relays.", "type")
	handlersDesc = desc("outbox_type_relays", "Relays that are alive and have a handler for the type.", "type")
	pausedDesc   = desc("outbox_type_paused", "Whether the type is paused.", "type")
	aliveDesc    = desc("outbox_relays_alive", "Relays that are alive, in all processes.")
	successDesc  = desc("outbox_scrape_success", "Whether the database could be read.")
	tookDesc     = desc("outbox_scrape_duration_seconds", "How long the reading of the database took.")

	databaseDescs = []*prometheus.Desc{
		tasksDesc, oldestDesc, finishedDesc, failedDesc, handlersDesc, pausedDesc, aliveDesc, successDesc, tookDesc,
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
		}{{"ready", t.Ready}, {"scheduled", t.Scheduled}, {"leased", t.Leased}, {"waiting", t.Waiting},
			{"dead", t.Dead}} {
			gauge(tasksDesc, float64(of.tasks), t.Type, of.state)
		}
		gauge(oldestDesc, t.OldestReady.Seconds(), t.Type)
		if t.Type != other { // whose types change, so that its counters would go backwards
			counter(finishedDesc, t.Finished, t.Type)
			counter(failedDesc, t.Failed, t.Type)
			gauge(handlersDesc, float64(t.Relays), t.Type)
			paused := 0.0
			if t.Paused {
				paused = 1
			}
			gauge(pausedDesc, paused, t.Type)
		}
	}
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
