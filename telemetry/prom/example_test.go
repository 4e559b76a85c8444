package outboxprom_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	outboxprom "github.com/txoutbox/outbox/telemetry/prom"
)

// /metrics of an app that runs a relay.
func Example() {
	ctx := context.Background()
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	metrics, err := outboxprom.New(outboxprom.Config{DB: db})
	relaytest.Must(err)
	registry := prometheus.NewRegistry() // or prometheus.MustRegister
	registry.MustRegister(metrics)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))

	resize := outbox.NewTaskType[int]("RESIZE_IMAGE")
	reg := handlers.New()
	handlers.Leased(reg, resize, func(_ context.Context, task *outbox.Task[int]) error {
		if task.Payload == 3 {
			return handlers.Dead(fmt.Errorf("the image is broken"))
		}
		return nil
	})
	_, err = db.ExecContext(ctx, `INSERT INTO outbox.task (task_type, payload) SELECT 'RESIZE_IMAGE', to_jsonb(n)
		FROM generate_series(1, 3) n`)
	relaytest.Must(err)
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler),
		Observers: []relay.Observer{metrics.Observer()}})
	relaytest.Must(err)
	relaytest.Must(r.RunOnce(ctx))

	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	for line := range strings.Lines(w.Body.String()) {
		if strings.HasPrefix(line, "outbox_runs_total") && !strings.HasSuffix(line, " 0\n") ||
			strings.HasPrefix(line, "outbox_tasks_finished_total") || strings.HasPrefix(line, "outbox_scrape_success") {
			fmt.Print(line)
		}
	}
	// Output:
	// outbox_runs_total{outcome="dead",type="RESIZE_IMAGE"} 1
	// outbox_runs_total{outcome="done",type="RESIZE_IMAGE"} 2
	// outbox_scrape_success 1
	// outbox_tasks_finished_total{type="RESIZE_IMAGE"} 2
}

// Metrics of the relays of this process alone; the error names each invalid field.
func ExampleNew() {
	metrics, err := outboxprom.New(outboxprom.Config{})
	relaytest.Must(err)
	fmt.Println(prometheus.NewRegistry().Register(metrics))
	// Output: <nil>
}

// The observer counts what relays do.
func ExampleCollector_Observer() {
	db, drop := relaytest.ExampleDatabase()
	defer drop()
	metrics, err := outboxprom.New(outboxprom.Config{})
	relaytest.Must(err)
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[int]("RESIZE_IMAGE"),
		func(context.Context, *outbox.Task[int]) error { return nil })
	_, err = relay.New(db, reg, relay.Config{Observers: []relay.Observer{metrics.Observer()}})
	fmt.Println(err)
	// Output: <nil>
}
