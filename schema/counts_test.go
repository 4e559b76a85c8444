package schema

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// beforeCounts are the migrations before the one that counts, and that one.
func beforeCounts(t *testing.T) (before []string, counts string) {
	t.Helper()
	for i, text := range migrations() {
		if strings.Contains(text, "CREATE TABLE IF NOT EXISTS outbox.counter ") {
			return migrations()[:i], text
		}
	}
	t.Fatal("no migration has the table of counters")
	return nil, ""
}

const counted = `SELECT COALESCE(string_agg(format('%s %s %s', task_type, kind, n), ', ' ORDER BY task_type, kind), 'nothing') FROM (
	SELECT task_type, kind, sum(tasks) AS n FROM (SELECT task_type, kind, tasks FROM outbox.counter UNION ALL SELECT task_type, kind, tasks FROM outbox.counter_log) c
	 GROUP BY 1, 2 HAVING sum(tasks) <> 0) t`

const present = `SELECT COALESCE(string_agg(format('%s %s %s', task_type, kind, n), ', ' ORDER BY task_type, kind), 'nothing') FROM (
	SELECT task_type, state AS kind, count(*) AS n FROM outbox.task GROUP BY 1, 2
	UNION ALL SELECT task_type, 'dead', count(*) FROM outbox.dead_task GROUP BY 1) t`

// I9 from the first moment: Migrate counts what is there, while others enqueue; applying it again counts nothing twice.
func TestTheCountersBeginWithWhatIsThere(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	before, text := beforeCounts(t)
	migrate(t, db, files(before...))
	run(t, db, `INSERT INTO outbox.task (task_type, run_at) SELECT 'A', now() + (n % 2) * interval '1 hour' FROM generate_series(1, 1000) n;
		INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload) VALUES (-1, now(), now(), 0, 1, 1, 'handler', 'B', '{}')`)
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
	migrate(t, db, files(append(before[:len(before):len(before)], text)...))
	cancel()
	writers.Wait()
	if got, want := scan[string](t, db, counted), scan[string](t, db, present); got != want || !strings.Contains(want, "B dead 1") {
		t.Errorf("counted %s, there is %s", got, want)
	}
	run(t, db, text)
	if got, want := scan[string](t, db, counted), scan[string](t, db, present); got != want {
		t.Errorf("applied again: counted %s, there is %s", got, want)
	}
	if n := scan[sql.NullInt64](t, db, `SELECT sum(arrived - tasks) FROM (SELECT * FROM outbox.counter) c`); n.Int64 < 0 {
		t.Errorf("%d tasks finished before any did", n.Int64)
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
