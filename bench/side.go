package main

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/bench/raw"
	"github.com/txoutbox/outbox/bench/river"
	"github.com/txoutbox/outbox/bench/watermill"
)

// taskType is the one type of most cases.
const taskType = "BENCH"

// load is the payload of a task.
type load struct {
	N int `json:"n"`
}

// payload is that of tasks that a case does not enqueue one by one.
const payload = `{"n": 100000}`

// firstOfMany is the number of the first task of many: six digits, as in payload.
const firstOfMany = 100_000

var benchTask = outbox.NewTaskType[load](taskType)

// side is one of those that take turns.
type side struct {
	name  string
	key   string // of its template
	tasks int    // in it
	build func(context.Context, *database) error
	open  func(context.Context, *database) (client, error)
	start func(ctx context.Context, url string, done func(n int)) (stop func() error, err error)
	left  func(ctx context.Context, db *sql.DB) (int, error)
}

func oursSide(name string, tasks int, set relaySettings) side {
	return side{
		name: name, key: fmt.Sprint("ours ", tasks), tasks: tasks, build: buildOurs(taskType, tasks),
		open: oursClient, left: leftOurs,
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return startRelay(ctx, url, set, func(n int, _ load) { done(n) })
		},
	}
}

func rawSide(name string, tasks int, set raw.Settings) side {
	set.TaskType = taskType
	return side{
		name: name, key: fmt.Sprint("raw ", tasks), tasks: tasks,
		open: rawClient, left: count(raw.LeftSQL),
		build: func(ctx context.Context, d *database) error {
			if err := d.exec(ctx, raw.SchemaSQL, effectTableSQL); err != nil {
				return err
			}
			return raw.Fill(ctx, d.DB, taskType, tasks, payload)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return raw.Start(ctx, url, set, done)
		},
	}
}

func riverSide(name string, tasks int, set river.Settings) side {
	return side{
		name: name, key: fmt.Sprint("river ", tasks), tasks: tasks,
		open: riverClient, left: count(river.LeftSQL),
		build: func(ctx context.Context, d *database) error {
			if err := d.exec(ctx, effectTableSQL); err != nil {
				return err
			}
			return river.Build(ctx, d.url, tasks)
		},
		start: func(ctx context.Context, url string, done func(int)) (func() error, error) {
			return river.Start(ctx, url, set, done)
		},
	}
}

func watermillSide(name string, tasks int) side {
	return side{
		name: name, key: fmt.Sprint("watermill ", tasks), tasks: tasks,
		left: count(watermill.LeftSQL), start: watermill.Start,
		build: func(ctx context.Context, d *database) error {
			return watermill.Build(ctx, d.DB, watermill.FillSQL, payload, tasks)
		},
	}
}

func count(query string) func(context.Context, *sql.DB) (int, error) {
	return func(ctx context.Context, db *sql.DB) (n int, err error) {
		return n, db.QueryRowContext(ctx, query).Scan(&n)
	}
}

// client enqueues in a database, in a transaction for each call. What it opens is closed with the
// database.
type client struct {
	one  func(ctx context.Context, n int) error // task n
	many func(ctx context.Context, n int) error // n tasks
}

func oursClient(_ context.Context, d *database) (client, error) {
	return client{
		one: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
			_, err := benchTask.Enqueue(ctx, tx, load{N: n})
			return err
		}),
		many: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
			tasks := make([]outbox.TaskSpec, n)
			for i := range tasks {
				tasks[i] = benchTask.New(load{N: firstOfMany + i})
			}
			_, err := outbox.EnqueueMany(ctx, tx, tasks)
			return err
		}),
	}, nil
}

func rawClient(_ context.Context, d *database) (client, error) {
	return client{
		one: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
			return raw.Notify(ctx, tx, taskType, load{N: n}.text())
		}),
		many: func(ctx context.Context, n int) error { return raw.Fill(ctx, d.DB, taskType, n, payload) },
	}, nil
}

func riverClient(ctx context.Context, d *database) (client, error) {
	c, err := river.Open(ctx, d.url, enqueuers+2)
	if err != nil {
		return client{}, err
	}
	d.onDrop(c.Close)
	return client{one: c.InsertOne, many: c.InsertMany}, nil
}

const bareInsertSQL = `/* bench: a bare enqueue */
INSERT INTO bare (task_type, payload) VALUES ($1, $2::jsonb)`

const bareManySQL = `/* bench: bare enqueues */
INSERT INTO bare (task_type, payload)
SELECT task_type, payload::jsonb FROM unnest($1::text[], $2::text[]) AS n (task_type, payload)`

// bareClient inserts into the bare table of a database of ours.
func bareClient(_ context.Context, d *database) (client, error) {
	return client{
		one: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
			_, err := tx.ExecContext(ctx, bareInsertSQL, taskType, load{N: n}.text())
			return err
		}),
		many: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
			types, payloads := make([]string, n), make([]string, n)
			for i := range types {
				types[i], payloads[i] = taskType, load{N: firstOfMany + i}.text()
			}
			_, err := tx.ExecContext(ctx, bareManySQL, pq.Array(types), pq.Array(payloads))
			return err
		}),
	}, nil
}

// preparedClient is bareClient with a prepared statement, for one task.
func preparedClient(ctx context.Context, d *database) (client, error) {
	statement, err := d.PrepareContext(ctx, bareInsertSQL)
	return client{one: inTx(d.DB, func(ctx context.Context, tx *sql.Tx, n int) error {
		_, err := tx.StmtContext(ctx, statement).ExecContext(ctx, taskType, load{N: n}.text())
		return err
	})}, err
}

type openClient = func(context.Context, *database) (client, error)

// onPgx is a client on pgx's driver of database/sql.
func onPgx(open openClient) openClient {
	return func(ctx context.Context, d *database) (client, error) {
		db, err := sql.Open("pgx", d.url)
		if err != nil {
			return client{}, err
		}
		d.onDrop(func() { _ = db.Close() })
		db.SetMaxIdleConns(enqueuers)
		return open(ctx, &database{DB: db, url: d.url})
	}
}

func (l load) text() string {
	text, _ := json.Marshal(l) // fails for no number
	return string(text)
}

// inTx calls f in a transaction, and commits it.
func inTx(db *sql.DB, f func(ctx context.Context, tx *sql.Tx, n int) error) func(context.Context,
	int) error {
	return func(ctx context.Context, n int) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		if err := f(ctx, tx, n); err != nil {
			_ = tx.Rollback()
			return err
		}
		return tx.Commit()
	}
}
