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
// [InTx] begins, commits and wakes the relays of this process; [Open] makes a pool that notices when its server is gone. Package schema makes
// the tables. Package admin reads what became of tasks, [Stats] counts them, and package outboxtest is for the
// tests of apps. docs/guide/getting-started.md goes from nothing to the first task, docs/features.md names each capability with an example.
package outbox

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Querier is what Enqueue needs: *sql.Tx, *sqlx.Tx and *sql.Conn have it. A *sql.DB and a *sqlx.DB
// have it too and are refused with ErrNoTransaction, as each of their statements may run on
// another connection, outside the caller's transaction. Of what wraps a transaction pass the *sql.Tx in it, as tx.Tx of a
// bun.Tx: its own methods may take the parameters of a statement for something else.
type Querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx is a transaction without Commit and Rollback, which a Batch handler gets: those belong to the
// relay. It is what sqlc calls DBTX.
type Tx interface {
	Querier
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}

// Enqueued is the result of one Enqueue. The task exists once the transaction has committed.
type Enqueued struct {
	// TaskID is the new task, or the task that has the unique key if none was created.
	TaskID int64
	// Outcome is Created unless a unique key was taken; see [Unique].
	Outcome Outcome
}

// NewTask is one task of an EnqueueMany; [TaskType.New] makes it type-safe.
type NewTask struct {
	Type    string
	Payload any
	Options []Option
}

// Encode returns the payload as Enqueue sends it to the database. It fails as Enqueue would that is given the
// task, with ErrInvalidType, ErrInvalidPayload, ErrPayloadTooLarge or ErrInvalidOption.
func (t NewTask) Encode() (json.RawMessage, error) {
	r, err := newRow(t, &lines{})
	if err != nil {
		return nil, err
	}
	return json.RawMessage(r.payload), nil
}

// TaskType ties a task type's name to the Go type of its payload, for Enqueue and for the handlers.
// It is a value to keep in a package variable; it is safe for concurrent use.
type TaskType[P any] struct {
	name string
	opts []Option
}

// NewTaskType names a task type whose payload is a P, as encoding/json encodes it. The options are
// defaults for each Enqueue, which can override them. It panics if name is empty, longer than 128
// bytes, not UTF-8 or holds a character that does not print, or if an option is invalid.
func NewTaskType[P any](name string, opts ...Option) TaskType[P] {
	if err := checkType(name); err != nil {
		panic(err)
	}
	if _, err := newSettings(opts); err != nil {
		panic(err)
	}
	return TaskType[P]{name: name, opts: slices.Clone(opts)}
}

// Name is the name of the task type, as in the column task_type.
func (t TaskType[P]) Name() string { return t.name }

// Enqueue inserts a task with one statement on tx. See [Enqueue].
func (t TaskType[P]) Enqueue(ctx context.Context, tx Querier, payload P, opts ...Option) (Enqueued, error) {
	return Enqueue(ctx, tx, t.name, payload, t.with(opts)...)
}

// New prepares a task for EnqueueMany.
func (t TaskType[P]) New(payload P, opts ...Option) NewTask {
	return NewTask{Type: t.name, Payload: payload, Options: t.with(opts)}
}

func (t TaskType[P]) with(opts []Option) []Option {
	return append(t.opts[:len(t.opts):len(t.opts)], opts...)
}

// Enqueue inserts a task with one statement on tx and waits for no handler. Payload is encoded by
// encoding/json, which replaces what is not UTF-8 in Go strings; a json.RawMessage is taken as it is.
// Arrays and objects nest at most 1000 deep. Bad input is refused before any SQL is sent, with
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
// their ids ascend, unless some have a unique key: those are inserted in the order of their keys, so
// that calls which share keys cannot deadlock. Of several tasks with one key the later ones find the first.
// All tasks must name the same schema, and are at most 256 MiB together, else the error is
// ErrPayloadTooLarge. Errors are as of [Enqueue] and name the index of the task at fault. No tasks is
// no statement.
func EnqueueMany(ctx context.Context, tx Querier, tasks []NewTask) ([]Enqueued, error) {
	return insert(ctx, tx, tasks)
}

// row is a checked task, ready to be bound.
type row struct {
	*settings
	taskType, payload string
}

// newRow checks a task, and adds its payload to the payloads of its call.
func newRow(t NewTask, payloads *lines) (row, error) {
	if err := checkType(t.Type); err != nil {
		return row{}, err
	}
	s, err := newSettings(t.Options)
	if err != nil {
		return row{}, err
	}
	if s.skipFailed && !s.ordered {
		return row{}, fmt.Errorf("%w: SkipFailed: only for a task that is OrderedBy a key", ErrInvalidOption)
	}
	if s.onConflict != conflictSkip && s.unique == nil {
		return row{}, fmt.Errorf("%w: %s: it needs Unique, UniqueUntilDone, UniquePayload or UniquePayloadUntilDone beside it", ErrInvalidOption, s.onConflict)
	}
	payload, err := payloads.add(t.Payload, s.maxPayload)
	if err != nil {
		return row{}, err
	}
	return row{settings: s, taskType: t.Type, payload: payload}, nil
}

func checkType(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidType)
	case len(name) > maxTypeBytes:
		return fmt.Errorf("%w: %.32q…: %d bytes, at most %d", ErrInvalidType, name, len(name), maxTypeBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("%w: %q: it is not UTF-8", ErrInvalidType, name)
	}
	for _, c := range name {
		if !unicode.IsPrint(c) {
			return fmt.Errorf("%w: %q: %q does not print", ErrInvalidType, name, c)
		}
	}
	return nil
}

// isPool knows pools by a method that neither transactions nor connections have.
func isPool(q Querier) bool {
	_, pool := q.(interface{ SetMaxOpenConns(int) })
	return pool
}

// checkTx refuses what is no transaction: nil, nil pointers, and pools.
func checkTx(tx Querier) error {
	if tx == nil {
		return fmt.Errorf("%w: it is nil", ErrNoTransaction)
	}
	if v := reflect.ValueOf(tx); v.Kind() == reflect.Pointer && v.IsNil() {
		return fmt.Errorf("%w: the %T is nil", ErrNoTransaction, tx)
	}
	if isPool(tx) {
		return fmt.Errorf("%w: a %T is not one: begin a transaction, or use outbox.InTx (with sqlx outbox.SqlxInTx)", ErrNoTransaction, tx)
	}
	return nil
}
