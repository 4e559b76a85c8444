package outbox

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"

	"github.com/txoutbox/outbox/internal/pgerr"
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

// savepointSQL fails with 25P01 (no_active_sql_transaction) outside a transaction.
const (
	savepointSQL        = `SAVEPOINT outbox_enqueue`
	releaseSavepointSQL = `RELEASE SAVEPOINT outbox_enqueue`
)

// checkBegun refuses a connection on which no transaction is open: a statement on it would commit
// at once. It sends nothing on a transaction. A *sql.Conn, and what embeds one, has PingContext,
// which transactions have not.
func checkBegun(ctx context.Context, q Querier) error {
	if _, connection := q.(interface{ PingContext(context.Context) error }); !connection {
		return nil
	}
	_, err := q.ExecContext(ctx, savepointSQL)
	if pgerr.Code(err) == "25P01" {
		return fmt.Errorf("%w: none is open on the %T: send BEGIN on it, or pass a *sql.Tx", ErrNoTransaction, q)
	}
	if err == nil {
		_, err = q.ExecContext(ctx, releaseSavepointSQL)
	}
	if err != nil {
		return fmt.Errorf("outbox: enqueue: look for a transaction: %w", err)
	}
	return nil
}
