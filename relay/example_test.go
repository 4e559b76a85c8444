package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/robfig/cron/v3"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// What the examples share.
var (
	exampleDatabase = relaytest.ExampleDatabase
	exampleServer   = relaytest.ExampleServer
	must            = relaytest.Must
	runDue          = relaytest.RunDue
)

// Tasks from anywhere in the queue, in place of the oldest first.
func ExampleOrder() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	check := outbox.NewTaskType[int]("CHECK_LINK")
	var ran []int
	reg := handlers.New()
	handlers.Tx(reg, check, func(_ context.Context, _ *sql.Tx, task *outbox.Task[int]) error {
		ran = append(ran, task.Payload)
		return nil
	})
	enqueueInts(ctx, db, check, 50)
	r, err := relay.New(db, reg, relay.Config{Order: relay.OrderRandom, Workers: 1, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println(len(ran), "links, in the order of enqueueing:", slices.IsSorted(ran))
	slices.Sort(ran)
	fmt.Println("each once:", len(slices.Compact(ran)) == 50)
	// Output:
	// 50 links, in the order of enqueueing: false
	// each once: true
}

// Lower is more urgent: between types that of the handler plus the task's own, within a type the task's own, and
// tasks of one priority in random order.
func Example_priorities() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	mail, report, clean := outbox.NewTaskType[string]("SEND_MAIL"), outbox.NewTaskType[string]("MAKE_REPORT"), outbox.NewTaskType[string]("CLEAN_UP")
	handle := func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		fmt.Println(task.Type, task.Payload)
		return nil
	}
	reg := handlers.New()
	handlers.Tx(reg, mail, handle)
	handlers.Tx(reg, report, handle, handlers.Priority(10))
	handlers.Tx(reg, clean, handle, handlers.Priority(20))
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, []outbox.TaskSpec{
			clean.New("the attic"),
			mail.New("newsletter", outbox.Priority(5)),
			mail.New("password", outbox.Priority(-5)),
			report.New("for the boss", outbox.Priority(-25)), // -15 among the types
		})
		return err
	}))
	r, err := relay.New(db, reg, relay.Config{Order: relay.OrderRandom, Workers: 1, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	// Output:
	// MAKE_REPORT for the boss
	// SEND_MAIL password
	// SEND_MAIL newsletter
	// CLEAN_UP the attic
}

// A type that floods the queue and is slow leaves a worker to the others.
func Example_fairness() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	slow, quick := outbox.NewTaskType[int]("SLOW"), outbox.NewTaskType[int]("QUICK")
	done := make(chan struct{})
	reg := handlers.New()
	handlers.Leased(reg, slow, func(ctx context.Context, _ *outbox.Task[int]) error {
		select {
		case <-done: // it takes for ever, as far as the quick one is concerned
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}, handlers.Timeout(time.Minute))
	handlers.Leased(reg, quick, func(context.Context, *outbox.Task[int]) error {
		fmt.Println("the quick one is done")
		close(done)
		return nil
	})
	enqueueInts(ctx, db, slow, 100)
	enqueueInts(ctx, db, quick, 1)
	r, err := relay.New(db, reg, relay.Config{Workers: 5, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	// Output: the quick one is done
}

type Report struct{ Pages int }

var MakeReport = outbox.NewTaskType[Report]("MAKE_REPORT")

// A task that is known to take longer than others of its type.
func ExampleRelay_timeout() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, MakeReport, func(ctx context.Context, task *outbox.Task[Report]) error {
		end, _ := ctx.Deadline()
		fmt.Printf("%d pages in %v\n", task.Payload.Pages, time.Until(end).Round(time.Minute))
		return nil
	}, handlers.Timeout(time.Minute))
	enqueueReport(db, Report{Pages: 3})
	runDue(context.Background(), db, reg)
	enqueueReport(db, Report{Pages: 3000}, outbox.Timeout(2*time.Hour))
	runDue(context.Background(), db, reg)
	// Output:
	// 3 pages in 1m0s
	// 3000 pages in 2h0m0s
}

// Nobody knows how long it takes, but each page takes five seconds at most.
func ExampleRelay_extend() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, MakeReport, func(ctx context.Context, task *outbox.Task[Report]) error {
		for page := range task.Payload.Pages {
			if err := task.Extend(ctx, 5*time.Second); err != nil {
				return err // ErrLeaseLost: somebody else has it
			}
			select {
			case <-time.After(20 * time.Millisecond): // the work
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			fmt.Println("page", page+1)
		}
		return nil
	}, handlers.NoHeartbeat(5*time.Second)) // a process that lives is not enough
	enqueueReport(db, Report{Pages: 3})
	runDue(context.Background(), db, reg)
	// Output:
	// page 1
	// page 2
	// page 3
}

func ExampleRelay_cancel() {
	db, drop := exampleDatabase()
	defer drop()
	begun, ended := make(chan struct{}), make(chan error, 1)
	reg := handlers.New()
	handlers.Leased(reg, MakeReport, func(ctx context.Context, task *outbox.Task[Report]) error {
		close(begun)
		<-ctx.Done()
		ended <- context.Cause(ctx)
		return ctx.Err()
	})
	waiting := enqueueReport(db, Report{Pages: 1}, outbox.After(time.Hour))
	runs := enqueueReport(db, Report{Pages: 3000})
	ctx := context.Background()
	r, _ := relay.New(db, reg, relay.Config{Logger: discard()})
	must(r.Start(ctx))
	<-begun
	_ = outbox.InTx(ctx, db, func(tx *sql.Tx) error { // with whatever else is undone
		for _, id := range []int64{waiting, runs} {
			found, err := outbox.Cancel(ctx, tx, id)
			if err != nil {
				return err
			}
			fmt.Println(found)
		}
		return nil
	})
	fmt.Println(errors.Is(<-ended, outbox.ErrCanceled))
	must(r.Stop(ctx))
	var left int
	_ = db.QueryRow(`SELECT count(*) FROM outbox.task`).Scan(&left)
	fmt.Println("left:", left)
	// Output:
	// canceled
	// requested
	// true
	// left: 0
}

func enqueueReport(db *sql.DB, report Report, opts ...outbox.Option) (id int64) {
	must(outbox.InTx(context.Background(), db, func(tx *sql.Tx) error {
		task, err := MakeReport.Enqueue(context.Background(), tx, report, opts...)
		id = task.ID
		return err
	}))
	return id
}

var typeResize = outbox.NewTaskType[int]("RESIZE_IMAGE")

func enqueueInts(ctx context.Context, db *sql.DB, taskType outbox.TaskType[int], n int) {
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		for i := range n {
			if _, err := taskType.Enqueue(ctx, tx, i+1); err != nil {
				return err
			}
		}
		return nil
	}))
}

// At most two images are resized at once, in all relays of all processes together.
func Example_maxRunning() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	var running, done, most atomic.Int64
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error {
		most.Store(max(most.Load(), running.Add(1)))
		<-time.After(10 * time.Millisecond) // work
		running.Add(-1)
		done.Add(1)
		return nil
	}, handlers.MaxRunning(2))
	enqueueInts(ctx, db, typeResize, 8)
	runDue(ctx, db, reg)
	fmt.Println(done.Load(), "images, more than two at once:", most.Load() > 2)
	// Output: 8 images, more than two at once: false
}

// The provider takes 20 calls an hour. What was saved up, a tenth of that, may start at once.
func Example_rate() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	call := outbox.NewTaskType[int]("CALL_PROVIDER")
	handlers.Leased(reg, call, func(_ context.Context, task *outbox.Task[int]) error {
		fmt.Println("call", task.Payload)
		return nil
	}, handlers.Rate(20, time.Hour), handlers.MaxRunningPerRelay(1))
	enqueueInts(ctx, db, call, 5)
	runDue(ctx, db, reg) // the others start 3 minutes apart
	// Output:
	// call 1
	// call 2
}

// Weights, hours and free workers decide what runs. An app gives hour from its clock.
func workersByType(hour func() int) func(context.Context, relay.Load) map[string]int {
	return func(_ context.Context, load relay.Load) map[string]int {
		most := map[string]int{"REPORT": 2} // of ten workers
		if h := hour(); h >= 8 && h < 18 {
			most["EXPORT"] = 0 // at night
		}
		urgent := false
		for _, t := range load.Types {
			urgent = urgent || t.Type == "REPORT" && t.Waiting && t.Age > time.Minute
		}
		if urgent || load.Free <= 3 {
			most["CLEAN_UP"] = 1 // three workers stay free for what is urgent
		}
		return most
	}
}

func ExampleConfig_workersByType() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	var mu sync.Mutex
	running, most := map[string]int{}, map[string]int{}
	count := func(taskType string, n int) {
		mu.Lock()
		defer mu.Unlock()
		running[taskType] += n
		most[taskType] = max(most[taskType], running[taskType])
	}
	reg := handlers.New()
	for _, name := range []string{"REPORT", "EXPORT", "CLEAN_UP"} {
		taskType := outbox.NewTaskType[int](name)
		handlers.Leased(reg, taskType, func(context.Context, *outbox.Task[int]) error {
			count(name, 1)
			<-time.After(10 * time.Millisecond) // work
			count(name, -1)
			return nil
		})
		enqueueInts(ctx, db, taskType, 20)
	}
	hour := 9
	r, err := relay.New(db, reg, relay.Config{WorkersByType: workersByType(func() int { return hour }), Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println("by day, at once: 1 or 2 reports:", most["REPORT"] <= 2, "exports:", most["EXPORT"])
	hour = 22
	must(r.RunOnce(ctx))
	fmt.Println("by night exports run:", most["EXPORT"] > 0)
	// Output:
	// by day, at once: 1 or 2 reports: true exports: 0
	// by night exports run: true
}

// An import that keeps its place: each iteration takes a page, and what it wrote commits together with the cursor of
// the next one.
func Example_runAgain() {
	type Cursor struct{ After int }
	importPage := outbox.NewTaskType[Cursor]("IMPORT_PAGE")
	source := []string{"Ada", "Grace", "Edsger", "Barbara", "Tony"}

	reg := handlers.New()
	handlers.Tx(reg, importPage, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[Cursor]) error {
		from := task.Payload.After
		page := source[from:min(from+2, len(source))]
		for _, name := range page {
			if _, err := tx.ExecContext(ctx, `INSERT INTO person (name) VALUES ($1)`, name); err != nil {
				return err
			}
		}
		fmt.Println("iteration", task.Iterations, "attempt", task.Attempt, page)
		if from+2 >= len(source) {
			return nil // done
		}
		return handlers.RunAgainWith(task, time.Millisecond, Cursor{After: from + 2})
	})

	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	db, drop := exampleDatabase()
	defer drop()
	_, err := db.ExecContext(ctx, `CREATE TABLE person (name text NOT NULL)`)
	must(err)
	must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := importPage.Enqueue(ctx, tx, Cursor{})
		return err
	}))
	r, err := relay.New(db, reg, relay.Config{Logger: discard()})
	must(err)
	go func() {
		defer stop()
		for n := 0; n < len(source) && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM person`).Scan(&n)
		}
	}()
	must(r.Run(ctx))
	// Output:
	// iteration 0 attempt 1 [Ada Grace]
	// iteration 1 attempt 1 [Edsger Barbara]
	// iteration 2 attempt 1 [Tony]
}

// A time of day that comes twice, as clocks go back, fires once.
func ExampleInZone() {
	newYork, err := time.LoadLocation("America/New_York")
	must(err)
	timing := relay.InZone(newYork, relay.Cron(cron.ParseStandard, "30 1 * * *")) // without a zone
	at := time.Date(2026, 10, 31, 0, 0, 0, 0, newYork)
	for range 3 {
		at = timing.Next(at)
		fmt.Println(at.In(newYork).Format("Jan 2 15:04 MST"))
	}
	// Output:
	// Oct 31 01:30 EDT
	// Nov 1 01:30 EDT
	// Nov 2 01:30 EST
}

// The next firings of a cron expression. Any parser will do; this one is github.com/robfig/cron/v3.
func ExampleCron() {
	timing := relay.Cron(cron.ParseStandard, "0 9 * * MON-FRI")
	at := time.Date(2026, 7, 2, 12, 0, 0, 0, time.UTC) // a Thursday
	for range 3 {
		at = timing.Next(at)
		fmt.Println(at.Format("Mon Jan 2 15:04 MST"))
	}

	db, drop := exampleDatabase()
	defer drop()
	reg, report := handlers.New(), outbox.NewTaskType[int]("REPORT")
	handlers.Leased(reg, report, func(context.Context, *outbox.Task[int]) error { return nil })
	_, err := relay.New(db, reg, relay.Config{Schedules: []relay.Schedule{
		{Name: "report", Timing: relay.Cron(cron.ParseStandard, "9 o'clock"), Task: report.New(1)}}})
	fmt.Println(err)
	// Output:
	// Fri Jul 3 09:00 UTC
	// Mon Jul 6 09:00 UTC
	// Tue Jul 7 09:00 UTC
	// relay: Config.Schedules[0] "report": Timing: Cron: "9 o'clock": expected exactly 5 fields, found 2: [9 o'clock]
}

// Schedules by an interval and by an expression of robfig/cron with a time zone.
func ExampleSchedule() {
	sendReport := outbox.NewTaskType[string]("SEND_REPORT")
	reg := handlers.New()
	handlers.Leased(reg, sendReport, func(ctx context.Context, task *outbox.Task[string]) error {
		fmt.Println(task.Payload, "of", task.RunAt.UTC().Format(time.DateTime))
		return nil
	})
	config := relay.Config{Logger: discard(), Schedules: []relay.Schedule{
		{Name: "daily report", Timing: relay.Cron(cron.ParseStandard, "CRON_TZ=Europe/Berlin 0 9 * * *"),
			Task: sendReport.New("daily report", outbox.Priority(5))},
		{Name: "usage", Timing: relay.Every(7 * 24 * time.Hour), Task: sendReport.New("weekly usage"),
			CatchUp: outbox.CatchUpAll},
	}}

	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	once := func() { // an app calls Run
		r, err := relay.New(db, reg, config)
		must(err)
		must(r.RunOnce(ctx))
	}
	once()
	// As if no relay had run since ten to nine on the first of July.
	_, err := db.ExecContext(ctx, `UPDATE outbox.schedule SET next_at = '2026-07-01 07:00+00' WHERE name = 'daily report'`)
	must(err)
	once()
	// Without it in any Config it would stay in the table until it is removed.
	client, err := admin.New(db, admin.Config{})
	must(err)
	must(client.RemoveSchedule(ctx, "daily report"))
	// Output:
	// daily report of 2026-07-01 07:00:00
}
