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
	for _, file := range []string{"doc.go", "../../docs/guide/observing.md"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range want {
			if !slices.Contains(name.FindAllString(string(text), -1), n) {
				t.Errorf("%s does not name %s", file, n)
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
