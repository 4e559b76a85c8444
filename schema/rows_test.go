package schema

import (
	"fmt"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// What a relay hands back takes its runs from the journal, except those whose relays may live, and
// counts as failed if it is. The lost runs are in its timeline.
func TestATaskThatIsHandedBackLeavesTheJournal(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	const of, other = "00000000-0000-4000-8000-000000000001", "00000000-0000-4000-8000-000000000002"
	const lost, living = "00000000-0000-4000-8000-00000000000a", "00000000-0000-4000-8000-00000000000b"
	const task = `{"task_id": 7, "task_type": "T", "state": "scheduled", "priority": 0, "attempt": 2, "payload": {},
		"run_us": 0, "created_us": 0, "reason": "handler", "claimed_attempt": 1`
	const undecided = `, "living": ["` + living + `"]`
	for name, c := range map[string]struct{ call, want string }{
		"put back": {`outbox.put_back('` + task + `}', 1000, %t, 1, '{` + living + `}', '` + of + `', NULL)`,
			"task lost 2; runs 7b 8a; "},
		"buried": {`outbox.bury('` + task + `}', 3, %t, 1, '{` + living + `}', '` + of + `', NULL)`,
			"dead_task lost 2; runs 8a; "},
		"finished with lost runs": {`outbox.keep('[` + task + undecided + `}]', 3600000000, '` + of + `')`,
			"done_task lost 2; runs 7a 7b 8a; "},
		"finished without lost runs": {`outbox.keep('[` + task + `}]', 3600000000, '` + of + `')`,
			"done_task; runs 7a 7b 8a; "},
	} {
		for _, failed := range []bool{false, true} {
			call, want := c.call, c.want
			if name == "put back" || name == "buried" {
				call = fmt.Sprintf(call, failed)
				if failed {
					want += "1 failed"
				}
			}
			tx, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`INSERT INTO outbox.running (task_id, token, relay_id)
				VALUES (7, $1, $3), (7, $2, $3), (8, $1, $3)`, lost, living, other); err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec(`SELECT ` + call); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			got := scan[string](t, tx, `SELECT concat(
				(SELECT string_agg(concat_ws(' ', place, (SELECT string_agg(concat_ws(' ', e ->> 'event', e ->> 'attempt'), ', ')
				  FROM jsonb_array_elements(timeline) e)), ', ')
				  FROM (SELECT 'task' AS place, timeline FROM outbox.task
				        UNION ALL SELECT 'dead_task', timeline FROM outbox.dead_task
				        UNION ALL SELECT 'done_task', timeline FROM outbox.done_task) AS t),
				'; runs ', (SELECT string_agg(concat(task_id, right(token::text, 1)), ' ' ORDER BY task_id, token)
				  FROM outbox.running),
				'; ', (SELECT string_agg(concat(tasks, ' ', kind), ', ') FROM outbox.counter_log WHERE kind = 'failed'))`)
			if got != want {
				t.Errorf("%s, failed %t: %s, want %s", name, failed, got, want)
			}
			_ = tx.Rollback()
		}
	}
}
