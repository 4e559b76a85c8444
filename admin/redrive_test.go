package admin_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/relaytest"
)

func TestARedrivenTaskStartsAgainAsItWas(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 7, 2, 60) // 8 had a limit of its own
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) VALUES (7, gen_random_uuid(), gen_random_uuid())`)
	moved, _, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{8, 7, 99}}, admin.Page{})
	if err != nil || !slices.Equal(moved, []int64{7, 8}) {
		t.Fatalf("got %v, %v", moved, err)
	}
	for id, want := range map[int]string{7: "0 none boom 3 x 7 due", 8: "0 5 boom 3 x 8 due"} {
		var got string
		err := db.QueryRow(`SELECT concat_ws(' ', attempt, COALESCE(max_attempts::text, 'none'), last_error, priority, headers->>'trace', payload->>'n',
			CASE WHEN run_at <= now() AND run_at > now() - interval '1 minute' AND created_at < now() - interval '2 days' THEN 'due' END)
			FROM outbox.task WHERE task_id = $1`, id).Scan(&got)
		if err != nil || got != want {
			t.Errorf("task %d: got %q, %v, want %q", id, got, err, want)
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`) + db.Int(t, `SELECT count(*) FROM outbox.running`); n != 0 {
		t.Errorf("%d dead letters and runs are left", n)
	}
	if moved, _, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{7}}, admin.Page{}); len(moved) != 0 || err != nil {
		t.Errorf("once more: got %v, %v, want nothing", moved, err)
	}
}

// I1: a trigger of the app's that drops the task must not lose it.
func TestARedriveThatDoesNotArriveIsRolledBack(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 3, 60)
	db.Do(t, `CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
		CREATE TRIGGER refuse BEFORE INSERT ON outbox.task FOR EACH ROW WHEN (NEW.task_id = 2) EXECUTE FUNCTION refuse()`)
	if moved, _, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{1, 2, 3}}, admin.Page{}); err == nil || moved != nil {
		t.Errorf("got %v, %v, want an error", moved, err)
	}
	if n, err := c.EveryPage(t.Context(), c.Redrive, admin.Filter{All: true}, 0); err == nil || n != 0 {
		t.Errorf("got %d, %v, want an error", n, err)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 3 {
		t.Errorf("%d dead letters are left, want 3", n)
	}
}

func TestTwoWhoRedriveTheSameShareIt(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 5000, 200)
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	if moved, _, err := c.In(tx).Redrive(t.Context(), admin.Filter{IDs: []int64{1}}, admin.Page{}); len(moved) != 1 || err != nil {
		t.Fatalf("got %v, %v", moved, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the other one would be waited for in vain
	defer cancel()
	if moved, _, err := c.Redrive(ctx, admin.Filter{IDs: []int64{1, 2}}, admin.Page{}); !slices.Equal(moved, []int64{2}) || err != nil {
		t.Errorf("beside another: got %v, %v, want [2], at once", moved, err)
	}
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var total atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			n, err := c.EveryPage(t.Context(), c.Redrive, admin.Filter{All: true}, 0)
			if err != nil {
				t.Error(err)
			}
			total.Add(n)
		})
	}
	all.Wait()
	// What one skipped as another held it, that one moved.
	if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM outbox.task`); total.Load() != 4998 || n != 5000 {
		t.Errorf("%d were moved and %d tasks are there, want 4998 and 5000", total.Load(), n)
	}
}
