package schema

import (
	"fmt"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// However many tasks one statement deletes: each first task of an ordering key leaves a row in turn, others none, and all are counted.
func TestEachFirstTaskThatIsDeletedEndsATurn(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	for _, n := range []int{1, 2, 3, 4, 50} {
		run(t, db, fmt.Sprintf(`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type, ordering_key) SELECT 'KEYED', n FROM generate_series(1, %[1]d) n;
			INSERT INTO outbox.task (task_type) SELECT 'PLAIN' FROM generate_series(1, %[1]d) n;
			UPDATE outbox.task SET state = 'ready' WHERE task_id IN (SELECT min(task_id) FROM outbox.task WHERE task_type = 'KEYED' GROUP BY ordering_key);
			TRUNCATE outbox.turn;
			DELETE FROM outbox.task`, n))
		const keys = `SELECT count(*) || ' ' || count(DISTINCT ordering_key) FROM outbox.turn WHERE task_type = 'KEYED'`
		if got, want := scan[string](t, db, keys), fmt.Sprintf("%d %d", n, n); got != want {
			t.Errorf("%d first tasks: %s turns of keys, want %s", n, got, want)
		}
		if got := scan[string](t, db, counted); got != "nothing" {
			t.Errorf("%d first tasks: counted %s, there is nothing", n, got)
		}
	}
}
