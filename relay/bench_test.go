package relay_test

import (
	"context"
	"database/sql"
	"io"
	"log/slog"
	"strings"
	"testing"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// benchTasks is how many tasks one round drains: go test ./relay -run '^$' -bench Drain -benchtime 3x
const benchTasks = 20_000

// BenchmarkDrain prints tasks/s of one relay with ten workers that drains a backlog, for each kind of handler.
func BenchmarkDrain(b *testing.B) {
	nop := func(reg *handlers.Registry) {
		handlers.Tx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil })
		handlers.Batch(reg, typeBatch, 100, func(context.Context, outbox.Tx, []*outbox.Task[payload]) error { return nil })
		handlers.Leased(reg, typeLeased, func(context.Context, *outbox.Task[payload]) error { return nil })
	}
	insert := func(reg *handlers.Registry) { handlers.Tx(reg, typeTx, txEffect) }
	for _, c := range []struct {
		name, taskType string
		order          relay.Order
		register       func(*handlers.Registry)
	}{
		{"kind=tx/work=none", "TX", relay.InOrder, nop},
		{"kind=tx/work=insert", "TX", relay.InOrder, insert},
		{"kind=tx/work=none/order=random", "TX", relay.Random, nop},
		{"kind=batch100/work=none", "BATCH", relay.InOrder, nop},
		{"kind=leased/work=none", "LEASED", relay.InOrder, nop},
		{"kind=tx/work=none/keys=1000", "TX", relay.InOrder, nop},
		{"kind=leased/work=none/keys=1000", "LEASED", relay.InOrder, nop},
	} {
		b.Run(c.name, func(b *testing.B) {
			db := newDatabase(b)
			reg := handlers.New()
			c.register(reg)
			r, err := relay.New(db.DB, reg, relay.Config{Order: c.order, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				b.StopTimer()
				if strings.HasSuffix(c.name, "keys=1000") {
					db.Do(b, `INSERT INTO outbox.task (task_type, ordering_key) SELECT $1, n % 1000 FROM generate_series(1, $2::int) n`, c.taskType, benchTasks)
				} else {
					db.Enqueue(b, c.taskType, benchTasks)
				}
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
			b.ReportMetric(float64(benchTasks*b.N)/b.Elapsed().Seconds(), "tasks/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}
