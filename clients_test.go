package outbox_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/txoutbox/outbox"
)

// transaction is what the contract is tested on: whatever an app may pass to Enqueue.
type transaction struct {
	outbox.Querier
	commit, rollback func() error
}

// client is one way in which an app can reach PostgreSQL.
type client struct {
	name, driver     string
	parameter, value string // of the connection
	begin            func(context.Context, *sql.DB) (transaction, error)
}

var clients = []client{
	{name: "lib_pq", driver: "postgres", begin: beginTx},
	{name: "lib_pq_binary_parameters_sqlx", driver: "postgres", parameter: "binary_parameters", value: "yes",
		begin: beginSqlx},
	{name: "pgx", driver: "pgx", begin: beginTx},
	{name: "pgx_exec_conn", driver: "pgx", parameter: "default_query_exec_mode", value: "exec", begin: beginConn},
	{name: "pgx_simple_protocol", driver: "pgx", parameter: "default_query_exec_mode", value: "simple_protocol",
		begin: beginTx},
}

func beginTx(ctx context.Context, db *sql.DB) (transaction, error) {
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return transaction{}, err
	}
	return transaction{tx, tx.Commit, tx.Rollback}, nil
}

func beginSqlx(ctx context.Context, db *sql.DB) (transaction, error) {
	tx, err := sqlx.NewDb(db, "postgres").BeginTxx(ctx, nil)
	if err != nil {
		return transaction{}, err
	}
	return transaction{tx, tx.Commit, tx.Rollback}, nil
}

func beginConn(ctx context.Context, db *sql.DB) (transaction, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return transaction{}, err
	}
	end := func(how string) func() error {
		return func() error {
			_, err := conn.ExecContext(context.WithoutCancel(ctx), how)
			conn.Close()
			return err
		}
	}
	_, err = conn.ExecContext(ctx, "BEGIN")
	return transaction{conn, end("COMMIT"), end("ROLLBACK")}, err
}

// contract is a test that holds for every client; name is its guarantee.
type contract struct {
	name string
	test func(t *testing.T, e *env)
}

// env is one client on a database that it shares with the other tests of the contract, so each test
// uses task types of its own.
type env struct {
	database
	client
	pool *sql.DB
}

// onEveryClient runs the tests over each client: each way to send statements, and each to begin.
func onEveryClient(t *testing.T, tests []contract) {
	t.Helper()
	d := newDatabase(t)
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			e, url := &env{database: d, client: c}, d.url
			if c.parameter != "" {
				url = withParameter(t, url, c.parameter, c.value)
			}
			e.pool = open(t, c.driver, url)
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) { test.test(t, e) })
			}
		})
	}
}

// tx is a transaction of the client, rolled back after the test if it still runs.
func (e *env) tx(t *testing.T) *recorder {
	t.Helper()
	tx, err := e.begin(context.WithoutCancel(t.Context()), e.pool) // lib/pq closes a connection whose context ends
	must(err)
	t.Cleanup(func() { _ = tx.rollback() })
	return &recorder{transaction: tx}
}

// end commits or rolls back.
func (r *recorder) end(t *testing.T, commit bool) {
	t.Helper()
	how := r.rollback
	if commit {
		how = r.commit
	}
	end(t, how)
}

// recorder counts the statements that reach its transaction. It hides the driver from Enqueue.
type recorder struct {
	transaction
	statements int
}

func (r *recorder) ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error) {
	r.statements++
	return r.transaction.ExecContext(ctx, query, args...)
}

func (r *recorder) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	r.statements++
	return r.transaction.QueryContext(ctx, query, args...)
}

func (r *recorder) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	r.statements++
	return r.transaction.QueryRowContext(ctx, query, args...)
}
