package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// batchCalls are the calls of a Batch handler: the numbers and attempts of its tasks, as in 7.1. With
// one worker the calls have an order.
type batchCalls struct{ noted[string] }

func (b *batchCalls) record(tasks []*outbox.Task[payload]) {
	text := ""
	for _, task := range tasks {
		text += fmt.Sprintf("%d.%d ", task.Payload.N, task.Attempt)
	}
	b.add(text)
}

func (b *batchCalls) want(t *testing.T, calls ...string) {
	t.Helper()
	if got := b.list(); !slices.Equal(got, calls) {
		t.Errorf("calls %q, want %q", got, calls)
	}
}

func TestTheTasksOfAFailedBatchRunOneByOneInOrderAndOnlyThoseRunsCount(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, calls := handlers.New(), &batchCalls{}
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
		calls.record(tasks)
		for _, task := range tasks {
			if task.Payload.N == 3 || task.Payload.N == 5 {
				return errors.Join(batchEffect(ctx, tx, tasks), errors.New("boom"))
			}
		}
		return batchEffect(ctx, tx, tasks)
	}, handlers.MaxAttempts(2), handlers.Backoff(constant(time.Hour)), handlers.NoJitter())
	db.Enqueue(t, "BATCH", 6)
	once(t, db, reg, relay.Config{Workers: 1})
	calls.want(t, "1.1 2.1 3.1 4.1 5.1 6.1 ", "1.1 ", "2.1 ", "3.1 ", "4.1 ", "5.1 ", "6.1 ")
	db.Do(t, `UPDATE outbox.task SET run_at = now()`)
	once(t, db, reg, relay.Config{Workers: 1})
	calls.want(t, "1.1 2.1 3.1 4.1 5.1 6.1 ", "1.1 ", "2.1 ", "3.1 ", "4.1 ", "5.1 ", "6.1 ",
		"3.2 5.2 ", "3.2 ", "5.2 ")
	db.wantRows(t, 2, `outbox.dead_task WHERE attempt = 2 AND last_error = 'boom'`)
	db.wantText(t, "1 1 1 1", `SELECT string_agg(attempt::text, ' ') FROM effect`)
}

// Also of a batch whose handler has committed, against the rules, the tasks that it did not fail are
// done: a redrive of them would repeat their effects.
func TestABatchResultAfterTheHandlersOwnCommitFailsOnlyTheTasksItNames(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		reg, boom := handlers.New(), errors.New("boom")
		handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx,
			tasks []*outbox.Task[payload]) error {
			if tasks[0].Iterations > 0 {
				return nil
			}
			return errors.Join(tx.Commit(), handlers.BatchResult{tasks[0].ID: boom,
				tasks[1].ID: handlers.Snooze(time.Second), tasks[2].ID: handlers.RunAgain(0), tasks[3].ID: nil})
		})
		db.Enqueue(t, "BATCH", 5)
		once(t, db, reg, relay.Config{Workers: 1})
		db.wantText(t, "1 committed boom, 2 committed snooze after 1s", `SELECT string_agg(concat_ws(' ',
			payload->>'n', reason, last_error), ', ' ORDER BY task_id) FROM outbox.dead_task`)
		db.wantRows(t, 0, `outbox.task`)
		db.wantRows(t, 0, `outbox.running`)
	})
}

// becameOfEachSQL is what became of each task of a type, and whether its effect is there.
const becameOfEachSQL = `SELECT string_agg(n || ': ' || concat_ws(' ',
	(SELECT concat_ws(' ', attempt, iterations, payload ->> 'N',
	 round(extract(epoch FROM run_at - attempted_at) / 60) || ' min', COALESCE(substring(last_error
	 FROM 'a result for task -1, which is not of the batch|joined with another error'), last_error))
	 FROM outbox.task t WHERE t.task_id = s.task_id),
	(SELECT concat_ws(' ', 'dead', attempt, reason, last_error) FROM outbox.dead_task d WHERE d.task_id = s.task_id),
	(SELECT concat_ws(' ', 'done', last_error) FROM outbox.done_task h WHERE h.task_id = s.task_id),
	(SELECT 'effect' FROM effect e WHERE e.task_id = s.task_id)), E'\n' ORDER BY n)
	FROM seen s WHERE task_type = $1`

// A batch says of each task what becomes of it, or of all. A result that is not of its batch, or is
// joined with another error, finishes no task: they run one by one, where such a result is a failed
// attempt.
func TestABatchResultFailsOnlyTheTasksItNames(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	cases := map[string]struct {
		result func(tasks []*outbox.Task[payload]) error
		calls  []string // the first is with all
		want   []string
	}{
		"a result for some": {result: func(tasks []*outbox.Task[payload]) error {
			return fmt.Errorf("some of %d failed: %w", len(tasks), handlers.BatchResult{tasks[1].ID: boom,
				tasks[2].ID: handlers.RetryAfter(5*time.Minute, boom), tasks[3].ID: handlers.Snooze(5 * time.Minute),
				tasks[4].ID: handlers.Dead(boom), tasks[5].ID: handlers.Discard(boom), tasks[6].ID: nil})
		}, want: []string{"done effect", "1 0 60 min boom effect", "0 0 5 min retry after 5m0s: boom effect",
			"0 0 5 min effect", "dead 1 handler boom effect", "done boom effect", "done effect"}},
		"again": {result: func(tasks []*outbox.Task[payload]) error {
			return handlers.BatchResult{tasks[1].ID: handlers.RunAgainWith(tasks[1], time.Hour, payload{N: 20}),
				tasks[2].ID: handlers.RunAgain(time.Hour), tasks[3].ID: boom}
		}, want: []string{"done effect", "0 1 20 60 min effect", "0 1 60 min effect", "1 0 60 min boom effect"}},
		"RunAgain for all": {result: func([]*outbox.Task[payload]) error { return handlers.RunAgain(time.Hour) },
			want: []string{"0 1 60 min effect", "0 1 60 min effect"}},
		"RunAgainWith for all": {result: func(tasks []*outbox.Task[payload]) error {
			return handlers.RunAgainWith(tasks[0], time.Hour, payload{N: tasks[0].Payload.N * 10})
		}, calls: []string{"1.1 ", "2.1 "}, want: []string{"0 1 10 60 min effect", "0 1 20 60 min effect"}},
		"a result that does not tell": {result: func(tasks []*outbox.Task[payload]) error {
			switch {
			case len(tasks) == 1 && tasks[0].Payload.N == 2:
				return nil
			case len(tasks) == 1 && tasks[0].Payload.N == 3:
				return errors.Join(boom, handlers.BatchResult{tasks[0].ID: nil})
			}
			return handlers.BatchResult{tasks[0].ID: nil, -1: nil}
		}, calls: []string{"1.1 ", "2.1 ", "3.1 "}, want: []string{
			"1 0 60 min a result for task -1, which is not of the batch", "done effect",
			"1 0 60 min joined with another error"}},
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		reg, calls := handlers.New(), map[string]*batchCalls{}
		for name, c := range cases {
			of := &batchCalls{}
			calls[name] = of
			handle := func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
				of.record(tasks)
				if err := batchEffect(ctx, tx, tasks); err != nil {
					return err
				}
				return c.result(tasks)
			}
			relaytest.Register(reg, "batch", name, 10, handle, handlers.Backoff(constant(time.Hour)),
				handlers.NoJitter(), handlers.Retention(time.Hour))
			db.Enqueue(t, name, len(c.want))
		}
		db.Do(t, `CREATE TABLE seen AS SELECT task_id, task_type, (payload->>'n')::int AS n FROM outbox.task`)
		once(t, db, reg, relay.Config{Workers: 1})
		for name, c := range cases {
			first, wants := "", []string{}
			for i, want := range c.want {
				first += fmt.Sprintf("%d.1 ", i+1)
				wants = append(wants, fmt.Sprint(i+1, ": ", want))
			}
			db.wantText(t, strings.Join(wants, "\n"), becameOfEachSQL, name)
			calls[name].want(t, slices.Concat([]string{first}, c.calls)...)
		}
		db.wantRows(t, 0, `outbox.running`)
	})
}

// A payload that does not decode is its own task's failure, whatever the handler says of the
// others.
func TestABadPayloadInABatchFailsOnlyItsOwnTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	reg, calls := handlers.New(), &batchCalls{}
	handlers.Batch(reg, typeBatch, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
		calls.record(tasks)
		return errors.Join(batchEffect(ctx, tx, tasks), handlers.Discard(errors.New("enough"))) // not for all
	}, handlers.MaxAttempts(2), retrySoon())
	db.Do(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'BATCH', CASE WHEN n = 3 THEN '{"n": "SECRET"}' ELSE jsonb_build_object('n', n) END
		FROM generate_series(1, 5) n`)
	r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 30*time.Second)
	calls.want(t, "1.1 2.1 4.1 5.1 ", "1.1 ", "2.1 ", "4.1 ", "5.1 ")
	db.wantText(t, "4 4", `SELECT concat_ws(' ', count(*), count(DISTINCT task_id)) FROM effect`)
	db.wantText(t, "2 attempts SECRET f", `SELECT concat_ws(' ', attempt, reason, payload->>'n', last_error LIKE '%SECRET%')
		FROM outbox.dead_task`)
	r.Log.Want(t, 0, "SECRET")
}

// A trigger of the app's on the outbox's table may drop what the relay writes back, without an
// error.
func TestATaskWhoseWriteBackIsDroppedIsNotLost(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER nothing BEFORE INSERT ON outbox.task FOR EACH ROW
		WHEN (NEW.state = 'scheduled' AND NEW.attempt > 0) EXECUTE FUNCTION nothing()`)
	reg := handlers.New()
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return errors.Join(txEffect(ctx, tx, task), errAlways)
	}, handlers.MaxAttempts(2), retrySoon())
	db.Enqueue(t, "TX", 1)
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 60*time.Second)
	db.wantRows(t, 1, `outbox.dead_task WHERE attempt = 2`)
	db.wantRows(t, 0, `effect`)
}

// batches registers a Batch handler that notes its calls: the id of each task with its attempt, as
// in 7:1.
func batches(size int) (reg *handlers.Registry, calls func() []string) {
	var all noted[string]
	reg = handlers.New()
	handlers.Batch(reg, typeBatch, size, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
		call := ""
		for _, task := range tasks {
			call += fmt.Sprintf(" %d:%d", task.ID, task.Attempt)
		}
		all.add(call[1:])
		return nil
	})
	return reg, func() []string { return slices.Sorted(slices.Values(all.list())) }
}

func TestABatchIsOneRowOfTheJournal(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "BATCH", 100)
	reg := handlers.New()
	var journal string
	handlers.Batch(reg, typeBatch, 100, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		journal = db.Text(t, `SELECT count(*) || ' row of ' || sum(cardinality(task_ids)) || ' tasks' FROM outbox.running`)
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 1})
	if journal != "1 row of 100 tasks" {
		t.Errorf("the journal has %s, want 1 row of 100 tasks", journal)
	}
	db.wantRows(t, 0, `outbox.running`)
}

// What the process died of may be any task of its batch. The others of the lane are none of them,
// although their ids are in between. Ids that are far apart are searched for in another way. Tasks that
// were lost once run in batches, as any others, and those that were lost twice one by one.
func TestALostBatchIsKnownByEachOfItsTasks(t *testing.T) {
	t.Parallel()
	const lostOnce, far = "1:2 2:1 3:2 4:1 5:1 6:2", "000"
	for _, c := range []struct {
		name, apart string              // the ids' last digits
		end         func(*sql.Tx) error // of the transaction of the lost claim
		ahead       int                 // the journal has another id than its
		lost        int                 // how often
		want        string
	}{
		{"its claim is gone", far, (*sql.Tx).Rollback, 0, 1, lostOnce},
		// Of a batch from another cluster any transaction of this one may have the id, or none yet.
		{"its claim is committed", "", (*sql.Tx).Commit, 0, 1, lostOnce},
		{"its claim is in the future", far, (*sql.Tx).Rollback, 1_000_000, 1, lostOnce},
		{"its claim is open", "", nil, 0, 1, "1:1 2:1 3:1 4:1 5:1 6:1"},
		{"it was lost twice, with ids far apart", far, (*sql.Tx).Rollback, 0, 2, "1:3, 2:1 4:1 5:1, 3:3, 6:3"},
		{"it was lost twice", "", (*sql.Tx).Rollback, 0, 2, "1:3, 2:1 4:1 5:1, 3:3, 6:3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT (n || $1)::bigint, 'BATCH'
				FROM generate_series(1, 6) n`, c.apart)
			lost := db.begin(t)
			defer lost.Rollback()
			var xid string
			must(lost.QueryRow(`SELECT (pg_current_xact_id()::text::bigint + $1)::text`, c.ahead).Scan(&xid))
			if c.end != nil {
				must(c.end(lost))
			}
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
				SELECT ids[1], gen_random_uuid(), $1, ids, ids[1], ids[3], $2::text::xid8
				  FROM (SELECT ARRAY[1 || $3, 3 || $3, 6 || $3]::bigint[] AS ids) AS batch, generate_series(1, $4)`,
				someUUID, xid, c.apart, c.lost)
			reg, calls := batches(6)
			once(t, db, reg, relay.Config{Workers: 1})
			db.Do(t, `DELETE FROM outbox.running`)
			if got, want := strings.Join(calls(), ", "), strings.ReplaceAll(c.want, ":", c.apart+":"); got != want {
				t.Errorf("calls: %s\nwant: %s", got, want)
			}
		})
	}
}

// The other tasks of a lost batch were begun, whatever becomes of the first, whose id the row of the batch has.
func TestALostBatchIsKnownAlthoughItsFirstTaskIsGone(t *testing.T) {
	t.Parallel()
	for gone, c := range map[string]struct{ statement, job string }{
		"deleted":  {`DELETE FROM outbox.task WHERE task_id = 1`, "reap"},
		"canceled": {`INSERT INTO outbox.cancel (task_id) VALUES (1)`, "hear"},
	} {
		t.Run(gone, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Do(t, `INSERT INTO outbox.task (task_id, task_type) OVERRIDING SYSTEM VALUE SELECT n, 'BATCH'
				FROM generate_series(1, 4) n`)
			db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id, task_ids, first_id, last_id, xid)
				VALUES (1, gen_random_uuid(), $1, '{1, 2, 3}', 1, 3, '3'), (-2, gen_random_uuid(), $1, '{-2, -1}', -2, -1,
				'3')`, deadRelay)
			reg, calls := batches(4)
			l := newLoops(resting(t, db, reg, &records{}), "")
			defer l.Close()
			db.Do(t, c.statement)
			l.done(t, c.job)
			once(t, db, reg, relay.Config{Workers: 1})
			if got := strings.Join(calls(), ", "); got != "2:2 3:2 4:1" {
				t.Errorf("calls: %s, want 2:2 3:2 4:1", got)
			}
			l.done(t, "reap")
			db.wantRows(t, 0, `outbox.running`)
		})
	}
}
