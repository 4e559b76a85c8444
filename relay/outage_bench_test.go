package relay_test

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/relay"
)

// BenchmarkFirstTaskAfterAnOutage prints the time from a server that answers again after 15 s to
// the first task's handler. The
// task is committed by another pool as soon as the server answers: go test ./relay -run '^$' -bench
// AfterAnOutage -benchtime 5x
func BenchmarkFirstTaskAfterAnOutage(b *testing.B) {
	for _, listen := range []bool{false, true} {
		b.Run(map[bool]string{false: "listen=no", true: "listen=yes"}[listen], func(b *testing.B) {
			server := pgtest.Local(b, nil)
			db := adopt(b, server.URL())
			config := relay.Config{Logger: slog.New(slog.DiscardHandler)}
			if listen {
				config.ListenDSN = db.URL
			}
			began := make(chan time.Time, 1)
			reg := handlers.New()
			registerTx(reg, typeTx, func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
				began <- time.Now()
				return nil
			})
			run(b, open(b, db.URL), reg, config)
			db.Enqueue(b, "TX", 1)
			<-began
			var sum, most time.Duration
			for b.Loop() {
				db.Emptied(b, 30*time.Second)
				if err := server.Stop("immediate"); err != nil {
					b.Fatal(err)
				}
				<-time.After(15 * time.Second)
				go func() { _ = server.Start(context.Background()) }()
				for db.Ping() != nil {
					<-time.After(2 * time.Millisecond)
				}
				ready := time.Now()
				db.Enqueue(b, "TX", 1)
				took := (<-began).Sub(ready)
				b.Logf("%v", took.Round(time.Millisecond))
				sum, most = sum+took, max(most, took)
				eventually(b, 30*time.Second, "the server has started", func() bool {
					return server.Start(context.Background()) == nil
				})
			}
			b.ReportMetric(float64(sum.Milliseconds())/float64(b.N), "ms")
			b.ReportMetric(float64(most.Milliseconds()), "ms-max")
			b.ReportMetric(0, "ns/op")
		})
	}
}
