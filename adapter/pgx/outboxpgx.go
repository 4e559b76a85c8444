// Package outboxpgx enqueues on a transaction of pgx itself, a pgx.Tx of a *pgxpool.Pool or a
// *pgx.Conn, without database/sql in the app.
//
//	err := outboxpgx.InTx(ctx, pool, pgx.TxOptions{}, func(tx pgx.Tx) error {
//		…                                         // insert the user
//		_, err := SendWelcome.Enqueue(ctx, outboxpgx.Querier(tx), Welcome{UserID: id})
//		return err
//	})
//
// Options, checks, outcomes and errors are those of package outbox, and each mode of
// pgx.QueryExecMode works. A transaction in a transaction, by pgx.Tx.Begin, is a savepoint: a task
// that is enqueued on it is rolled back with it.
//
// A relay needs a *sql.DB: see [OpenDB]. In a process without one nothing of this package runs.
package outboxpgx

import (
	"context"

	"github.com/jackc/pgx/v5"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/intx"
)

// Enqueue inserts a task on a transaction of pgx with one statement, as [outbox.Enqueue] does. A
// nil tx is refused with outbox.ErrNoTransaction. A tx that has ended returns pgx.ErrTxClosed,
// wrapped, and a tx in which a statement has failed PostgreSQL's error 25P02 as a *pgconn.PgError,
// wrapped.
func Enqueue(ctx context.Context, tx pgx.Tx, taskType string, payload any,
	opts ...outbox.Option) (outbox.Enqueued, error) {
	return outbox.Enqueue(ctx, Querier(tx), taskType, payload, opts...)
}

// EnqueueMany inserts all tasks on a transaction of pgx, as [outbox.EnqueueMany] does. Errors are
// as of [Enqueue], and name the index of the task at fault. TaskType.New makes a task.
func EnqueueMany(ctx context.Context, tx pgx.Tx, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error) {
	return outbox.EnqueueMany(ctx, Querier(tx), tasks)
}

// Beginner begins transactions: a *pgxpool.Pool, a *pgxpool.Conn or a *pgx.Conn.
type Beginner interface {
	BeginTx(ctx context.Context, txOptions pgx.TxOptions) (pgx.Tx, error)
}

// InTx begins a transaction on db, calls fn, commits, and wakes the relays of this process, as
// [outbox.InTx] does. It never repeats fn. If fn returns an error, panics or calls runtime.Goexit,
// everything is rolled back. fn must not commit or roll back tx. A zero txOptions has the
// database's defaults.
//
// When ctx has ended before the commit, the transaction is rolled back and ctx's error returned; a
// commit that has begun is not cut short. Errors: fn's own, as it is; outbox.ErrCommitUnknown when
// the connection failed during the commit; after any other nothing was committed, as after
// pgx.ErrTxCommitRollback, when fn hid the error of a statement.
func InTx(ctx context.Context, db Beginner, txOptions pgx.TxOptions, fn func(tx pgx.Tx) error) error {
	begin := func(during context.Context) (transaction, error) {
		tx, err := db.BeginTx(during, txOptions)
		return transaction{tx, context.WithoutCancel(ctx)}, err
	}
	return intx.Run(ctx, begin, func(t transaction) error { return fn(t.tx) })
}

// transaction ends by statements that no context of the app ends.
type transaction struct {
	tx  pgx.Tx
	ctx context.Context
}

func (t transaction) Commit() error   { return t.tx.Commit(t.ctx) }
func (t transaction) Rollback() error { return t.tx.Rollback(t.ctx) }
