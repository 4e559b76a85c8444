package schema

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/invariants"
)

// I9: the file of the tasks, applied again, counts what was not counted, while others enqueue and
// claim.
func TestApplyingTheFileOfTheTasksAgainMendsTheCounts(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	migrate(t, db)
	run(t, db, `ALTER TABLE outbox.task DISABLE TRIGGER task_wake; ALTER TABLE outbox.dead_task DISABLE TRIGGER dead_task_added;
		INSERT INTO outbox.task (task_type, run_at) SELECT 'A', now() + (n % 2) * interval '1 hour' FROM generate_series(1, 1000) n;
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload) VALUES (-1, now(), now(), 0, 1, 1, 'handler', 'B', '{}');
		ALTER TABLE outbox.task ENABLE TRIGGER task_wake; ALTER TABLE outbox.dead_task ENABLE TRIGGER dead_task_added`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var writers sync.WaitGroup
	for range 4 {
		other := open(t, url)
		writers.Go(func() {
			for ctx.Err() == nil {
				if _, err := other.Exec(`WITH d AS (DELETE FROM outbox.task WHERE task_id IN (SELECT task_id FROM outbox.task LIMIT 3 FOR UPDATE SKIP LOCKED))
					INSERT INTO outbox.task (task_type) SELECT 'A' FROM generate_series(1, 4)`); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		run(t, db, migrations()[3])
	}
	cancel()
	writers.Wait()
	if n := scan[int](t, db, invariants.Miscounted); n != 0 {
		t.Errorf("%d counts are not those of the rows", n)
	}
	if n := scan[int](t, db, "SELECT sum(tasks) FROM (SELECT task_type, kind, tasks FROM outbox.counter UNION ALL SELECT task_type, kind, tasks FROM outbox.counter_log) c WHERE task_type = 'B' AND kind = 'dead'"); n != 1 {
		t.Errorf("%d dead letters are counted, want 1", n)
	}
}

func TestEnqueuersAndClaimsDoNotWaitForEachOthersCounts(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url, "lock_timeout", "1s")
	migrate(t, db)
	begin(t, open(t, url), "INSERT INTO outbox.task (task_type) VALUES ('A')")
	begin(t, open(t, url), "INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (0, 'A', 'ready')")
	run(t, db, "INSERT INTO outbox.task (task_type) VALUES ('A')")
	begin(t, db, "UPDATE outbox.task SET state = 'scheduled'")
	run(t, open(t, url, "lock_timeout", "1s"), "INSERT INTO outbox.task (task_type) VALUES ('A')")
}

// However many tasks one statement deletes: each head of an ordering key leaves a row in
// headless_key, others none, and all are counted.
func TestEachHeadThatIsDeletedLeavesItsKeyHeadless(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	for _, n := range []int{1, 2, 3, 4, 50} {
		run(t, db, fmt.Sprintf(`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type) SELECT 'PLAIN' FROM generate_series(1, %[1]d) n;
			UPDATE outbox.task SET state = 'ready' WHERE task_id IN (SELECT min(task_id) FROM outbox.task WHERE task_type = 'KEYED' GROUP BY ordering_key);
			TRUNCATE outbox.headless_key;
			DELETE FROM outbox.task`, n))
		const keys = `SELECT count(*) || ' ' || count(DISTINCT ordering_key) FROM outbox.headless_key WHERE task_type = 'KEYED'`
		if got, want := scan[string](t, db, keys), fmt.Sprintf("%d %d", n, n); got != want {
			t.Errorf("%d heads: %s rows of keys, want %s", n, got, want)
		}
		if wrong := scan[int](t, db, invariants.Miscounted); wrong != 0 {
			t.Errorf("%d heads: %d counts are not those of the rows", n, wrong)
		}
	}
}
