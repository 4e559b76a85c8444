package relay_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// within is long enough for a group of any test that is to be one.
const within = time.Second

// grouped registers a Tx handler that leaves an effect and then does what else is given.
func grouped(n int, within time.Duration, then func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error,
	opts ...handlers.Option) *handlers.Registry {
	reg := handlers.New()
	opts = append([]handlers.Option{handlers.GroupCommit(n, within), retrySoon(), handlers.NoJitter()}, opts...)
	handlers.Tx(reg, typeTx, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if err := txEffect(ctx, tx, task); err != nil {
			return err
		}
		return then(ctx, tx, task)
	}, opts...)
	return reg
}

func nothing(context.Context, *sql.Tx, *outbox.Task[payload]) error { return nil }

// noteTransactions has each effect keep the transaction that committed it.
func (db *database) noteTransactions(t *testing.T) {
	t.Helper()
	db.Do(t, `ALTER TABLE effect ADD xid text DEFAULT pg_current_xact_id()::text`)
}

func TestTasksOfAGroupShareATransaction(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.noteTransactions(t)
		db.Enqueue(t, "TX", 64)
		once(t, db, grouped(32, within, nothing), relay.Config{Workers: 1})
		db.OnceEach(t, 64)
		// The first has one task. How many the next ones have depends on how long the machine took for it.
		if n := db.Int(t, `SELECT count(DISTINCT xid) FROM effect`); n < 3 || n >= 64 {
			t.Errorf("64 tasks took %d transactions in groups of 32, want 3 or some more", n)
		}
	})
}

// A handler that takes longer than a group may has a transaction for each task. The first group,
// which has locked more, leaves the rest as it is.
func TestASlowHandlerHasAGroupOfItsOwn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.noteTransactions(t)
	db.Enqueue(t, "TX", 6)
	db.Do(t, `UPDATE outbox.task SET priority = task_id`)
	once(t, db, grouped(32, time.Microsecond, nothing), relay.Config{Workers: 1})
	db.OnceEach(t, 6)
	if got := db.Text(t, `SELECT format('%s transactions, attempts to %s', count(DISTINCT xid), max(attempt)) FROM effect`); got != "6 transactions, attempts to 1" {
		t.Errorf("6 tasks took %s, want 6 transactions, attempts to 1", got)
	}
}

// What a handler returns counts for its task alone: the others of its group keep their work.
func TestEachTaskOfAGroupHasItsResult(t *testing.T) {
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.noteTransactions(t)
		db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'TX', jsonb_build_object('n', n)
			FROM generate_series(1, 16) n`)
		// These run before, so that the relay knows how little a task takes when it claims the others.
		db.Do(t, `INSERT INTO outbox.task (task_type, priority) SELECT 'TX', -1 FROM generate_series(1, 48)`)
		r := once(t, db, grouped(16, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if task.Attempt > 1 {
				return nil
			}
			switch task.Payload.N {
			case 2:
				return errors.New("refused")
			case 4:
				panic("broke")
			case 6:
				return handlers.Dead(errors.New("hopeless"))
			case 8:
				return handlers.Snooze(time.Hour)
			case 10:
				return handlers.Discard(errors.New("of no use"))
			case 12:
				_, err := tx.ExecContext(ctx, `INSERT INTO effect (task_id) VALUES (NULL)`)
				return err
			case 14:
				return handlers.RetryAfter(time.Hour, errors.New("later"))
			}
			return nil
		}), relay.Config{Workers: 1})
		if n := strings.Count(r, "run one by one"); n != 0 {
			t.Errorf("a group was undone:\n%s", r)
		}
		for query, want := range map[string]string{
			`SELECT format('%s %s', count(*), count(DISTINCT xid) < 10) FROM effect WHERE attempt = 1 AND task_id <= 16`: "10 t",
			`SELECT string_agg(e.attempt || ' ' || e.task_id, ', ' ORDER BY task_id) FROM effect e WHERE attempt > 1`:    "2 2, 2 4, 2 12",
			`SELECT string_agg(format('%s %s %s', task_id, attempt, reason), ', ') FROM outbox.dead_task`:                "6 1 handler",
			`SELECT string_agg(format('%s %s %s', task_id, attempt, coalesce(last_error, '-')), ', ' ORDER BY task_id)
				FROM outbox.task`: "8 0 -, 14 0 retry after 1h0m0s: later",
			`SELECT count(*) FROM outbox.running`: "0",
		} {
			if got := db.Text(t, strings.Replace(query, "SELECT ", "SELECT (SELECT ", 1)+`)::text`); got != want {
				t.Errorf("%s: got %q, want %q", query, got, want)
			}
		}
	})
}

// Whatever breaks the transaction of a group, the tasks that did nothing wrong have not tried.
func TestAGroupThatBreaksCostsTheOthersNoAttempt(t *testing.T) {
	t.Parallel()
	for name, breaks := range map[string]struct {
		do   func(ctx context.Context, tx *sql.Tx) error
		want string // what becomes of the culprit
	}{
		"a hidden error": {func(ctx context.Context, tx *sql.Tx) error {
			_, _ = tx.ExecContext(ctx, `SELECT 1 / 0`)
			return nil
		}, "dead 2"},
		"an error that hides another": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT 1 / 0`)
			return fmt.Errorf("hidden: %v", err)
		}, "dead 2"},
		"a panic that hides an error": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT 1 / 0`)
			panic(err)
		}, "dead 2"},
		"a deferred constraint": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `INSERT INTO child VALUES (7)`)
			return err
		}, "dead 2"},
		"a lost connection": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
			return err
		}, "dead 0"},
		"a rollback": {func(_ context.Context, tx *sql.Tx) error { return tx.Rollback() }, "dead 2"},
		"a commit":   {func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, "done"},
		"a COMMIT": {func(ctx context.Context, tx *sql.Tx) error { _, err := tx.ExecContext(ctx, `COMMIT`); return err },
			"done"},
		"rows left open": {func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.QueryContext(ctx, `SELECT generate_series(1, 100000)`) // on purpose
			return err
		}, "dead 2"},
		"a timeout in a statement": {func(ctx context.Context, tx *sql.Tx) error {
			short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
			defer cancel()
			_, err := tx.ExecContext(short, `SELECT pg_sleep(60)`)
			return err
		}, "dead 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onEachDriver(t, func(t *testing.T, db *database) {
				db.Do(t, `CREATE TABLE parent (id int PRIMARY KEY); CREATE TABLE child (parent int REFERENCES parent DEFERRABLE
					INITIALLY DEFERRED)`)
				db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'TX', jsonb_build_object('n', n)
					FROM generate_series(1, 16) n`)
				run(t, db, grouped(16, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
					if task.Payload.N == 7 {
						return breaks.do(ctx, tx)
					}
					return nil
				}, handlers.MaxAttempts(2)), relay.Config{Workers: 1, PollInterval: 20 * time.Millisecond})
				db.becomes(t, 30*time.Second, 15, "the others take effect in attempt 1",
					`SELECT count(*) FROM effect WHERE task_id <> 7 AND attempt = 1`)
				db.Emptied(t, 30*time.Second)
				db.wantRows(t, 0, `(SELECT task_id FROM effect GROUP BY task_id HAVING count(*) > 1) twice`)
				got := db.Text(t, `SELECT COALESCE((SELECT 'dead ' || attempt FROM outbox.dead_task), 'done')`)
				if got != breaks.want {
					t.Errorf("the task that broke the group is %s, want %s", got, breaks.want)
				}
			})
		})
	}
}

// Groups of two types update the same rows in opposite order: a deadlock is nobody's attempt.
func TestADeadlockBetweenGroupsIsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET deadlock_timeout = ''20ms''', current_database()); END $$`)
	db.Do(t, `CREATE TABLE account (id int PRIMARY KEY,
		n int NOT NULL DEFAULT 0); INSERT INTO account SELECT generate_series(0, 9)`)
	other := outbox.NewTaskType[payload]("OTHER")
	const tasks = 60
	update := func(order string) func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		return func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if err := txEffect(ctx, tx, task); err != nil {
				return err
			}
			// One row is locked after the other.
			_, err := tx.ExecContext(ctx,
				`UPDATE account a SET n = n + 1 FROM (SELECT id FROM account ORDER BY id `+order+` FOR UPDATE) AS locked
					WHERE a.id = locked.id`)
			return err
		}
	}
	for range 4 {
		reg := handlers.New()
		handlers.Tx(reg, typeTx, update(""), handlers.GroupCommit(10, within), handlers.MaxAttempts(1))
		handlers.Tx(reg, other, update("DESC"), handlers.GroupCommit(10, within), handlers.MaxAttempts(1))
		run(t, db, reg, relay.Config{PollInterval: 20 * time.Millisecond})
	}
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT t, jsonb_build_object('n', n)
		FROM generate_series(1, $1::int) n, (VALUES ('TX'), ('OTHER')) AS t (t)`, tasks)
	db.Emptied(t, 60*time.Second)
	db.OnceEach(t, 2*tasks)
	if n := db.Int(t, `SELECT sum(n) FROM account`); n != 20*tasks {
		t.Errorf("%d updates took effect, want %d", n, 20*tasks)
	}
}

// A task that is canceled while it runs in a group is undone, and the others are done.
func TestATaskIsCanceledInItsGroup(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT 'TX', jsonb_build_object('n', n)
		FROM generate_series(1, 4) n`)
	started := make(chan struct{})
	run(t, db, grouped(4, within, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if task.Payload.N == 2 {
			close(started)
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}), relay.Config{Workers: 1, PollInterval: 20 * time.Millisecond})
	<-started
	if _, requested, err := relaytest.Admin(t, db.DB).Cancel(t.Context(), 2); err != nil || len(requested) != 1 {
		t.Fatalf("cancel: %v, %v", requested, err)
	}
	db.becomes(t, 30*time.Second, 3, "the others have an effect", `SELECT count(*) FROM effect`)
	db.Emptied(t, 30*time.Second)
	db.wantText(t, "1 3 4", `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM effect`)
}

// A group that ends early leaves tasks that had lost a run: that attempt counts still, and the group is
// none.
func TestTasksThatAGroupLeavesKeepTheirLostRuns(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 4)
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), gen_random_uuid()
		FROM outbox.task`)
	db.keyed(t, "TX", 0, outbox.Priority(-1)) // so that the relay knows how little a task takes
	once(t, db, grouped(4, 50*time.Millisecond, func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
		if task.ID != 1 {
			return nil
		}
		_, err := tx.ExecContext(ctx, `SELECT pg_sleep(0.1)`)
		return err
	}), relay.Config{Workers: 1})
	db.wantText(t, "2 2 2 2", `SELECT string_agg(attempt::text, ' ') FROM effect WHERE task_id <= 4`)
	db.OnceEach(t, 5)
	db.wantRows(t, 0, `outbox.running`)
}
