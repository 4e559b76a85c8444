package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox/internal/intx"
	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

// TxOption changes the transaction of one [InTx] or [SqlxInTx]. A nil one is refused with
// ErrInvalidOption.
type TxOption interface{ applyTx(*sql.TxOptions) }

type txOption func(*sql.TxOptions)

func (o txOption) applyTx(s *sql.TxOptions) { o(s) }

// Isolation is the transaction's isolation level. Without it, and with sql.LevelDefault, the level is
// the setting default_transaction_isolation, mostly READ COMMITTED. The driver refuses levels that
// PostgreSQL does not have. Above READ COMMITTED PostgreSQL may end a transaction for the sake of
// another; see [IsSerializationFailure].
func Isolation(level sql.IsolationLevel) TxOption {
	return txOption(func(o *sql.TxOptions) { o.Isolation = level })
}

// IsSerializationFailure reports whether err says that PostgreSQL ended the transaction for the sake
// of another one: a serialization failure (SQLSTATE 40001) or a deadlock (40P01). Nothing of it was
// committed, and a repeat of all of it may succeed.
//
// err is an error of [InTx], a statement or a commit, as it is or wrapped with %w, of lib/pq, pgx or
// another driver whose errors have the method SQLState. It is false for nil, for [ErrCommitUnknown],
// and for the commit of a transaction whose fn hid the error of a statement.
func IsSerializationFailure(err error) bool { return pgerr.Conflict(err) }

// Wake wakes the relays of this process, as [InTx] does. Call it after a commit of your own that
// enqueued tasks. Without it a relay with a ListenDSN learns of the tasks by NOTIFY, and any other
// at its next poll. It sends nothing to the database or to other processes, and does not block.
func Wake() { wake.All() }

// InTx begins a transaction on db, calls fn, commits, and wakes the relays of this process. It
// never repeats fn. If fn returns an error, panics or calls runtime.Goexit, everything is rolled
// back. fn must not commit or roll back tx.
//
// When ctx has ended before the commit, the transaction is rolled back and ctx's error returned; a
// commit that has begun is not cut short. Errors: fn's own, as it is; ErrCommitUnknown when the
// connection failed during the commit; after any other nothing was committed.
func InTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error, opts ...TxOption) error {
	return inTx(ctx, db.BeginTx, fn, opts)
}

func inTx[T intx.Tx](ctx context.Context, begin func(context.Context, *sql.TxOptions) (T, error),
	fn func(T) error, opts []TxOption) error {
	var options sql.TxOptions
	for _, o := range opts {
		if o == nil {
			return fmt.Errorf("%w: a TxOption is nil", ErrInvalidOption)
		}
		o.applyTx(&options)
	}
	return intx.Run(ctx, func(ctx context.Context) (T, error) { return begin(ctx, &options) }, fn)
}
