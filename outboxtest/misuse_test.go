package outboxtest_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
)

func TestBadArgumentsFailTheTest(t *testing.T) {
	t.Parallel()
	db := newDB(t, "postgres")
	tx, aborted := begin(t, db), begin(t, db)
	_, _ = aborted.Exec(`SELECT 1/0`)
	conn, err := db.Conn(t.Context())
	relaytest.Must(err)
	defer conn.Close()
	var noTx *sql.Tx
	var noContext context.Context
	var zero outbox.TaskType[payload]
	reg := handlers.New()
	for _, c := range []struct {
		f    func(testing.TB)
		want string
	}{
		{func(t testing.TB) { outboxtest.RequireEnqueued(t, nil, send, nil) }, "the Querier is nil"},
		{func(t testing.TB) { outboxtest.RequireEnqueued(t, noTx, send, nil) }, "the Querier is nil"},
		{func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, zero, nil) }, "outbox.NewTaskType"},
		{func(t testing.TB) { outboxtest.RequireEnqueued(t, tx, send, nil, nil) }, "a Want is nil"},
		{func(t testing.TB) { outboxtest.RequireNotEnqueued(t, tx, send, nil, outboxtest.Schema("No")) }, `Schema("No")`},
		{func(t testing.TB) { outboxtest.RequireNotEnqueued(t, aborted, send, nil) }, "current transaction is aborted"},
		{func(t testing.TB) { outboxtest.Drain(t, db, nil) }, "not nil"},
		{func(t testing.TB) { outboxtest.Drain(t, conn, reg) }, "not in a *sql.Conn"},
		{func(t testing.TB) { outboxtest.Drain(t, nil, reg) }, "not in a <nil>"},
		{func(t testing.TB) { outboxtest.Drain(t, noTx, reg) }, "the *sql.Tx is nil"},
		{func(t testing.TB) { outboxtest.Drain(t, aborted, reg) }, "not usable"},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, nil) }, "a DrainOption is nil"},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, outboxtest.MaxRuns(0)) }, "MaxRuns(0)"},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, outboxtest.Advance(0)) }, "Advance(0s)"},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, outboxtest.Context(noContext)) }, "Context: it is nil"},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, outboxtest.Schema("")) }, `Schema("")`},
		{func(t testing.TB) { outboxtest.Drain(t, db, reg, outboxtest.Schema("nowhere")) }, `"nowhere" does not`},
	} {
		wantFatal(t, failing(t, c.f), c.want)
	}
}

func TestAHandlerThatEndsOrSpoilsItsTransactionFailsTheTest(t *testing.T) {
	t.Parallel()
	dbs := map[string]*sql.DB{"postgres": newDB(t, "postgres"), "pgx": newDB(t, "pgx")}
	sends := func(query string, result error) func(context.Context, *sql.Tx) error {
		return func(ctx context.Context, tx *sql.Tx) error {
			_, err := tx.ExecContext(ctx, query)
			return errors.Join(err, result)
		}
	}
	for name, c := range map[string]struct {
		handler func(ctx context.Context, tx *sql.Tx) error
		want    string
	}{
		"commits": {func(_ context.Context, tx *sql.Tx) error { return tx.Commit() }, "the handler ended"},
		"rolls back and fails": {func(_ context.Context, tx *sql.Tx) error { return errors.Join(tx.Rollback(), errBoom) },
			"the handler ended"},
		"commits in SQL":        {sends("COMMIT", nil), "the handler ended"},
		"commits and begins":    {sends("COMMIT; BEGIN", nil), "the handler"},
		"commits SQL and fails": {sends("COMMIT", errBoom), "the handler ended"},
		"leaves rows open": {func(ctx context.Context, tx *sql.Tx) error {
			rows, err := tx.QueryContext(ctx, "SELECT generate_series(1, 100000)")
			_ = rows.Next()
			return err
		}, "rows not closed"},
	} {
		for driver, db := range dbs {
			for place, open := range map[string]func(testing.TB, *sql.DB) outbox.Querier{"sql.Tx": inTx, "sql.DB": inDB} {
				for _, kind := range []string{"TX", "LEASED"} {
					t.Run(name+" "+driver+" "+place+" "+kind, func(t *testing.T) {
						empty(t, db)
						in := open(t, db)
						reg := handlers.New()
						onTx(reg, "TX", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
							return c.handler(ctx, tx)
						})
						onLeased(reg, "LEASED", func(ctx context.Context, task *outbox.Task[payload]) error {
							return task.Complete(ctx, func(tx *sql.Tx) error { return c.handler(ctx, tx) })
						})
						enqueue(t, in, kind, 1)
						wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Drain(t, in, reg) }), "outboxtest: Drain: "+kind+" #1: ", c.want)
					})
				}
			}
		}
	}
}

// A context of the handler's own that ends inside a statement costs the connection.
func TestAHandlerThatLosesItsConnectionFailsTheTest(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	for _, driver := range []string{"postgres", "pgx"} {
		db := newDB(t, driver)
		reg := handlers.New()
		onTx(reg, "CUT", func(ctx context.Context, tx *sql.Tx, _ *outbox.Task[payload]) error {
			ctx, cancel := context.WithCancel(ctx)
			go func() { // once the statement is under way
				defer cancel()
				for sleeps := false; !sleeps && ctx.Err() == nil; {
					_ = db.QueryRowContext(ctx, `SELECT count(*) > 0 FROM pg_stat_activity
						WHERE datname = current_database() AND wait_event = 'PgSleep'`).Scan(&sleeps)
				}
			}()
			_, err := tx.ExecContext(ctx, "SELECT pg_sleep(20)")
			return err
		})
		enqueue(t, db, "CUT", 1)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.Drain(t, db, reg)
		}), "outboxtest: Drain: CUT #", "a context of its own")
		tx := begin(t, db)
		enqueue(t, tx, "CUT", 1)
		wantFatal(t, failing(t, func(t testing.TB) {
			outboxtest.Drain(t, tx, reg)
		}), "outboxtest: Drain: CUT #", "a context of its own", "the test's transaction cannot be used any more")
	}
}

func TestAHandlerThatFailsTheTestEndsTheDrain(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		enqueue(t, in, "FAILS_THE_TEST", 1, 2)
		calls := 0
		r := failing(t, func(t testing.TB) {
			reg := handlers.New()
			onTx(reg, "FAILS_THE_TEST", func(context.Context, *sql.Tx, *outbox.Task[payload]) error {
				calls++
				t.Fatalf("not what I want")
				return nil
			})
			outboxtest.Drain(t, in, reg)
			calls = 99
		})
		if calls != 1 || !r.failed {
			t.Errorf("%d calls, want 1, and Drain not to return", calls)
		}
	})
}

// The settings of the test's transaction are as before, and no limit of a claim stays.
func TestTheTransactionKeepsItsSettingsAndItsDeferredConstraints(t *testing.T) {
	eachDriver(t, func(t *testing.T, db *sql.DB) {
		tx := begin(t, db)
		settings := `SELECT concat_ws(' ', current_setting('statement_timeout'), current_setting('lock_timeout'),
			current_setting('idle_in_transaction_session_timeout'), current_setting('role'), current_setting('search_path'))`
		role := "tester_" + text(t, tx, `SELECT current_database()`) // of no other test: roles are the server's
		exec(t, tx, `CREATE ROLE `+role+`; GRANT USAGE ON SCHEMA outbox TO `+role+`;
			GRANT ALL ON ALL TABLES IN SCHEMA outbox, public TO `+role)
		exec(t, tx, `SET LOCAL statement_timeout = '77s'; SET LOCAL role = `+role+`; SET LOCAL search_path = public, pg_temp`)
		before := text(t, tx, settings)
		exec(t, tx, `INSERT INTO child VALUES (5); INSERT INTO parent VALUES (5)`) // checked at the commit that never comes

		var inside string
		reg := handlers.New()
		onTx(reg, "TX", func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error {
			if task.Payload.N == 1 {
				inside = text(t, tx, settings)
				exec(t, tx, `SET LOCAL role TO DEFAULT; SET LOCAL search_path = pg_catalog`)
				return nil
			}
			exec(t, tx, `INSERT INTO child VALUES (6)`) // only deferred constraints allow this order
			exec(t, tx, `INSERT INTO parent VALUES (6)`)
			return nil
		}, handlers.Timeout(20*time.Second))
		onLeased(reg, "LEASED", func(ctx context.Context, task *outbox.Task[payload]) error {
			return task.Complete(ctx, func(tx *sql.Tx) error {
				exec(t, tx, `SET LOCAL search_path = pg_catalog`)
				return nil
			})
		})
		exec(t, tx, `INSERT INTO outbox.task (task_type, payload)
			VALUES ('TX', '{"N": 1}'), ('TX', '{"N": 2}'), ('LEASED', '{}')`)
		wantRuns(t, "TX 1 done, TX 1 done, LEASED 1 done", outboxtest.Drain(t, tx, reg))
		if !strings.HasPrefix(inside, "20s 10s ") {
			t.Errorf("in the handler the settings are %s, want a relay's limits", inside)
		}
		if after := text(t, tx, settings); after != before {
			t.Errorf("the settings are %s, want %s", after, before)
		}
		exec(t, tx, `INSERT INTO child VALUES (7)`) // still deferred
	})
}

func TestALeaseInTheTestsTransaction(t *testing.T) {
	t.Parallel()
	eachPlace(t, func(t *testing.T, db *sql.DB, in outbox.Querier) {
		reg := handlers.New()
		write := func(task *outbox.Task[payload], note string) func(*sql.Tx) error {
			return func(tx *sql.Tx) error {
				wantText(t, tx, "0", `SELECT count(*) FROM outbox.task WHERE task_id = $1`, task.ID)
				exec(t, tx, `INSERT INTO effect VALUES ($1)`, note)
				return nil
			}
		}
		onLeased(reg, "SECOND", func(ctx context.Context, task *outbox.Task[payload]) error {
			err := task.Complete(ctx, func(tx *sql.Tx) error {
				_ = write(task, "first")(tx)
				_, err := tx.ExecContext(ctx, `SELECT 1/0`)
				return errors.Join(err, errBoom)
			})
			if !errors.Is(err, errBoom) {
				t.Errorf("Complete gave %v", err)
			}
			err = task.Complete(ctx, write(task, "second"))
			if again := task.Complete(ctx, write(task, "third")); !errors.Is(again, outbox.ErrLeaseLost) {
				t.Errorf("after Complete it gave %v, want ErrLeaseLost", again)
			}
			return err
		})
		onLeased(reg, "STOLEN", func(ctx context.Context, task *outbox.Task[payload]) error {
			exec(t, in, `UPDATE outbox.task SET lease_token = gen_random_uuid() WHERE task_id = $1`, task.ID)
			err := task.Complete(ctx, func(*sql.Tx) error { return nil })
			if !errors.Is(err, outbox.ErrLeaseLost) {
				t.Errorf("Complete gave %v, want ErrLeaseLost", err)
			}
			exec(t, in, `UPDATE outbox.task SET lease_token = NULL, relay_id = NULL, leased_until = NULL, state = 'ready'
				WHERE task_id = $1`, task.ID)
			return err
		})
		enqueue(t, in, "SECOND", 1)
		wantRuns(t, "SECOND 1 done", outboxtest.Drain(t, in, reg))
		wantText(t, in, "second", `SELECT string_agg(note, ' ') FROM effect`)
		enqueue(t, in, "STOLEN", 1)
		wantFatal(t, failing(t, func(t testing.TB) { outboxtest.Drain(t, in, reg) }), "the handler took its lease away")
	})
}
