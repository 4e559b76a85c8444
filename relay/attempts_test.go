package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/faultmap"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// A run that another living relay has in the journal may have lost its connection, which is no
// attempt: it does not count before it is known to have been one.
func TestAnAttemptDoesNotCountARunThatIsUndecided(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"TX", "BATCH"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.Enqueue(t, kind, 1)
			db.Do(t, dead(someUUID, "4 minutes")+`
				INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), '`+someUUID+`'
				FROM outbox.task`)
			var calls []int
			reg := handlers.New()
			each(reg, kind, func(_ context.Context, task *outbox.Task[payload]) error {
				calls = append(calls, task.Attempt)
				if len(calls) == 1 {
					return errors.New("failed")
				}
				return nil
			}, retrySoon())
			log := once(t, db, reg, relay.Config{Workers: 1})
			db.Do(t, `UPDATE outbox.running SET lost_connection = true`) // its relay notes it
			log += once(t, db, reg, relay.Config{Workers: 1})
			if fmt.Sprint(calls) != "[1 2]" || !strings.Contains(log, "an attempt failed") {
				t.Errorf("the handler saw the attempts %v, want 1 and 2:\n%s", calls, log)
			}
		})
	}
}

// A server answers 429 with Retry-After: 900 for six hours. The clock is moved by moving the due
// times of the tasks. The handlers have no options. Of runs that are throttled in a row the first
// one is worth a line in the log.
func TestARateLimitOfSixHoursUsesNoAttempt(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	var up atomic.Bool
	var attempts atomic.Int64                             // the highest
	types := []string{"tx", "group", "batch", "complete"} // each named as its kind
	for _, kind := range types {
		registerKind(reg, kind, kind, 10, func(_ context.Context, _ *sql.Tx, tasks []*outbox.Task[payload]) error {
			some, err := handlers.BatchResult{}, error(nil)
			for _, task := range tasks {
				attempts.Store(max(attempts.Load(), int64(task.Attempt)))
				if !up.Load() {
					err = fmt.Errorf("send: %w", handlers.RetryAfter(time.Hour, errors.New("429 Too Many Requests")))
					some[task.ID] = err
				}
			}
			if err != nil && kind == "batch" {
				return some
			}
			return err
		})
		db.Enqueue(t, kind, 2)
	}
	h, log := &heard{}, ""
	const rounds = 6
	for range rounds {
		log += once(t, db, reg, relay.Config{Workers: 2, Observers: h.observers()})
		if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE run_at < attempted_at + interval '1 hour'`); n != 0 {
			t.Fatalf("%d tasks come back sooner than asked for", n)
		}
		db.Do(t, `UPDATE outbox.task SET run_at = run_at - interval '70 minutes'`)
	}
	if n := strings.Count(log, `level=INFO msg="outbox: a task was throttled"`); n != 2*len(types) ||
		strings.Count(log, "a task was throttled") != 2*len(types)*rounds ||
		strings.Contains(log, "level=WARN") || strings.Contains(log, "level=ERROR") {
		t.Errorf("%d records at Info, want one of each task:\n%s", n, log)
	}
	db.wantRows(t, 0, `outbox.dead_task`)
	if n := attempts.Load(); n != 1 {
		t.Errorf("the handlers saw attempt %d, want 1", n)
	}
	db.wantText(t, fmt.Sprintf("0 1 throttled %d send: retry after 1h0m0s: 429 Too Many Requests t", rounds),
		`SELECT string_agg(DISTINCT concat_ws(' ', attempt, jsonb_array_length(timeline),
		timeline -> 0 ->> 'event', timeline -> 0 ->> 'times', last_error,
		(timeline -> 0 ->> 'error') = last_error), ', ') FROM outbox.task`)
	for _, name := range types {
		if got := h.outcomes()[name]; strings.Count(got, "throttled") != 2*rounds || len(strings.Fields(got)) != 2*rounds {
			t.Errorf("observers of %s heard of %s", name, got)
		}
	}
	up.Store(true)
	once(t, db, reg, relay.Config{Workers: 2})
	db.wantRows(t, 0, `outbox.task`)
	db.wantRows(t, 0, `outbox.dead_task`)
}

// After three days, or MaxElapsed, each wait is a failed attempt. MaxElapsed counts failures as well,
// also while relays are away. A redrive begins anew.
func TestARateLimitForEverEndsInTheDeadLetters(t *testing.T) {
	t.Parallel()
	db, reg := newDatabase(t), handlers.New()
	busy := func(*outbox.Task[payload]) error {
		return handlers.RetryAfter(10*time.Minute, errors.New("429 Too Many Requests"))
	}
	kinds["tx"](reg, "DAYS", busy, handlers.MaxAttempts(2))
	kinds["batch"](reg, "HOUR", busy, handlers.MaxElapsed(time.Hour))
	kinds["leased"](reg, "FAILS", func(*outbox.Task[payload]) error { return errAlways },
		handlers.MaxElapsed(90*time.Minute), handlers.Backoff(constant(10*time.Minute)))
	for _, name := range []string{"DAYS", "HOUR", "FAILS"} {
		db.Enqueue(t, name, 1)
	}
	want := func(when, want string) {
		t.Helper()
		once(t, db, reg, relay.Config{Workers: 1})
		db.want(t, want, when, `SELECT COALESCE(string_agg(concat_ws(' ', task_type, attempt, reason), ', '
			ORDER BY task_type), '') FROM (SELECT task_type, attempt, NULL AS reason FROM outbox.task
			UNION ALL SELECT task_type, attempt, reason FROM outbox.dead_task) AS t`)
	}
	want("at first", "DAYS 0, FAILS 1, HOUR 0")
	for _, step := range []struct{ passes, want string }{
		{"45 minutes", "DAYS 0, FAILS 2, HOUR 0"},
		{"20 minutes", "DAYS 0, FAILS 3, HOUR 1 handler"},
		{"70 hours", "DAYS 0, FAILS 4 handler, HOUR 1 handler"},
		{"1 hour", "DAYS 1, FAILS 4 handler, HOUR 1 handler"},
		{"1 hour", "DAYS 2 attempts, FAILS 4 handler, HOUR 1 handler"},
	} {
		db.Do(t, `UPDATE outbox.task SET run_at = now(), timeline = jsonb_set(timeline, '{0,at}',
			to_jsonb((timeline -> 0 ->> 'at')::timestamptz - $1::interval))`, step.passes)
		want("after "+step.passes, step.want)
	}
	_, err := relaytest.Admin(t, db.DB).Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
	must(err)
	want("after a redrive", "DAYS 0, FAILS 1, HOUR 0")
}

// raised is where a statement fails, with the code of its task's row in planned: in the handler and in a
// trigger that the handler's write has deferred, each time, as a group may run it twice until it counts;
// and once at the relay's own end of the run.
const raisedSQL = `
CREATE TABLE planned (task_id bigint, place text, code text, counts bool);
CREATE FUNCTION raise_planned(place text, of_task bigint) RETURNS void LANGUAGE plpgsql SET search_path = public AS $$
DECLARE
  p planned;
BEGIN
  SELECT * INTO p FROM planned WHERE planned.task_id = of_task AND planned.place = raise_planned.place;
  IF FOUND AND (place <> 'own' OR nextval('once_' || of_task) = 1) THEN
    RAISE EXCEPTION 'planned' USING ERRCODE = p.code;
  END IF;
END $$;
CREATE FUNCTION raise_late() RETURNS trigger LANGUAGE plpgsql SET search_path = public AS $$
BEGIN PERFORM raise_planned(TG_ARGV[0], CASE TG_OP
WHEN 'DELETE' THEN OLD.task_id ELSE NEW.task_id END); RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END; END $$;
CREATE CONSTRAINT TRIGGER late AFTER INSERT ON effect DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
EXECUTE FUNCTION raise_late('deferred');
CREATE TRIGGER own BEFORE DELETE ON outbox.running FOR EACH ROW EXECUTE FUNCTION raise_late('own')`

// stateError is an error of PostgreSQL's.
type stateError string

func (s stateError) Error() string    { return string(s) }
func (s stateError) SQLState() string { return string(s) }

var sqlstate = regexp.MustCompile(`\b[0-9A-Z]{5}\b|\b[0-9A-Z]{2}\b`)

// I6: of each SQLSTATE the attempt counts as docs/faults.md says, by the statement that failed.
func TestAnAttemptCountsByTheStatementThatFailed(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, raisedSQL)
	for _, row := range faultmap.Table(t, "PostgreSQL") {
		if strings.HasPrefix(row["SQLSTATE"], "none") {
			continue
		}
		codes := sqlstate.FindAllString(row["SQLSTATE"], -1)
		if len(codes) > 10 { // of those that are alike
			codes = []string{"23505", "P0001"}
		}
		for _, code := range codes {
			if len(code) == 2 {
				code += "ZZZ"
			}
			for _, place := range []string{"handler", "deferred", "own"} {
				counts := strings.HasPrefix(row["counts, from the handler"], "yes")
				if place == "own" {
					counts = strings.HasPrefix(row["counts, from the relay"], "yes")
				}
				if place == "deferred" && pgerr.Lost(stateError(code)) {
					continue // no statement of an app says that and goes on
				}
				var timeout any // the handler's
				if place == "handler" && code == "40P01" {
					timeout = 1000 // until which the victim of a deadlock is repeated, with GroupCommit
				}
				id := db.Int(t, `WITH t AS (INSERT INTO outbox.task (task_type, payload, state, run_at, timeout_ms)
					VALUES ('TX', '{}', 'scheduled', now() + interval '1 hour', $4) RETURNING task_id)
					INSERT INTO planned SELECT task_id, $1, $2, $3 FROM t RETURNING task_id`, place, code, counts, timeout)
				db.Do(t, fmt.Sprintf(`CREATE SEQUENCE once_%d`, id))
			}
		}
	}
	reg := handlers.New()
	relaytest.Register(reg, "tx", "TX", 1, func(ctx context.Context, tx *sql.Tx,
		tasks []*outbox.Task[payload]) error {
		if _, err := tx.ExecContext(ctx, `SELECT raise_planned('handler', $1)`, tasks[0].ID); err != nil {
			return err
		}
		return effect(ctx, tx, tasks[0].ID, tasks[0].Attempt)
	}, handlers.MaxAttempts(1), retrySoon())
	run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	db.Do(t, `SELECT outbox.run_task_now(task_id) FROM planned`)
	db.Emptied(t, time.Minute)
	db.want(t, "", "not as docs/faults.md says",
		`SELECT string_agg(code || ' in the ' || place || ' counts ' || NOT counts, ', ')
		FROM planned p WHERE counts <> EXISTS (SELECT FROM outbox.dead_task d WHERE d.task_id = p.task_id)`)
	db.Do(t, `DELETE FROM outbox.dead_task`)
}

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
		var all []outbox.TaskSpec
		for i, d := range []time.Duration{0, 10 * time.Second, time.Hour} {
			for name := range types {
				all = append(all, outbox.NewTaskType[payload](name).New(payload{N: i}, outbox.Timeout(d)))
			}
		}
		relaytest.EnqueueAll(db.DB, all...)
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

// The result of a Leased task is tried again and again. The log and Health say so, though other results
// of the type are recorded.
func TestATypeWithAResultThatIsRefusedIsNamed(t *testing.T) {
	t.Parallel()
	levels := map[string]string{"42501": "level=ERROR", "55P03": "level=WARN"}
	together(t, levels, func(t *testing.T, code, level string) {
		db := newDatabase(t)
		db.keep(t, code, "INSERT ON outbox.dead_task", "true")
		r := run(t, db, leased(func(_ context.Context, task *outbox.Task[payload]) error {
			if task.Payload.N == 0 {
				return handlers.Dead(errAlways)
			}
			return nil
		}), relay.Config{Workers: 4, PollInterval: 50 * time.Millisecond})
		db.Do(t, `INSERT INTO outbox.task (task_type, payload) VALUES ('LEASED', '{"N": 0}')`)
		unhealthy(t, r, relay.ErrTypeFails, code)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'LEASED', '{"N": 1}' FROM generate_series(1, 20)`)
		db.becomes(t, 20*time.Second, 1, "the others are done", `SELECT count(*) FROM outbox.task`)
		if err := r.Health(); !errors.Is(err, relay.ErrTypeFails) || !strings.Contains(err.Error(), code) {
			t.Errorf("Health: %v; want it to name the type and %s", err, code)
		}
		r.Log.Want(t, 1, level+` msg="outbox: tasks of this type cannot be claimed or recorded" task_type=LEASED`)
		db.heals(t, r, `DROP FUNCTION keep CASCADE`)
		db.want(t, 1, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE attempt = 1`)
	})
}

// RunOnce does not wait for ever for a result that is refused.
func TestRunOnceReturnsWhyAResultIsRefused(t *testing.T) {
	t.Parallel()
	needs.CI(t) // it waits for the drain, of 10 s
	db := newDatabase(t)
	db.keep(t, "42501", "INSERT ON outbox.dead_task", "true")
	db.Enqueue(t, "LEASED", 1)
	r, err := relay.New(db.DB, leased(func(context.Context, *outbox.Task[payload]) error {
		return handlers.Dead(errAlways)
	}), relay.Config{DrainTimeout: time.Millisecond})
	must(err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := r.RunOnce(ctx); err == nil || !strings.Contains(err.Error(), "kept") || ctx.Err() != nil {
		t.Errorf("RunOnce: %v, with its context %v; want the trigger's error before the end of that", err, ctx.Err())
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

// Where the failure of a Tx handler cannot be recorded, the log has it, and why.
func TestAFailureThatCannotBeRecordedIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.keep(t, "57014", "INSERT ON outbox.dead_task", "true")
	reg := handlers.New()
	relaytest.Register(reg, "tx", "IT", 1, func(context.Context, *sql.Tx, []*outbox.Task[payload]) error {
		return handlers.Dead(errAlways)
	})
	db.Enqueue(t, "IT", 1)
	r := run(t, db, reg, relay.Config{Workers: 1, PollInterval: 50 * time.Millisecond})
	eventually(t, 20*time.Second, "the log says so", func() bool {
		return r.Log.Count(`cannot be recorded; the task runs again" task_type=IT task_id=1 because=`) > 0 &&
			r.Log.Count("kept") > 0 && r.Log.Count(` error="it always fails"`) > 0 // each driver has a text of its own
	})
	db.Do(t, `DROP FUNCTION keep CASCADE`)
	db.Emptied(t, 30*time.Second)
	db.want(t, 1, "dead letters", `SELECT count(*) FROM outbox.dead_task WHERE last_error = $1`, errAlways.Error())
}

// Where a handler ends the transaction that removes its task and then fails, and its dead letter is refused,
// the log alone has the task.
func TestATaskWhoseDeadLetterIsRefusedAfterTheHandlersCommitIsOnlyInTheLog(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.keep(t, "23514", "INSERT ON outbox.dead_task", "true")
	reg := handlers.New()
	handlers.Tx(reg, typeTx, func(_ context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
		return errors.Join(tx.Commit(), errAlways)
	})
	handlers.Leased(reg, typeLeased, func(ctx context.Context, task *outbox.Task[payload]) error {
		return task.Complete(ctx, func(tx *sql.Tx) error { return errors.Join(tx.Commit(), errAlways) })
	})
	db.Enqueue(t, "TX", 1)
	db.Enqueue(t, "LEASED", 1)
	r := run(t, db, reg, relay.Config{PollInterval: 50 * time.Millisecond})
	for _, task := range []string{"task_type=TX tasks=[1]", "task_type=LEASED tasks=[2]"} {
		eventually(t, 20*time.Second, "the log has "+task, func() bool {
			return r.Log.Count(`the tasks are only in this record" `+task+` error=`) == 1
		})
	}
	db.Emptied(t, 30*time.Second)
	db.wantRows(t, 0, `outbox.dead_task`)
}
