package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

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
