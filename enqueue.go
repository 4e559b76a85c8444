package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/copied"
	"github.com/txoutbox/outbox/internal/txcheck"
)

// TaskSpec is a task to enqueue by EnqueueMany; [TaskType.New] makes it type-safe.
type TaskSpec struct {
	Type    string   // of 1 to 128 bytes
	Payload any      // as that of Enqueue; nil is JSON null
	Options []Option // nil: none
}

// Encode returns the payload as Enqueue sends it to the database, for an app that inserts the task
// by its own SQL. With a [Codec] that is the JSON string that is stored: insert the codec's name
// beside it, as the value of outbox-codec in the column headers. No hook of [BeforeEnqueue] runs.
// Errors: ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge and ErrInvalidOption, as of
// [Enqueue].
func (t TaskSpec) Encode() (json.RawMessage, error) {
	s, err := t.settings()
	if err != nil {
		return nil, err
	}
	r, err := newRow(t, s, &lines{})
	if err != nil {
		return nil, err
	}
	return json.RawMessage(r.payload), nil
}

// Enqueue inserts a task with one statement on tx and waits for no handler. The payload is encoded
// by encoding/json, which replaces invalid UTF-8 in Go strings; a json.RawMessage is taken as it
// is. Arrays and objects nest at most 1000 deep. Bad input is refused before anything is written,
// with ErrNoTransaction, ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge or ErrInvalidOption,
// or with the error of a hook ([BeforeEnqueue]); any other error is tx's own, wrapped.
//
// A *sql.Conn must have a transaction: the caller has sent BEGIN on it. Enqueue asks for it by a
// setting that ends with the transaction, outbox.in_transaction: two statements more than on a
// *sql.Tx. Without a transaction the error is ErrNoTransaction, and nothing is inserted.
func Enqueue(ctx context.Context, tx Querier, taskType string, payload any, opts ...Option) (Enqueued, error) {
	ids, err := insert(ctx, tx, []TaskSpec{{Type: taskType, Payload: payload, Options: opts}})
	if err != nil {
		return Enqueued{}, err
	}
	return ids[0], nil
}

// EnqueueMany inserts all tasks with one statement, or with two if some have a unique key and others
// have none. After an error roll back: the first statement may have inserted its tasks. The results
// are in the order of tasks. The ids of tasks without a unique key ascend. Keys are locked in one
// order, so that calls which share keys cannot deadlock. Of several tasks with one key the later
// ones find the first. All tasks must name the same schema, else the error is ErrInvalidOption.
// Together they are at most 256 MiB, else it is ErrPayloadTooLarge. Errors are as of [Enqueue] and
// name the index of the task at fault, from 0. Without tasks nothing is sent, and the result is nil.
func EnqueueMany(ctx context.Context, tx Querier, tasks []TaskSpec) ([]Enqueued, error) {
	return insert(ctx, tx, tasks)
}

var errDropped = errors.New("a row was not inserted: is there a trigger on the task table that drops rows?")

// insert checks all tasks, and inserts them: those without a unique key first.
func insert(ctx context.Context, tx Querier, tasks []TaskSpec) ([]Enqueued, error) {
	if err := txcheck.Given(tx); err != nil {
		return nil, err
	}
	var payloads lines
	rows, err := newRows(ctx, tasks, &payloads)
	if err != nil || len(rows) == 0 {
		return nil, err
	}
	if err := txcheck.Begun(ctx, tx); err != nil {
		return nil, err
	}
	hasKey := func(r row) bool { return r.options.unique != nil }
	first := hasKey(rows[0])
	var out []Enqueued
	if slices.ContainsFunc(rows, func(r row) bool { return hasKey(r) != first }) {
		out, err = insertBoth(ctx, tx, rows)
	} else {
		out, err = insertGroup(ctx, tx, rows, &payloads)
	}
	switch {
	case err != nil && len(rows) == 1:
		return nil, fmt.Errorf("outbox: enqueue %s: %w", rows[0].taskType, err)
	case err != nil:
		return nil, fmt.Errorf("outbox: enqueue %d tasks: %w", len(rows), err)
	}
	return out, nil
}

// insertBoth inserts the tasks without a unique key, and then those with one.
func insertBoth(ctx context.Context, tx Querier, rows []row) ([]Enqueued, error) {
	out := make([]Enqueued, len(rows))
	for _, keyed := range []bool{false, true} {
		var group []row
		var positions []int
		var payloads lines
		for i, r := range rows {
			if (r.options.unique != nil) == keyed {
				group, positions = append(group, r), append(positions, i)
				payloads.raw(r.payload)
			}
		}
		got, err := insertGroup(ctx, tx, group, &payloads)
		if err != nil {
			return nil, err
		}
		for i, e := range got {
			out[positions[i]] = e
		}
	}
	return out, nil
}

// insertGroup inserts tasks of which all have a unique key, or none has one, with one statement.
func insertGroup(ctx context.Context, tx Querier, rows []row, payloads *lines) ([]Enqueued, error) {
	switch {
	case rows[0].options.unique != nil:
		return insertKeyed(ctx, tx, rows, payloads)
	case len(rows) == 1:
		return insertOne(ctx, tx, rows[0])
	}
	return insertMany(ctx, tx, rows, payloads)
}

// row is a checked task.
type row struct {
	options           *settings
	taskType, payload string
}

// newRows checks the tasks of a call, after their hooks. An error names the index of its task if there are several.
func newRows(ctx context.Context, tasks []TaskSpec, payloads *lines) ([]row, error) {
	rows := make([]row, len(tasks))
	total := 0
	for i, t := range tasks {
		var r row
		s, err := t.settings()
		if err == nil && len(s.hooks) > 0 {
			t, s, err = runHooks(ctx, t, s)
		}
		if err == nil {
			r, err = newRow(t, s, payloads)
		}
		if err == nil && i > 0 && r.options.schema != rows[0].options.schema {
			err = fmt.Errorf("%w: Schema: %q and %q in one call", ErrInvalidOption, rows[0].options.schema,
				r.options.schema)
		}
		if err == nil {
			total += r.size()
		}
		if err == nil && total > maxStatement {
			err = fmt.Errorf("%w: %d tasks are %d bytes already, at most %d in one call", ErrPayloadTooLarge, i+1,
				total, maxStatement)
		}
		if err != nil && len(tasks) > 1 {
			return nil, fmt.Errorf("task %d of %d: %w", i, len(tasks), err)
		}
		if err != nil {
			return nil, err
		}
		rows[i] = r
	}
	return rows, nil
}

// settings checks the type and the options.
func (t TaskSpec) settings() (*settings, error) {
	if err := checkType(t.Type); err != nil {
		return nil, err
	}
	return newSettings(t.Options)
}

// newRow checks a task, and adds its payload to the payloads of its call.
func newRow(t TaskSpec, s *settings, payloads *lines) (row, error) {
	if s.skipFailed && !s.ordered {
		return row{}, fmt.Errorf("%w: SkipFailed: only for a task that is OrderedBy a key", ErrInvalidOption)
	}
	if s.onConflict != ConflictSkip && s.unique == nil {
		return row{}, fmt.Errorf("%w: OnConflict(%s): it needs Unique or UniquePayload beside it", ErrInvalidOption,
			s.onConflict)
	}
	if c, ok := t.Payload.(copied.Task[Task[json.RawMessage]]); ok {
		return copyRow(t.Type, c.Of, *s, payloads)
	}
	if s.codecs == nil {
		payload, err := payloads.add(t.Payload, s.maxPayload)
		return row{options: s, taskType: t.Type, payload: payload}, err
	}
	payload, err := new(lines).add(t.Payload, s.maxPayload) // which stays out of the statement
	if err == nil {
		payload, err = s.encode(payload)
	}
	if err == nil {
		err = checkStored(payload)
	}
	if err != nil {
		return row{}, err
	}
	return row{options: s, taskType: t.Type, payload: payloads.raw(payload)}, nil
}

// copyRow is the row of a copy. No limit of an option holds for it.
func copyRow(taskType string, of *Task[json.RawMessage], s settings, payloads *lines) (row, error) {
	for _, c := range optionalColumns {
		c.copy(&s, of)
	}
	payload := string(of.Payload)
	if s.codecs != nil {
		var err error
		if payload, err = s.encode(payload); err != nil {
			return row{}, err
		}
	}
	return row{options: &s, taskType: taskType, payload: payloads.raw(payload)}, nil
}

func optionsOf(rows []row) []*settings {
	all := make([]*settings, len(rows))
	for i, r := range rows {
		all[i] = r.options
	}
	return all
}

// size is the row's share of a statement, before quoting: its texts, and at most 160 bytes around them.
func (r row) size() int {
	n := len(r.taskType) + len(r.payload) + 160
	if r.options == plain {
		return n
	}
	for _, c := range optionalColumns {
		values := c.values(r.options)
		n += len(values[0].String) + len(values[1].String)
	}
	if u := r.options.unique; u != nil {
		n += len(u.key) + 32
	}
	return n
}

// For one task insertManySQL takes about twice as long: 220 µs instead of 95 µs, with pgx.
const insertOneSQL = `/* outbox: enqueue */
INSERT INTO "%s".task (task_type, payload%s)
VALUES ($1, $2::jsonb%s)
RETURNING task_id`

// The function enqueue_task plans its INSERT once a session.
const enqueueTaskSQL = `/* outbox: enqueue */
SELECT "%s".enqueue_task($1, $2::jsonb)`

func insertOne(ctx context.Context, tx Querier, task row) ([]Enqueued, error) {
	args, optional := optionalOne([]any{task.taskType, task.payload}, task.options)
	statement := fmt.Sprintf(enqueueTaskSQL, task.options.schema)
	if optional.names != "" {
		statement = fmt.Sprintf(insertOneSQL, task.options.schema, optional.names, optional.values)
	}
	var id sql.NullInt64
	err := tx.QueryRowContext(ctx, statement, args...).Scan(&id)
	if err == nil && !id.Valid || errors.Is(err, sql.ErrNoRows) {
		err = errDropped
	}
	return []Enqueued{{ID: id.Int64, Outcome: OutcomeCreated}}, err
}

// unnest in the select list keeps the array's order, so the task_ids ascend with the tasks, and
// sorting the task_ids gives the positions. One row for all of them is less work for both sides.
const insertManySQL = `/* outbox: enqueue many */
WITH added AS (
  INSERT INTO "%s".task (task_type, payload%s)
  SELECT task_type, payload::jsonb%s
    FROM (SELECT %s) AS n
  RETURNING task_id)
SELECT array_agg(task_id)::text FROM added`

func insertMany(ctx context.Context, tx Querier, tasks []row, payloads *lines) ([]Enqueued, error) {
	args, columns := typesAndPayloads(tasks, payloads)
	args, optional := optionalMany(args, optionsOf(tasks))
	statement := fmt.Sprintf(insertManySQL, tasks[0].options.schema, optional.names, optional.values,
		columns+optional.arrays)
	var ids sql.NullString
	if err := tx.QueryRowContext(ctx, statement, args...).Scan(&ids); err != nil {
		return nil, err
	}
	if !ids.Valid {
		return nil, errDropped
	}
	out := make([]Enqueued, 0, len(tasks))
	for id := range strings.SplitSeq(strings.Trim(ids.String, "{}"), ",") {
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, Enqueued{ID: n, Outcome: OutcomeCreated})
	}
	if len(out) != len(tasks) {
		return nil, errDropped
	}
	slices.SortFunc(out, func(a, b Enqueued) int { return cmp.Compare(a.ID, b.ID) })
	return out, nil
}

// The function takes each task as an object. Its payload is a text, which is no longer than an
// array of the objects of a call may be.
const insertKeyedSQL = `/* outbox: enqueue with unique keys */
SELECT task_id, outcome FROM "%s".enqueue_keyed(ARRAY(
  SELECT to_jsonb(n) FROM (
    SELECT task_type, payload, unique_key, unique_until_done, on_conflict%s
      FROM (SELECT %s, unnest($3::text[]) AS unique_key, unnest($4::text[]) AS unique_until_done,
                   unnest($5::text[]) AS on_conflict%s) AS given)
    AS n (task_type, payload, unique_key, unique_until_done, on_conflict%s)))`

// insertKeyed inserts tasks with unique keys.
func insertKeyed(ctx context.Context, tx Querier, tasks []row, payloads *lines) ([]Enqueued, error) {
	n := len(tasks)
	keys, untilDone, onConflict := make([]string, n), make([]bool, n), make([]string, n)
	for i, r := range tasks {
		keys[i], untilDone[i] = r.options.unique.key, r.options.unique.untilDone
		if keys[i] == "" { // of the payload, which no codec has encoded
			keys[i] = payloadKey
		}
		onConflict[i] = string(r.options.onConflict)
	}
	args, columns := typesAndPayloads(tasks, payloads)
	args, optional := optionalMany(append(args, pq.Array(keys), pq.Array(untilDone), pq.Array(onConflict)),
		optionsOf(tasks))
	statement := fmt.Sprintf(insertKeyedSQL, tasks[0].options.schema, optional.values, columns, optional.arrays,
		optional.names)
	rows, err := tx.QueryContext(ctx, statement, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	out := make([]Enqueued, 0, n)
	for rows.Next() {
		var id sql.NullInt64
		var outcome sql.NullString
		if err := rows.Scan(&id, &outcome); err != nil {
			return nil, err
		}
		if !id.Valid {
			return nil, errDropped
		}
		out = append(out, Enqueued{ID: id.Int64, Outcome: Outcome(outcome.String)})
	}
	return out, rows.Err()
}

// typesAndPayloads are the columns that each of many tasks has: their arguments, and the
// expressions that expand these.
func typesAndPayloads(tasks []row, payloads *lines) (args []any, columns string) {
	const expanded = `unnest(string_to_array($%d::text, E'\n')) AS %s`
	types, columns := tasks[0].taskType, "$1::text AS task_type"
	if slices.ContainsFunc(tasks, func(r row) bool { return r.taskType != types }) {
		all := make([]string, len(tasks))
		for i, r := range tasks {
			all[i] = r.taskType
		}
		types, columns = strings.Join(all, "\n"), fmt.Sprintf(expanded, 1, "task_type") // a line feed does not print
	}
	return []any{types, strings.TrimSuffix(payloads.text.String(), "\n")},
		columns + ", " + fmt.Sprintf(expanded, 2, "payload")
}
