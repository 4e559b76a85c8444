package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// An app that closes the pool below its relay gets no outage: Run ends, Stop says why, and what ran
// is left to another relay, without an attempt.
func TestARelayEndsWhenItsPoolIsClosed(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"", "LEASED", "TX"} {
		t.Run("with "+kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			pool := open(t, db.URL)
			began := make(chan struct{}, 1)
			reg := handlers.New()
			handlers.Leased(reg, outbox.NewTaskType[payload]("LEASED"), func(ctx context.Context, _ *outbox.Task[payload]) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}, handlers.MaxAttempts(1))
			handlers.Tx(reg, outbox.NewTaskType[payload]("TX"), func(ctx context.Context, _ *sql.Tx, _ *outbox.Task[payload]) error {
				began <- struct{}{}
				<-ctx.Done()
				return ctx.Err()
			}, handlers.MaxAttempts(1))
			r, err := relay.New(pool.DB, reg, relay.Config{PollInterval: 50 * time.Millisecond})
			must(err)
			must(r.Start(t.Context()))
			if kind != "" {
				db.Enqueue(t, kind, 1)
				<-began
			}
			must(pool.DB.Close())
			select {
			case <-r.Done():
			case <-time.After(25 * time.Second): // DrainTimeout is 30 s
				t.Fatalf("it still runs; Health is %v", r.Health())
			}
			if err := r.Stop(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("Stop: %v", err)
			}
			if err := r.Health(); !errors.Is(err, relay.ErrNotRunning) {
				t.Errorf("Health: %v", err)
			}
			if kind != "" {
				db.want(t, 1, "tasks that wait or are leased, without a failure",
					`SELECT count(*) FROM outbox.task WHERE last_error IS NULL`)
			}
			if err := r.RunOnce(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("RunOnce: %v", err)
			}
			if err := r.Run(t.Context()); !errors.Is(err, relay.ErrPoolClosed) {
				t.Errorf("Run: %v", err)
			}
		})
	}
}
