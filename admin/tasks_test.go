package admin_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

// listed are statements that insert tasks of the type A in a state, n of them, with equals in what
// they are ordered by; and the query of their order.
var listed = map[admin.State]struct{ insert, order string }{
	admin.StateReady: {`INSERT INTO outbox.task (task_type, priority, attempt) SELECT 'A', n % 3 - 1, n % 2`,
		`FROM outbox.task WHERE state = 'ready' AND task_type = 'A' ORDER BY priority, attempt, task_id`},
	admin.StateScheduled: {`INSERT INTO outbox.task (task_type, run_at) SELECT 'A', now() + (7 - n % 7) * interval '1 hour'`,
		`FROM outbox.task WHERE state = 'scheduled' AND task_type = 'A' ORDER BY run_at, task_id`},
	admin.StateLeased: {`INSERT INTO outbox.task (task_type, state, relay_id, lease_token)
			SELECT 'A', 'leased', gen_random_uuid(), gen_random_uuid()`,
		`FROM outbox.task WHERE state = 'leased' AND task_type = 'A' ORDER BY task_id`},
	admin.StateWaiting: {`INSERT INTO outbox.task (task_type, ordering_key) SELECT 'A', 'k' || 100 - n`,
		`FROM outbox.task WHERE state = 'waiting' AND task_type = 'A' ORDER BY task_id`},
	admin.StateDead: {`WITH enqueued AS (
			INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, $1::int, 'A', 'ready'))
		INSERT INTO outbox.dead_task
			(task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload)
		SELECT nextval('ids'), now(), now(), now() - n % 4 * interval '1 day', 0, 1, 1, 'handler', 'A', '{}'`,
		`FROM outbox.dead_task WHERE task_type = 'A' ORDER BY died_at DESC, task_id DESC`},
	admin.StateFinished: {`INSERT INTO outbox.done_task
			(task_id, run_at, created_at, finished_at, keep_until, priority, attempt, task_type, payload)
		SELECT nextval('ids'), now(), now(), now(), now(), 0, 1, 'A', '{}'`,
		`FROM outbox.done_task WHERE task_type = 'A' ORDER BY task_id DESC`},
}

func TestPagesHaveEachTaskOnceInItsOrder(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	onEachDriver(t, func(t *testing.T, db *database) {
		db.Do(t, `CREATE SEQUENCE ids START 1000000`)
		c := client(t, db.DB)
		all := func(taskType string, state admin.State, limit int, between func()) []admin.Task {
			t.Helper()
			tasks, n := pages(t, limit, func(after string) ([]admin.Task, string, error) {
				if after != "" {
					between()
				}
				q := admin.TaskQuery{Type: taskType, State: state, After: after, Limit: limit}
				return tasksOf(c.Tasks(t.Context(), q))
			})
			if n != (max(len(tasks), 1)+limit-1)/limit {
				t.Errorf("%s: %d tasks are on %d pages of %d", state, len(tasks), n, limit)
			}
			return tasks
		}
		for state, of := range listed {
			insert := of.insert + ` FROM generate_series(1, $1::int) n`
			db.Do(t, insert, 40)
			db.Do(t, strings.ReplaceAll(insert, "'A'", "'B'"), 3) // of another type
			text := db.Text(t, `SELECT json_agg(task_id) FROM (SELECT task_id `+of.order+`) o`)
			var want []int64
			if err := json.Unmarshal([]byte(text), &want); err != nil || len(want) != 40 {
				t.Fatalf("%s: %d tasks, %v", state, len(want), err)
			}
			for _, limit := range []int{1, 7, 20, 40, 41, 1000} {
				got := all("A", state, limit, func() {})
				if !slices.Equal(ids(got), want) {
					t.Errorf("%s in pages of %d: %v, want %v", state, limit, ids(got), want)
				}
				if i := slices.IndexFunc(got, func(x admin.Task) bool { return x.Type != "A" || x.State != state }); i >= 0 {
					t.Errorf("%s: %+v", state, got[i])
				}
			}
			// Others come and go meanwhile: those that keep their place are each there once.
			gone := map[int64]bool{}
			seen := map[int64]int{}
			for _, task := range all("A", state, 3, func() {
				victim := want[len(gone)*2%len(want)]
				gone[victim] = true
				for _, table := range []string{"task", "dead_task", "done_task"} {
					db.Do(t, `DELETE FROM outbox.`+table+` WHERE task_id = $1`, victim)
				}
				db.Do(t, insert, 1)
			}) {
				seen[task.ID]++
			}
			for _, id := range want {
				if n := seen[id]; n > 1 || n == 0 && !gone[id] {
					t.Errorf("%s: task %d was listed %d times while others came and went", state, id, n)
				}
			}
			db.Do(t, `DELETE FROM outbox.task; DELETE FROM outbox.dead_task WHERE task_type = 'A';
				DELETE FROM outbox.done_task WHERE task_type = 'A'`)
		}
		for _, state := range []admin.State{admin.StateDead, admin.StateFinished} {
			if got := all("", state, 2, func() {}); len(got) < 3 || got[0].Type != "B" {
				t.Errorf("%s of all types: %+v", state, got)
			}
		}
	})
}
