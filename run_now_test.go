package outbox_test

import (
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/invariants"
	"github.com/txoutbox/outbox/schema"
)

func TestRunNow(t *testing.T) {
	t.Parallel()
	state := func(t *testing.T, e *env, id int64) (state string, due bool) {
		t.Helper()
		if err := e.db.QueryRowContext(t.Context(), `SELECT state, run_at <= now() FROM outbox.task WHERE task_id = $1`, id).Scan(&state, &due); err != nil {
			t.Fatal(err)
		}
		return state, due
	}
	counted := func(t *testing.T, e *env) {
		t.Helper()
		var n int
		if err := e.db.QueryRowContext(t.Context(), invariants.Miscounted).Scan(&n); err != nil || n != 0 {
			t.Errorf("I9: %d counts are not those of the rows, %v", n, err)
		}
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
		{"makes_a_scheduled_task_ready_with_the_transaction", func(t *testing.T, e *env) {
			for _, commit := range []bool{false, true} {
				id, tx := enqueue(t, e, outbox.After(time.Hour)), e.tx(t)
				if got, err := outbox.RunNow(t.Context(), tx, id); !got || err != nil || tx.statements != 1 {
					t.Errorf("got %v, %v in %d statements, want true in 1", got, err, tx.statements)
				}
				if got, err := outbox.RunNow(t.Context(), tx, id); got || err != nil {
					t.Errorf("a second time: %v, %v; want false", got, err)
				}
				end, want := tx.rollback, "scheduled"
				if commit {
					end, want = tx.commit, "ready"
				}
				if err := end(); err != nil {
					t.Fatal(err)
				}
				if got, due := state(t, e, id); got != want || due != commit {
					t.Errorf("committed %v: it is %s, due %v", commit, got, due)
				}
				counted(t, e)
			}
		}},
		{"leaves_other_tasks_alone", func(t *testing.T, e *env) {
			ready, leased, locked := enqueue(t, e), enqueue(t, e), enqueue(t, e, outbox.After(time.Hour))
			waiting, dead := enqueue(t, e, outbox.OrderedBy("k"), outbox.After(time.Hour)), enqueue(t, e, outbox.After(time.Hour))
			exec(t, e.db, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid() WHERE task_id = $1`, leased)
			exec(t, e.db, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload)
				SELECT task_id, run_at, created_at, priority, attempt, 1, 'handler', task_type, payload FROM outbox.task WHERE task_id = $1`, dead)
			exec(t, e.db, `DELETE FROM outbox.task WHERE task_id = $1`, dead)
			holder := begin(t, e.db)
			exec(t, holder, `SELECT FROM outbox.task WHERE task_id = $1 FOR NO KEY UPDATE`, locked)
			tx := e.tx(t)
			for name, id := range map[string]int64{"ready": ready, "leased": leased, "waiting": waiting, "dead": dead, "locked": locked, "unknown": 1 << 60} {
				if got, err := outbox.RunNow(t.Context(), tx, id); got || err != nil {
					t.Errorf("%s: %v, %v; want false", name, got, err)
				}
			}
			if err := holder.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := tx.commit(); err != nil {
				t.Fatal(err)
			}
			for id, want := range map[int64]string{ready: "ready", leased: "leased", locked: "scheduled", waiting: "waiting"} {
				if got, _ := state(t, e, id); got != want {
					t.Errorf("task %d is %s, want %s", id, got, want)
				}
			}
			counted(t, e)
		}},
		{"does_not_lock_a_task_that_it_leaves_alone", func(t *testing.T, e *env) {
			id, tx := enqueue(t, e), e.tx(t)
			if got, err := outbox.RunNow(t.Context(), tx, id); got || err != nil {
				t.Errorf("got %v, %v; want false", got, err)
			}
			var n int
			if err := e.db.QueryRowContext(t.Context(), `SELECT count(*) FROM (SELECT FROM outbox.task WHERE task_id = $1 FOR UPDATE SKIP LOCKED) t`, id).Scan(&n); err != nil || n != 1 {
				t.Errorf("%d rows could be locked, %v; want 1", n, err)
			}
		}},
		{"keeps_the_time_of_a_task_that_is_due", func(t *testing.T, e *env) {
			id := enqueue(t, e, outbox.After(time.Hour))
			exec(t, e.db, `UPDATE outbox.task SET run_at = now() - interval '1 day' WHERE task_id = $1`, id)
			tx := e.tx(t)
			if got, err := outbox.RunNow(t.Context(), tx, id); !got || err != nil {
				t.Errorf("got %v, %v; want true", got, err)
			}
			if err := tx.commit(); err != nil {
				t.Fatal(err)
			}
			var old bool
			if err := e.db.QueryRowContext(t.Context(), `SELECT run_at < now() - interval '23 hours' FROM outbox.task WHERE task_id = $1`, id).Scan(&old); err != nil || !old {
				t.Errorf("it has waited since yesterday: %v, %v", old, err)
			}
		}},
		{"refuses_bad_input_before_any_SQL", func(t *testing.T, e *env) {
			tx := e.tx(t)
			for _, id := range []int64{0, -1} {
				if _, err := outbox.RunNow(t.Context(), tx, id); !errors.Is(err, outbox.ErrInvalidOption) {
					t.Errorf("id %d: %v, want ErrInvalidOption", id, err)
				}
			}
			for _, o := range []outbox.Option{nil, outbox.Schema("A b"), outbox.Priority(1), outbox.After(1)} {
				if _, err := outbox.RunNow(t.Context(), tx, 1, o); !errors.Is(err, outbox.ErrInvalidOption) {
					t.Errorf("got %v, want ErrInvalidOption", err)
				}
			}
			for _, q := range []outbox.Querier{nil, (*sql.Tx)(nil), e.pool} {
				if _, err := outbox.RunNow(t.Context(), q, 1); !errors.Is(err, outbox.ErrNoTransaction) {
					t.Errorf("%T: %v, want ErrNoTransaction", q, err)
				}
			}
			if tx.statements != 0 {
				t.Errorf("%d statements were sent", tx.statements)
			}
		}},
	})
}

// Relays of other processes are told by the commit, on the channel of the schema, and of nothing that did not happen.
func TestRunNowWakesRelaysWithItsCommit(t *testing.T) {
	t.Parallel()
	const name = "app_outbox"
	d := newDatabase(t, schema.Schema(name))
	exec(t, d.db, `INSERT INTO app_outbox.task (task_type, run_at) SELECT 'T', now() + interval '1 hour' FROM generate_series(1, 3)`)
	exec(t, d.db, `SELECT setval('app_outbox.wake', 4102444800)`) // as a relay asks that is idle
	l := pq.NewListener(d.url, 10*time.Millisecond, time.Second, nil)
	defer l.Close()
	for _, channel := range []string{name, "outbox", "marker"} {
		if err := l.Listen(channel); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		what   string
		taskID int64
		commit bool
		want   string
	}{{"rolled back", 1, false, ""}, {"committed", 1, true, name}, {"a task that is ready", 1, true, ""}, {"an unknown task", 9, true, ""}, {"another one", 2, true, name}, {"nobody asks", 3, true, ""}} {
		if c.what == "nobody asks" {
			exec(t, d.db, `SELECT setval('app_outbox.wake', 0)`)
		}
		tx := begin(t, d.db)
		if _, err := outbox.RunNow(t.Context(), tx, c.taskID, outbox.Schema(name)); err != nil {
			t.Fatal(err)
		}
		end := tx.Rollback
		if c.commit {
			end = tx.Commit
		}
		if err := end(); err != nil {
			t.Fatal(err)
		}
		exec(t, d.db, `SELECT pg_notify('marker', '')`) // it arrives after those of earlier commits
		got := ""
		for marked := false; !marked; {
			select {
			case n := <-l.Notify:
				if n == nil {
					t.Fatal("the listener lost its connection")
				}
				if marked = n.Channel == "marker"; !marked {
					got += n.Channel + n.Extra
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the marker did not arrive")
			}
		}
		if got != c.want {
			t.Errorf("%s: notified %q, want %q", c.what, got, c.want)
		}
	}
}

// The role that does it needs the right to call one function, in whatever schema.
