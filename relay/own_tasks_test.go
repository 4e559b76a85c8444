package relay_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"slices"
	"testing"
	"time"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// Middleware may write into the tasks of its call, and sort them: the relay reads none of them
// later.
func TestTheRelayKnowsItsTasksThoughMiddlewareChangesThem(t *testing.T) {
	t.Parallel()
	db, h, reg := newDatabase(t), &heard{}, handlers.New()
	reg.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			err := next(ctx, call)
			for _, task := range call.Tasks {
				task.ID, task.Attempt = 0, 99
				copy(task.Payload, "spoiled")
				clear(task.Headers)
			}
			clear(call.Tasks)
			return err
		}
	})
	again := func(attempt int) error {
		if attempt == 1 {
			return handlers.RunAgain(0)
		}
		return nil
	}
	handlers.Tx(reg, typeTx, func(_ context.Context, _ *sql.Tx, task *outbox.Task[payload]) error {
		return again(task.Iterations + 1)
	},
		handlers.GroupCommit(3, within), handlers.Retention(time.Hour))
	handlers.Batch(reg, typeBatch, 3, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return nil }, handlers.Retention(time.Hour))
	handlers.Leased(reg, typeLeased, func(_ context.Context, task *outbox.Task[payload]) error { return again(task.Iterations + 1) },
		handlers.Retention(time.Hour))
	for _, name := range []string{"TX", "BATCH", "LEASED"} {
		for n := range 3 {
			relaytest.EnqueueAll(db.DB, outbox.TaskSpec{Type: name, Payload: payload{N: n},
				Options: []outbox.Option{outbox.Headers(map[string]string{"a": "1"})}})
		}
	}
	once(t, db, reg, relay.Config{Workers: 1, Observers: h.observers()})
	db.Want(t, "9 3 9", `SELECT concat(count(*), ' ', count(DISTINCT payload), ' ', count(*) FILTER (WHERE headers = '{"a": "1"}'))
		FROM outbox.done_task`)
	for _, e := range h.ends {
		for _, task := range e.Tasks {
			if task.ID == 0 || task.Attempt != 1 || task.Err != nil {
				t.Errorf("%s: %+v", e.Type, task)
			}
		}
	}
}

// Middleware that decrypts payloads finds them as they are in the table, whenever it is called.
func TestACallAfterADeadlockHasTheTaskAsItWas(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var calls []string
	handlers.Tx(reg, outbox.NewTaskType[string]("SEALED"), func(_ context.Context, _ *sql.Tx, task *outbox.Task[string]) error {
		if calls = append(calls, task.Payload); len(calls) == 1 {
			return &pq.Error{Code: "40P01", Message: "deadlock detected"}
		}
		return nil
	}, handlers.GroupCommit(2, 0), handlers.Use(func(next handlers.Func) handlers.Func {
		return func(ctx context.Context, call *handlers.Call) error {
			var sealed struct{ Text json.RawMessage }
			if err := json.Unmarshal(call.Tasks[0].Payload, &sealed); err != nil {
				return err
			}
			call.Tasks[0].Payload = sealed.Text
			return next(ctx, call)
		}
	}))
	relaytest.EnqueueAll(db.DB, outbox.TaskSpec{Type: "SEALED", Payload: map[string]string{"Text": "hello"}})
	once(t, db, reg, relay.Config{Workers: 1})
	if !slices.Equal(calls, []string{"hello", "hello"}) {
		t.Errorf("the handler got %q", calls)
	}
}
