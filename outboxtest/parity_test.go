package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/handler"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/relay"
)

var errBoom = errors.New("boom")

type handle = relaytest.Handle[payload]

// ofEachKind registers TX_name, BATCH_name, LEASED_name and COMPLETE_name. Where there is a
// transaction each run writes an effect first, which must be gone if the run fails.
func ofEachKind(reg *handlers.Registry, name string, size int, f handle, opts ...handlers.Option) {
	for _, kind := range []string{"tx", "batch", "leased", "complete"} {
		relaytest.Register(reg, kind, strings.ToUpper(kind)+"_"+name, size, withEffect(f), opts...)
	}
}

func withEffect(f handle) handle {
	return func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
		for _, task := range tasks {
			if tx == nil {
				break
			}
			_, err := tx.ExecContext(ctx, `INSERT INTO effect VALUES ($1)`,
				fmt.Sprintf("%s %d, attempt %d of %d", task.Type, task.Payload.N, task.Attempt, task.MaxAttempts))
			if err != nil {
				return err
			}
		}
		return f(ctx, tx, tasks)
	}
}

// sends is a handler that sends a statement in its transaction, if it has one.
func sends(query string, result func(error) error) handle {
	return func(ctx context.Context, tx *sql.Tx, _ []*outbox.Task[payload]) error {
		if tx == nil {
			return nil
		}
		_, err := tx.ExecContext(ctx, query)
		return result(err)
	}
}

// gives is a handler with this result.
func gives(err error) handle {
	return func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { return err }
}

// scenario registers handlers of all kinds with all outcomes, and returns a function that enqueues
// their tasks.
func scenario() (*handlers.Registry, func(t testing.TB, q outbox.Querier)) {
	reg := handlers.New(handlers.Backoff(relaytest.Constant(time.Hour)))
	reg.Use(func(next handlers.Func) handlers.Func { // middleware applies
		return func(ctx context.Context, call *handlers.Call) error {
			if strings.HasSuffix(call.Type, "REFUSED") {
				return errors.New("refused by middleware")
			}
			return next(ctx, call)
		}
	})
	for name, err := range map[string]error{
		"OK": nil, "FAILS": errBoom, "SNOOZES": handlers.Snooze(time.Hour), "DISCARDS": handlers.Discard(errBoom),
		"RETRY_AFTER": fmt.Errorf("wrapped: %w", handlers.RetryAfter(time.Hour, errBoom)),
		"DEAD":        handlers.Dead(errBoom), "EXHAUSTED": nil, "REFUSED": nil,
		"AFTER_NIL": handlers.RetryAfter(time.Hour, nil), "AFTER_YEAR": handlers.RetryAfter(8760*time.Hour, errBoom),
		"DEAD_NIL": handlers.Dead(nil), "SEVERAL": errors.Join(handlers.Discard(errBoom), handlers.Snooze(time.Hour)),
		"FOREIGN": handlers.BatchResult{0: nil}, "MIXED": errors.Join(handlers.BatchResult{}, errBoom),
	} {
		ofEachKind(reg, name, 10, gives(err))
	}
	asIs, hidden := func(err error) error { return err }, func(error) error { return nil }
	ofEachKind(reg, "EXPIRES", 10, gives(nil), handlers.DiscardExpired())
	ofEachKind(reg, "SQL_ERROR", 10, sends(`SELECT 1/0`, asIs))
	ofEachKind(reg, "HIDDEN", 10, sends(`SELECT 1/0`, hidden))
	ofEachKind(reg, "DEFERRED", 10, sends(`INSERT INTO child VALUES (1)`, asIs))
	ofEachKind(reg, "PANICS", 10, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error { panic("at the disco") })
	ofEachKind(reg, "GOEXIT", 10, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		runtime.Goexit()
		return nil
	})
	ofEachKind(reg, "LAST", 10, gives(errBoom), handlers.MaxAttempts(1))
	ofEachKind(reg, "URGENT", 10, gives(nil), handlers.Priority(-7))
	ofEachKind(reg, "STOPS", 10, gives(errBoom), handlers.Backoff(func(int, error) (time.Duration, bool) { return 0, false }))
	relaytest.Register(reg, "tx", "SLOW", 1, withEffect(sends(`SELECT pg_sleep(5)`, asIs)),
		handlers.Timeout(time.Second))
	onLeased(reg, "LEASED_SLOW", func(ctx context.Context, _ *outbox.Task[payload]) error {
		<-ctx.Done()
		return context.Cause(ctx)
	}, handlers.Timeout(50*time.Millisecond))
	onTx(reg, "CHAIN", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		_, err := outbox.NewTaskType[payload]("TX_OK").Enqueue(ctx, tx, payload{100},
			outbox.Headers(map[string]string{"k": "v"}))
		return err
	})
	relaytest.Register(reg, "batch", "BATCH_SPLIT", 10,
		withEffect(func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			if slices.ContainsFunc(tasks, func(task *outbox.Task[payload]) bool { return task.Payload.N == 2 }) {
				return errBoom
			}
			return nil
		}))
	relaytest.Register(reg, "batch", "BATCH_SOME", 10,
		withEffect(func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			failed := handlers.BatchResult{}
			for _, task := range tasks {
				failed[task.ID] = []error{nil, handlers.Discard(errBoom), handlers.Dead(errBoom)}[task.Payload.N-1]
			}
			return failed
		}))
	features(reg)
	return reg, func(t testing.TB, q outbox.Querier) {
		t.Helper()
		for _, h := range handler.Registered(reg) {
			n := []int{1}
			if h.Kind == outbox.KindBatch {
				n = []int{1, 2, 3}
			}
			enqueue(t, q, h.Type, n...)
		}
		enqueue(t, q, "UNKNOWN", 1, 2)
		exec(t, q, `UPDATE outbox.task SET attempt = 20 WHERE task_type LIKE '%EXHAUSTED'`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, max_attempts, headers) VALUES
			('TX_OK', '{"N": 7}', 3, '{"a": "b"}'), ('TX_OK', '{"N": "no number"}', 3, NULL),
			('BATCH_OK', '{"N": "no number"}', NULL, NULL)`)
		exec(t, q, `UPDATE outbox.task SET expires_at = '2020-02-02' WHERE task_type LIKE '%EXPIRES' OR task_type
			IN ('TX_FAILS',
			'BATCH_FAILS', 'LEASED_FAILS') AND payload ->> 'N' < '3'`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, attempt) VALUES ('BATCH_OK', '{"N": 5}', 20)`)
		exec(t, q, `INSERT INTO outbox.task (task_type, payload, run_at) VALUES
			('TX_OK', '{"N": 8}', now() + interval '1 hour'), ('TX_OK', '{"N": 9}', now() - interval '1 hour')`)
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
		wantText(t, in, fmt.Sprint(result.Count(relay.OutcomeDead)), `SELECT count(*) FROM outbox.dead_task`)
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
