package relay_test

import (
	"context"
	"fmt"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// resizer is a relay of a database with one image to resize.
func resizer() (r *relay.Relay, resized chan int, drop func()) {
	db, drop := exampleDatabase()
	resized = make(chan int, 1)
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(_ context.Context, task *outbox.Task[int]) error {
		resized <- task.Payload
		return nil
	})
	enqueueInts(context.Background(), db, typeResize, 1)
	r, err := relay.New(db, reg, relay.Config{Logger: discard()})
	must(err)
	return r, resized, drop
}

// A relay needs a pool, handlers, and mostly no Config. The error names all that is wrong.
func ExampleNew() {
	db, drop := exampleDatabase()
	defer drop()
	reg := handlers.New()
	handlers.Leased(reg, typeResize, func(context.Context, *outbox.Task[int]) error { return nil })
	_, err := relay.New(db, reg, relay.Config{Workers: 4})
	fmt.Println(err)
	_, err = relay.New(db, handlers.New(), relay.Config{})
	fmt.Println(err)
	// Output:
	// <nil>
	// relay: the registry has no handler: register the handlers before relay.New
}

// A worker process: it runs tasks until ctx ends, as at SIGTERM, and then waits for those that run.
func ExampleRelay_Run() {
	r, resized, drop := resizer()
	defer drop()
	ctx, stop := context.WithCancel(context.Background()) // an app: signal.NotifyContext
	go func() {
		fmt.Println("resized", <-resized)
		stop()
	}()
	fmt.Println(r.Run(ctx))
	// Output:
	// resized 1
	// <nil>
}

// A cron job runs what is due, and ends.
func ExampleRelay_RunOnce() {
	r, resized, drop := resizer()
	defer drop()
	fmt.Println(r.RunOnce(context.Background()), <-resized)
	// Output: <nil> 1
}

// A server that shuts down waits for the tasks that run, for as long as it may.
func ExampleRelay_Stop() {
	r, resized, drop := resizer()
	defer drop()
	ctx := context.Background()
	must(r.Start(ctx))
	<-resized
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	fmt.Println(r.Stop(limit))
	// Output: <nil>
}

// Done is closed when a relay has ended, for whatever reason; Stop then returns it.
func ExampleRelay_Done() {
	r, resized, drop := resizer()
	defer drop()
	ctx, end := context.WithCancel(context.Background())
	must(r.Start(ctx))
	<-resized
	end()
	<-r.Done()
	fmt.Println("ended:", r.Stop(context.Background()))
	// Output: ended: <nil>
}

// A schedule of every quarter of an hour.
func ExampleEvery() {
	timing := relay.Every(15 * time.Minute)
	fmt.Println(timing, timing.Next(time.Date(2026, 7, 1, 9, 7, 0, 0, time.UTC)).Format(time.TimeOnly))
	// Output: every 15m0s 09:15:00
}
