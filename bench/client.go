package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
)

// client enqueues in a database. Both functions take a transaction for it.
type client struct {
	one   func(ctx context.Context, n int) error // task n
	many  func(ctx context.Context, n int) error // n tasks
	close func()
}

// firstOfMany is the number of the first task of many: six digits, as in payload.
const firstOfMany = 100_000

func oursClient(_ context.Context, d *database) (client, error) {
	return client{
		one: func(ctx context.Context, n int) error {
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := benchTask.Enqueue(ctx, tx, load{N: n})
				return err
			})
		},
		many: func(ctx context.Context, n int) error {
			tasks := make([]outbox.TaskSpec, n)
			for i := range tasks {
				tasks[i] = benchTask.New(load{N: firstOfMany + i})
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := outbox.EnqueueMany(ctx, tx, tasks)
				return err
			})
		},
		close: func() {},
	}, nil
}

// onPgx is a client on pgx's driver of database/sql.
func onPgx(open func(context.Context, *database) (client, error)) func(context.Context, *database) (client, error) {
	return func(ctx context.Context, d *database) (client, error) {
		db, err := sql.Open("pgx", d.url)
		if err != nil {
			return client{}, err
		}
		db.SetMaxIdleConns(enqueuers)
		other := *d
		other.DB = db
		c, err := open(ctx, &other)
		if err != nil {
			return c, errors.Join(err, db.Close())
		}
		done := c.close
		c.close = func() { done(); _ = db.Close() }
		return c, nil
	}
}

func rawClient(_ context.Context, d *database) (client, error) {
	return client{
		one: func(ctx context.Context, n int) error {
			payload, err := json.Marshal(load{N: n})
			if err != nil {
				return err
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error { return raw.Notify(ctx, tx, taskType, string(payload)) })
		},
		many:  func(ctx context.Context, n int) error { return raw.Fill(ctx, d.DB, taskType, n, payload) },
		close: func() {},
	}, nil
}

func riverClient(ctx context.Context, d *database) (client, error) {
	c, err := river.Open(ctx, d.url, enqueuers+2)
	if err != nil {
		return client{}, err
	}
	return client{one: c.InsertOne, many: c.InsertMany, close: c.Close}, nil
}

const bareInsertSQL = `/* bench: a bare enqueue */
INSERT INTO bare (task_type, payload) VALUES ($1, $2::jsonb)`

const bareManySQL = `/* bench: bare enqueues */
INSERT INTO bare (task_type, payload)
SELECT task_type, payload::jsonb FROM unnest($1::text[], $2::text[]) AS n (task_type, payload)`

// bareClient inserts into the bare table of a database of ours.
func bareClient(_ context.Context, d *database) (client, error) {
	return client{
		one: insertBare(d.DB, func(ctx context.Context, tx *sql.Tx, args ...any) error {
			_, err := tx.ExecContext(ctx, bareInsertSQL, args...)
			return err
		}),
		many: func(ctx context.Context, n int) error {
			types, payloads := make([]string, n), make([]string, n)
			for i := range types {
				payload, err := json.Marshal(load{N: firstOfMany + i})
				if err != nil {
					return err
				}
				types[i], payloads[i] = taskType, string(payload)
			}
			return inTx(ctx, d.DB, func(tx *sql.Tx) error {
				_, err := tx.ExecContext(ctx, bareManySQL, pq.Array(types), pq.Array(payloads))
				return err
			})
		},
		close: func() {},
	}, nil
}

// preparedClient is bareClient with a prepared statement, for one task.
func preparedClient(ctx context.Context, d *database) (client, error) {
	statement, err := d.PrepareContext(ctx, bareInsertSQL)
	if err != nil {
		return client{}, err
	}
	return client{
		one: insertBare(d.DB, func(ctx context.Context, tx *sql.Tx, args ...any) error {
			_, err := tx.StmtContext(ctx, statement).ExecContext(ctx, args...)
			return err
		}),
		close: func() { _ = statement.Close() },
	}, nil
}

// insertBare inserts task n into the bare table in a transaction.
func insertBare(db *sql.DB, exec func(ctx context.Context, tx *sql.Tx, args ...any) error) func(context.Context,
	int) error {
	return func(ctx context.Context, n int) error {
		return inTx(ctx, db, func(tx *sql.Tx) error {
			payload, err := json.Marshal(load{N: n})
			if err != nil {
				return err
			}
			return exec(ctx, tx, taskType, string(payload))
		})
	}
}

func inTx(ctx context.Context, db *sql.DB, f func(*sql.Tx) error) error {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := f(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}
