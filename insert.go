package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/lib/pq"
)

// A row's own run_at or delay decides when it is due; without either the column's default, now(),
// would do, but a VALUES list cannot mix defaults, so it is written out.
const insertOne = `/* outbox: enqueue */
INSERT INTO "%s".task (task_type, payload, priority, max_attempts, headers, run_at%s)
VALUES ($1, $2::jsonb, $3, $4, $5::jsonb, COALESCE($6::timestamptz, clock_timestamp() + $7::bigint * interval '1 microsecond', now())%s)
RETURNING task_id`

// The task_ids are drawn in the order of the arrays, so sorting them gives the positions.
const insertMany = `/* outbox: enqueue many */
INSERT INTO "%[1]s".task (task_type, payload, priority, max_attempts, headers, run_at%[2]s)
SELECT task_type, payload::jsonb, priority, max_attempts, headers::jsonb,
       COALESCE(run_at::timestamptz, clock_timestamp() + delay * interval '1 microsecond', now())%[3]s
  FROM unnest($1::text[], $2::text[], $3::smallint[], $4::smallint[], $5::text[], $6::text[], $7::bigint[]%[4]s)
       WITH ORDINALITY AS n (task_type, payload, priority, max_attempts, headers, run_at, delay%[2]s, position)
 ORDER BY position
RETURNING task_id`

// PostgreSQL drops the connection at a message of 1 GiB. Writing an array doubles each quote and backslash.
const maxStatement = 256 << 20

func insert(ctx context.Context, tx Querier, tasks []NewTask) ([]Enqueued, error) {
	if err := checkTx(tx); err != nil {
		return nil, err
	}
	rows := make([]row, len(tasks))
	total := 0
	for i, t := range tasks {
		r, err := newRow(t)
		if err == nil && r.schema != rows[0].schemaOr(r.schema) {
			err = fmt.Errorf("%w: Schema: %q and %q in one call", ErrInvalidOption, rows[0].schema, r.schema)
		}
		if err == nil {
			if total += r.size(); total > maxStatement {
				err = fmt.Errorf("%w: %d tasks are %d bytes already, at most %d in one call", ErrPayloadTooLarge, i+1, total, maxStatement)
			}
		}
		if err != nil && len(tasks) > 1 {
			return nil, fmt.Errorf("task %d of %d: %w", i, len(tasks), err)
		}
		if err != nil {
			return nil, err
		}
		rows[i] = r
	}
	switch {
	case len(rows) == 0:
		return nil, nil
	case slices.ContainsFunc(rows, func(r row) bool { return r.unique != nil }):
		return insertKeyed(ctx, tx, rows)
	case len(rows) == 1:
		r := rows[0]
		at, delay := r.due()
		var e Enqueued
		args := []any{r.taskType, r.payload, r.priority, r.attempts(), r.headers, at, delay}
		var names, values strings.Builder
		for _, c := range rareOf(rows) {
			v, _ := c.of(r)
			args = append(args, v)
			fmt.Fprintf(&names, ", %s", c.name)
			fmt.Fprintf(&values, ", $%d::text::%s", len(args), c.kind)
		}
		err := tx.QueryRowContext(ctx, fmt.Sprintf(insertOne, r.schema, &names, &values), args...).Scan(&e.TaskID)
		if err != nil {
			return nil, fmt.Errorf("outbox: enqueue %s: %w", r.taskType, err)
		}
		return []Enqueued{e}, nil
	}
	out, err := enqueueRows(ctx, tx, rows)
	if err != nil {
		return nil, fmt.Errorf("outbox: enqueue %d tasks: %w", len(rows), err)
	}
	return out, nil
}

func enqueueRows(ctx context.Context, tx Querier, tasks []row) ([]Enqueued, error) {
	args, rare := withRare(columns(tasks), tasks)
	rows, err := tx.QueryContext(ctx, fmt.Sprintf(insertMany, tasks[0].schema, rare.names, rare.values, rare.arrays), args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make([]Enqueued, 0, len(tasks))
	for rows.Next() {
		var e Enqueued
		if err := rows.Scan(&e.TaskID); err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if len(out) != len(tasks) {
		return nil, fmt.Errorf("%d rows were inserted: is there a trigger on the task table that drops rows?", len(out))
	}
	sort.Slice(out, func(i, j int) bool { return out[i].TaskID < out[j].TaskID })
	return out, nil
}

// columns are the tasks as arrays, one for each column that a statement for many always names.
func columns(tasks []row) []any {
	n := len(tasks)
	types, payloads := make([]string, n), make([]string, n)
	priorities, attempts := make([]int64, n), make([]sql.NullInt64, n)
	headers, runAts, delays := make([]sql.NullString, n), make([]sql.NullString, n), make([]sql.NullInt64, n)
	for i, r := range tasks {
		types[i], payloads[i], headers[i] = r.taskType, r.payload, r.headers
		priorities[i], attempts[i] = int64(r.priority), r.attempts()
		runAts[i], delays[i] = r.due()
	}
	// pq.Array writes text literals, which every driver can bind.
	return []any{pq.Array(types), pq.Array(payloads), pq.Array(priorities), pq.Array(attempts),
		pq.Array(headers), pq.Array(runAts), pq.Array(delays)}
}

func (r row) attempts() sql.NullInt64 {
	return sql.NullInt64{Int64: int64(r.maxAttempts), Valid: r.maxAttempts > 0}
}

// size is what the row adds to a statement, before quoting: its texts, and its numbers and times at their longest.
func (r row) size() int {
	n := len(r.taskType) + len(r.payload) + len(r.headers.String) + 128
	for _, c := range rareOf([]row{r}) {
		v, _ := c.of(r)
		n += len(v.String)
	}
	if r.unique != nil {
		n += len(r.unique.key) + 32
	}
	return n
}

// schemaOr is the row's schema, or other for the zero row.
func (r row) schemaOr(other string) string {
	if r.settings == nil {
		return other
	}
	return r.schema
}
