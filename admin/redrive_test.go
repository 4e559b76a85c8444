package admin_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// redriven redrives tasks, and fails unless these are redriven.
func redriven(t *testing.T, c *admin.Client, tasks []int64, want ...int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // it waits for no lock
	defer cancel()
	if got, err := c.Redrive(ctx, admin.Filter{IDs: tasks}, admin.Bulk{}); !slices.Equal(got.IDs, want) || err != nil {
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
	moved, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{1, 2, 3}}, admin.Bulk{})
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
			r, err := c.Redrive(t.Context(), admin.Filter{All: true}, admin.Bulk{})
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
	all := admin.Filter{All: true}
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
		got, err := c.Redrive(t.Context(), admin.Filter{IDs: []int64{2}}, admin.Bulk{})
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

type taker func(*admin.Client, context.Context, admin.Filter, admin.Bulk) (admin.BulkResult, error)

// deadTakers are the actions on dead letters.
var deadTakers = map[string]taker{"redrive": (*admin.Client).Redrive, "purge": (*admin.Client).Purge}

// takers are all actions by a filter.
var takers = map[string]taker{
	"redrive": (*admin.Client).Redrive, "purge": (*admin.Client).Purge,
	"cancel": (*admin.Client).Cancel, "run_now": (*admin.Client).RunNow,
	"reschedule": func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
		return c.Reschedule(ctx, f, time.Now().Add(time.Hour), o)
	},
	"set_priority": func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
		return c.SetPriority(ctx, f, 7, o)
	},
	"retype": func(c *admin.Client, ctx context.Context, f admin.Filter, o admin.Bulk) (admin.BulkResult, error) {
		return c.Retype(ctx, f, "RENAMED", o)
	},
}

// A call takes the oldest that pass, as many as it is told to, from where the last one ended.
func TestPagesTakeTheOldestAndGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	for name, take := range deadTakers {
		db := relaytest.NewDatabase(t)
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 5, 60)
		bury(t, db, "PAY", "handler", "boom", 11, 5, 90)
		// From the oldest on: 11 to 15, then 1 to 5.
		at, all := "", admin.Filter{All: true}
		for i, tt := range []struct {
			f     admin.Filter
			limit int
			left  string // the ids that are dead letters then
			last  bool
		}{
			{all, 2, "1,2,3,4,5,13,14,15", false},
			{admin.Filter{Reason: outbox.ReasonAttempts}, 1, "2,3,4,5,13,14,15", false},
			{admin.Filter{Type: "PAY"}, 5, "2,3,4,5,13,14,15", true}, // they are before the place
			{admin.Filter{Type: "MAIL", Error: "boom"}, 1000, "13,14,15", true},
			{all, 1000, "", true},
		} {
			r, err := take(c, t.Context(), tt.f, admin.Bulk{After: at, Limit: tt.limit})
			left := db.Text(t, `SELECT COALESCE(string_agg(task_id::text, ',' ORDER BY task_id), '') FROM outbox.dead_task`)
			if at = r.Next; left != tt.left || (at == "") != tt.last || err != nil {
				t.Fatalf("%s, page %d: %q, %v, %s are left, want %s, the last page: %t", name, i, at, err, left, tt.left, tt.last)
			}
		}
	}
}

func TestAPurgeEndsInSmallStatements(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c, old := client(t, db.DB), admin.Filter{OlderThan: 20 * time.Minute}
	bury(t, db, "OLD", "attempts", "boom", 1, 10_000, 10_000)
	bury(t, db, "NEW", "attempts", "boom", 20_001, 10, 5)
	// Each statement writes down how many rows it deleted.
	db.Do(t, `CREATE TABLE deleted (n int);
		CREATE FUNCTION deleted() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN INSERT INTO deleted SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER deleted AFTER DELETE ON outbox.dead_task REFERENCING OLD TABLE AS gone
			FOR EACH STATEMENT EXECUTE FUNCTION deleted()`)
	db.Hold(t, `SELECT 1 FROM outbox.dead_task WHERE task_id IN (1, 5000) FOR UPDATE`)
	begun, err := c.Purge(t.Context(), old, admin.Bulk{Progress: func(admin.BulkResult) bool { return false }})
	if len(begun.IDs) != 1000 || begun.Next == "" || err != nil {
		t.Errorf("Purge ended after %d, %v, want 1000", len(begun.IDs), err)
	}
	if r, err := c.Purge(t.Context(), old, admin.Bulk{After: begun.Next}); len(r.IDs) != 8_998 || err != nil {
		t.Errorf("Purge: %d, %v, want 8998: all but those that another holds", len(r.IDs), err)
	}
	if left := db.Int(t, `SELECT count(*) FROM outbox.dead_task`); left != 12 {
		t.Errorf("%d are left, want 12", left)
	}
	if most := db.Int(t, `SELECT max(n) FROM deleted`); most != 1000 {
		t.Errorf("a statement deleted %d rows, want 1000 at most", most)
	}
}

// PostgreSQL says of a statement whose context ends that it was canceled, and no more.
func TestABulkCallWhoseContextEndsInsideAStatementSaysSo(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	db.Hold(t, `LOCK TABLE outbox.dead_task`)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	go func() {
		defer cancel()
		for n := 0; n == 0 && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
				WHERE datname = current_database() AND NOT granted AND relation = 'outbox.dead_task'::regclass`).Scan(&n)
		}
	}()
	r, err := c.Purge(ctx, admin.Filter{All: true}, admin.Bulk{})
	if !errors.Is(err, context.Canceled) || r.IDs != nil {
		t.Errorf("got %v, %v, want none and the end of the context", r, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Purge(ctx, admin.Filter{All: true}, admin.Bulk{Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("got %v, want the end of the transaction's time", err)
	}
}

func TestATaskThatDiesAgainIsRedrivenOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	bury(t, db, "X", "attempts", "boom", 1, 3, 60)
	for _, f := range []admin.Filter{{All: true}, {IDs: []int64{1, 2, 3}}} {
		calls := 0
		r, err := client(t, db.DB).Redrive(t.Context(), f, admin.Bulk{PerSecond: 19, Progress: func(admin.BulkResult) bool {
			db.Do(t, `DELETE FROM outbox.task`)
			if calls++; calls <= 3 {
				bury(t, db, "X", "attempts", "boom", calls, 1, 0)
			}
			return calls < 10
		}})
		if len(r.IDs) != 3 || r.Next != "" || err != nil {
			t.Errorf("got %+v, %v, want each of 3 once", r, err)
		}
	}
}

func TestABulkCallStopsWithItsContextAndKeepsItsRate(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	c := client(t, db.DB)
	bury(t, db, "X", "attempts", "boom", 1, 1000, 100)
	var first time.Time
	relaytest.Must(db.QueryRow(`SELECT min(died_at) FROM outbox.dead_task`).Scan(&first))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for n := 0; n == 0 && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM outbox.task`).Scan(&n)
		}
	}()
	r, err := c.Redrive(ctx, admin.Filter{All: true}, admin.Bulk{PerSecond: 100})
	n := len(r.IDs)
	if !errors.Is(err, context.Canceled) || n == 0 || n == 1000 {
		t.Errorf("got %d, %v, want some and the end of the context", n, err)
	}
	if moved := db.Int(t, `SELECT count(*) FROM outbox.task`); moved != n {
		t.Errorf("%d were moved, it said %d", moved, n)
	}
	start := time.Now()
	old := admin.Filter{Before: first.Add(time.Minute)}
	r, err = c.Purge(t.Context(), old, admin.Bulk{PerSecond: 200})
	if n = len(r.IDs); err != nil || n > 60 {
		t.Errorf("got %d, %v", n, err)
	}
	if min := time.Duration(n-20) * time.Second / 200; time.Since(start) < min {
		t.Errorf("%d took %v, want %v or more", n, time.Since(start), min)
	}
}
