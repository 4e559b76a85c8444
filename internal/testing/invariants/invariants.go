// Package invariants has queries that count what must not be in the tables of an outbox, whatever
// happened: each returns one number, zero unless
// something is wrong. They are for tests. docs/design.md has the numbers.
package invariants

// Always are those that hold at any moment.
var Always = map[string]string{
	"I1: a task is in task and in dead_task": `SELECT count(*) FROM outbox.task JOIN outbox.dead_task USING (task_id)`,
	"I5: a dead task has attempts left": `SELECT count(*) FROM outbox.dead_task WHERE reason = 'attempts'
		AND attempt <> max_attempts`,
	"a run without a task is in the journal, and its relay has signed off": `SELECT count(*) FROM outbox.running r
		WHERE NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = ANY (COALESCE(r.task_ids, ARRAY[r.task_id])))
			AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = r.relay_id)`,
	"I9: the counts are not those of the rows": Miscounted,
	"I14: tasks wait for a free place of their key, and nobody asked for one": `
		SELECT count(*) FROM outbox.task t WHERE t.state = 'waiting' AND t.group_key IS NOT NULL
			AND (SELECT count(*) FROM outbox.task p WHERE p.task_type = t.task_type AND p.group_key = t.group_key
				AND p.group_place IS NOT NULL) < COALESCE((SELECT max_running_per_key FROM outbox.task_type l
					WHERE l.task_type = t.task_type), 1)
			AND NOT EXISTS (SELECT 1 FROM outbox.place_request r WHERE r.task_type = t.task_type AND r.group_key = t.group_key)`,
	"I9: more tasks are counted as left than were enqueued": `SELECT count(*) FROM (
			SELECT sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'canceled' THEN -tasks
			WHEN 'failed' THEN 0 WHEN 'expired' THEN -tasks ELSE arrived - tasks END) AS finished
			  FROM (SELECT task_type, kind, tasks, arrived FROM outbox.counter UNION ALL SELECT task_type, kind, tasks, arrived
			  FROM outbox.counter_log) c
			 GROUP BY task_type) f WHERE finished < 0`,
}

// Miscounted counts the types and kinds of which outbox.counter and its log say something else than count(*).
const Miscounted = `SELECT count(*) FROM (
	SELECT task_type, kind, sum(n) FROM (
		SELECT task_type, outbox.kind_of(state, attempt) AS kind, count(*) AS n FROM outbox.task GROUP BY 1, 2
		UNION ALL SELECT task_type, 'dead', count(*) FROM outbox.dead_task GROUP BY 1
		UNION ALL SELECT task_type, kind, -tasks FROM (SELECT task_type, kind, tasks FROM outbox.counter
			UNION ALL SELECT task_type, kind, tasks FROM outbox.counter_log) AS l
			WHERE kind NOT IN ('failed', 'canceled', 'expired')) AS c
	 GROUP BY 1, 2 HAVING sum(n) <> 0) AS wrong`
