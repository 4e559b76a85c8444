// Chooser is a relay with a scheduling rule of its own: reports may have most of its workers at
// night, and few by day, when mail must not wait for them.
//
//	go run ./examples/chooser [-hour 23]
//
// It enqueues ten reports and ten mails, runs them with ten workers, and prints how many reports
// ran at once. It uses the database that OUTBOX_DATABASE_URL names, or a PostgreSQL of its own.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/examples/internal/devdb"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

var (
	makeReport = outbox.NewTaskType[int]("MAKE_REPORT")
	sendMail   = outbox.NewTaskType[int]("SEND_MAIL")
)

const workers = 10

func run(ctx context.Context, url string, out io.Writer) error {
	db, err := devdb.Open(ctx, url, "")
	if err != nil {
		return err
	}
	defer db.Close()
	var tasks []outbox.NewTask
	for i := range 10 {
		tasks = append(tasks, makeReport.New(i), sendMail.New(i))
	}
	if err := devdb.Enqueue(ctx, db, tasks...); err != nil {
		return err
	}

	var running, most, mails atomic.Int64
	reg := handlers.New()
	handlers.Leased(reg, makeReport, func(ctx context.Context, _ *outbox.Task[int]) error {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		select { // a report takes its time
		case <-time.After(100 * time.Millisecond):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	handlers.Leased(reg, sendMail, func(context.Context, *outbox.Task[int]) error {
		mails.Add(1)
		return nil
	})
	r, err := relay.New(db, reg, relay.Config{Workers: workers, Chooser: &hours{relay.Fair()}})
	if err != nil {
		return err
	}
	if err := r.RunOnce(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%d mails; at most %d of %d workers made reports at once\n", mails.Load(), most.Load(),
		workers)
	return err
}

func main() {
	flag.Func("hour", "pretend that it is this `hour`", func(value string) error {
		hour, err := strconv.Atoi(value)
		now = func() time.Time { return time.Date(2000, 1, 1, hour, 0, 0, 0, time.Local) }
		return err
	})
	devdb.Main(run)
}
