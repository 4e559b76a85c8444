package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// registering registers a handler of one kind, which writes an effect for the task first where it
// has a transaction.
type registering func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option)

func ofKind(kind string) registering {
	return func(reg *handlers.Registry, name string, f func(*outbox.Task[payload]) error, opts ...handlers.Option) {
		relaytest.Register(reg, kind, name, 10, func(ctx context.Context, tx *sql.Tx, tasks []*outbox.Task[payload]) error {
			if tx != nil {
				if err := batchEffect(ctx, tx, tasks); err != nil {
					return err
				}
			}
			return f(tasks[0])
		}, opts...)
	}
}

// kinds register the same handler as each kind.
var kinds = map[string]registering{"tx": ofKind("tx"), "batch": ofKind("batch"), "leased": ofKind("leased")}

func eachKind(t *testing.T, test func(t *testing.T, kind string, db *database)) {
	t.Parallel()
	for kind := range kinds {
		t.Run(kind, func(t *testing.T) { test(t, kind, newDatabase(t)) })
	}
}

// becameSQL is what became of a task of a type. Those that are done are in the history as they were
// enqueued, for an hour.
const becameSQL = `SELECT CASE WHEN t.task_id IS NOT NULL THEN t.attempt || ' ' || t.state || ' ' ||
	round(extract(epoch FROM t.run_at - t.attempted_at) / 60) || ' min' || COALESCE(': ' || t.last_error, '')
	WHEN d.task_id IS NOT NULL THEN d.attempt || ' dead by ' || reason || ': ' || d.last_error
	WHEN h.task_id IS NOT NULL THEN h.attempt || ' done' || COALESCE(': ' || h.last_error, '') ELSE 'gone' END
	FROM before b LEFT JOIN outbox.task t USING (task_id) LEFT JOIN outbox.dead_task d USING (task_id)
	LEFT JOIN outbox.done_task h ON h.task_id = b.task_id AND h.headers IS NOT DISTINCT FROM b.headers
	AND (h.task_type, h.priority, h.payload, h.created_at, h.run_at) =
	    (b.task_type, b.priority, b.payload, b.created_at, b.run_at)
	AND h.keep_until - h.finished_at BETWEEN interval '59 minutes' AND interval '61 minutes'
	AND h.attempted_at >= h.created_at AND h.finished_at BETWEEN h.attempted_at AND clock_timestamp()
	WHERE b.task_type = $1`

func TestAResultSaysWhatBecomesOfTheTaskHoweverItIsWrapped(t *testing.T) {
	boom := errors.New(`it's "\boom"`)
	results := map[string]struct {
		result error
		want   string // before the result's text
	}{
		"nil":           {nil, "1 done"},
		"no_history":    {nil, "gone"},
		"Snooze":        {handlers.Snooze(5 * time.Minute), "0 scheduled 5 min"},
		"SnoozeWith":    {handlers.SnoozeWith(5*time.Minute, boom), "0 scheduled 5 min: "},
		"error":         {boom, "1 scheduled 60 min: "},
		"RetryAfter":    {handlers.RetryAfter(7*time.Minute, boom), "0 scheduled 7 min: "},
		"Discard":       {handlers.Discard(boom), "1 done: "},
		"Dead":          {handlers.Dead(boom), "1 dead by handler: "},
		"Dead_of_nil":   {handlers.Dead(nil), "1 dead by handler: "},
		"After_of_nil":  {handlers.RetryAfter(7*time.Minute, nil), "0 scheduled 7 min: "},
		"After_no_time": {handlers.RetryAfter(-time.Minute, nil), "1 scheduled 60 min: "},
		"After_a_year":  {handlers.RetryAfter(8760*time.Hour, boom), "0 scheduled 4320 min: "},
	}
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, wants := handlers.New(), map[string]string{}
		for name, c := range results {
			opts := []handlers.Option{handlers.Backoff(constant(time.Hour)), handlers.NoJitter()}
			if name != "no_history" {
				opts = append(opts, handlers.Retention(time.Hour))
			}
			all := map[string]error{"plain": c.result}
			if c.result != nil {
				all["wrapped"] = fmt.Errorf("while testing: %w", c.result)
				all["joined"] = errors.Join(errors.New("also"), c.result)
			}
			for wrapped, result := range all {
				key := name + " " + wrapped
				if wants[key] = c.want; strings.HasSuffix(c.want, ": ") {
					wants[key] += result.Error()
				}
				if name == "After_a_year" {
					wants[key] += " (the wait is cut to 72h0m0s)"
				}
				kinds[kind](reg, key, func(*outbox.Task[payload]) error { return result }, opts...)
				db.Do(t, `INSERT INTO outbox.task (task_type, priority, payload, headers)
					VALUES ($1, -4, '{"N": 1, "text": "it''s \\ \"so\""}',
					CASE WHEN $1 NOT LIKE '%plain' THEN '{"trace": "x''\\y"}'::jsonb END)`, key)
			}
		}
		db.Do(t, `CREATE TABLE before AS SELECT * FROM outbox.task; CREATE TABLE said (query text);
			CREATE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.said SELECT current_query();
			RETURN NULL; END $$;
			CREATE TRIGGER say AFTER INSERT ON outbox.done_task FOR EACH STATEMENT EXECUTE FUNCTION say()`)
		once(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.wantText(t, "3 discarded, 1 done", `SELECT string_agg(n || ' ' || outcome, ', ' ORDER BY outcome)
			FROM (SELECT outcome, count(*) AS n FROM outbox.done_task GROUP BY outcome) h`)
		if said := db.Text(t, `SELECT string_agg(query, E'\n') FROM said`); said == "" || strings.Contains(said, `"N"`) {
			t.Errorf("payloads stand in the text of statements: %s", said)
		}
		for key, want := range wants {
			db.want(t, want, key, becameSQL, key)
			if kind != "leased" { // that handler writes no effect
				done := strings.HasPrefix(want, "1 done") || want == "gone"
				db.want(t, map[bool]int{true: 1}[done], "effects of "+key, `SELECT count(*) FROM effect
					JOIN before USING (task_id) WHERE task_type = $1`, key)
			}
		}
	})
}

// I5.
func TestAHandlerSeesItsAttemptAndTheLastErrorAndTheRowsMaxAttemptsWin(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg := handlers.New()
		seen := map[string]*noted[string]{}
		for name, limit := range map[string]struct{ handler, row int }{"handlers": {3, 0}, "more": {1, 3}, "fewer": {5, 3}} {
			s := &noted[string]{}
			seen[name] = s
			kinds[kind](reg, name, func(task *outbox.Task[payload]) error {
				s.add(fmt.Sprintf("%d/%d %s", task.Attempt, task.MaxAttempts, task.LastError))
				return fmt.Errorf("failure %d", task.Attempt)
			}, handlers.MaxAttempts(limit.handler), retrySoon())
			db.Do(t, `INSERT INTO outbox.task (task_type, max_attempts) VALUES ($1, NULLIF($2::int, 0))`, name, limit.row)
		}
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		for name, s := range seen {
			if want := []string{"1/3 ", "2/3 failure 1", "3/3 failure 2"}; !slices.Equal(s.list(), want) {
				t.Errorf("%s: the handler saw %q, want %q", name, s.list(), want)
			}
		}
		db.want(t, 3, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE attempt = 3 AND max_attempts = 3
			AND last_error = 'failure 3' AND reason = 'attempts'`)
		db.wantRows(t, 0, `effect`)
	})
}

// What a handler sees of a task does not change while the task is retried, dies, is redriven and runs
// again. Tools know it by the one key that it has all the time.
func TestRetriesAndDeadLettersKeepWhatTheTaskIs(t *testing.T) {
	t.Parallel()
	const lines = "one\ttwo\nthree \\n" // the separators of a claim's text
	const exact = `SELECT concat(payload, headers, timeout_ms) FROM `
	db, reg := newDatabase(t), handlers.New()
	client := relaytest.Admin(t, db.DB)
	types := []string{"tx", "group", "batch", "leased", "complete"} // each named as its kind
	seen, before, keys := map[string]*noted[outbox.Task[payload]]{}, map[string]string{}, map[string]bool{}
	for _, kind := range types {
		s := &noted[outbox.Task[payload]]{}
		seen[kind] = s
		registerKind(reg, kind, kind, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			s.add(*tasks[0])
			switch {
			case tasks[0].Iterations > 0:
				return nil
			case len(s.list()) > 3:
				return handlers.RunAgain(0)
			}
			return errors.New(lines)
		}, handlers.Backoff(constant(time.Hour)), handlers.NoJitter(), handlers.Retention(time.Hour))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, created_at, max_attempts, timeout_ms)
			VALUES ($1, '{"N": 7, "exact": [1.50, 9007199254740993, 1e400], "text": "é\"\\ \u2028 🎉"}',
			'{"trace": "a\"é", "n": 1.50}', -5, '2001-02-03 04:05:06.789012+00', 2, 4321)`, kind)
		before[kind] = db.Text(t, exact+`outbox.task WHERE task_type = $1`, kind)
	}
	round := func(when, place string) {
		once(t, db, reg, relay.Config{})
		db.Do(t, `UPDATE outbox.task SET run_at = now()`)
		for _, kind := range types {
			db.want(t, before[kind], kind+when, exact+place+` AND task_type = $1`, kind)
		}
	}
	round(" after a failure", `outbox.task WHERE attempt = 1`)
	round(" as a dead letter", `outbox.dead_task WHERE attempt = 2`)
	got, err := client.Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
	if err != nil || len(got.IDs) != len(types) {
		t.Fatalf("redriven: %v, %v", got, err)
	}
	round(" redriven", `outbox.task WHERE attempt = 1 AND attempted_at BETWEEN now() - interval '1 hour' AND now()`)
	eventually(t, time.Minute, "all tasks are done", func() bool {
		once(t, db, reg, relay.Config{})
		return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0
	})
	created := time.Date(2001, 2, 3, 4, 5, 6, 789012000, time.UTC)
	for _, kind := range types {
		tasks := seen[kind].list()
		key := tasks[0].Key()
		if len(tasks) != 5 || tasks[1].LastError != lines || keys[key] {
			t.Errorf("the handler was called with %+v", tasks)
		}
		keys[key] = true
		for _, task := range tasks {
			if task.ID != tasks[0].ID || task.Key() != key || task.Payload.N != 7 || task.Headers["trace"] != `a"é` ||
				task.Priority != -5 || !task.CreatedAt.Equal(created) || task.Type != kind {
				t.Errorf("the handler saw %+v", task)
			}
		}
		if found, err := client.TaskByKey(t.Context(), key); err != nil || found.ID != tasks[0].ID || found.Key != key {
			t.Errorf("%s: the key %s is of %+v, %v; want task %d", kind, key, found, err, tasks[0].ID)
		}
	}
	db.Do(t, `UPDATE outbox.origin SET database_id = gen_random_uuid()`)
	if _, err := client.TaskByKey(t.Context(), seen["tx"].list()[0].Key()); !errors.Is(err, admin.ErrNotFound) {
		t.Errorf("a task of another database is found: %v", err)
	}
}

// An iteration that fails is retried as itself; the next one begins as attempt 1, with the payload
// that the handler gave. The history has the task once, when its last iteration is done.
func TestATaskThatRunsAgainKeepsItsIDAndCountsIterations(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		reg, seen := handlers.New(), &noted[outbox.Task[payload]]{}
		kinds[kind](reg, "AGAIN", func(task *outbox.Task[payload]) error {
			seen.add(*task)
			db.wantRows(t, 0, `outbox.done_task`)
			switch {
			case task.Iterations == 1 && task.Attempt < 3:
				return errors.New("boom")
			case task.Iterations == 0:
				return fmt.Errorf("wrapped: %w", handlers.RunAgain(time.Millisecond))
			case task.Iterations < 3:
				return handlers.RunAgainWith(task, time.Millisecond, payload{N: task.Payload.N + 10})
			}
			return nil
		}, handlers.MaxAttempts(3), handlers.Backoff(constant(time.Millisecond)), handlers.Retention(time.Hour))
		db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, priority, max_attempts, ordering_key, unique_key)
			VALUES ('AGAIN', '{"n": 1}', '{"k": "v"}', 7, 3, 'o', 'k')`)
		run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
		db.Emptied(t, 30*time.Second)
		want := []string{"0/1 n=1 ", "1/1 n=1 ", "1/2 n=1 boom", "1/3 n=1 boom", "2/1 n=11 ", "3/1 n=21 "}
		var got []string
		tasks := seen.list()
		for _, task := range tasks {
			got = append(got, fmt.Sprintf("%d/%d n=%d %s", task.Iterations, task.Attempt, task.Payload.N, task.LastError))
			if task.ID != tasks[0].ID || !task.CreatedAt.Equal(tasks[0].CreatedAt) || task.Priority != 7 ||
				task.Headers["k"] != "v" || task.MaxAttempts != 3 {
				t.Errorf("the handler saw %+v after %+v", task, tasks[0])
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("the handler saw %q, want %q", got, want)
		}
		db.wantText(t, `1 {"N": 21} 1`, `SELECT string_agg(concat_ws(' ', task_id, payload, attempt), ', ')
			FROM outbox.done_task`)
		if kind != "leased" { // each iteration that succeeded left its effect
			db.wantRows(t, 4, `effect`)
		}
	})
}

func TestABadPayloadForTheNextIterationIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	db, reg, wants := newDatabase(t), handlers.New(), map[string]string{}
	for name, c := range map[string]struct {
		result func(*outbox.Task[any]) error
		want   string
	}{
		"no JSON": {func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](task, 0, math.Inf(1))
		}, "outbox: invalid payload"},
		"of another task": {func(task *outbox.Task[any]) error {
			return handlers.RunAgainWith[any](&outbox.Task[any]{ID: task.ID + 1000, Type: task.Type}, 0, 1)
		}, "its payload is for task 10"},
	} {
		for _, kind := range []string{"tx", "batch", "complete"} {
			taskType := kind + " " + name
			relaytest.Register(reg, kind, taskType, 3, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[any]) error {
				if kind == "batch" {
					return handlers.BatchResult{tasks[0].ID: c.result(tasks[0])}
				}
				return c.result(tasks[0])
			}, handlers.Backoff(constant(time.Hour)))
			db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, taskType)
			wants[taskType] = "1 0 {} handlers: RunAgainWith: " + c.want
		}
	}
	once(t, db, reg, relay.Config{})
	for name, want := range wants {
		got := db.Text(t, `SELECT attempt || ' ' || iterations || ' ' || payload || ' ' || last_error FROM outbox.task
			WHERE task_type = $1`, name)
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: the task is %.200q, want %q", name, got, want)
		}
	}
}

// A run of an earlier iteration that fails late, when its connection is long gone, changes nothing
// of the present one.
func TestALateFailureOfAnEarlierIterationLeavesTheNextOneAlone(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	side := open(t, db.URL)
	first := make(chan struct{}, 1)
	first <- struct{}{}
	late := make(chan struct{})
	registerTx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		select {
		case <-first:
		default:
			return handlers.RunAgain(time.Hour) // with the same payload, so only the iteration tells them apart
		}
		defer close(late)
		var pid int
		if err := tx.QueryRowContext(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
			return err
		}
		side.Int(t, `SELECT count(pg_terminate_backend($1))`, pid)
		side.becomes(t, 20*time.Second, 1, "another run has ended the iteration",
			`SELECT count(*) FROM outbox.task WHERE iterations = 1`)
		return context.DeadlineExceeded
	})
	db.Enqueue(t, "TX", 1)
	one := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	other := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	<-late
	one.Stop()
	other.Stop()
	db.wantText(t, `1 0`, `SELECT string_agg(iterations || ' ' || attempt, ', ') FROM outbox.task`)
}

// A task that is replaced begins anew: with all attempts of the new enqueue, whatever was counted
// against the payload before.
func TestAReplacedTaskBeginsAnew(t *testing.T) {
	eachKind(t, func(t *testing.T, kind string, db *database) {
		var calls []string
		reg := handlers.New()
		each(reg, kind, func(_ context.Context, task *outbox.Task[payload]) error {
			calls = append(calls, fmt.Sprintf("%d: %d/%d %d %q", task.Payload.N, task.Attempt, task.MaxAttempts,
				len(task.FailedAttempts), task.LastError))
			return errors.New("failed")
		}, handlers.MaxAttempts(3), handlers.Backoff(constant(time.Hour)))
		again := func() {
			db.Do(t, `UPDATE outbox.task SET state = 'ready', run_at = now() WHERE state = 'scheduled'`)
			once(t, db, reg, relay.Config{Workers: 1})
		}
		first := db.keyed(t, kind, 1, outbox.Unique("k"), outbox.MaxAttempts(2), outbox.Timeout(time.Minute))
		again()
		db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), gen_random_uuid()
				FROM outbox.task`)
		for range 2 {
			got := db.keyed(t, kind, 2, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictReplace))
			if got.ID != first.ID || got.Outcome != outbox.OutcomeUpdated {
				t.Fatalf("got %v, want task %d updated", got, first.ID)
			}
		}
		db.wantText(t, "2 null 0 null null", `SELECT format('%s %s %s %s %s', payload ->> 'N', coalesce(max_attempts::text,
				'null'), attempt, coalesce(last_error, 'null'), coalesce(timeout_ms::text, 'null')) FROM outbox.task`)
		for range 3 {
			again()
		}
		want := `[1: 1/2 0 "" 2: 1/3 0 "" 2: 2/3 1 "failed" 2: 3/3 2 "failed"]`
		if got := fmt.Sprint(calls); got != want {
			t.Errorf("got the calls %s\nwant %s", got, want)
		}
		db.wantText(t, "failed replaced failed failed failed", `SELECT string_agg(e ->> 'event', ' ' ORDER BY i)
				FROM outbox.dead_task, jsonb_array_elements(timeline) WITH ORDINALITY AS a (e, i)`)
		db.wantRows(t, 0, `outbox.running`)
	})
}

// A task whose payload was replaced while the claim of a run that failed was gone keeps the new one.
func TestAFailureOutsideOfItsClaimLeavesAReplacedPayload(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.keyed(t, "TX", 1, outbox.Unique("k"))
	var calls []int
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(_ context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		calls = append(calls, task.Payload.N)
		if task.Payload.N == 1 {
			if err := tx.Rollback(); err != nil {
				return err
			}
			db.keyed(t, "TX", 2, outbox.Unique("k"), outbox.OnConflict(outbox.ConflictReplace))
			return errors.New("failed")
		}
		return nil
	})
	once(t, db, reg, relay.Config{Workers: 1})
	once(t, db, reg, relay.Config{Workers: 1})
	if fmt.Sprint(calls) != "[1 2]" {
		t.Errorf("the handler got %v, want 1 and then 2", calls)
	}
}

// Whatever ends the claim between the handler and the commit: the history says done of what is done
// only. The payloads of the batch are too much for one statement.
func TestTheHistoryIsWrittenWithTheClaim(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	handlers.Batch(reg, typeBatch, 200, batchEffect, handlers.Retention(time.Hour), retrySoon())
	db.Do(t, `CREATE SEQUENCE crashes;
		CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
			IF nextval('public.crashes') <= 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(1); END IF;
			RETURN NULL; END $$;
		CREATE TRIGGER crash AFTER INSERT ON outbox.done_task FOR EACH ROW EXECUTE FUNCTION crash()`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload)
		SELECT 'BATCH', jsonb_build_object('text', repeat('it''s', 50000)) FROM generate_series(1, 60)`)
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Emptied(t, 60*time.Second)
	db.OnceEach(t, 60)
	db.wantRows(t, 60, `outbox.done_task WHERE payload->>'text' = repeat('it''s', 50000)`)
}

// Nothing of what ends a claim stays when the handler has ended the claim's transaction. Until its
// failure is recorded, a run stays in the journal, so that the death of the process in between is an
// attempt.
func TestAHandlerThatRollsItsClaimBackStaysInTheJournalUntilThatIsRecorded(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		rollBack := func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
			_, err := tx.ExecContext(ctx, "ROLLBACK")
			return err
		}
		reg := handlers.New()
		later := []handlers.Option{handlers.Backoff(constant(time.Hour)), handlers.NoJitter()}
		registerTx(reg, typeTx, rollBack, later...)
		registerTx(reg, outbox.NewTaskType[payload]("KEPT"), rollBack, append(later, handlers.Retention(time.Hour))...)
		db.Do(t, `CREATE TABLE gone (task_id bigint, xid xid8);
			CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO public.gone VALUES (OLD.task_id, pg_current_xact_id()); RETURN NULL; END $$;
			CREATE TRIGGER note AFTER DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION note()`)
		db.Enqueue(t, "TX", 1)
		db.Enqueue(t, "KEPT", 1)
		once(t, db, reg, relay.Config{})
		db.wantRows(t, 2, `outbox.task t JOIN gone g ON g.task_id = t.task_id AND g.xid::xid = t.xmin
			WHERE t.attempt = 1 AND t.state = 'scheduled'`)
		db.wantRows(t, 0, `outbox.done_task`)
	})
}
