package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// A relay works beside the app's server, and ends after it: then nothing is enqueued any more.
func ExampleRelay_Start() {
	db, drop := exampleDatabase()
	defer drop()
	reg, resized := handlers.New(), make(chan int)
	handlers.Leased(reg, typeResize, func(_ context.Context, task *outbox.Task[int]) error {
		resized <- task.Payload
		return nil
	})
	serve := func(ctx context.Context) error { // until a signal ends ctx
		enqueueInts(ctx, db, typeResize, 1)
		fmt.Println("resized", <-resized)
		return nil
	}
	run := func(ctx context.Context) error {
		r, err := relay.New(db, reg, relay.Config{Logger: discard()})
		if err != nil {
			return err
		}
		if err := r.Start(context.WithoutCancel(ctx)); err != nil {
			return err
		}
		err = serve(ctx)
		return errors.Join(err, r.Stop(context.WithoutCancel(ctx))) // waits for what runs
	}
	fmt.Println(run(context.Background()))
	// Output:
	// resized 1
	// <nil>
}

// An idle relay polls once a minute, and still starts at once what another process enqueues.
func ExampleConfig() {
	db, dsn, drop := exampleServer()
	defer drop()
	started := make(chan time.Time)
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error {
		started <- time.Now()
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{ListenDSN: dsn, PollInterval: time.Minute, Logger: discard()})
	must(err)
	ctx := context.Background()
	must(r.Start(ctx))
	for range 3 {
		_, err := db.Exec(`INSERT INTO outbox.task (task_type, payload) VALUES ('RESIZE_IMAGE', '1')`) // as from psql
		must(err)
		enqueued := time.Now()
		fmt.Println((<-started).Sub(enqueued) < 45*time.Second)
	}
	must(r.Stop(ctx))
	// Output:
	// true
	// true
	// true
}

// warning is a slog.Handler that prints the first warning.
type warning struct {
	slog.Handler
	once   sync.Once
	logged chan struct{}
}

func (*warning) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelWarn }

func (w *warning) Handle(_ context.Context, r slog.Record) error {
	w.once.Do(func() {
		fmt.Println(r.Message)
		r.Attrs(func(a slog.Attr) bool { fmt.Println(" ", a); return true })
		close(w.logged)
	})
	return nil
}

// During a deploy the web app enqueues a type that no relay knows yet. It is reported, and waits for the new relay.
func Example_typeWithoutHandler() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	enqueueInts(ctx, db, typeResize, 2)
	report := &warning{logged: make(chan struct{})}

	old := handlers.New()
	handlers.Leased(old, MakeReport, func(context.Context, *outbox.Task[Report]) error { return nil })
	r, err := relay.New(db, old, relay.Config{Logger: slog.New(report)})
	must(err)
	must(r.Start(ctx))
	<-report.logged
	must(r.Stop(ctx))

	reg := handlers.New()
	handlers.Tx(reg, typeResize, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		fmt.Println("resize", task.Payload, "in attempt", task.Attempt)
		return nil
	}, handlers.MaxRunningPerRelay(1))
	runDue(ctx, db, reg)
	// Output:
	// outbox: no relay has a handler for this task type; its tasks wait
	//   task_type=RESIZE_IMAGE
	//   tasks=2
	// resize 1 in attempt 1
	// resize 2 in attempt 1
}

// Somebody is told of each dead letter, and those that are older than three months are deleted.
func ExampleDeadLetter() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error {
		return errors.New("the image is broken")
	}, handlers.MaxAttempts(1))
	enqueueInts(ctx, db, typeResize, 1)
	r, err := relay.New(db, reg, relay.Config{
		Logger:        discard(),
		DeadRetention: 90 * 24 * time.Hour,
		OnDead: func(_ context.Context, d relay.DeadLetter) {
			fmt.Printf("%s %d died of %s, attempt %d of %d: %s\n", d.Type, d.ID, d.Reason, d.Attempt, d.MaxAttempts, d.LastError)
		},
	})
	must(err)
	must(r.RunOnce(ctx))
	// Output: RESIZE_IMAGE 1 died of attempts, attempt 1 of 1: the image is broken
}

// A task whose runs died with their processes, as many times as it may be started, is not started again.
func Example_killedProcesses() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	// a process that died with its second attempt, and its neighbour with its first
	const dead = "5f3a2c1e-0000-4000-8000-000000000000"
	_, err := db.ExecContext(ctx, `INSERT INTO outbox.task (task_type, payload, max_attempts, state, attempt, relay_id,
		lease_token) VALUES
		('RESIZE_IMAGE', '13', 2, 'leased', 2, $1, gen_random_uuid()), ('RESIZE_IMAGE', '14', 2, 'leased', 1, $1,
		gen_random_uuid())`, dead)
	must(err)
	client, err := admin.New(db, admin.Config{})
	must(err)
	_, err = client.HandBack(ctx, dead)
	must(err)
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(_ context.Context, task *outbox.Task[int]) error {
		fmt.Println("image", task.Payload, "in attempt", task.Attempt)
		return nil
	})
	runDue(ctx, db, reg)
	var payload, reason string
	must(db.QueryRowContext(ctx, `SELECT payload::text, reason FROM outbox.dead_task`).Scan(&payload, &reason))
	fmt.Println("image", payload, "is a dead letter:", reason)
	// Output:
	// image 14 in attempt 2
	// image 13 is a dead letter: attempts
}

// The database goes away in the middle of a run: it ends all connections, as a restart does. The
// lease is kept, and the result
// is recorded as soon as there are connections again.
func Example_lostConnections() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(_ context.Context, task *outbox.Task[int]) error {
		fmt.Println("resize", task.Payload, "in attempt", task.Attempt)
		_, err := db.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()
			AND pid <> pg_backend_pid()`)
		return err
	})
	enqueueInts(ctx, db, typeResize, 1)
	r, err := relay.New(db, reg, relay.Config{Logger: discard()})
	must(err)
	must(r.Start(ctx))
	var dead int
	for n := 1; n > 0; {
		// It may get one of those connections.
		_ = db.QueryRowContext(ctx,
			`SELECT (SELECT count(*) FROM outbox.task), (SELECT count(*) FROM outbox.dead_task)`).Scan(&n, &dead)
	}
	must(r.Stop(ctx))
	fmt.Println("done; dead letters:", dead)
	// Output:
	// resize 1 in attempt 1
	// done; dead letters: 0
}

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
