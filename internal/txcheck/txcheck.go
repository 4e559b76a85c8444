// Package txcheck refuses what is no open transaction, before a statement is sent on it.
package txcheck

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
)

// ErrNoTransaction is outbox.ErrNoTransaction.
var ErrNoTransaction = errors.New("outbox: a transaction is needed")

// isPool knows pools by a method that neither transactions nor connections have.
func isPool(q any) bool {
	_, pool := q.(interface{ SetMaxOpenConns(int) })
	return pool
}

// Given refuses what is no transaction: nil, nil pointers, and pools. It sends nothing.
func Given(tx any) error {
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

// A setting for the transaction is gone before the next statement where none is open. The server logs
// no error, as it would of a SAVEPOINT.
const (
	markSQL = `/* outbox: mark the transaction */
SELECT pg_catalog.set_config('outbox.in_transaction', 'on', true)`
	markedSQL = `/* outbox: whether a transaction is open */
SELECT coalesce(pg_catalog.current_setting('outbox.in_transaction', true), '')`
)

// Begun refuses a connection on which no transaction is open: a statement on it would commit at
// once. It sends nothing on a transaction. A *sql.Conn, and what embeds one, has PingContext, which
// transactions have not.
func Begun(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}) error {
	if _, connection := q.(interface{ PingContext(context.Context) error }); !connection {
		return nil
	}
	var mark string
	err := q.QueryRowContext(ctx, markSQL).Scan(&mark)
	if err == nil {
		err = q.QueryRowContext(ctx, markedSQL).Scan(&mark)
	}
	if err != nil {
		return fmt.Errorf("outbox: look for a transaction: %w", err)
	}
	if mark != "on" {
		return fmt.Errorf("%w: none is open on the %T: send BEGIN on it, or pass a *sql.Tx", ErrNoTransaction, q)
	}
	return nil
}
