package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/relay"
)

// I4: another relay has taken the task over and runs it.
func TestCompleteAfterTheLossOfTheLease(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		got := make(chan error, 1)
		r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			db.Do(t, `UPDATE outbox.task SET lease_token = $1`, someUUID)
			err := task.Complete(context.WithoutCancel(ctx),
				func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 1) })
			got <- err
			return err
		}), fastPoll)
		db.Enqueue(t, "LEASED", 1)
		if err := <-got; !errors.Is(err, outbox.ErrLeaseLost) {
			t.Errorf("Complete returned %v, want ErrLeaseLost", err)
		}
		r.Stop()
		db.wantRows(t, 1, `outbox.task WHERE lease_token = $1`, someUUID)
		db.wantRows(t, 0, `effect`)
	})
}

// In one transaction: whoever sees the effect does not see the task any more.
func TestCompleteCommitsItsWritesWithTheRemovalOfTheTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `CREATE TABLE removal (task_id bigint, tx xid8);
		ALTER TABLE effect ADD COLUMN tx xid8 DEFAULT pg_current_xact_id();
		CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removal
		VALUES (OLD.task_id, pg_current_xact_id()); RETURN NULL; END $$;
		CREATE TRIGGER removed AFTER DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION removed()`)
	db.Enqueue(t, "LEASED", 1)
	log := once(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		first := leasedEffect(ctx, task)
		second := task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 2) })
		if first != nil || !errors.Is(second, outbox.ErrLeaseLost) {
			t.Errorf("Complete returned %v, and then %v, want ErrLeaseLost", first, second)
		}
		return errors.New("what a handler returns after it completed its task does not matter")
	}), relay.Config{})
	db.wantRows(t, 1, `effect e JOIN removal r ON r.tx = e.tx AND r.task_id = e.task_id`)
	db.wantRows(t, 0, `outbox.task`)
	db.OnceEach(t, 1)
	if strings.Contains(log, "a lease was lost") {
		t.Errorf("the relay tried to end a lease again that had ended:\n%s", log)
	}
}

// After an error nothing of its function is kept, the task is still leased and the handler's result
// decides. What its function committed stands, and then the handler's result has no effect.
func TestTheHandlersResultDecidesOnlyWhileCompleteHasNotEndedTheTask(t *testing.T) {
	t.Parallel()
	errFn, errLater := errors.New("no"), errors.New("later")
	ends := func(statement string, result error) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.Exec(statement)
			return errors.Join(err, result)
		}
	}
	cases := map[string]struct {
		fn, then func(*sql.Tx) error // fn is nil: the task runs again; then is given to a second call
		result   error
		complete string // in the text of the first call's error; "" for nil
		want     string
	}{
		"nil":       {fn: ends(``, nil), result: errLater, want: "1 effects, kept"},
		"run again": {result: errLater, want: `1 effects, iteration 1 attempt 0 {"N": 7}`},
		"rollback, again": {fn: ends(`ROLLBACK AND CHAIN`, nil), then: ends(`SELECT 1`, nil),
			complete: "rolled its transaction back", want: "1 effects, kept"},
		"commit, error": {fn: ends(`COMMIT`, nil), result: errLater, want: "1 effects, done"},
		"commit and fail, nil": {fn: ends(`COMMIT`, errFn), complete: "committed its transaction and then failed: no",
			want: "1 effects, dead: committed no"},
		"commit, run again": {fn: ends(`COMMIT`, handlers.RunAgain(time.Hour)), result: errLater,
			want: "1 effects, iteration 1 attempt 0 {}"},
		"error of fn, run again": {fn: ends(``, errFn), result: handlers.RunAgain(time.Hour), complete: "no",
			want: "0 effects, iteration 1 attempt 0 {}"},
		"discard, discard": {fn: ends(``, handlers.Discard(errFn)), result: handlers.Discard(errFn), complete: "no",
			want: "0 effects, kept"},
		"wait of nil": {fn: ends(``, handlers.RetryAfter(time.Hour, nil)), result: handlers.Dead(nil), complete: "retry after 1h",
			want: "0 effects, dead: handler handlers: Dead was given no error"},
		"ended context": {fn: func(*sql.Tx) error { panic("it is called") }, result: errLater,
			complete: "the context's own end", want: "0 effects, dead: attempts later"},
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		reg := handlers.New()
		for name, c := range cases {
			handlers.Leased(reg, outbox.NewTaskType[payload](name),
				func(ctx context.Context, task *outbox.Task[payload]) error {
					write := func(fn func(*sql.Tx) error) error {
						ctx, cancel := context.WithCancelCause(ctx)
						defer cancel(nil)
						if name == "ended context" {
							cancel(errors.New("the context's own end"))
						}
						return task.Complete(ctx, func(tx *sql.Tx) error {
							err := effect(ctx, tx, task.ID, task.Attempt)
							if fn == nil {
								return errors.Join(err, handlers.RunAgainWith(task, time.Hour, payload{N: 7}))
							}
							return errors.Join(err, fn(tx))
						})
					}
					if err := write(c.fn); (err == nil) != (c.complete == "") || err != nil &&
						!strings.Contains(err.Error(), c.complete) ||
						errors.Is(err, outbox.ErrLeaseLost) || errors.Is(err, outbox.ErrCommitUnknown) {
						t.Errorf("%s: Complete returned %v, want %q", name, err, c.complete)
					}
					if c.then != nil {
						if err := write(c.then); err != nil {
							t.Errorf("%s: the second Complete returned %v", name, err)
						}
					}
					return c.result
				}, handlers.MaxAttempts(1), handlers.Retention(time.Hour))
			db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, name)
		}
		db.Do(t, `CREATE TABLE ids AS SELECT task_id, task_type FROM outbox.task`)
		once(t, db, reg, relay.Config{})
		for name, c := range cases {
			got := db.Text(t, `SELECT count(e.*) || ' effects, ' || COALESCE('dead: ' || max(d.reason || ' ' || d.last_error),
				'iteration ' || max(t.iterations) || ' attempt ' || max(t.attempt) || ' ' || max(t.payload::text),
				max('kept' || left(h.task_type, 0)), 'done')
				FROM ids i LEFT JOIN effect e USING (task_id) LEFT JOIN outbox.dead_task d USING (task_id) LEFT
				JOIN outbox.task t USING (task_id)
				LEFT JOIN outbox.done_task h USING (task_id)
				WHERE i.task_type = $1`, name)
			if got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
	})
}
