package outbox_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/schema"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	count := func(t *testing.T, e *env, query string, args ...any) (n int) {
		t.Helper()
		if err := e.db.QueryRowContext(t.Context(), query, args...).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	enqueue := func(t *testing.T, e *env, opts ...outbox.Option) int64 {
		t.Helper()
		tx := e.tx(t)
		got, err := outbox.Enqueue(t.Context(), tx, newType(), 1, opts...)
		if err == nil {
			err = tx.commit()
		}
		if err != nil {
			t.Fatal(err)
		}
		return got.TaskID
	}
	onEveryClient(t, []contract{
		{"removes_a_waiting_task_with_the_transaction", func(t *testing.T, e *env) {
			for _, opts := range [][]outbox.Option{nil, {outbox.After(time.Hour)}} {
				for _, commit := range []bool{false, true} {
					id, tx := enqueue(t, e, opts...), e.tx(t)
					if got, err := outbox.Cancel(t.Context(), tx, id); got != outbox.Canceled || err != nil || tx.statements != 1 {
						t.Errorf("got %v, %v in %d statements, want Canceled in 1", got, err, tx.statements)
					}
					if got, err := outbox.Cancel(t.Context(), tx, id); got != outbox.NotFound || err != nil {
						t.Errorf("a second time: %v, %v; want NotFound", got, err)
					}
					end, left := tx.rollback, 1
					if commit {
						end, left = tx.commit, 0
					}
					if err := end(); err != nil {
						t.Fatal(err)
					}
					if n := count(t, e, `SELECT count(*) FROM outbox.task WHERE task_id = $1`, id); n != left {
						t.Errorf("%d tasks are left, want %d", n, left)
					}
				}
			}
		}},
		{"asks_a_task_that_runs", func(t *testing.T, e *env) {
			claimed, leased := enqueue(t, e), enqueue(t, e)
			claim := begin(t, e.db)
			exec(t, claim, `DELETE FROM outbox.task WHERE task_id = $1`, claimed)
			exec(t, e.db, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid() WHERE task_id = $1`, leased)
			for _, id := range []int64{claimed, leased} {
				tx, again := e.tx(t), e.tx(t)
				for _, q := range []*recorder{tx, tx, again} { // waits for no other canceller either
					if got, err := outbox.Cancel(t.Context(), q, id); got != outbox.CancelRequested || err != nil {
						t.Errorf("got %v, %v; want CancelRequested", got, err)
					}
				}
				for _, q := range []*recorder{tx, again} {
					if err := q.commit(); err != nil {
						t.Fatal(err)
					}
				}
				if n := count(t, e, `SELECT count(*) FROM outbox.cancel WHERE task_id = $1`, id); n != 2 {
					t.Errorf("%d requests of two transactions, want 2", n)
				}
			}
			if err := claim.Commit(); err != nil {
				t.Fatal(err)
			}
			tx := e.tx(t)
			if got, err := outbox.Cancel(t.Context(), tx, claimed); got != outbox.NotFound || err != nil {
				t.Errorf("a task that is done: %v, %v; want NotFound", got, err)
			}
		}},
		{"refuses_bad_input_before_any_SQL", func(t *testing.T, e *env) {
			tx := e.tx(t)
			for _, id := range []int64{0, -1} {
				if _, err := outbox.Cancel(t.Context(), tx, id); !errors.Is(err, outbox.ErrInvalidOption) {
					t.Errorf("id %d: %v, want ErrInvalidOption", id, err)
				}
			}
			for _, o := range []outbox.Option{nil, outbox.Schema("A b"), outbox.Priority(1), outbox.After(1), outbox.Timeout(time.Hour), outbox.MaxPayload(5)} {
				if _, err := outbox.Cancel(t.Context(), tx, 1, o); !errors.Is(err, outbox.ErrInvalidOption) {
					t.Errorf("got %v, want ErrInvalidOption", err)
				}
			}
			for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), e.pool} {
				if _, err := outbox.Cancel(t.Context(), q, 1); !errors.Is(err, outbox.ErrNoTransaction) {
					t.Errorf("%T: %v, want ErrNoTransaction", q, err)
				}
			}
			if tx.statements != 0 {
				t.Errorf("%d statements were sent", tx.statements)
			}
		}},
	})
}

// The role that cancels needs the right to call one function, in whatever schema.
func TestCancelAndRunNowNeedOneRightInAnySchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, schema.Schema("app_outbox"))
	exec(t, d.db, `CREATE ROLE changer_of_tests`)
	t.Cleanup(func() { exec2(t, d.db, `DROP OWNED BY changer_of_tests`, `DROP ROLE changer_of_tests`) })
	exec(t, d.db, `GRANT USAGE ON SCHEMA app_outbox TO changer_of_tests`)
	exec(t, d.db, `INSERT INTO app_outbox.task (task_type, run_at) VALUES ('T', now() + interval '1 hour')`)
	in := outbox.Schema("app_outbox")
	for function, call := range map[string]func(tx *sql.Tx) (any, error){
		"cancel_task":  func(tx *sql.Tx) (any, error) { return outbox.Cancel(t.Context(), tx, 1, in) },
		"run_task_now": func(tx *sql.Tx) (any, error) { return outbox.RunNow(t.Context(), tx, 1, in) },
	} {
		tx := begin(t, d.db)
		exec(t, tx, `SET LOCAL ROLE changer_of_tests`)
		exec(t, tx, `SAVEPOINT s`)
		if _, err := call(tx); sqlState(err) != "42501" {
			t.Errorf("%s without rights: got %v, want insufficient_privilege", function, err)
		}
		exec(t, tx, `ROLLBACK TO s; RESET ROLE; GRANT EXECUTE ON FUNCTION app_outbox.`+function+` TO changer_of_tests; SET LOCAL ROLE changer_of_tests`)
		if got, err := call(tx); got != map[string]any{"cancel_task": outbox.Canceled, "run_task_now": true}[function] || err != nil {
			t.Errorf("%s: got %v, %v", function, got, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
}

func exec2(t testing.TB, db *sql.DB, queries ...string) {
	for _, q := range queries {
		if _, err := db.Exec(q); err != nil {
			t.Error(err)
		}
	}
}
