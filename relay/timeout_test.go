package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

type sqlTx = sql.Tx

func TestEachTaskCanHaveATimeoutOfItsOwn(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		type call struct {
			at, deadline time.Time
			set          string // by the claim
		}
		var mu sync.Mutex
		calls := map[string]call{}
		note := func(ctx context.Context, name string, task *outbox.Task[payload], set string) error {
			mu.Lock()
			defer mu.Unlock()
			deadline, _ := ctx.Deadline()
			calls[fmt.Sprint(name, task.Payload.N)] = call{time.Now(), deadline, set}
			return nil
		}
		settings := func(ctx context.Context, tx outbox.Tx) (text string) {
			if err := tx.QueryRowContext(ctx, `SELECT current_setting('statement_timeout') || ' ' ||
				current_setting('idle_in_transaction_session_timeout')`).Scan(&text); err != nil {
				t.Error(err)
			}
			return text
		}
		lease := func(task *outbox.Task[payload]) string {
			return db.Text(t, `SELECT round(extract(epoch FROM leased_until - attempted_at)) FROM outbox.task WHERE task_id = $1`, task.ID)
		}
		reg, timeout := handlers.New(), handlers.Timeout(20*time.Second)
		registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			return note(ctx, "TX", task, settings(ctx, tx))
		}, timeout)
		handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
			for _, task := range tasks {
				note(ctx, "BATCH", task, fmt.Sprint(len(tasks), ": ", settings(ctx, tx)))
			}
			return nil
		}, timeout)
		handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
			return note(ctx, "LEASED", task, lease(task))
		}, timeout)
		own := outbox.NewTaskType[payload]("NO_HEARTBEAT")
		handlers.Leased(reg, own, func(ctx context.Context, task *outbox.Task[payload]) error {
			return note(ctx, "OWN", task, lease(task))
		}, handlers.NoHeartbeat(20*time.Second))
		db.inTx(t, func(tx *sql.Tx) error {
			var all []outbox.NewTask
			for i, d := range []time.Duration{0, 10 * time.Second, time.Hour} {
				for _, typ := range []outbox.TaskType[payload]{typeTx, typeBatch, typeLeased, own} {
					all = append(all, typ.New(payload{N: i}, outbox.Timeout(d)))
				}
			}
			_, err := outbox.EnqueueMany(t.Context(), tx, all)
			return err
		})
		begun := time.Now()
		once(t, db, reg, relay.Config{})
		for name, want := range map[string]struct {
			timeout time.Duration
			set     string
		}{
			"TX0":     {20 * time.Second, "20s 36250ms"},
			"TX1":     {10 * time.Second, "10s 25750ms"},
			"TX2":     {30 * time.Second, "30s 46750ms"}, // the longest
			"BATCH0":  {30 * time.Second, "3: 30s 46750ms"},
			"BATCH1":  {30 * time.Second, "3: 30s 46750ms"},
			"BATCH2":  {30 * time.Second, "3: 30s 46750ms"},
			"LEASED0": {20 * time.Second, "41"},
			"LEASED1": {10 * time.Second, "31"},
			"LEASED2": {time.Hour, "3800"},
			"OWN0":    {20 * time.Second, "20"},
			"OWN1":    {10 * time.Second, "10"},
			"OWN2":    {time.Hour, "3600"},
		} {
			got := calls[name]
			if got.set != want.set {
				t.Errorf("%s: got %q, want %q", name, got.set, want.set)
			}
			// The claim came between begun and the call, and a context may end a little after the
			// database's timeout.
			first, last := begun.Add(want.timeout), got.at.Add(want.timeout+want.timeout/20+250*time.Millisecond)
			if got.deadline.Before(first) || got.deadline.After(last) {
				t.Errorf("%s: the context ends %v after the call, want %v after the claim", name, got.deadline.Sub(got.at),
					want.timeout)
			}
		}
	})
}
