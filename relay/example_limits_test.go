package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
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
