package outboxotel_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
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

// promised are the names beyond the conventions: of instruments with unit and attributes, and of
// attributes of spans. A change of one breaks panels and alerts of apps.
var promised = strings.Split(`outbox.attempt
outbox.failed_tasks
outbox.kind
outbox.max_attempts
outbox.oldest_ready s messaging.destination.name
outbox.outcome
outbox.relay.outage {relay}
outbox.relay.refused {relay}
outbox.relay.running {relay}
outbox.result
outbox.runs.failed {run} messaging.destination.name
outbox.task.dead_letters {task} messaging.destination.name outbox.reason
outbox.task.runs {run} messaging.destination.name outbox.outcome
outbox.task.wait s messaging.destination.name
outbox.tasks {task} messaging.destination.name outbox.state
outbox.tasks.finished {task} messaging.destination.name`, "\n")

func TestTheNamesAreThoseOfTheDocumentation(t *testing.T) {
	db := relaytest.NewDatabase(t)
	reader := sdkmetric.NewManualReader()
	a := newTraced(t, outboxotel.Config{MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)), DB: db.DB})
	err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error {
		_, err := a.Enqueue(t.Context(), tx, relaytest.TypeTx.New(relaytest.Payload{}))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for kind, result := range map[outbox.Kind]error{
		outbox.KindTx: errors.New("boom"), outbox.KindBatch: handlers.BatchResult{0: errors.New("boom")},
	} {
		call := &handlers.Call{Type: "X", Kind: kind, Tasks: []*outbox.Task[json.RawMessage]{{ID: 1}}}
		_ = a.Middleware()(func(context.Context, *handlers.Call) error { return result })(t.Context(), call)
	}
	o := a.Observer()
	o.Claimed(t.Context(), relay.Claim{Type: "X", Tasks: 1})
	o.Ended(t.Context(), relay.RunEnd{Type: "X", Start: time.Now(), Tasks: []relay.TaskEnd{{Outcome: relay.OutcomeDead}}})
	o.Changed(t.Context(), relay.Change{Event: relay.EventStarted})
	o.Changed(t.Context(), relay.Change{Event: relay.EventOutageBegan})
	o.Changed(t.Context(), relay.Change{Event: relay.EventRefusalBegan})

	got := map[string]bool{}
	for _, span := range a.spans.GetSpans() {
		for _, of := range span.Attributes {
			if strings.HasPrefix(string(of.Key), "outbox.") {
				got[string(of.Key)] = true
			}
		}
	}
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	for _, m := range all.ScopeMetrics[0].Metrics {
		if strings.HasPrefix(m.Name, "outbox.") {
			got[strings.Join(append([]string{m.Name, m.Unit}, keys(m.Data)...), " ")] = true
		}
	}
	if got := slices.Sorted(maps.Keys(got)); !slices.Equal(got, promised) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(promised, "\n"))
	}
	name := regexp.MustCompile(`outbox\.[a-z_]+(\.[a-z_]+)?`)
	want := slices.Compact(slices.Sorted(slices.Values(name.FindAllString(strings.Join(promised, "\n"), -1))))
	for _, files := range []string{"telemetry.go", "../../docs/reference/metrics.md ../../docs/guide/observing.md"} {
		var named []string // instruments, and attributes of spans
		for _, file := range strings.Fields(files) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			doc, _, _ := strings.Cut(string(text), "\npackage outboxotel\n")
			named = append(named, name.FindAllString(doc, -1)...)
		}
		for _, n := range want {
			if !slices.Contains(named, n) {
				t.Errorf("%s: no %s", files, n)
			}
		}
	}
}

// keys are those of the attributes of the first point.
func keys(data metricdata.Aggregation) (out []string) {
	var set attribute.Set
	switch data := data.(type) {
	case metricdata.Sum[int64]:
		set = data.DataPoints[0].Attributes
	case metricdata.Gauge[int64]:
		set = data.DataPoints[0].Attributes
	case metricdata.Gauge[float64]:
		set = data.DataPoints[0].Attributes
	case metricdata.Histogram[float64]:
		set = data.DataPoints[0].Attributes
	default:
		panic(fmt.Sprintf("%T", data))
	}
	for _, a := range set.ToSlice() {
		out = append(out, string(a.Key))
	}
	return out
}
