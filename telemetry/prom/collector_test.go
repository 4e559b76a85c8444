package outboxprom_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/forward"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

func newCollector(t *testing.T, config outboxprom.Config) (*outboxprom.Collector, *prometheus.Registry) {
	t.Helper()
	c, err := outboxprom.New(config)
	if err != nil {
		t.Fatal(err)
	}
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(c); err != nil {
		t.Fatal(err)
	}
	return c, r
}

// values are those of counters and gauges, and the counts of histograms, by name and labels.
func values(t testing.TB, r prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range slices.Backward(m.GetLabel()) { // the type first
				name += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_COUNTER:
				out[name] = m.GetCounter().GetValue()
			case dto.MetricType_GAUGE:
				out[name] = m.GetGauge().GetValue()
			case dto.MetricType_HISTOGRAM:
				out[name], out[name+" sum"] = float64(m.GetHistogram().GetSampleCount()),
					m.GetHistogram().GetSampleSum()
			}
		}
	}
	return out
}

// app is a registry whose Tx handler fails with the payload 3 and sends 4 to the dead letters.
func app() *handlers.Registry {
	reg := handlers.New()
	handlers.Tx(reg, relaytest.TypeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		switch task.Payload.N {
		case 3:
			return errors.New("boom")
		case 4:
			return handlers.Dead(errors.New("boom"))
		}
		return nil
	}, handlers.MaxAttempts(2), relaytest.RetrySoon())
	handlers.Batch(reg, relaytest.TypeBatch, 50, relaytest.BatchEffect)
	handlers.Leased(reg, relaytest.TypeLeased, relaytest.LeasedEffect)
	return reg
}

func TestTheMetricsSayWhatReallyRan(t *testing.T) {
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{DB: db.DB, MaxAge: time.Nanosecond})
	db.Enqueue(t, "TX", 5)
	db.Enqueue(t, "LEASED", 7)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, run_at) SELECT 'BATCH', '{"n": 1}', now() - interval '1 hour'
		FROM generate_series(1, 20)`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at)
		VALUES ('OTHER', now() - interval '1 hour'), ('LATER', now() + interval '1 hour')`)
	if err := relaytest.Admin(t, db.DB).PauseType(t.Context(), "LATER"); err != nil {
		t.Fatal(err)
	}
	r := relaytest.Run(t, db.DB, app(), relay.Config{PollInterval: 20 * time.Millisecond,
		Observers: []relay.Observer{c.Observer()}})
	relaytest.Eventually(t, 20*time.Second, "all but two are done",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 2 })
	relaytest.Eventually(t, 10*time.Second, "the ends are told",
		func() bool { return values(t, registry)["outbox_runs_total LEASED done"] == 7 })
	got := values(t, registry)
	for name, want := range map[string]float64{
		"outbox_claimed_tasks_total TX":             6,
		"outbox_claimed_tasks_total BATCH":          20,
		"outbox_claimed_tasks_total LEASED":         7,
		"outbox_runs_total TX done":                 3,
		"outbox_runs_total TX failed":               1,
		"outbox_runs_total TX dead":                 2,
		"outbox_runs_total TX snoozed":              0,
		"outbox_runs_total BATCH done":              20,
		"outbox_dead_letters_total TX attempts":     1,
		"outbox_dead_letters_total TX handler":      1,
		"outbox_dead_letters_total LEASED attempts": 0,
		"outbox_handler_duration_seconds TX":        6,
		"outbox_handler_duration_seconds LEASED":    7,
		"outbox_wait_duration_seconds BATCH":        20,
		"outbox_relay_running":                      1,
		"outbox_relay_outage":                       0,
		"outbox_relay_refused":                      0,
		"outbox_relays_alive":                       1,
		"outbox_tasks TX ready":                     0,
		"outbox_tasks TX dead":                      2,
		"outbox_tasks OTHER ready":                  1,
		"outbox_tasks LATER scheduled":              1,
		"outbox_tasks_finished_total TX":            3,
		"outbox_tasks_finished_total BATCH":         20,
		"outbox_runs_failed_total TX":               3,
		"outbox_type_relays TX":                     1,
		"outbox_type_relays OTHER":                  0,
		"outbox_type_paused LATER":                  1,
		"outbox_type_paused TX":                     0,
		"outbox_scrape_success":                     1,
	} {
		if v, there := got[name]; !there || v != want {
			t.Errorf("%s is %v (there: %v), want %v", name, v, there, want)
		}
	}
	if lag := got["outbox_oldest_ready_seconds OTHER"]; lag < 3600 || lag > 7200 {
		t.Errorf("the lag of OTHER is %v s, want an hour", lag)
	}
	if waited := got["outbox_wait_duration_seconds BATCH sum"]; waited < 20*3600 || waited > 20*7200 {
		t.Errorf("20 tasks waited %v s together, want an hour each", waited)
	}
	if _, there := got["outbox_runs_total OTHER done"]; there || got["outbox_claim_duration_seconds TX"] < 6 {
		t.Error("a type without a handler has metrics of relays, or claims are missing")
	}
	if t.Failed() {
		t.Log(got)
	}
	lint(t, registry)
	r.Stop()
	if got := values(t, registry); got["outbox_relay_running"] != 0 || got["outbox_relays_alive"] != 0 {
		t.Errorf("after the relay: %v", got)
	}
}

func TestScrapesAtTheSameTimeShareARead(t *testing.T) {
	db := relaytest.NewDatabase(t)
	db.Enqueue(t, "TX", 3)
	_, registry := newCollector(t, outboxprom.Config{DB: db.DB, Timeout: 30 * time.Second, MaxAge: time.Hour})
	unlock := db.Hold(t, `LOCK TABLE outbox.counter`)
	var scrapes sync.WaitGroup
	for range 20 {
		scrapes.Go(func() {
			if got := values(t, registry); got["outbox_tasks TX ready"] != 3 {
				t.Errorf("got %v", got)
			}
		})
	}
	const waiting = `SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database WHERE NOT granted
		AND datname = current_database()`
	relaytest.Eventually(t, 10*time.Second, "a read waits", func() bool { return db.Int(t, waiting) > 0 })
	if n := db.Int(t, waiting); n != 1 {
		t.Errorf("%d reads at the same time, want 1", n)
	}
	unlock()
	scrapes.Wait()
	db.Enqueue(t, "TX", 1)
	if got := values(t, registry); got["outbox_tasks TX ready"] != 3 {
		t.Errorf("%v tasks a moment later, want the 3 that were read", got["outbox_tasks TX ready"])
	}
}

func TestADatabaseThatDoesNotAnswerIsAMetric(t *testing.T) {
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{DB: db.DB, Timeout: time.Second,
		MaxAge: time.Millisecond})
	relaytest.Once(t, db.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	unlock := db.Hold(t, `LOCK TABLE outbox.counter`)
	got := values(t, registry)
	if _, there := got["outbox_relays_alive"]; there || got["outbox_scrape_success"] != 0 {
		t.Errorf("got %v", got)
	}
	if _, there := got["outbox_runs_total TX done"]; !there {
		t.Error("what relays tell is missing")
	}
	lint(t, registry)
	unlock()
	relaytest.Eventually(t, 10*time.Second, "it is read again",
		func() bool { return values(t, registry)["outbox_scrape_success"] == 1 })

	nowhere := relaytest.Open(t, "postgres://127.0.0.1:1/nowhere?sslmode=disable")
	c, registry = newCollector(t, outboxprom.Config{DB: nowhere.DB, MaxAge: time.Millisecond})
	relaytest.Run(t, nowhere.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	relaytest.Eventually(t, 10*time.Second, "an outage is told", func() bool {
		got := values(t, registry)
		return got["outbox_scrape_success"] == 0 && got["outbox_relay_outage"] == 1 && got["outbox_relay_running"] == 1
	})

	db = relaytest.NewDatabase(t)
	c, registry = newCollector(t, outboxprom.Config{})
	relaytest.Run(t, db.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	db.Do(t, `ALTER FUNCTION outbox.poll RENAME TO gone`)
	relaytest.Eventually(t, 10*time.Second, "a refusal is told", func() bool {
		got := values(t, registry)
		return got["outbox_relay_outage"] == 0 && got["outbox_relay_refused"] == 1
	})
	db.Do(t, `ALTER FUNCTION outbox.gone RENAME TO poll`)
	relaytest.Eventually(t, 10*time.Second, "it has ended", func() bool { return values(t, registry)["outbox_relay_refused"] == 0 })
}

func TestTypesBeyondTheBoundAreSummedUp(t *testing.T) {
	db := relaytest.NewDatabase(t)
	c, registry := newCollector(t, outboxprom.Config{DB: db.DB, MaxTypes: 4, MaxAge: time.Nanosecond})
	relaytest.Run(t, db.DB, app(), relay.Config{Observers: []relay.Observer{c.Observer()}})
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'A' || n FROM generate_series(1, 50) n`)
	db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ('(other)')`) // by somebody who means no good
	relaytest.Eventually(t, 10*time.Second, "the relay is there",
		func() bool { return values(t, registry)["outbox_type_relays TX"] == 1 })
	got := map[string]float64{}
	for name, v := range values(t, registry) {
		if strings.HasPrefix(name, "outbox_tasks ") && strings.HasSuffix(name, " ready") {
			got[strings.Fields(name)[1]] = v
		}
	}
	// Those that have a handler here come first.
	if want := (map[string]float64{"TX": 0, "BATCH": 0, "LEASED": 0, "A1": 1, "(other)": 50}); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	lint(t, registry)
}

func TestABadConfigIsRefused(t *testing.T) {
	_, err := outboxprom.New(outboxprom.Config{Schema: "A", Timeout: -1, MaxAge: -1, MaxTypes: -1})
	for _, text := range []string{`Config.Schema: "A"`, "Config.Timeout: -1ns", "Config.MaxAge: -1ns",
		"Config.MaxTypes: -1"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want an error with %q", err, text)
		}
	}
}

func TestACollectorWithoutADatabaseTellsOfRelaysOnly(t *testing.T) {
	_, registry := newCollector(t, outboxprom.Config{})
	if got := fmt.Sprint(values(t, registry)); got != "map[outbox_relay_outage:0 outbox_relay_refused:0 outbox_relay_running:0]" {
		t.Errorf("got %v", got)
	}
}

// broker answers by what is in an event.
type broker struct{}

func (broker) Publish(_ context.Context, events []*forward.Event) []error {
	errs := make([]error, len(events))
	for i, e := range events {
		switch text := string(e.Data); {
		case strings.Contains(text, "2"):
			errs[i] = forward.Permanent(errors.New("too large"))
		case strings.Contains(text, "3"):
			errs[i] = errors.New("a hiccup")
		case strings.Contains(text, "4"):
			errs[i] = forward.Unavailable(errors.New("away"), time.Hour)
		}
	}
	return errs
}

func TestForwardersHaveMetrics(t *testing.T) {
	db, reg := relaytest.NewDatabase(t), handlers.New()
	f := forward.Register(reg, relaytest.TypeTx, broker{})
	_, registry := newCollector(t, outboxprom.Config{Forwarders: []*forward.Forwarder{f}})
	db.Enqueue(t, "TX", 5)
	relaytest.Once(t, db.DB, reg, relay.Config{})
	got := values(t, registry)
	for name, want := range map[string]float64{"published": 2, "permanent": 1, "temporary": 1, "unavailable": 1} {
		if got["outbox_events_total TX "+name] != want {
			t.Errorf("%s: %v, want %v", name, got["outbox_events_total TX "+name], want)
		}
	}
	db.Do(t, `UPDATE outbox.task SET run_at = now() WHERE payload->>'n' = '4'`)
	relaytest.Once(t, db.DB, reg, relay.Config{}) // alone, so that nothing passes
	got = values(t, registry)
	if pause := got["outbox_publisher_pause_seconds TX"]; pause < 3000 || pause > 3600 {
		t.Errorf("the pause is %v s, want an hour", pause)
	}
	lint(t, registry)
	_, err := outboxprom.New(outboxprom.Config{Forwarders: []*forward.Forwarder{f, nil, f}})
	if err == nil || !strings.Contains(err.Error(), "Forwarders: 1 is nil") ||
		!strings.Contains(err.Error(), "2 is a second one of the type TX") {
		t.Errorf("nil and a second one: %v", err)
	}
}
