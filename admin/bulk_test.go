package admin_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

var takers = map[string]func(*admin.Client, context.Context, admin.DeadFilter, admin.Bulk) (admin.BulkResult, error){
	"redrive": (*admin.Client).Redrive, "purge": (*admin.Client).Purge,
}

// A call takes the oldest that pass, as many as it is told to, from where the last one ended.
func TestPagesTakeTheOldestAndGoOnWhereTheyEnded(t *testing.T) {
	t.Parallel()
	for name, take := range takers {
		db := relaytest.NewDatabase(t)
		c := client(t, db.DB)
		bury(t, db, "MAIL", "attempts", "boom", 1, 5, 60)
		bury(t, db, "PAY", "handler", "boom", 11, 5, 90)
		// From the oldest on: 11 to 15, then 1 to 5.
		at, all := "", admin.DeadFilter{All: true}
		for i, tt := range []struct {
			f     admin.DeadFilter
			limit int
			left  string // the ids that are dead letters then
			last  bool
		}{
			{all, 2, "1,2,3,4,5,13,14,15", false},
			{admin.DeadFilter{Reason: outbox.ReasonAttempts}, 1, "2,3,4,5,13,14,15", false},
			{admin.DeadFilter{Type: "PAY"}, 5, "2,3,4,5,13,14,15", true}, // they are before the place
			{admin.DeadFilter{Type: "MAIL", Error: "boom"}, 1000, "13,14,15", true},
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
	c, old := client(t, db.DB), admin.DeadFilter{OlderThan: 20 * time.Minute}
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
	r, err := c.Purge(ctx, admin.DeadFilter{All: true}, admin.Bulk{})
	if !errors.Is(err, context.Canceled) || r.IDs != nil {
		t.Errorf("got %v, %v, want none and the end of the context", r, err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = c.Purge(ctx, admin.DeadFilter{All: true}, admin.Bulk{Timeout: 300 * time.Millisecond})
	if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
		t.Errorf("got %v, want the end of the transaction's time", err)
	}
}

func TestATaskThatDiesAgainIsRedrivenOnce(t *testing.T) {
	t.Parallel()
	db := relaytest.NewDatabase(t)
	bury(t, db, "X", "attempts", "boom", 1, 3, 60)
	for _, f := range []admin.DeadFilter{{All: true}, {IDs: []int64{1, 2, 3}}} {
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
	r, err := c.Redrive(ctx, admin.DeadFilter{All: true}, admin.Bulk{PerSecond: 100})
	n := len(r.IDs)
	if !errors.Is(err, context.Canceled) || n == 0 || n == 1000 {
		t.Errorf("got %d, %v, want some and the end of the context", n, err)
	}
	if moved := db.Int(t, `SELECT count(*) FROM outbox.task`); moved != n {
		t.Errorf("%d were moved, it said %d", moved, n)
	}
	start := time.Now()
	old := admin.DeadFilter{DiedBefore: first.Add(time.Minute)}
	r, err = c.Purge(t.Context(), old, admin.Bulk{PerSecond: 200})
	if n = len(r.IDs); err != nil || n > 60 {
		t.Errorf("got %d, %v", n, err)
	}
	if min := time.Duration(n-20) * time.Second / 200; time.Since(start) < min {
		t.Errorf("%d took %v, want %v or more", n, time.Since(start), min)
	}
}
