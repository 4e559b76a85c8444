package outbox_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/schema"
)

func TestCancel(t *testing.T) {
	t.Parallel()
	cancel := func(t *testing.T, tx outbox.Querier, id int64, want outbox.CancelResult) {
		t.Helper()
		if got, err := outbox.Cancel(t.Context(), tx, id); got != want || err != nil {
			t.Errorf("got %v, %v; want %v", got, err, want)
		}
	}
	onEveryClient(t, []contract{
		{"removes_a_waiting_task_with_the_transaction", func(t *testing.T, e *env) {
			for _, opts := range [][]outbox.Option{nil, {outbox.After(time.Hour)}} {
				for _, commit := range []bool{false, true} {
					name, tx := newType(), e.tx(t)
					id := e.enqueue(t, name, 1, opts...).TaskID
					cancel(t, tx, id, outbox.Canceled)
					if tx.statements != 1 {
						t.Errorf("%d statements, want 1", tx.statements)
					}
					cancel(t, tx, id, outbox.NotFound) // a second time
					how, left := tx.rollback, 1
					if commit {
						how, left = tx.commit, 0
					}
					end(t, how)
					if n := len(rows(t, e.db, name)); n != left {
						t.Errorf("%d tasks are left, want %d", n, left)
					}
				}
			}
		}},
		{"asks_a_task_that_runs", func(t *testing.T, e *env) {
			claimed, leased := e.enqueue(t, newType(), 1).TaskID, e.enqueue(t, newType(), 1).TaskID
			claim := begin(t, e.db)
			exec(t, claim, `DELETE FROM outbox.task WHERE task_id = $1`, claimed)
			exec(t, e.db, lease, leased)
			for _, id := range []int64{claimed, leased} {
				tx, again := e.tx(t), e.tx(t)
				for _, q := range []*recorder{tx, tx, again} { // waits for no other canceller either
					cancel(t, q, id, outbox.CancelRequested)
				}
				end(t, tx.commit)
				end(t, again.commit)
				if n := scan[int](t, e.db, `SELECT count(*) FROM outbox.cancel WHERE task_id = $1`, id); n != 2 {
					t.Errorf("%d requests of two transactions, want 2", n)
				}
			}
			end(t, claim.Commit)
			cancel(t, e.tx(t), claimed, outbox.NotFound) // it is done
		}},
	})
}

// changes are the functions that change one task.
var changes = map[string]func(ctx context.Context, tx outbox.Querier, id int64, opts ...outbox.Option) (any, error){
	"cancel_task": func(ctx context.Context, tx outbox.Querier, id int64, opts ...outbox.Option) (any, error) {
		return outbox.Cancel(ctx, tx, id, opts...)
	},
	"run_task_now": func(ctx context.Context, tx outbox.Querier, id int64, opts ...outbox.Option) (any, error) {
		return outbox.RunNow(ctx, tx, id, opts...)
	},
}

func TestCancelAndRunNowRefuseBadInputBeforeAnySQL(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := &recorder{transaction: transaction{Querier: begin(t, d.db)}}
	for function, call := range changes {
		for _, id := range []int64{0, -1} {
			if _, err := call(t.Context(), tx, id); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("%s: id %d: %v, want ErrInvalidOption", function, id, err)
			}
		}
		for _, o := range []outbox.Option{nil, outbox.Schema("A b"), outbox.Priority(1), outbox.After(1),
			outbox.Timeout(time.Hour), outbox.MaxPayload(5)} {
			if _, err := call(t.Context(), tx, 1, o); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("%s: got %v, want ErrInvalidOption", function, err)
			}
		}
		for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), d.db} {
			if _, err := call(t.Context(), q, 1); !errors.Is(err, outbox.ErrNoTransaction) {
				t.Errorf("%s: %T: %v, want ErrNoTransaction", function, q, err)
			}
		}
	}
	if tx.statements != 0 {
		t.Errorf("%d statements were sent", tx.statements)
	}
}

// The role that does it needs the right to call one function, in whatever schema.
func TestCancelAndRunNowNeedOneRightInAnySchema(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, schema.Schema("app_outbox"))
	exec(t, d.db, `INSERT INTO app_outbox.task (task_type, run_at) VALUES ('T', now() + interval '1 hour')`)
	in := outbox.Schema("app_outbox")
	for function, call := range changes {
		tx := begin(t, d.db)
		exec(t, tx, `CREATE ROLE changer_of_tests; GRANT USAGE ON SCHEMA app_outbox TO changer_of_tests;
			SET LOCAL ROLE changer_of_tests; SAVEPOINT s`)
		if _, err := call(t.Context(), tx, 1, in); sqlState(err) != "42501" {
			t.Errorf("%s without rights: got %v, want insufficient_privilege", function, err)
		}
		exec(t, tx, `ROLLBACK TO s; RESET ROLE; GRANT
			EXECUTE ON FUNCTION app_outbox.`+function+` TO changer_of_tests; SET LOCAL ROLE changer_of_tests`)
		if got, err := call(t.Context(), tx, 1, in); got != map[string]any{"cancel_task": outbox.Canceled,
			"run_task_now": true}[function] || err != nil {
			t.Errorf("%s: got %v, %v", function, got, err)
		}
		end(t, tx.Rollback)
	}
}
