package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A handler that enqueues under its own key: there is one waiting task of the key after every
// result. In the transaction that removes the task the key is free for the task that follows, which
// is dropped if the task goes on. In another transaction the Enqueue is skipped.
func TestAKeyThatIsKeptUntilDoneHasOneTaskAfterEveryResultOfAHandlerThatEnqueuesIt(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, kind := range []string{"tx", "batch", "complete", "leased"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			results := map[string]error{"nil": nil, "error": boom, "Snooze": handlers.Snooze(time.Hour),
				"RunAgain": handlers.RunAgain(time.Hour)}
			wantOutcome, follows := outbox.Created, "follows"
			switch kind {
			case "leased":
				wantOutcome, follows = outbox.Skipped, ""
			case "batch":
				results["error in part"] = nil // what the call wrote is kept
			}
			db, reg, unique := newDatabase(t), handlers.New(), outbox.Unique("k", outbox.UntilDone())
			var runs atomic.Int32
			first := map[string]outbox.Enqueued{}
			for name, result := range results {
				typ := outbox.NewTaskType[payload](name)
				handle := func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) (err error) {
					runs.Add(1)
					var got outbox.Enqueued
					if tx != nil {
						got, err = typ.Enqueue(ctx, tx, payload{N: 1}, unique, outbox.After(time.Hour))
					} else {
						got = db.keyed(t, name, 1, unique, outbox.After(time.Hour))
					}
					if err != nil || got.Outcome != wantOutcome {
						t.Errorf("%s: the handler's Enqueue: %v, %v; want %v", name, got, err, wantOutcome)
					}
					if name == "error in part" {
						return handlers.BatchError{tasks[0].ID: boom}
					}
					return result
				}
				relaytest.Register(reg, kind, name, 10, handle, handlers.Backoff(constant(time.Hour)))
				first[name] = db.keyed(t, name, 0, unique)
			}
			for run := 1; run <= 2; run++ {
				once(t, db, reg, relay.Config{})
				for name, task := range first {
					want := fmt.Sprintf("%d scheduled", task.TaskID)
					if name == "nil" {
						want = follows
					}
					db.wantText(t, want, `SELECT string_agg(CASE payload->>'N'
						WHEN '1' THEN 'follows' ELSE task_id || ' ' || state END, ', ' ORDER BY task_id)
						FROM outbox.task WHERE task_type = $1`, name)
					if name == "nil" {
						continue
					}
					if got := db.keyed(t, name, 2, unique); got != (outbox.Enqueued{TaskID: task.TaskID, Outcome: outbox.Skipped}) {
						t.Errorf("%s: an Enqueue after run %d: %v, want task %d skipped", name, run, got, task.TaskID)
					}
					db.wantText(t, "1", `SELECT sum(arrived) FROM (SELECT * FROM outbox.counter
						UNION ALL SELECT task_type, kind, tasks, arrived FROM outbox.counter_log) c WHERE task_type = $1`, name)
				}
				db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE task_type <> 'nil'`)
			}
			if want := 2*len(first) - 1; int(runs.Load()) != want {
				t.Errorf("%d runs, want %d", runs.Load(), want)
			}
		})
	}
}
