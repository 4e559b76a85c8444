// Package outboxprom has a collector for Prometheus: the counts of the database, and what the
// relays of this process do.
//
//	import outboxprom "github.com/txoutbox/outbox/telemetry/prom"
//
//	metrics, err := outboxprom.New(outboxprom.Config{DB: db})
//	prometheus.MustRegister(metrics)
//	r, err := relay.New(db, reg, relay.Config{Observers: []relay.Observer{metrics.Observer()}})
//	mux.Handle("GET /metrics", promhttp.Handler())
//
// Of the database, read at a scrape, in any process:
//
//   - outbox_tasks{type,state} (gauge): tasks; state is ready, scheduled, retrying, leased, waiting or
//     dead
//   - outbox_oldest_ready_seconds{type} (gauge): the lag: how long ago the ready task that has waited
//     longest became due
//   - outbox_tasks_finished_total{type} (counter): tasks that finished, of all relays; see Finished of
//     outbox.TypeStats
//   - outbox_runs_failed_total{type} (counter): runs that failed, of all relays; see Failed of
//     outbox.TypeStats
//   - outbox_type_relays{type} (gauge): relays that are alive and have a handler for the type
//   - outbox_type_paused{type} (gauge): 1 while the type is paused, else 0
//   - outbox_type_failing{type} (gauge): 1 while more runs of the type fail than tasks finish, else 0;
//     see admin.Failing
//   - outbox_relays_alive (gauge): relays that are alive, in all processes
//   - outbox_scrape_success (gauge): 1 if the database could be read; else 0, and the metrics above
//     are missing
//   - outbox_scrape_duration_seconds (gauge): how long the reading of the database took
//
// Of the relays of this process, by the observer, for the types that they have a handler for:
//
//   - outbox_claim_duration_seconds{type} (histogram): how long claims took, also those that found
//     nothing
//   - outbox_claimed_tasks_total{type} (counter): tasks that were claimed
//   - outbox_wait_duration_seconds{type} (histogram): how long tasks had been due when they were
//     claimed, by PostgreSQL's clock
//   - outbox_handler_duration_seconds{type} (histogram): how long calls of handlers took; a batch is
//     one call
//   - outbox_runs_total{type,outcome} (counter): ends of runs of tasks; outcome is a constant of
//     relay.Outcome, whose comments say which outcomes count no attempt; a lost lease is lease_lost
//   - outbox_dead_letters_total{type,reason} (counter): tasks that became dead letters; reason is a
//     constant of outbox.Reason
//   - outbox_relay_running (gauge): relays that run
//   - outbox_relay_outage (gauge): relays that run and cannot work until PostgreSQL is back, or until
//     their *sql.DB has a connection for them
//   - outbox_relay_refused (gauge): relays that run and that PostgreSQL refuses a right, an object, the
//     login or the database
//
// Of the forwarders in Config.Forwarders:
//
//   - outbox_events_total{type,outcome} (counter): events; outcome is published, permanent, temporary
//     or unavailable, as in forward.Stats
//   - outbox_publisher_pause_seconds{type} (gauge): time until events are sent again to an unavailable
//     broker or target; 0 if all are available
//
// grafana.json is a dashboard of these, alerts.yml has rules; in both, what several processes read
// of one database counts once. The package is a module of its own, so that apps without it do not
// depend on Prometheus' client.
package outboxprom

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/internal/schemaname"
)

// Config has the sources of the metrics. New copies it; the zero value of a field is its default.
type Config struct {
	// DB, if set, is read at a scrape, with five statements on one or more connections. Its role is
	// a viewer's (https://github.com/txoutbox/outbox/blob/main/docs/security.md). Without it there
	// are no metrics of the database.
	DB *sql.DB
	// Schema is the PostgreSQL schema of the outbox. Default "outbox".
	Schema string
	// Timeout is how long a scrape waits for the database. Default 5 s. While a read goes on no
	// second one begins.
	Timeout time.Duration
	// MaxAge is how old a read may be when it is given to another scrape. Default 1 s. Scrapes at
	// the same time share a read.
	MaxAge time.Duration
	// Forwarders, if any, are those of package forward that run in this process. New refuses two of
	// one task type.
	Forwarders []*forward.Forwarder
	// MaxTypes bounds the task types of the database that have labels of their own; the others are
	// summed up as "(other)". Those that a relay of this process has a handler for come first.
	// Default 100.
	MaxTypes int
}

// Collector collects the metrics of an outbox, as a prometheus.Collector. It is safe for concurrent
// use; any number of relays may share it.
type Collector struct {
	config Config
	client *admin.Client // nil without a DB
	relays relayMetrics

	mu     sync.Mutex
	known  map[string]bool // types that relays of this process have a handler for
	latest *reading
}

var _ prometheus.Collector = (*Collector)(nil)

// New returns a collector, to be registered, without connecting. The error names each invalid field
// of config.
func New(config Config) (*Collector, error) {
	config.Schema = cmp.Or(config.Schema, schemaname.Default)
	config.Timeout = cmp.Or(config.Timeout, 5*time.Second)
	config.MaxAge = cmp.Or(config.MaxAge, time.Second)
	config.MaxTypes = cmp.Or(config.MaxTypes, 100)
	var errs []error
	fail := func(format string, args ...any) { errs = append(errs, fmt.Errorf("outboxprom: "+format, args...)) }
	if !schemaname.Valid(config.Schema) {
		fail("Config.Schema: %q: %s", config.Schema, schemaname.Rule)
	}
	if config.Timeout < 0 {
		fail("Config.Timeout: %v: must not be negative; 0 is 5s", config.Timeout)
	}
	if config.MaxAge < 0 {
		fail("Config.MaxAge: %v: must not be negative; 0 is 1s", config.MaxAge)
	}
	if config.MaxTypes < 0 {
		fail("Config.MaxTypes: %d: must not be negative; 0 is 100", config.MaxTypes)
	}
	types := map[string]bool{}
	for i, f := range config.Forwarders {
		if f == nil {
			fail("Config.Forwarders: %d is nil", i)
			continue
		}
		if types[f.TaskType()] {
			fail("Config.Forwarders: %d is a second one of the type %s", i, f.TaskType())
		}
		types[f.TaskType()] = true
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	config.Forwarders = slices.Clone(config.Forwarders)
	c := &Collector{config: config, relays: newRelayMetrics(), known: map[string]bool{}}
	if config.DB == nil {
		return c, nil
	}
	var err error
	c.client, err = admin.New(config.DB, admin.Config{Schema: config.Schema})
	return c, err
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(to chan<- *prometheus.Desc) {
	for _, of := range c.relays.all() {
		of.Describe(to)
	}
	if len(c.config.Forwarders) > 0 {
		to <- eventsDesc
		to <- pauseDesc
	}
	if c.config.DB == nil {
		return
	}
	for _, d := range databaseDescs {
		to <- d
	}
}

// Collect implements prometheus.Collector. If the database cannot be read, outbox_scrape_success is
// 0, and the scrape still has the metrics of the relays.
func (c *Collector) Collect(to chan<- prometheus.Metric) {
	for _, of := range c.relays.all() {
		of.Collect(to)
	}
	collectForwarders(to, c.config.Forwarders)
	if c.config.DB != nil {
		c.collectDatabase(to)
	}
}
