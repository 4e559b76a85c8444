package outbox_test

import (
	"context"
	"database/sql"
	"os"
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
	also             bool // differs from another client in how a transaction begins, not in what is sent
}

var clients = []client{
	{name: "lib_pq", driver: "postgres", begin: beginTx},
	{name: "lib_pq_binary_parameters", driver: "postgres", parameter: "binary_parameters", value: "yes", begin: beginTx},
	{name: "lib_pq_conn", driver: "postgres", begin: beginConn, also: true},
	{name: "sqlx_lib_pq", driver: "postgres", begin: beginSqlx, also: true},
	{name: "pgx", driver: "pgx", begin: beginTx},
	{name: "pgx_conn", driver: "pgx", begin: beginConn, also: true},
	{name: "pgx_exec", driver: "pgx", parameter: "default_query_exec_mode", value: "exec", begin: beginTx},
	{name: "pgx_simple_protocol", driver: "pgx", parameter: "default_query_exec_mode", value: "simple_protocol", begin: beginTx},
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

// onEveryClient runs the tests over each client that sends its statements in another way.
// TestEnqueue and OUTBOX_TEST_LONG=1 have all clients.
func onEveryClient(t *testing.T, tests []contract) {
	t.Helper()
	d := newDatabase(t)
	for _, c := range clients {
		if c.also && t.Name() != "TestEnqueue" && os.Getenv("OUTBOX_TEST_LONG") == "" {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			e := &env{database: d, client: c}
			e.pool = open(t, c.driver, e.address(t, d.url))
			for _, test := range tests {
				t.Run(test.name, func(t *testing.T) { test.test(t, e) })
			}
		})
	}
}

func (c client) address(t testing.TB, url string) string {
	if c.parameter == "" {
		return url
	}
	return withParameter(t, url, c.parameter, c.value)
}

// tx is a transaction of the client, rolled back after the test if it still runs.
func (e *env) tx(t *testing.T) *recorder {
	t.Helper()
	tx, err := e.begin(context.WithoutCancel(t.Context()), e.pool) // lib/pq closes a connection whose context ends
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.rollback() })
	return &recorder{transaction: tx}
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
