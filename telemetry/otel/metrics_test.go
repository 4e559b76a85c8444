package outboxotel_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxotel "github.com/txoutbox/outbox/telemetry/otel"
	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// collected are the values of counters and gauges and the counts of histograms, by name and
// attributes.
func collected(t *testing.T, reader *sdkmetric.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	put := func(name string, set attribute.Set, v float64) {
		for _, a := range set.ToSlice() {
			if a.Key != "messaging.system" && a.Key != "messaging.operation.type" {
				name += " " + fmt.Sprint(a.Value.AsInterface())
			}
		}
		out[name] = v
	}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Description == "" || m.Unit == "" {
				t.Errorf("%s has no description or unit", m.Name)
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
					put(m.Name+" sum", p.Attributes, p.Sum)
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return out
}

func TestMetricsSayWhatReallyRan(t *testing.T) {
	db := relaytest.NewDatabase(t)
	reader := sdkmetric.NewManualReader()
	tel, err := outboxotel.New(outboxotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), DB: db.DB})
	if err != nil {
		t.Fatal(err)
	}
	reg := handlers.New()
	handlers.Tx(reg, relaytest.TypeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[relaytest.Payload]) error {
		if task.Payload.N == 3 {
			return errors.New("boom")
		}
		return nil
	}, handlers.MaxAttempts(2), relaytest.RetrySoon())
	handlers.Batch(reg, relaytest.TypeBatch, 50, relaytest.BatchEffect)
	err = outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		var tasks []outbox.TaskSpec
		for i := range 4 {
			tasks = append(tasks, relaytest.TypeTx.New(relaytest.Payload{N: i}))
		}
		_, err := tel.EnqueueMany(t.Context(), tx, tasks)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	db.Enqueue(t, "BATCH", 20)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at)
		VALUES ('OTHER', now() - interval '1 hour'), ('LATER', now() + interval '1 hour')`)
	db.Do(t, `UPDATE outbox.task SET run_at = now() - interval '1 hour' WHERE task_type = 'BATCH'`)
	relaytest.Once(t, db.DB, reg, relay.Config{Observers: []relay.Observer{tel.Observer()}})

	got := collected(t, reader)
	for name, want := range map[string]float64{
		"messaging.client.sent.messages TX send":           4,
		"messaging.client.operation.duration TX send":      1,
		"messaging.client.consumed.messages TX receive":    5,
		"messaging.client.consumed.messages BATCH receive": 20,
		"messaging.process.duration TX process":            3,
		"messaging.process.duration TX failed process":     0, // attributes are sorted by key
		"messaging.process.duration failed TX process":     1,
		"messaging.process.duration dead TX process":       1,
		"messaging.process.duration BATCH process":         1,
		"outbox.task.wait TX":                              5,
		"outbox.task.wait BATCH":                           20,
		"outbox.task.runs TX done":                         3,
		"outbox.task.runs TX failed":                       1,
		"outbox.task.runs TX dead":                         1,
		"outbox.task.runs BATCH done":                      20,
		"outbox.task.dead_letters TX attempts":             1,
		"outbox.relay.running":                             0,
		"outbox.tasks TX dead":                             1,
		"outbox.tasks TX ready":                            0,
		"outbox.tasks OTHER ready":                         1,
		"outbox.tasks LATER scheduled":                     1,
		"outbox.tasks.finished TX":                         3,
		"outbox.tasks.finished BATCH":                      20,
		"outbox.runs.failed TX":                            2,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
	if lag := got["outbox.oldest_ready OTHER"]; lag < 3600 || lag > 7200 {
		t.Errorf("the lag of OTHER is %v s, want an hour", lag)
	}
	if waited := got["outbox.task.wait sum BATCH"]; waited < 20*3600 || waited > 20*7200 {
		t.Errorf("20 tasks of BATCH waited %v s together, want an hour each", waited)
	}
	if t.Failed() {
		t.Log(got)
	}
	if err := tel.Close(); err != nil {
		t.Error(err)
	}
	if _, still := collected(t, reader)["outbox.tasks OTHER ready"]; still {
		t.Error("the database is still read after Close")
	}
}

func TestMetricsTellARelayThatRuns(t *testing.T) {
	db := relaytest.NewDatabase(t)
	reader := sdkmetric.NewManualReader()
	tel, err := outboxotel.New(outboxotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader))})
	if err != nil {
		t.Fatal(err)
	}
	relaytest.Run(t, db.DB, relaytest.All(), relay.Config{Observers: []relay.Observer{tel.Observer()}})
	nowhere := relaytest.Open(t, "postgres://127.0.0.1:1/nowhere?sslmode=disable")
	r := relaytest.Run(t, nowhere.DB, relaytest.All(), relay.Config{Observers: []relay.Observer{tel.Observer()}})
	relaytest.Eventually(t, 10*time.Second, "two run, one of them in an outage", func() bool {
		got := collected(t, reader)
		return got["outbox.relay.running"] == 2 && got["outbox.relay.outage"] == 1
	})
	r.Stop()
	if got := collected(t, reader); got["outbox.relay.running"] != 1 || got["outbox.relay.outage"] != 0 {
		t.Errorf("then %v", got)
	}
}
