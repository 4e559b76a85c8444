package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

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

// nightly keeps reports to two workers, and leaves all else to the built-in order.
type nightly struct{ fair relay.Chooser }

func (n nightly) Choose(v relay.View) []int {
	out := n.fair.Choose(v)
	for i := range out {
		if v.Heads[i].Type == "REPORT" {
			out[i] = max(min(out[i], 2-v.Heads[i].Running), 0)
		}
	}
	return out
}

func ExampleChooser() {
	ctx := context.Background()
	db, drop := exampleDatabase()
	defer drop()
	var running, done, most atomic.Int64
	reg := handlers.New()
	report := outbox.NewTaskType[int]("REPORT")
	handlers.Leased(reg, report, func(context.Context, *outbox.Task[int]) error {
		most.Store(max(most.Load(), running.Add(1)))
		<-time.After(10 * time.Millisecond) // work
		running.Add(-1)
		done.Add(1)
		return nil
	})
	enqueueInts(ctx, db, report, 8)
	r, err := relay.New(db, reg, relay.Config{Chooser: nightly{relay.Fair()}, Logger: discard()})
	must(err)
	must(r.RunOnce(ctx))
	fmt.Println(done.Load(), "reports, more than two at once:", most.Load() > 2)
	// Output: 8 reports, more than two at once: false
}
