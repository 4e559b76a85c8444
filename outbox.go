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
// [Wake]. Package schema makes the tables. Package pgdb opens a pool that notices when its server
// is gone. Package admin reads tasks and dead letters, [Stats] counts them, and package outboxtest
// is for the tests of apps.
// https://github.com/txoutbox/outbox/blob/main/docs/guide/getting-started.md goes from nothing to
// the first task, https://github.com/txoutbox/outbox/blob/main/docs/features.md names each
// capability with its guide.
package outbox

import (
	"context"
	"database/sql"
	"slices"

	"github.com/txoutbox/outbox/internal/schemaname"
)

// Querier is the transaction of the caller: a *sql.Tx, a *sqlx.Tx, or a *sql.Conn on which the caller
// sent BEGIN. A *sql.DB and a *sqlx.DB implement it too. [Stats] takes them; all other functions
// refuse them with ErrNoTransaction, as each of their statements may run on another connection,
// outside the caller's transaction. Pass the *sql.Tx inside a wrapper, as tx.Tx of a bun.Tx: the
// wrapper's methods may interpret parameters differently. Of a pgx.Tx the module adapter/pgx makes one.
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

// The outcomes of an Enqueue.
const (
	OutcomeCreated Outcome = "created" // a new task
	OutcomeUpdated Outcome = "updated" // the waiting task that has the key was replaced or rescheduled
	OutcomeSkipped Outcome = "skipped" // the task that has the key stays as it is
)

// Outbox is the outbox in one schema, for an app that has several: one of each tenant, say. What is called
// on it goes to that schema, and an option or a task type of another one is refused. The functions of the
// package are for the schema "outbox". [In] makes it; the zero value refuses each call with
// ErrInvalidOption. It is a value, safe for concurrent use, and holds nothing but the name.
type Outbox struct{ schema string }

// In returns the outbox of a PostgreSQL schema. Names are as of schema.Schema; with another one
// each call is refused with ErrInvalidOption, before any SQL is sent. In does not ask whether the
// schema exists: schema.Migrate makes it, and a relay of its own (relay.Config.Schema) runs its
// tasks.
func In(schema string) Outbox { return Outbox{schema} }

// Schema is the name of the schema, for relay.Config, admin.Config and schema.Schema.
func (o Outbox) Schema() string { return o.schema }

// bind binds a task to the outbox: that of a call comes before that of its task type.
func (o Outbox) bind(s *settings) {
	first := s.bound == nil
	if first {
		s.bound = &o.schema
	}
	if !first || s.schema == schemaname.Default { // else it is named before, and refused if it is another one
		s.schema = o.schema
	}
}

// Enqueue inserts a task into this schema, as the function [Enqueue] does.
func (o Outbox) Enqueue(ctx context.Context, tx Querier, taskType string, payload any,
	opts ...Option) (Enqueued, error) {
	return Enqueue(ctx, tx, taskType, payload, o.with(opts)...)
}

// EnqueueMany inserts all tasks into this schema, as the function [EnqueueMany] does.
func (o Outbox) EnqueueMany(ctx context.Context, tx Querier, tasks []TaskSpec) ([]Enqueued, error) {
	bound := slices.Clone(tasks)
	for i := range bound {
		bound[i].Options = o.with(bound[i].Options)
	}
	return EnqueueMany(ctx, tx, bound)
}

func (o Outbox) with(opts []Option) []Option { return append([]Option{option(o.bind)}, opts...) }

// Cancel takes back a task of this schema, as the function [Cancel] does. Each schema counts its
// tasks from 1: with an id of another one it takes the task of this schema that has the number.
func (o Outbox) Cancel(ctx context.Context, tx Querier, taskID int64) (CancelResult, error) {
	return Cancel(ctx, tx, taskID, Schema(o.schema))
}

// RunNow makes a scheduled task of this schema due at once, as the function [RunNow] does. Ids are as
// of Cancel.
func (o Outbox) RunNow(ctx context.Context, tx Querier, taskID int64) (RunNowResult, error) {
	return RunNow(ctx, tx, taskID, Schema(o.schema))
}

// Stats reads the counts of all task types of this schema, as the function [Stats] does.
func (o Outbox) Stats(ctx context.Context, q Querier) ([]TypeStats, error) {
	return Stats(ctx, q, Schema(o.schema))
}
