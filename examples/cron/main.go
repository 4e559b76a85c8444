// Cron runs the tasks that are due and exits: for cron or a Kubernetes CronJob, where no process is
// to stay.
//
//	go run ./examples/cron [-enqueue N]
//
// It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own, in which nothing
// is due without -enqueue. Its exit code is 0 when everything that was due was started, and 1 after
// an error of the database. A handler's failure is no error of it: the task is due again after its
// backoff, so one of the next runs has it.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

var enqueue = flag.Int("enqueue", 0, "enqueue `N` tasks first")

type report struct{}

var makeReport = outbox.NewTaskType[report]("MAKE_REPORT")

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := devdb.Open(ctx, url, "")
	if err != nil {
		return err
	}
	defer db.Close()
	if err := devdb.Enqueue(ctx, db, slices.Repeat([]outbox.TaskSpec{makeReport.New(report{})}, *enqueue)...); err != nil {
		return err
	}
	var made atomic.Int64
	reg := handlers.New()
	handlers.Leased(reg, makeReport, func(ctx context.Context, task *outbox.Task[report]) error {
		made.Add(1)
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{
		// RunOnce fires what is due first; what cron was too late for is made up for once.
		Schedules: []relay.Schedule{{Name: "daily report", Timing: relay.Every(24 * time.Hour),
			Task: makeReport.New(report{})}},
	})
	if err != nil {
		return err
	}
	if err := r.RunOnce(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d reports made\n", made.Load())
	return err
}

func main() { devdb.Main(run) }
