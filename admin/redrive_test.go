package admin_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// redriven redrives tasks, and fails unless these are redriven.
func redriven(t *testing.T, c *admin.Client, tasks []int64, want ...int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it waits for no lock
	defer cancel()
	if got, err := c.Redrive(ctx, admin.DeadFilter{IDs: tasks}, admin.Bulk{}); !slices.Equal(got.IDs, want) || err != nil {
		t.Fatalf("got %v, %v, want %v", got, err, want)
	}
}

func TestARedrivenTaskStartsAgainAsItWas(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 7, 2, 60) // 8 had a limit of its own
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) VALUES (7, gen_random_uuid(), gen_random_uuid())`)
	redriven(t, c, []int64{8, 7, 99}, 7, 8)
	got := db.Text(t, `SELECT string_agg(concat_ws(' ', attempt, COALESCE(max_attempts::text, 'none'), last_error,
		priority, headers->>'trace', payload->>'n', run_at BETWEEN now() - interval '1 hour' AND now(),
		created_at < now() - interval '2 days'), ', ' ORDER BY task_id) FROM outbox.task`)
	if want := "0 none boom 3 x 7 t t, 0 5 boom 3 x 8 t t"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`) + db.Int(t, `SELECT count(*) FROM outbox.running`); n != 0 {
		t.Errorf("%d dead letters and runs are left", n)
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
	moved, err := c.Redrive(t.Context(), admin.DeadFilter{IDs: []int64{1, 2, 3}}, admin.Bulk{})
	if n := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); n != 3 || err == nil || moved.IDs != nil {
		t.Errorf("%d dead letters are left, got %v, %v, want all and an error", n, moved, err)
	}
}

func TestTwoWhoRedriveTheSameShareIt(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 5000, 200)
	tx := begin(t, db)
	redriven(t, c.In(tx), []int64{1}, 1)
	redriven(t, c, []int64{1, 2}, 2)
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	var total atomic.Int64
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			r, err := c.Redrive(t.Context(), admin.DeadFilter{All: true}, admin.Bulk{})
			if err != nil {
				t.Error(err)
			}
			total.Add(int64(len(r.IDs)))
		})
	}
	all.Wait()
	// What one skipped as another held it, that one moved.
	if n := db.Int(t, `SELECT count(DISTINCT task_id) FROM outbox.task`); total.Load() != 4998 || n != 5000 {
		t.Errorf("%d were moved and %d tasks are there, want 4998 and 5000", total.Load(), n)
	}
}

// Those whose key another task holds are left, counted apart and not noted, and pages go on behind
// them.
func TestARedriveOfAllSkipsThoseWhoseKeyAnotherTaskHolds(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB, admin.Config{Actor: "ada", Tool: "test"})
	bury(t, db, "X", "attempts", "boom", 11, 6, 60)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = (ARRAY['free', 'held', 'free'])[task_id - 10],
		unique_until_done = true WHERE task_id <= 13`)
	db.Do(t, `INSERT INTO outbox.task (task_type, unique_key) VALUES ('X', 'held')`)
	all := admin.DeadFilter{All: true}
	pages := 0
	r, err := c.Redrive(t.Context(), all, admin.Bulk{PerSecond: 20, Progress: func(r admin.BulkResult) bool {
		pages++
		return len(r.IDs)+len(r.Skipped) == 2*pages
	}})
	if !slices.Equal(r.IDs, []int64{11, 14, 15, 16}) || !slices.Equal(r.Skipped, []int64{12, 13}) || err != nil {
		t.Errorf("got %+v, %v, want 12 and 13 skipped", r, err)
	}
	left := db.Text(t, `SELECT string_agg(task_id || ' ' || unique_key, ', ' ORDER BY task_id) FROM outbox.dead_task`)
	if left != "12 held, 13 free" {
		t.Errorf("%s are left, want 12 held, 13 free", left)
	}
	taken, err := c.Redrive(t.Context(), all, admin.Bulk{WithoutKey: true})
	if len(taken.IDs) != 2 || taken.Skipped != nil || err != nil {
		t.Errorf("without their keys: got %+v, %v, want two redriven and none skipped", taken, err)
	}
	if n := db.Int(t, `SELECT count(*) FROM outbox.task WHERE unique_key IS NULL AND task_id IN (12, 13)`); n != 2 {
		t.Errorf("%d of the tasks 12 and 13 are there without a key, want both", n)
	}
	counts := db.Text(t, `SELECT string_agg(count::text, ' ' ORDER BY entry_id) FROM outbox.audit`)
	if counts != "1 1 2 2" {
		t.Errorf("the audit log counts %s, want 1 1 2 2", counts)
	}
}

// The one that waits for the key sees no task of the other's, as its statement began before.
func TestOfTwoRedrivesOfOneKeyAtATimeOneIsSkipped(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 2, 60)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k'`)
	db.Do(t, `INSERT INTO outbox.unique_key (task_type, key, task_id) VALUES ('X', 'k', 1)`)
	tx := begin(t, db)
	redriven(t, c.In(tx), []int64{1}, 1)
	second := make(chan admin.BulkResult, 1)
	go func() {
		got, err := c.Redrive(t.Context(), admin.DeadFilter{IDs: []int64{2}}, admin.Bulk{})
		if err != nil {
			t.Error(err)
		}
		second <- got
	}()
	relaytest.Eventually(t, 20*time.Second, "the second waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_activity
			WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%redrive%'`) > 0
	})
	if err := tx.Commit(); err != nil {
		t.Fatal(err)
	}
	if got := <-second; !slices.Equal(got.Skipped, []int64{2}) {
		t.Errorf("got %v, want task 2 skipped", got)
	}
}
