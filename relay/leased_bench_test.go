package relay_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// BenchmarkLeased prints tasks/s of one relay that drains 200,000 Leased tasks whose handler does nothing:
// go test ./relay -run '^$' -bench Leased -benchtime 1x
func BenchmarkLeased(b *testing.B) {
	const tasks = 200_000
	for _, workers := range []int{10, 100, 1000} {
		for _, order := range []relay.Order{relay.InOrder, relay.Random} {
			b.Run(fmt.Sprintf("workers=%d/order=%d", workers, order), func(b *testing.B) {
				db := newDatabase(b)
				reg := leased(func(context.Context, *outbox.Task[payload]) error { return nil })
				drainAll(b, db, reg, relay.Config{Workers: workers, Order: order}, tasks)
			})
		}
	}
}

// drainAll measures how fast a relay drains tasks of type LEASED.
func drainAll(b *testing.B, db *database, reg *handlers.Registry, config relay.Config, tasks int) {
	config.Logger = slog.New(slog.NewTextHandler(io.Discard, nil))
	r, err := relay.New(db.DB, reg, config)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		b.StopTimer()
		db.Enqueue(b, "LEASED", tasks)
		db.Do(b, `VACUUM ANALYZE outbox.task`)
		b.StartTimer()
		if err := r.RunOnce(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	if n := db.Int(b, `SELECT count(*) FROM outbox.task`); n != 0 {
		b.Fatalf("%d tasks are left", n)
	}
	b.ReportMetric(float64(tasks*b.N)/b.Elapsed().Seconds(), "tasks/s")
	b.ReportMetric(0, "ns/op")
}
