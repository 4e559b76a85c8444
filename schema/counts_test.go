package schema

import (
	"fmt"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/invariants"
)

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
