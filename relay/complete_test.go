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
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/relay"
)

// completing runs one Leased task and returns its handler's error. A failed task waits for an hour, so
// that its state stays to be read.
func completing(t *testing.T, db *database, h func(ctx context.Context, task *outbox.Task[payload]) error) error {
	t.Helper()
	first := make(chan error, 1)
	r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
		err := h(ctx, task)
		select {
		case first <- err:
		default:
		}
		return err
	}, handlers.Backoff(constant(time.Hour))), relay.Config{PollInterval: 100 * time.Millisecond})
	db.Enqueue(t, "LEASED", 1)
	select {
	case err := <-first:
		t.Cleanup(func() {
			if r.Stop(); r.Log.Count("a lease was lost") > 0 {
				t.Errorf("the relay tried to end a lease again that had ended:\n%s", r.Log.Tail())
			}
		})
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the handler did not return")
		return nil
	}
}

func TestCompleteCommitsItsWritesWithTheRemovalOfTheTask(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	// In one transaction: whoever sees the effect does not see the task any more.
	db.Do(t, `CREATE TABLE removal (task_id bigint, tx xid8);
		ALTER TABLE effect ADD COLUMN tx xid8 DEFAULT pg_current_xact_id();
		CREATE FUNCTION removed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO removal VALUES (OLD.task_id, pg_current_xact_id()); RETURN NULL; END $$;
		CREATE TRIGGER removed AFTER DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION removed()`)
	var second error
	err := completing(t, db, func(ctx context.Context, task *outbox.Task[payload]) error {
		err := leasedEffect(ctx, task)
		second = task.Complete(ctx, func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 2) })
		return errors.Join(err, errors.New("what a handler returns after it completed its task does not matter"))
	})
	if err == nil || !errors.Is(second, outbox.ErrLeaseLost) {
		t.Errorf("the second Complete returned %v, want ErrLeaseLost", second)
	}
	if strings.Contains(err.Error(), "relay:") {
		t.Errorf("the first Complete returned %v", err)
	}
	db.wantRows(t, 1, `effect e JOIN removal r ON r.tx = e.tx AND r.task_id = e.task_id`)
	db.Emptied(t, 10*time.Second)
	db.OnceEach(t, 1)
}

func TestCompleteKeepsNothingWhenItsFunctionFails(t *testing.T) {
	t.Parallel()
	errFn := errors.New("no")
	ended := errors.New("the context's own end")
	for name, fn := range map[string]func(tx *sql.Tx) error{
		"error":     func(*sql.Tx) error { return errFn },
		"panic":     func(*sql.Tx) error { panic(errFn) },
		"SQL error": func(tx *sql.Tx) error { _, err := tx.Exec(`SELECT 1/0`); return errors.Join(errFn, err) },
		"rollback":  func(tx *sql.Tx) error { return tx.Rollback() },
		"hidden SQL error": func(tx *sql.Tx) error {
			_, _ = tx.Exec(`SELECT 1/0`)
			return nil
		},
		"ended context": func(*sql.Tx) error { t.Error("the function was called"); return nil },
		"rows left open": func(tx *sql.Tx) error {
			_, err := tx.Query(`SELECT generate_series(1, 10000)`) //nolint:sqlclosecheck // that is the point
			return err
		},
		"deferred constraint": func(tx *sql.Tx) error {
			_, err := tx.Exec(`INSERT INTO child VALUES (1)`)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := newDatabase(t)
			db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (id int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
			err := completing(t, db, func(ctx context.Context, task *outbox.Task[payload]) (err error) {
				defer func() {
					if p := recover(); p != nil {
						err = p.(error)
					}
				}()
				if name == "ended context" {
					var cancel context.CancelCauseFunc
					ctx, cancel = context.WithCancelCause(ctx)
					cancel(ended)
				}
				return task.Complete(ctx, func(tx *sql.Tx) error { return errors.Join(effect(ctx, tx, task.ID, task.Attempt), fn(tx)) })
			})
			if err == nil || errors.Is(err, outbox.ErrLeaseLost) || errors.Is(err, outbox.ErrCommitUnknown) {
				t.Errorf("Complete returned %v", err)
			}
			if want := map[string]error{"error": errFn, "SQL error": errFn, "ended context": ended}[name]; want != nil && !errors.Is(err, want) {
				t.Errorf("Complete returned %v, want %v", err, want)
			}
			db.wantRows(t, 0, `effect FULL JOIN child ON true`)
			eventually(t, 10*time.Second, "the failure is an attempt", func() bool { return db.taskState(t) == "scheduled 1" })
		})
	}
}

// I4: another relay has taken the task over and runs it.
func TestCompleteAfterTheLossOfTheLease(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		got := make(chan error, 1)
		r := run(t, db, leased(func(ctx context.Context, task *outbox.Task[payload]) error {
			db.Do(t, `UPDATE outbox.task SET lease_token = $1`, someUUID)
			err := task.Complete(context.WithoutCancel(ctx), func(tx *sql.Tx) error { return effect(ctx, tx, task.ID, 1) })
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

// After an error the task is still leased and the handler's result decides. What its function
// committed stands, and then the handler's result has no effect.
func TestTheHandlersResultDecidesOnlyWhileCompleteHasNotEndedTheTask(t *testing.T) {
	needs.Long(t)
	t.Parallel()
	errFn, errLater := errors.New("no"), errors.New("later")
	ends := func(statement string, result error) func(*sql.Tx) error {
		return func(tx *sql.Tx) error {
			_, err := tx.Exec(statement)
			return errors.Join(err, result)
		}
	}
	cases := map[string]struct {
		fn, then func(*sql.Tx) error // then is given to a second call
		result   error
		complete string // in the text of the first call's error; "" for nil
		want     string
	}{
		"rollback, nil":          {fn: ends(`ROLLBACK; BEGIN`, nil), complete: "rolled its transaction back", want: "0 effects, done"},
		"rollback, again":        {fn: ends(`ROLLBACK AND CHAIN`, nil), then: ends(`SELECT 1`, nil), complete: "rolled its transaction back", want: "1 effects, done"},
		"commit, error":          {fn: ends(`COMMIT`, nil), result: errLater, want: "1 effects, done"},
		"commit and fail, nil":   {fn: ends(`COMMIT`, errFn), complete: "committed its transaction and then failed: no", want: "1 effects, dead: committed no"},
		"commit, run again":      {fn: ends(`COMMIT`, handlers.RunAgain(time.Hour)), result: errLater, want: "1 effects, iteration 1 attempt 0"},
		"error of fn, run again": {fn: func(*sql.Tx) error { return errFn }, result: handlers.RunAgain(time.Hour), complete: "no", want: "0 effects, iteration 1 attempt 0"},
	}
	onEachDriver(t, func(t *testing.T, db *database) {
		reg := handlers.New()
		for name, c := range cases {
			handlers.Leased(reg, outbox.NewTaskType[payload](name), func(ctx context.Context, task *outbox.Task[payload]) error {
				write := func(fn func(*sql.Tx) error) error {
					return task.Complete(ctx, func(tx *sql.Tx) error {
						return errors.Join(effect(ctx, tx, task.ID, task.Attempt), fn(tx))
					})
				}
				if err := write(c.fn); (err == nil) != (c.complete == "") || err != nil && !strings.Contains(err.Error(), c.complete) {
					t.Errorf("%s: Complete returned %v, want %q", name, err, c.complete)
				}
				if c.then != nil {
					if err := write(c.then); err != nil {
						t.Errorf("%s: the second Complete returned %v", name, err)
					}
				}
				return c.result
			}, handlers.MaxAttempts(1))
			db.Do(t, `INSERT INTO outbox.task (task_type) VALUES ($1)`, name)
		}
		db.Do(t, `CREATE TABLE ids AS SELECT task_id, task_type FROM outbox.task`)
		once(t, db, reg, relay.Config{})
		for name, c := range cases {
			got := db.Text(t, `SELECT count(e.*) || ' effects, ' || COALESCE('dead: ' || max(d.reason || ' ' || d.last_error),
				'iteration ' || max(t.iterations) || ' attempt ' || max(t.attempt), 'done')
				FROM ids i LEFT JOIN effect e USING (task_id) LEFT JOIN outbox.dead_task d USING (task_id) LEFT JOIN outbox.task t USING (task_id)
				WHERE i.task_type = $1`, name)
			if got != c.want {
				t.Errorf("%s: %s, want %s", name, got, c.want)
			}
		}
	})
}
