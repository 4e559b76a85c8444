package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"

	"github.com/lib/pq"
)

// The keys are locked in one order, whatever the order of the tasks. Equal payloads are neighbours
// as jsonb, so their keys need not be known. Of one key's tasks the first comes first.
const insertKeyedSQL = `/* outbox: enqueue with unique keys */
INSERT INTO "%s".keyed_task (position, task_type, payload, unique_key, unique_until_done, on_conflict%s)
SELECT position, task_type, payload::jsonb, unique_key, unique_until_done::boolean, on_conflict%s
  FROM (SELECT %s, generate_series(1, $3::integer) AS position, NULLIF(unnest($4::text[]), '') AS unique_key,
               unnest($5::text[]) AS unique_until_done, unnest($6::text[]) AS on_conflict%s) AS n
 ORDER BY unique_key IS NOT NULL, CASE WHEN unique_key IS NOT NULL THEN task_type END COLLATE "C", unique_key COLLATE "C",
       CASE WHEN unique_key = '` + payloadKey + `' THEN payload::jsonb END, position
RETURNING position, task_id, outcome`

// insertKeyed inserts tasks of which some have a unique key.
func insertKeyed(ctx context.Context, tx Querier, tasks []row, payloads *lines) ([]Enqueued, error) {
	fail := func(err error) ([]Enqueued, error) {
		if len(tasks) == 1 {
			return nil, fmt.Errorf("outbox: enqueue %s: %w", tasks[0].taskType, err)
		}
		return nil, fmt.Errorf("outbox: enqueue %d tasks: %w", len(tasks), err)
	}
	n := len(tasks)
	keys, untilDone, onConflict := make([]string, n), make([]bool, n), make([]string, n) // no key is ""
	for i, r := range tasks {
		if r.unique != nil {
			keys[i], untilDone[i] = r.unique.key, r.unique.untilDone
			if r.unique.ofPayload {
				keys[i] = payloadKey
			}
		}
		onConflict[i] = conflicts[r.onConflict]
	}
	args, columns := typesAndPayloads(tasks, payloads)
	args, optional := optionalMany(append(args, n, pq.Array(keys), pq.Array(untilDone), pq.Array(onConflict)), tasks)
	statement := fmt.Sprintf(insertKeyedSQL, tasks[0].schema, optional.names, optional.values, columns, optional.arrays)
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return fail(err)
	}
	defer rows.Close()
	out := make([]Enqueued, n)
	for rows.Next() {
		var position int
		var id sql.NullInt64
		var outcome sql.NullString
		if err := rows.Scan(&position, &id, &outcome); err != nil {
			return fail(err)
		}
		if !id.Valid {
			return fail(fmt.Errorf("task %d was not inserted: is there a trigger on the task table that drops rows?", position-1))
		}
		out[position-1] = Enqueued{TaskID: id.Int64, Outcome: Outcome(slices.Index(outcomes, outcome.String))}
	}
	if err := rows.Err(); err != nil {
		return fail(err)
	}
	return out, nil
}
