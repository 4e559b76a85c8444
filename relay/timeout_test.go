package relay_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

type sqlTx = sql.Tx

func TestEachTaskCanHaveATimeoutOfItsOwn(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		type call struct {
			at, deadline time.Time
			tasks        int
			set          string // by the claim
		}
		var mu sync.Mutex
		calls := map[string]call{}
		reg := handlers.New()
		types := map[string]handlers.Option{"tx": handlers.Timeout(20 * time.Second), "batch": handlers.Timeout(20 * time.Second),
			"leased": handlers.Timeout(20 * time.Second), "leased without": handlers.NoHeartbeat(20 * time.Second)}
		for name, opt := range types {
			kind, _, _ := strings.Cut(name, " ")
			relaytest.Register(reg, kind, name, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				mu.Lock()
				defer mu.Unlock()
				deadline, _ := ctx.Deadline()
				for _, task := range tasks {
					set := ""
					if tx == nil {
						set = db.Text(t, `SELECT round(extract(epoch FROM leased_until - attempted_at)) FROM outbox.task
							WHERE task_id = $1`, task.ID)
					} else if err := tx.QueryRowContext(ctx, `SELECT current_setting('statement_timeout') || ' ' ||
						current_setting('idle_in_transaction_session_timeout') || ' ' || current_setting('lock_timeout')`).Scan(&set); err != nil {
						return err
					}
					calls[fmt.Sprint(name, task.Payload.N)] = call{time.Now(), deadline, len(tasks), set}
				}
				return nil
			}, opt)
		}
		db.inTx(t, func(tx *sql.Tx) error {
			var all []outbox.TaskSpec
			for i, d := range []time.Duration{0, 10 * time.Second, time.Hour} {
				for name := range types {
					all = append(all, outbox.NewTaskType[payload](name).New(payload{N: i}, outbox.Timeout(d)))
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
			"tx0":             {20 * time.Second, "20s 36250ms 10s"},
			"tx1":             {10 * time.Second, "10s 25750ms 10s"},
			"tx2":             {30 * time.Second, "30s 46750ms 10s"}, // the longest
			"batch0":          {30 * time.Second, "30s 46750ms 10s"},
			"batch1":          {30 * time.Second, "30s 46750ms 10s"},
			"batch2":          {30 * time.Second, "30s 46750ms 10s"},
			"leased0":         {20 * time.Second, "41"},
			"leased1":         {10 * time.Second, "31"},
			"leased2":         {time.Hour, "3800"},
			"leased without0": {20 * time.Second, "20"},
			"leased without1": {10 * time.Second, "10"},
			"leased without2": {time.Hour, "3600"},
		} {
			got := calls[name]
			if got.set != want.set || strings.HasPrefix(name, "batch") != (got.tasks == 3) {
				t.Errorf("%s: got %q for %d tasks, want %q", name, got.set, got.tasks, want.set)
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
