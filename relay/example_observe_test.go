package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// Counts of what became of tasks. The modules telemetry/prom and telemetry/otel have observers for
// Prometheus and OpenTelemetry.
func ExampleObserver() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	enqueueInts(ctx, db, typeResize, 3)
	reg := handlers.New()
	handlers.Tx(reg, typeResize, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		if task.Payload == 2 {
			return handlers.Dead(errors.New("the image is broken"))
		}
		return nil
	})
	counts := map[relay.Outcome]int{}
	r, err := relay.New(db, reg, relay.Config{
		Workers: 1, // else it takes a mutex
		Logger:  discard(),
		Observers: []relay.Observer{{Ended: func(_ context.Context, e relay.RunEnd) {
			for _, task := range e.Tasks {
				counts[task.Outcome]++
			}
		}}},
	})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println(counts[relay.OutcomeDone], "done,", counts[relay.OutcomeDead], "dead")
	// Output: 2 done, 1 dead
}

// A readiness probe: for load balancers and deploys, not for what restarts processes.
func ExampleRelay_Health() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error { return nil })
	r, err := relay.New(db, reg, relay.Config{Logger: discard()})
	must(err)
	ready := func(w http.ResponseWriter, _ *http.Request) {
		if err := r.Health(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	}
	probe := func() (int, string) {
		w := httptest.NewRecorder()
		ready(w, httptest.NewRequest("GET", "/readyz", nil))
		return w.Code, w.Body.String()
	}
	fmt.Println(probe())

	ctx := context.Background()
	must(r.Start(ctx))
	fmt.Println(probe())
	must(r.Stop(ctx))
	// Output:
	// 503 relay: it is not running
	//
	// 200
}
