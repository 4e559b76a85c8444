package deadletter_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/txoutbox/outbox/deadletter"
)

func TestAPurgeEndsInSmallStatements(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "OLD", "attempts", "boom", 1, 10_000, 10_000)
	bury(t, db, "NEW", "attempts", "boom", 20_001, 10, 5)
	// Each statement writes down how many rows it deleted.
	exec(t, db, `CREATE TABLE deleted (n int);
		CREATE FUNCTION deleted() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO deleted SELECT count(*) FROM gone; RETURN NULL; END $$;
		CREATE TRIGGER deleted AFTER DELETE ON outbox.dead_task REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION deleted()`)
	held, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer held.Rollback()
	if _, err := held.Exec(`SELECT 1 FROM outbox.dead_task WHERE task_id IN (1, 5000) FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	if n, err := deadletter.Purge(t.Context(), db, deadletter.Filter{OlderThan: 20 * time.Minute}, 10); n != 10 || err != nil {
		t.Errorf("Purge: %d, %v, want 10", n, err)
	}
	if id := number(t, db, `SELECT min(task_id) FROM outbox.dead_task WHERE task_id > 1`); id != 12 {
		t.Errorf("the oldest one left is %d, want 12", id)
	}
	n, err := deadletter.PurgeMany(t.Context(), db, deadletter.Filter{OlderThan: 20 * time.Minute}, 0)
	if n != 9_988 || err != nil {
		t.Errorf("PurgeMany: %d, %v, want 9988: all but those that another holds", n, err)
	}
	if left := number(t, db, `SELECT count(*) FROM outbox.dead_task`); left != 12 {
		t.Errorf("%d are left, want 12", left)
	}
	if most := number(t, db, `SELECT max(n) FROM deleted`); most != 1000 {
		t.Errorf("a statement deleted %d rows, want 1000 at most", most)
	}
}

// PostgreSQL says of a statement whose context ends that it was canceled, and no more.
func TestABulkCallWhoseContextEndsInsideAStatementSaysSo(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for name, many := range map[string]func(context.Context) (int64, error){
		"RedriveMany": func(ctx context.Context) (int64, error) {
			return deadletter.RedriveMany(ctx, db, deadletter.Filter{}, 0)
		},
		"PurgeMany": func(ctx context.Context) (int64, error) {
			return deadletter.PurgeMany(ctx, db, deadletter.Filter{DiedBefore: time.Now()}, 0)
		},
	} {
		tx, err := db.Begin()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.Exec(`LOCK TABLE outbox.dead_task`); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		go func() {
			defer cancel()
			for n := 0; n == 0 && ctx.Err() == nil; {
				_ = db.QueryRowContext(ctx, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
					WHERE datname = current_database() AND NOT granted AND relation = 'outbox.dead_task'::regclass`).Scan(&n)
			}
		}()
		if n, err := many(ctx); !errors.Is(err, context.Canceled) || n != 0 {
			t.Errorf("%s: got %d, %v, want 0 and the end of the context", name, n, err)
		}
		_ = tx.Rollback()
		cancel()
	}
}

func TestABulkCallStopsWithItsContextAndKeepsItsRate(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	bury(t, db, "X", "attempts", "boom", 1, 1000, 100)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		defer cancel()
		for n := 0; n == 0 && ctx.Err() == nil; {
			_ = db.QueryRowContext(ctx, `SELECT count(*) FROM outbox.task`).Scan(&n)
		}
	}()
	n, err := deadletter.RedriveMany(ctx, db, deadletter.Filter{}, 100)
	if !errors.Is(err, context.Canceled) || n == 0 || n == 1000 {
		t.Errorf("got %d, %v, want some and the end of the context", n, err)
	}
	if moved := number(t, db, `SELECT count(*) FROM outbox.task`); moved != int(n) {
		t.Errorf("%d were moved, it said %d", moved, n)
	}
	start := time.Now()
	if n, err = deadletter.PurgeMany(t.Context(), db, deadletter.Filter{DiedBefore: time.Now().Add(-99 * time.Minute)}, 200); err != nil || n > 60 {
		t.Errorf("got %d, %v", n, err)
	}
	if min := time.Duration(n-20) * time.Second / 200; time.Since(start) < min {
		t.Errorf("%d took %v, want %v or more", n, time.Since(start), min)
	}
}
