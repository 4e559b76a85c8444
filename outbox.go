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

import "context"

// Enqueue inserts a task with one statement on tx and waits for no handler. Payload is encoded by
// encoding/json, which replaces what is not UTF-8 in Go strings; a json.RawMessage is taken as it
// is. Arrays and objects nest at most 1000 deep. Bad input is refused before any SQL is sent, with
// ErrNoTransaction, ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge or ErrInvalidOption; any
// other error is tx's own, wrapped.
//
// A *sql.Conn is fit for callers that sent BEGIN on it themselves; without BEGIN the task is
// committed at once, alone.
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
