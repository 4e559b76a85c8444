package outbox

import (
	"context"
	"database/sql"
)

// Querier is what Enqueue needs: *sql.Tx and *sqlx.Tx have it, and a *sql.Conn on which the caller
// sent BEGIN. A *sql.DB and a *sqlx.DB have it too and are refused with ErrNoTransaction, as each
// of their statements may run on another connection, outside the caller's transaction. Of what
// wraps a transaction pass the *sql.Tx in it, as tx.Tx of a bun.Tx: its own methods may take the
// parameters of a statement for something else.
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
