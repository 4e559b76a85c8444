package outbox

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

// InTx begins a transaction on db, calls fn, commits, and wakes the relays of this process. It
// never retries. If fn returns an error, panics or calls runtime.Goexit, everything is rolled back.
// fn must not commit or roll back tx.
//
// When ctx has ended before the commit, the transaction is rolled back and ctx's error returned; a
// commit that has begun is not cut short. Errors: fn's own; ErrCommitUnknown when the connection
// failed during the commit; otherwise nothing was committed.
func InTx(ctx context.Context, db *sql.DB, fn func(tx *sql.Tx) error) error {
	return inTx(ctx, func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) }, fn)
}

type transaction interface {
	Commit() error
	Rollback() error
}

func inTx[T transaction](ctx context.Context, begin func(context.Context) (T, error), fn func(T) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	// database/sql would roll back at any time after ctx ends, even while COMMIT is under way, so
	// ctx ends the wait for a connection and for BEGIN, but not the transaction.
	txCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	stop := context.AfterFunc(ctx, cancel)
	tx, err := begin(txCtx)
	stop()
	if err != nil {
		if ended := ctx.Err(); ended != nil {
			err = ended // err only says that txCtx was cancelled
		}
		return fmt.Errorf("outbox: begin: %w", pgerr.WithoutDSN(err))
	}
	open := true
	defer func() {
		if open {
			_ = tx.Rollback()
		}
	}()
	if err := ctx.Err(); err != nil { // perhaps during BEGIN, and with it txCtx
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	open = false
	if err := tx.Commit(); err != nil {
		if pgerr.CommitFailed(err) {
			return fmt.Errorf("outbox: commit: %w", err)
		}
		wake.All()
		return fmt.Errorf("%w: %w", ErrCommitUnknown, err)
	}
	wake.All()
	return nil
}
