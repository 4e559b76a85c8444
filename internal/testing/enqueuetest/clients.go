// Package enqueuetest is the one test of Enqueue that each client passes: each way in which an app
// can have a transaction. It compares all columns of the rows with those that *sql.Tx on lib/pq
// inserts.
//
// A package that uses it has the TestMain that
// [github.com/txoutbox/outbox/internal/testing/devpg/pgtest] asks for.
package enqueuetest

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

// Tx is a transaction of a client. A client without functions of its own leaves Enqueue and
// EnqueueMany nil: they are those of package outbox on Querier.
type Tx struct {
	Querier          outbox.Querier
	Commit, Rollback func() error

	Enqueue func(ctx context.Context, taskType string, payload any, opts ...outbox.Option) (outbox.Enqueued, error)

	EnqueueMany func(ctx context.Context, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error)
}

// Client is a way to have a transaction. What it opens it closes at the end of the test.
type Client struct {
	Name string
	// Begin begins a transaction, which the end of ctx does not roll back.
	Begin func(ctx context.Context) (Tx, error)
	// InTx is that of the client; nil where there is none.
	InTx func(ctx context.Context, fn func(Tx) error) error
}

func (tx Tx) enqueue(ctx context.Context, task outbox.TaskSpec) (outbox.Enqueued, error) {
	if tx.Enqueue != nil {
		return tx.Enqueue(ctx, task.Type, task.Payload, task.Options...)
	}
	return outbox.Enqueue(ctx, tx.Querier, task.Type, task.Payload, task.Options...)
}

func (tx Tx) enqueueMany(ctx context.Context, tasks []outbox.TaskSpec) ([]outbox.Enqueued, error) {
	if tx.EnqueueMany != nil {
		return tx.EnqueueMany(ctx, tasks)
	}
	return outbox.EnqueueMany(ctx, tx.Querier, tasks)
}

// SQL is a *sql.Tx of the pool.
func SQL(name string, db *sql.DB) Client {
	return Client{Name: name,
		Begin: func(ctx context.Context) (Tx, error) {
			tx, err := db.BeginTx(context.WithoutCancel(ctx), nil)
			if err != nil {
				return Tx{}, err
			}
			return Tx{Querier: tx, Commit: tx.Commit, Rollback: tx.Rollback}, nil
		},
		InTx: func(ctx context.Context, fn func(Tx) error) error {
			return outbox.InTx(ctx, db, func(tx *sql.Tx) error { return fn(Tx{Querier: tx}) })
		}}
}

// Sqlx is a *sqlx.Tx of the pool.
func Sqlx(name string, db *sqlx.DB) Client {
	return Client{Name: name,
		Begin: func(ctx context.Context) (Tx, error) {
			tx, err := db.BeginTxx(context.WithoutCancel(ctx), nil)
			if err != nil {
				return Tx{}, err
			}
			return Tx{Querier: tx, Commit: tx.Commit, Rollback: tx.Rollback}, nil
		},
		InTx: func(ctx context.Context, fn func(Tx) error) error {
			return outbox.SqlxInTx(ctx, db, func(tx *sqlx.Tx) error { return fn(Tx{Querier: tx}) })
		}}
}

// Conn is a *sql.Conn of the pool on which BEGIN was sent.
func Conn(name string, db *sql.DB) Client {
	return Client{Name: name, Begin: func(ctx context.Context) (Tx, error) {
		conn, err := db.Conn(ctx)
		if err != nil {
			return Tx{}, err
		}
		end := func(how string) func() error {
			return func() error {
				defer conn.Close()
				_, err := conn.ExecContext(context.WithoutCancel(ctx), how)
				return err
			}
		}
		_, err = conn.ExecContext(ctx, "BEGIN")
		return Tx{Querier: conn, Commit: end("COMMIT"), Rollback: end("ROLLBACK")}, err
	}}
}

// reference is the client that the others are compared with.
func reference(t *testing.T, url string) (Client, *relaytest.Database) {
	t.Helper()
	db := relaytest.Open(t, url, "postgres")
	return SQL("reference", db.DB), db
}
