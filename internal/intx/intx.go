// Package intx is the one order in which InTx of package outbox and of the adapters begins, calls,
// commits and wakes.
package intx

import (
	"context"
	"errors"
	"fmt"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/wake"
)

// ErrCommitUnknown is outbox.ErrCommitUnknown.
var ErrCommitUnknown = errors.New("outbox: the outcome of the commit is unknown")

// Tx is a transaction whose Commit and Rollback no context ends.
type Tx interface {
	Commit() error
	Rollback() error
}

// Run begins a transaction, calls fn, commits, and wakes the relays of this process. It keeps the
// promises of outbox.InTx. The context of begin may end with begin, but not the transaction with it
// afterwards: it does not end before Run returns, unless ctx ends during begin.
func Run[T Tx](ctx context.Context, begin func(context.Context) (T, error), fn func(T) error) error {
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
