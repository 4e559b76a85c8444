package upkeep

import (
	"context"
	"database/sql"

	"github.com/txoutbox/outbox/internal/pg"
)

// inTx runs f in a READ COMMITTED transaction on the heartbeat's connection. A relay that freezes
// in it lets its locks go.
func inTx(ctx context.Context, on *pg.Dedicated, f func(ctx context.Context, tx *sql.Tx) error) error {
	return begin(ctx, on, func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "SET LOCAL idle_in_transaction_session_timeout = "+pg.Millis(pg.Bookkeeping)); err != nil {
			return err
		}
		return f(ctx, tx)
	})
}

// begin is inTx for an f that limits itself before it locks anything.
func begin(ctx context.Context, on *pg.Dedicated, f func(ctx context.Context, tx *sql.Tx) error) error {
	return on.Do(ctx, func(ctx context.Context, conn *sql.Conn) error {
		tx, err := conn.BeginTx(context.WithoutCancel(ctx), &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if err := f(ctx, tx); err != nil {
			return err
		}
		return tx.Commit()
	})
}
