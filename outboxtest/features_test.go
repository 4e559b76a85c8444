package outboxtest_test

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

// features registers, for each kind of handler, types whose tasks run again, are kept and ordered.
func features(reg *handlers.Registry) {
	all := func(name string, f func(task *outbox.Task[payload]) error, opts ...handlers.Option) {
		ofEachKind(reg, name, 1, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			return f(tasks[0])
		}, opts...)
	}
	keep := handlers.Retention(30 * time.Minute)
	all("AGAIN", func(task *outbox.Task[payload]) error {
		if task.Iterations < 2 {
			return handlers.RunAgain(0)
		}
		return handlers.RunAgainWith(task, time.Hour, payload{task.Payload.N + 10})
	}, keep)
	all("AGAIN_AND_DONE", func(task *outbox.Task[payload]) error {
		if task.Iterations < 3 {
			return handlers.RunAgainWith(task, 0, payload{task.Payload.N + 1})
		}
		return nil
	}, keep)
	all("KEPT", func(task *outbox.Task[payload]) error { return nil }, keep)
	all("KEPT_IF_DONE", func(task *outbox.Task[payload]) error { return errBoom }, keep)
	all("ORDERED", func(task *outbox.Task[payload]) error {
		switch task.Payload.N {
		case 2:
			return errBoom // holds key 1 up; leaves key 2
		case 4:
			return handlers.Dead(errBoom)
		case 5:
			return handlers.Snooze(time.Hour)
		}
		return nil
	})
	onLeased(reg, "EXTENDS", func(ctx context.Context, task *outbox.Task[payload]) error {
		if err := task.Extend(ctx, time.Minute); err != nil {
			return err
		}
		if end, _ := ctx.Deadline(); time.Until(end) < 45*time.Second {
			return fmt.Errorf("the context ends at %v", end)
		}
		return task.Complete(ctx, func(*sql.Tx) error { return nil })
	}, handlers.Timeout(30*time.Second))
}

func enqueueFeatures(t testing.TB, q outbox.Querier) {
	t.Helper()
	for _, kind := range []string{"TX", "BATCH", "LEASED", "COMPLETE"} {
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, ordering_key, skip_failed)
			SELECT $1 || '_ORDERED', jsonb_build_object('N', n), key, key = 2
			FROM unnest('{1,2,3}'::int[]) n, generate_series(1, 2) key
			 UNION ALL SELECT $1 || '_ORDERED', jsonb_build_object('N', n), 3, false FROM unnest('{4,5,6}'::int[]) n`, kind)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, unique_key, unique_until_done) SELECT $1 || '_' || name,
			'{"N": 7}', $1 || i / 2, i < 2
			FROM unnest('{KEPT,AGAIN,KEPT_IF_DONE}'::text[]) name, generate_series(0, 3) i`, kind)
	}
}

// A pause is asked for by the statement that claims, as by a relay.
func TestADrainLeavesPausedTypesAlone(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		onTx(reg, "TX", returns(nil))
		onTx(reg, "PAUSED", returns(nil))
		exec(t, in, `INSERT INTO outbox.task_type (task_type, paused) VALUES ('PAUSED', true)`)
		exec(t, in, `INSERT INTO outbox.task (task_type) VALUES ('PAUSED'), ('TX')`)
		wantRuns(t, "TX 1 done", outboxtest.Drain(t, in, reg))
		exec(t, in, `UPDATE outbox.task_type SET paused = false`)
		wantRuns(t, "PAUSED 1 done", outboxtest.Drain(t, in, reg))
	})
}

// A key's next task runs in the same Drain, in the order of the ids whatever their priority; an
// iteration in the future is for Advance.
func TestADrainRunsWholeKeysAndIterations(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		features(reg)
		// More keys than a relay promotes the heads of at once, and none of the first may run yet.
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, ordering_key, run_at) SELECT 'LATER', '{}', n,
			now() + interval '2 days' FROM generate_series(1, 1500) n`)
		exec(t, in, `INSERT INTO outbox.task (task_type, payload, ordering_key, priority) SELECT 'TX_KEPT',
			jsonb_build_object('N', n), 'k', -n FROM generate_series(1, 3) n`)
		r := outboxtest.Drain(t, in, reg)
		if len(r.Runs) != 3 || !slices.IsSortedFunc(r.Runs,
			func(a, b outboxtest.Run) int { return cmp.Compare(a.ID, b.ID) }) {
			t.Errorf("out of order: %v", r)
		}
		enqueue(t, in, "TX_AGAIN", 1)
		wantRuns(t, "TX_AGAIN 1 run_again, TX_AGAIN 1 run_again, TX_AGAIN 1 run_again", outboxtest.Drain(t, in, reg))
		wantText(t, in, `3 {"N": 11} 0`, `SELECT concat_ws(' ', iterations, payload, attempt) FROM outbox.task
			WHERE task_type = 'TX_AGAIN'`)
		wantRuns(t, "TX_AGAIN 1 run_again, TX_AGAIN 1 run_again", outboxtest.Drain(t, in, reg, outboxtest.Advance(150*time.Minute)))
	})
}

type contextKey struct{}

// As of the context that Run of a relay gets.
func TestHandlersGetTheValuesOfADrainsContext(t *testing.T) {
	t.Parallel()
	tx := begin(t, newDB(t, "postgres"))
	reg, seen := handlers.New(), 0
	ofEachKind(reg, "SEES", 1, func(ctx context.Context, _ *sql.Tx, _ []*outbox.Task[payload]) error {
		if ctx.Value(contextKey{}) == "app" {
			seen++
		}
		return nil
	})
	exec(t, tx, `INSERT INTO outbox.task (task_type, payload) SELECT kind || '_SEES', '{"N": 1}'
		FROM unnest('{TX,BATCH,LEASED,COMPLETE}'::text[]) kind`)
	ctx := context.WithValue(t.Context(), contextKey{}, "app")
	r := outboxtest.Drain(t, tx, reg, outboxtest.Context(ctx))
	if r.Count(relay.OutcomeDone) != 4 || seen != 4 {
		t.Errorf("%d handlers got the value, want 4: %v", seen, r)
	}
}
