// Package outbox is a transactional outbox for PostgreSQL and database/sql.
//
// An app enqueues a task in the transaction that writes its business rows; the task exists exactly
// when that transaction commits. Relays (package relay), in the same process or in others, run it
// with the handler that is registered for its type (package handlers).
//
//	var SendWelcome = outbox.NewTaskType[Welcome]("SEND_WELCOME")
//
//	tx, err := db.BeginTx(ctx, nil)
//	…                                             // insert the user
//	_, err = SendWelcome.Enqueue(ctx, tx, Welcome{UserID: id})
//	err = tx.Commit()
//
// The payload is stored as jsonb, which keeps the value and not the text: white space, the order of
// keys, duplicate keys, exponents and the sign of zero are not preserved. Bytes that must stay
// exact (a signature, a ciphertext) go as base64 in a string.
//
// [InTx] begins, commits and wakes the relays of this process. Package schema makes the tables.
// Package pgdb opens a pool that notices when its server is gone. Package admin
// reads what became of tasks, [Stats] counts them, and package outboxtest is for the tests of apps.
// docs/guide/getting-started.md goes from nothing to the first task, docs/features.md names each
// capability with an example.
package outbox

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/txoutbox/outbox/internal/txcheck"
)

// Enqueue inserts a task with one statement on tx and waits for no handler. Payload is encoded by
// encoding/json, which replaces what is not UTF-8 in Go strings; a json.RawMessage is taken as it
// is. Arrays and objects nest at most 1000 deep. Bad input is refused before any SQL is sent, with
// ErrNoTransaction, ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge or ErrInvalidOption; any
// other error is tx's own, wrapped.
//
// A *sql.Conn must have a transaction: the caller has sent BEGIN on it. Enqueue asks for it by a
// setting that ends with the transaction, outbox.in_transaction: two statements more than on a
// *sql.Tx. Without a transaction the error is ErrNoTransaction, and nothing is inserted.
func Enqueue(ctx context.Context, tx Querier, taskType string, payload any, opts ...Option) (Enqueued, error) {
	ids, err := insert(ctx, tx, []NewTask{{Type: taskType, Payload: payload, Options: opts}})
	if err != nil {
		return Enqueued{}, err
	}
	return ids[0], nil
}

// EnqueueMany inserts all tasks with one statement, or none. The results are in the order of tasks;
// their ids ascend, unless some have a unique key: those are inserted in the order of their keys,
// so that calls which share keys cannot deadlock. Of several tasks with one key the later ones find
// the first. All tasks must name the same schema, and are at most 256 MiB together, else the error
// is ErrPayloadTooLarge. Errors are as of [Enqueue] and name the index of the task at fault. No
// tasks is no statement.
func EnqueueMany(ctx context.Context, tx Querier, tasks []NewTask) ([]Enqueued, error) {
	return insert(ctx, tx, tasks)
}

const insertOne = `/* outbox: enqueue */
INSERT INTO "%s".task (task_type, payload%s)
VALUES ($1, $2::jsonb%s)
RETURNING task_id`

// enqueueOne is the statement for one task, and its arguments.
func enqueueOne(task row) (statement string, args []any) {
	args = []any{task.taskType, task.payload}
	args, optional := optionalOne(args, task)
	if optional.names != "" {
		return fmt.Sprintf(insertOne, task.schema, optional.names, optional.values), args
	}
	// enqueue_task plans its INSERT once a session.
	return `/* outbox: enqueue */
SELECT "` + task.schema + `".enqueue_task($1, $2::jsonb)`, args
}

// unnest in the select list keeps the array's order, so the task_ids ascend with the tasks, and
// sorting them gives the positions. They come back in one row, which is less work for both sides.
const insertMany = `/* outbox: enqueue many */
WITH added AS (
  INSERT INTO "%s".task (task_type, payload%s)
  SELECT task_type, payload::jsonb%s
    FROM (SELECT %s) AS n
  RETURNING task_id)
SELECT array_agg(task_id)::text FROM added`

// PostgreSQL drops the connection at a message of 1 GiB. Writing an array doubles each quote and
// backslash.
const maxStatement = 256 << 20

func insert(ctx context.Context, tx Querier, tasks []NewTask) ([]Enqueued, error) {
	if err := txcheck.Given(tx); err != nil {
		return nil, err
	}
	rows := make([]row, len(tasks))
	var payloads lines
	total := 0
	for i, t := range tasks {
		r, err := newRow(t, &payloads)
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
	if len(rows) == 0 {
		return nil, nil
	}
	if err := txcheck.Begun(ctx, tx); err != nil {
		return nil, err
	}
	switch {
	case slices.ContainsFunc(rows, func(r row) bool { return r.unique != nil }):
		return insertKeyed(ctx, tx, rows, &payloads)
	case len(rows) == 1:
		e, err := enqueueRow(ctx, tx, rows[0])
		if err != nil {
			return nil, fmt.Errorf("outbox: enqueue %s: %w", rows[0].taskType, err)
		}
		return []Enqueued{e}, nil
	}
	out, err := enqueueRows(ctx, tx, rows, &payloads)
	if err != nil {
		return nil, fmt.Errorf("outbox: enqueue %d tasks: %w", len(rows), err)
	}
	return out, nil
}

func enqueueRow(ctx context.Context, tx Querier, task row) (Enqueued, error) {
	statement, args := enqueueOne(task)
	var id sql.NullInt64
	err := tx.QueryRowContext(ctx, statement, args...).Scan(&id)
	if err == nil && !id.Valid || errors.Is(err, sql.ErrNoRows) {
		err = errors.New("no row was inserted: is there a trigger on the task table that drops rows?")
	}
	return Enqueued{TaskID: id.Int64}, err
}

func enqueueRows(ctx context.Context, tx Querier, tasks []row, payloads *lines) ([]Enqueued, error) {
	args, columns := typesAndPayloads(tasks, payloads)
	args, optional := optionalMany(args, tasks)
	statement := fmt.Sprintf(insertMany, tasks[0].schema, optional.names, optional.values, columns+optional.arrays)
	var ids sql.NullString
	if err := tx.QueryRowContext(ctx, statement, args...).Scan(&ids); err != nil {
		return nil, err
	}
	out := make([]Enqueued, 0, len(tasks))
	for id := range strings.SplitSeq(strings.Trim(ids.String, "{}"), ",") {
		if id == "" {
			break // there are none
		}
		n, err := strconv.ParseInt(id, 10, 64)
		if err != nil {
			return nil, err
		}
		out = append(out, Enqueued{TaskID: n})
	}
	if len(out) != len(tasks) {
		return nil, fmt.Errorf("%d rows were inserted: is there a trigger on the task table that drops rows?", len(out))
	}
	slices.SortFunc(out, func(a, b Enqueued) int { return cmp.Compare(a.TaskID, b.TaskID) })
	return out, nil
}
