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
// [InTx] begins, commits and wakes the relays of this process; after a commit of your own call
// [Wake]. Package schema makes the tables.
// Package pgdb opens a pool that notices when its server is gone. Package admin reads tasks and
// dead letters, [Stats] counts them, and package outboxtest is for the tests of apps.
// docs/guide/getting-started.md goes from nothing to the first task, docs/features.md names each
// capability with an example.
package outbox

import (
	"context"
	"database/sql"
)

// Querier is the transaction of the caller: a *sql.Tx, a *sqlx.Tx, or a *sql.Conn on which the caller
// sent BEGIN. A *sql.DB and a *sqlx.DB implement it too. [Stats] takes them; all other functions
// refuse them with ErrNoTransaction, as each of their statements may run on another connection,
// outside the caller's transaction. Pass the *sql.Tx inside a wrapper, as tx.Tx of a bun.Tx: the
// wrapper's methods may interpret parameters differently.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Enqueued is the result of one Enqueue. The task exists once the transaction has committed.
type Enqueued struct {
	// ID is the new task, or the task that has the unique key if none was created.
	ID int64
	// Outcome is OutcomeCreated unless a unique key was taken; see [Unique].
	Outcome Outcome
}

// Outcome is the result of an Enqueue, as the view keyed_task returns it.
type Outcome string

// The outcomes.
const (
	OutcomeCreated Outcome = "created" // a new task
	OutcomeUpdated Outcome = "updated" // the waiting task that has the key was replaced or rescheduled
	OutcomeSkipped Outcome = "skipped" // the task that has the key stays as it is
)
