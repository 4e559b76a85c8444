package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

const counted = `SELECT COALESCE(string_agg(format('%s %s %s', task_type, kind, n), ', ' ORDER BY task_type, kind), 'nothing') FROM (
	SELECT task_type, kind, sum(tasks) AS n FROM (SELECT task_type, kind, tasks FROM outbox.counter UNION ALL SELECT task_type, kind, tasks FROM outbox.counter_log) c
	 GROUP BY 1, 2 HAVING sum(tasks) <> 0) t`

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
