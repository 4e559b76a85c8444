package schema

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

const counted = `SELECT COALESCE(string_agg(format('%s %s %s', task_type, kind, n), ', ' ORDER BY task_type, kind), 'nothing') FROM (
	SELECT task_type, kind, sum(tasks) AS n FROM (SELECT task_type, kind, tasks FROM outbox.counter UNION ALL SELECT task_type, kind, tasks FROM outbox.counter_log) c
	 GROUP BY 1, 2 HAVING sum(tasks) <> 0) t`

const present = `SELECT COALESCE(string_agg(format('%s %s %s', task_type, kind, n), ', ' ORDER BY task_type, kind), 'nothing') FROM (
	SELECT task_type, state AS kind, count(*) AS n FROM outbox.task GROUP BY 1, 2
	UNION ALL SELECT task_type, 'dead', count(*) FROM outbox.dead_task GROUP BY 1) t`

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
	text := migrations()[3]
	run(t, db, text)
	cancel()
	writers.Wait()
	if got, want := scan[string](t, db, counted), scan[string](t, db, present); got != want || !strings.Contains(want, "B dead 1") {
		t.Errorf("counted %s, there is %s", got, want)
	}
	run(t, db, text)
	if got, want := scan[string](t, db, counted), scan[string](t, db, present); got != want {
		t.Errorf("applied again: counted %s, there is %s", got, want)
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
