package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sethvargo/go-retry"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

var errBoom = errors.New("boom")

// scenario registers handlers of all kinds with all outcomes, and returns what enqueues their
// tasks. Each handler writes an effect first, which must be gone where it fails.
func scenario() (*handlers.Registry, func(t testing.TB, q outbox.Querier)) {
	reg := handlers.New()
	reg.Use(func(next handlers.Func) handlers.Func { // middleware applies
		return func(ctx context.Context, call *handlers.Call) error {
			if strings.HasSuffix(call.Type, "REFUSED") {
				return errors.New("refused by middleware")
			}
			return next(ctx, call)
		}
	})
	effect := func(ctx context.Context, tx outbox.Tx, task *outbox.Task[payload]) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`,
			fmt.Sprintf("%s %d, attempt %d of %d", task.Type, task.Payload.N, task.Attempt, task.MaxAttempts))
		return err
	}
	hour := handlers.Backoff(relaytest.Constant(time.Hour))
	onTx := func(name string, f func(ctx context.Context, tx *sql.Tx) error, opts ...handlers.Option) {
		handlers.Tx(reg, outbox.NewTaskType[payload](name),
			func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
				if err := effect(ctx, tx, task); err != nil {
					return err
				}
				return f(ctx, tx)
			}, append([]handlers.Option{hour}, opts...)...)
	}
	batch := func(name string, f func(tasks []*outbox.Task[payload]) error, opts ...handlers.Option) {
		handlers.Batch(reg, outbox.NewTaskType[payload](name), 10,
			func(ctx context.Context, tx outbox.Tx, tasks []*outbox.Task[payload]) error {
				for _, task := range tasks {
					if err := effect(ctx, tx, task); err != nil {
						return err
					}
				}
				return f(tasks)
			}, append([]handlers.Option{hour}, opts...)...)
	}
	leased := func(name string, f func(ctx context.Context, task *outbox.Task[payload]) error, opts ...handlers.Option) {
		handlers.Leased(reg, outbox.NewTaskType[payload](name), f, append([]handlers.Option{hour}, opts...)...)
	}
	completes := func(name string, f func(ctx context.Context, tx *sql.Tx) error, result error) {
		leased(name, func(ctx context.Context, task *outbox.Task[payload]) error {
			err := task.Complete(ctx, func(tx *sql.Tx) error { return errors.Join(effect(ctx, tx, task), f(ctx, tx)) })
			if err == nil {
				if again := task.Complete(ctx, func(*sql.Tx) error { return nil }); !errors.Is(again, outbox.ErrLeaseLost) {
					return handlers.Dead(fmt.Errorf("a second Complete: %v", again))
				}
				return result
			}
			if strings.Contains(err.Error(), "complete task") {
				return errBoom // the text has the task's id
			}
			return err
		})
	}
	sends := func(query string, result func(error) error) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return result(err)
		}
	}
	asIs, hidden := func(err error) error { return err }, func(error) error { return nil }
	// Results of a handler of any kind.
	for name, err := range map[string]error{
		"OK": nil, "FAILS": errBoom, "SNOOZES": handlers.Snooze(time.Hour), "RETRY_AFTER": fmt.Errorf("wrapped: %w",
			handlers.RetryAfter(time.Hour, errBoom)),
		// by middleware
		"DISCARDS": handlers.Discard(errBoom), "DEAD": handlers.Dead(errBoom), "EXHAUSTED": nil, "REFUSED": nil,
	} {
		onTx(name, func(context.Context, *sql.Tx) error { return err })
		batch("BATCH_"+name, func([]*outbox.Task[payload]) error { return err })
		leased("LEASED_"+name, func(context.Context, *outbox.Task[payload]) error { return err })
		completes("COMPLETE_"+name, func(context.Context, *sql.Tx) error { return err }, errBoom)
	}
	// Statements in its transaction.
	for name, f := range map[string]func(context.Context, *sql.Tx) error{
		"SQL_ERROR": sends(`SELECT 1/0`, asIs), "HIDDEN": sends(`SELECT 1/0`,
			hidden), "DEFERRED": sends(`INSERT INTO child VALUES (1)`, asIs),
	} {
		onTx(name, f)
		completes("COMPLETE_"+name, f, nil)
	}
	onTx("PANICS", func(context.Context, *sql.Tx) error { panic("at the disco") })
	onTx("GOEXIT", func(context.Context, *sql.Tx) error { runtime.Goexit(); return nil })
	onTx("SLOW", sends(`SELECT pg_sleep(5)`, asIs), handlers.Timeout(300*time.Millisecond))
	onTx("LAST", sends(``, func(error) error { return errBoom }), handlers.MaxAttempts(1))
	onTx("URGENT", sends(``, asIs), handlers.Priority(-7))
	onTx("STOPS", sends(``, func(error) error { return errBoom }), handlers.Backoff(func() retry.Backoff {
		return retry.BackoffFunc(func() (time.Duration, bool) { return 0, true })
	}))
	onTx("CHAIN", func(ctx context.Context, tx *sql.Tx) error {
		_, err := outbox.NewTaskType[payload]("OK").Enqueue(ctx, tx, payload{100},
			outbox.Headers(map[string]string{"k": "v"}))
		return err
	})
	batch("BATCH_SPLIT", func(tasks []*outbox.Task[payload]) error {
		for _, task := range tasks {
			if task.Payload.N == 2 {
				return errBoom
			}
		}
		return nil
	})
	batch("BATCH_SOME", func(tasks []*outbox.Task[payload]) error {
		failed := handlers.BatchError{}
		for _, task := range tasks {
			failed[task.ID] = []error{nil, handlers.Discard(errBoom), handlers.Dead(errBoom)}[task.Payload.N-1]
		}
		return failed
	})
	leased("LEASED_LAST", func(context.Context, *outbox.Task[payload]) error { return errBoom }, handlers.MaxAttempts(1))
	leased("LEASED_SLOW", func(ctx context.Context, _ *outbox.Task[payload]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, handlers.Timeout(50*time.Millisecond))

	features(reg, effect)
	return reg, func(t testing.TB, q outbox.Querier) {
		t.Helper()
		for _, h := range reg.Handlers() {
			n := []int{1}
			if h.Kind == handler.KindBatch {
				n = []int{1, 2, 3}
			}
			enqueue(t, q, h.Type, n...)
		}
		enqueue(t, q, "UNKNOWN", 1, 2)
		exec(t, q, `UPDATE outbox.task SET attempt = 20 WHERE task_type LIKE '%EXHAUSTED'`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, max_attempts, headers)
			VALUES ('OK', '{"N": 7}', 3, '{"a": "b"}'), ('OK', '{"N": "no number"}', 3, NULL), ('BATCH_OK', '{"N": "no number"}',
			NULL, NULL)`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, attempt) VALUES ('BATCH_OK', '{"N": 5}', 20)`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, run_at)
			VALUES ('OK', '{"N": 8}', now() + interval '1 hour'), ('OK', '{"N": 9}', now() - interval '1 hour')`)
		enqueueFeatures(t, q)
	}
}

// events are those of a timeline, without times and places.
const events = `jsonb_build_object('events', (SELECT jsonb_agg(e - '{at,us,relay}'::text[])
	FROM jsonb_array_elements(timeline) e))`

// tables are the rows that a user can see, without times and ids.
func tables(t testing.TB, q outbox.Querier) map[string]string {
	t.Helper()
	out := map[string]string{}
	for name, query := range map[string]string{
		"task": `SELECT to_jsonb(t) - '{task_id,run_at,created_at,attempted_at,timeline}'::text[] || ` + events +
			` || jsonb_build_object('attempted', attempted_at IS NOT NULL,
			'half_hours', round(extract(epoch FROM run_at - now()) / 1800)) AS line FROM outbox.task t`,
		"dead_task": `SELECT to_jsonb(t) - '{task_id,run_at,created_at,attempted_at,died_at,timeline}'::text[] || ` +
			events + ` AS line FROM outbox.dead_task t`,
		"running": `SELECT to_jsonb(t) AS line FROM outbox.running t`,
		"effect":  `SELECT to_jsonb(t) AS line FROM effect t`,
		"done_task": `SELECT to_jsonb(t) - '{task_id,run_at,created_at,attempted_at,finished_at,keep_until,timeline}'::text[]
			|| ` + events + ` ||
			jsonb_build_object('attempted', attempted_at IS NOT NULL, 'minutes', round(extract(epoch
			FROM keep_until - finished_at) / 60)) AS line FROM outbox.done_task t`,
		"headless_key": `SELECT to_jsonb(t) AS line FROM outbox.headless_key t`,
		// relays sweep others
		"unique_key": `SELECT to_jsonb(k) - 'task_id' AS line FROM outbox.unique_key k JOIN outbox.task t USING (task_id)`,
		"counts": `SELECT concat_ws(' ', task_type, sum(CASE kind WHEN 'dead' THEN -arrived
			WHEN 'failed' THEN 0 ELSE arrived - tasks END), sum(tasks) FILTER (WHERE kind = 'failed')) AS line
			FROM (SELECT task_type, kind, tasks, arrived FROM outbox.counter UNION ALL SELECT task_type, kind, tasks, arrived
			FROM outbox.counter_log) AS c GROUP BY task_type`,
	} {
		out[name] = text(t, q,
			`SELECT COALESCE(string_agg(line::text, E'\n' ORDER BY line::text), '') FROM (`+query+`) AS lines`)
	}
	return out
}

func TestADrainLeavesTheSameRowsAsARelay(t *testing.T) {
	t.Parallel()
	relays := map[*sql.DB]map[string]string{} // what a relay leaves
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		if relays[db] == nil {
			relays[db] = ranByARelay(t, db)
			empty(t, db)
		}
		reg, fill := scenario()
		fill(t, in)
		result := outboxtest.Drain(t, in, reg)
		for name, got := range tables(t, in) {
			if want := relays[db][name]; got != want {
				t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
			}
		}
		if n := result.Unhandled["UNKNOWN"]; n != 2 || len(result.Unhandled) != 1 ||
			!strings.HasSuffix(result.String(), "\nno handler: UNKNOWN × 2") {
			t.Errorf("unhandled: %v, want two UNKNOWN", result.Unhandled)
		}
		wantText(t, in, fmt.Sprint(result.Count(outboxtest.Dead)), `SELECT count(*) FROM outbox.dead_task`)
	})
}

func ranByARelay(t *testing.T, db *sql.DB) map[string]string {
	t.Helper()
	reg, fill := scenario()
	fill(t, db)
	r, err := relay.New(db, reg, relay.Config{Logger: slog.New(slog.DiscardHandler), PollInterval: 10 * time.Millisecond})
	relaytest.Must(err)
	relaytest.Must(r.RunOnce(t.Context()))
	rows := tables(t, db)
	if len(rows["task"]) < 1000 || len(rows["dead_task"]) < 1000 || len(rows["effect"]) < 200 ||
		len(rows["done_task"]) < 1000 || rows["headless_key"] != "" {
		t.Fatalf("the scenario has no outcomes: %v", rows)
	}
	return rows
}
