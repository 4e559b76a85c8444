package outbox_test

import (
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/invariants"
)

func TestRunNow(t *testing.T) {
	t.Parallel()
	runNow := func(t *testing.T, tx outbox.Querier, what string, id int64, want bool) {
		t.Helper()
		if got, err := outbox.RunNow(t.Context(), tx, id); got != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", what, got, err, want)
		}
	}
	counted := func(t *testing.T, e *env) {
		t.Helper()
		if n := scan[int](t, e.db, invariants.Miscounted); n != 0 {
			t.Errorf("I9: %d counts are not those of the rows", n)
		}
	}
	hour := outbox.After(time.Hour)
	onEveryClient(t, []contract{
		{"makes_a_scheduled_task_ready_with_the_transaction", func(t *testing.T, e *env) {
			for _, commit := range []bool{false, true} {
				name, tx := newType(), e.tx(t)
				id := e.enqueue(t, name, 1, hour).TaskID
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
			ready, leased, locked := e.enqueue(t, name, 1).TaskID, e.enqueue(t, name, 2).TaskID,
				e.enqueue(t, name, 3, hour).TaskID
			waiting, dead := e.enqueue(t, name, 4, outbox.OrderedBy("k"), hour).TaskID,
				e.enqueue(t, newType(), 5, hour).TaskID
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
			if n := scan[int](t, e.db, `SELECT count(*) FROM (SELECT FROM outbox.task
				WHERE task_id = $1 FOR UPDATE SKIP LOCKED) t`, ready); n != 1 {
				t.Errorf("%d rows could be locked; want 1", n)
			}
			end(t, tx.commit)
			const states = `SELECT string_agg(state, ' ' ORDER BY task_id) FROM outbox.task WHERE task_type = $1`
			if got := scan[string](t, e.db, states, name); got != "ready leased scheduled waiting" {
				t.Errorf("the tasks are %s", got)
			}
			counted(t, e)
		}},
		{"keeps_the_time_of_a_task_that_is_due", func(t *testing.T, e *env) {
			name, tx := newType(), e.tx(t)
			id := e.enqueue(t, name, 1, hour).TaskID
			exec(t, e.db, `UPDATE outbox.task SET run_at = now() - interval '1 day' WHERE task_id = $1`, id)
			runNow(t, tx, "due", id, true)
			end(t, tx.commit)
			if due := one(t, e.db, name).RunAt; time.Since(due) < 23*time.Hour {
				t.Errorf("it has waited since %v, want since yesterday", due)
			}
		}},
	})
}
