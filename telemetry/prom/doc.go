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
//   - outbox_tasks{type,state}: tasks; state is ready, scheduled, leased, waiting or dead
//   - outbox_oldest_ready_seconds{type}: for how long the ready task that has waited longest has
//     been due, the lag
//   - outbox_tasks_finished_total{type}, outbox_runs_failed_total{type}: tasks that are done, and
//     runs that failed, of all relays
//   - outbox_type_relays{type}, outbox_type_paused{type}: relays that are alive and have a handler
//     for the type; 1 while it is paused
//   - outbox_relays_alive: relays that are alive
//   - outbox_scrape_success, outbox_scrape_duration_seconds: of the reading itself. Where it fails,
//     the others of this list are missing.
//
// Of the relays of this process, by the observer, for the types that they have a handler for:
//
//   - outbox_claim_duration_seconds{type}, outbox_claimed_tasks_total{type}: claims, and the tasks
//     that they took
//   - outbox_wait_duration_seconds{type}: for how long tasks had been due when they were claimed,
//     by PostgreSQL's clock
//   - outbox_handler_duration_seconds{type}: calls of handlers; one for a batch
//   - outbox_runs_total{type,outcome}: what became of tasks in their runs, each of them an attempt
//     but for those that relay.Outcome calls none; lost leases are outcome="lease_lost"
//   - outbox_dead_letters_total{type,reason}: tasks that became dead letters
//   - outbox_relay_running, outbox_relay_outage, outbox_relay_refused: relays that run, those of
//     them that cannot work with PostgreSQL until it is back, and those that PostgreSQL refuses
//     a right, an object, the login or the database
//
// Of the forwarders in Config.Forwarders:
//
//   - outbox_events_total{type,outcome}: events; outcome is published, permanent, temporary or
//     unavailable, as in forward.Stats
//   - outbox_publisher_pause_seconds{type}: for how long no event is sent yet to the broker or one
//     of its targets
//
// grafana.json is a dashboard of these, alerts.yml has rules; in both, what several processes read
// of one database counts once. The package is a module of its own, so that apps without it do not
// depend on Prometheus' client.
package outboxprom
