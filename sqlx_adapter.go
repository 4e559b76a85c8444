package outbox

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"
)

// A *sqlx.Tx enqueues as it is: it is a [Querier].

// SqlxInTx begins a transaction on a *sqlx.DB, calls fn, commits, and wakes the relays of this
// process, as [InTx] does.
func SqlxInTx(ctx context.Context, db *sqlx.DB, fn func(tx *sqlx.Tx) error, opts ...TxOption) error {
	return inTx(ctx, db.BeginTxx, fn, opts)
}

// SqlxHandler lets a Tx handler take a *sqlx.Tx: register SqlxHandler(db, h) with handlers.Tx.
// Named queries, the mapper and Unsafe are as on db; the transaction is the one of the relay.
func SqlxHandler[P any](db *sqlx.DB, h func(ctx context.Context, tx *sqlx.Tx,
	task *Task[P]) error) func(context.Context, *sql.Tx, *Task[P]) error {
	if h == nil {
		return nil // which registration refuses
	}
	like := sqlxTemplate(db)
	return func(ctx context.Context, tx *sql.Tx, task *Task[P]) error {
		t := like
		t.Tx = tx
		return h(ctx, &t, task)
	}
}

// SqlxTx is tx with the driver name, mapper and Unsafe of db, for a *sql.Tx that was begun
// elsewhere, like that of a Batch handler or of [Task.Complete]. It begins nothing and needs no
// connection.
func SqlxTx(db *sqlx.DB, tx *sql.Tx) *sqlx.Tx {
	t := sqlxTemplate(db)
	t.Tx = tx
	return &t
}

// sqlxTemplate is a sqlx.Tx with all of db but its transaction. Only Beginx fills in the driver
// name, without which named queries fail, so it is called on a copy of db over a pool that connects
// to nothing.
func sqlxTemplate(db *sqlx.DB) sqlx.Tx {
	// Opened for each template: a pool keeps a goroutine, which a package variable would leave in
	// every app.
	nowhere := sql.OpenDB(nowhereDriver{})
	defer nowhere.Close()
	like := *db
	like.DB = nowhere
	tx, err := like.Beginx()
	if err != nil {
		panic(fmt.Errorf("outbox: sqlx: %w", err))
	}
	_ = tx.Rollback()
	return *tx
}

type nowhereDriver struct{}

func (d nowhereDriver) Connect(context.Context) (driver.Conn, error) { return d, nil }
func (d nowhereDriver) Driver() driver.Driver                        { return d }
func (d nowhereDriver) Open(string) (driver.Conn, error)             { return d, nil }
func (d nowhereDriver) Begin() (driver.Tx, error)                    { return d, nil }
func (d nowhereDriver) Commit() error                                { return nil }
func (d nowhereDriver) Rollback() error                              { return nil }
func (d nowhereDriver) Close() error                                 { return nil }
func (d nowhereDriver) Prepare(string) (driver.Stmt, error) {
	return nil, errors.New("outbox: this connection leads nowhere")
}
