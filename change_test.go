package outbox_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/invariants"
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
					id := e.enqueue(t, name, 1, opts...).ID
					cancel(t, tx, id, outbox.CancelRemoved)
					if tx.statements != 1 {
						t.Errorf("%d statements, want 1", tx.statements)
					}
					cancel(t, tx, id, outbox.CancelNotFound) // a second time
					tx.end(t, commit)
					left := map[bool]int{false: 1, true: 0}[commit]
					wantTasks(t, e.db, name, left)
				}
			}
		}},
		{"asks_a_task_that_runs", func(t *testing.T, e *env) {
			claimed, leased := e.enqueue(t, newType(), 1).ID, e.enqueue(t, newType(), 1).ID
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
				want(t, e.db, 2, `SELECT count(*) FROM outbox.cancel WHERE task_id = $1`, id)
			}
			end(t, claim.Commit)
			cancel(t, e.tx(t), claimed, outbox.CancelNotFound) // it is done
		}},
	})
}

func TestCancelAndRunNowRefuseBadInputBeforeAnySQL(t *testing.T) {
	t.Parallel()
	d := newDatabase(t)
	tx := &recorder{transaction: transaction{Querier: begin(t, d.db)}}
	for function, call := range map[string]func(tx outbox.Querier, id int64, opts ...outbox.SchemaOption) error{
		"Cancel": func(tx outbox.Querier, id int64, opts ...outbox.SchemaOption) error {
			_, err := outbox.Cancel(t.Context(), tx, id, opts...)
			return err
		},
		"RunNow": func(tx outbox.Querier, id int64, opts ...outbox.SchemaOption) error {
			_, err := outbox.RunNow(t.Context(), tx, id, opts...)
			return err
		},
	} {
		for _, id := range []int64{0, -1} {
			if err := call(tx, id); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("%s: id %d: %v, want ErrInvalidOption", function, id, err)
			}
		}
		for _, o := range []outbox.SchemaOption{outbox.Schema("A b"), {}} {
			if err := call(tx, 1, o); !errors.Is(err, outbox.ErrInvalidOption) {
				t.Errorf("%s: got %v, want ErrInvalidOption", function, err)
			}
		}
		for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), d.db} {
			if err := call(q, 1); !errors.Is(err, outbox.ErrNoTransaction) {
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
	for function, call := range map[string]func(tx outbox.Querier) (bool, error){
		"run_task_now": func(tx outbox.Querier) (bool, error) {
			got, err := outbox.RunNow(t.Context(), tx, 1, in)
			return got == outbox.RunNowDue, err
		},
		"cancel_task": func(tx outbox.Querier) (bool, error) {
			got, err := outbox.Cancel(t.Context(), tx, 1, in)
			return got == outbox.CancelRemoved, err
		},
	} {
		tx := begin(t, d.db)
		exec(t, tx, `CREATE ROLE changer_of_tests; GRANT USAGE ON SCHEMA app_outbox TO changer_of_tests;
			SET LOCAL ROLE changer_of_tests; SAVEPOINT s`)
		if _, err := call(tx); pgerr.Code(err) != "42501" {
			t.Errorf("%s without rights: got %v, want insufficient_privilege", function, err)
		}
		exec(t, tx, `ROLLBACK TO s; RESET ROLE; GRANT EXECUTE ON FUNCTION app_outbox.`+function+` TO changer_of_tests;
			SET LOCAL ROLE changer_of_tests`)
		if done, err := call(tx); !done || err != nil {
			t.Errorf("%s: got %v, %v", function, done, err)
		}
		end(t, tx.Rollback)
	}
}

func TestRunNow(t *testing.T) {
	t.Parallel()
	runNow := func(t *testing.T, tx outbox.Querier, what string, id int64, due bool) {
		t.Helper()
		want := outbox.RunNowNotScheduled
		if due {
			want = outbox.RunNowDue
		}
		if got, err := outbox.RunNow(t.Context(), tx, id); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	counted := func(t *testing.T, e *env) {
		t.Helper()
		want(t, e.db, 0, invariants.Miscounted)
	}
	hour := outbox.After(time.Hour)
	onEveryClient(t, []contract{
		{"makes_a_scheduled_task_ready_with_the_transaction", func(t *testing.T, e *env) {
			for _, commit := range []bool{false, true} {
				name, tx := newType(), e.tx(t)
				id := e.enqueue(t, name, 1, hour).ID
				runNow(t, tx, "scheduled", id, true)
				if tx.statements != 1 {
					t.Errorf("%d statements, want 1", tx.statements)
				}
				runNow(t, tx, "a second time", id, false)
				tx.end(t, commit)
				want := map[bool]string{false: "scheduled", true: "ready"}[commit]
				if got := one(t, e.db, name); got.State != want ||
					got.RunAt.Before(time.Now().Add(time.Minute)) != commit {
					t.Errorf("committed %v: it is %s at %v", commit, got.State, got.RunAt)
				}
				counted(t, e)
			}
		}},
		{"leaves_other_tasks_alone", func(t *testing.T, e *env) {
			name := newType()
			ready, leased, locked := e.enqueue(t, name, 1).ID, e.enqueue(t, name, 2).ID,
				e.enqueue(t, name, 3, hour).ID
			waiting, dead := e.enqueue(t, name, 4, outbox.OrderedBy("k"), hour).ID,
				e.enqueue(t, newType(), 5, hour).ID
			exec(t, e.db, lease, leased)
			exec(t, e.db, bury, dead)
			holder := begin(t, e.db)
			exec(t, holder, `SELECT FROM outbox.task WHERE task_id = $1 FOR NO KEY UPDATE`, locked)
			tx := e.tx(t)
			for what, id := range map[string]int64{"ready": ready, "leased": leased, "waiting": waiting, "dead": dead,
				"locked": locked, "unknown": 1 << 60} {
				runNow(t, tx, what, id, false)
			}
			end(t, holder.Rollback)
			// Nor does it lock them.
			want(t, e.db, 1, `SELECT count(*) FROM (SELECT FROM outbox.task
				WHERE task_id = $1 FOR UPDATE SKIP LOCKED) t`, ready)
			end(t, tx.commit)
			const states = `SELECT string_agg(state, ' ' ORDER BY task_id) FROM outbox.task WHERE task_type = $1`
			want(t, e.db, "ready leased scheduled waiting", states, name)
			counted(t, e)
		}},
		{"keeps_the_time_of_a_task_that_is_due", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			id := e.enqueue(t, name, 1, hour).ID
			exec(t, e.db, `UPDATE outbox.task SET run_at = now() - interval '1 day' WHERE task_id = $1`, id)
			runNow(t, tx, "due", id, true)
			end(t, tx.commit)
			if due := one(t, e.db, name).RunAt; time.Since(due) < 23*time.Hour {
				t.Errorf("it has waited since %v, want since yesterday", due)
			}
		}},
	})
}
