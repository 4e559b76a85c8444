package relay_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Tasks that always come back keep the worker busy, and come before others in the lane. Each tenth
// claim takes the task that has been due longest, so the others run as well.
func TestNoTaskWaitsForEverBehindOthersOfItsType(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]relay.Order{"tx": relay.InOrder, "group": relay.InOrder, "batch": relay.InOrder,
		"leased": relay.InOrder, "leased in random order": relay.Random} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const tenants, most = 12, 1000 // ten runs for each task that is due would be 160
			const failed, fresh, lessUrgent, keyed = 1, 2, 3, 4
			var mu sync.Mutex
			recurring, ran := 0, map[int]int{} // how many had recurred before
			reg := handlers.New()
			ageing(reg, strings.Fields(name)[0], func(task *outbox.Task[payload]) error {
				<-time.After(5 * time.Millisecond) // those that come back are ready before the others are done
				mu.Lock()
				defer mu.Unlock()
				switch n := task.Payload.N; {
				case n == 0 && recurring < most && len(ran) < 4:
					recurring++
					return handlers.RunAgain(0)
				case n == 0:
				case (n == failed || n == keyed) && task.Attempt == 1:
					return errors.New("boom")
				default:
					ran[n] = recurring
				}
				return nil
			})
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'AGAIN', jsonb_build_object('n', CASE i
				WHEN 1 THEN $1::int ELSE 0 END)
				FROM generate_series(1, $2::int) i`, failed, tenants+1)
			db.Do(t, `INSERT INTO outbox.task (task_type, payload, priority, ordering_key)
				VALUES ('AGAIN', jsonb_build_object('n', $1::int), 0, NULL),
				('AGAIN', jsonb_build_object('n', $2::int), 5, NULL), ('AGAIN', jsonb_build_object('n', $3::int), 0,
				'key')`, fresh, lessUrgent, keyed)
			run(t, db, reg, relay.Config{Workers: 1, Order: order})
			db.Emptied(t, time.Minute)
			mu.Lock()
			defer mu.Unlock()
			for n, name := range map[int]string{failed: "the one that failed", fresh: "the fresh one",
				lessUrgent: "the less urgent one", keyed: "the one with an ordering key"} {
				if after, ok := ran[n]; !ok || after == most {
					t.Errorf("%s did not run while others ran %d times", name, recurring)
				}
			}
		})
	}
}

// ageing registers a handler of the kind for the type AGAIN.
func ageing(reg *handlers.Registry, kind string, f func(*outbox.Task[payload]) error) {
	options := []handlers.Option{handlers.Backoff(constant(time.Millisecond))}
	if kind == "group" {
		kind, options = "tx", append(options, handlers.GroupCommit(2, 0))
	}
	relaytest.Register(reg, kind, "AGAIN", 2, func(_ context.Context, _ outbox.Tx, tasks []*outbox.Task[payload]) error {
		if kind != "batch" {
			return f(tasks[0])
		}
		results := handlers.BatchError{}
		for _, task := range tasks {
			if err := f(task); err != nil {
				results[task.ID] = err
			}
		}
		if len(results) == 0 {
			return nil
		}
		return results
	}, options...)
}
