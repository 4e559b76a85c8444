package outbox_test

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq" // the driver "postgres"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// database has the outbox's schema. db looks at it from outside the transactions under test.
type database struct {
	url string
	db  *sql.DB
}

func newDatabase(t testing.TB, opts ...schema.Option) database {
	t.Helper()
	d := database{url: relaytest.Migrated(t, opts...)}
	d.db = open(t, "postgres", d.url)
	return d
}

func open(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	return relaytest.Open(t, url, driver).DB
}

// direct is open for what needs a session or a driver as it is by default, whatever the tests run
// behind.
func direct(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	return relaytest.Direct(t, url, driver).DB
}

// withParameter is the database's URL with one more connection parameter.
func withParameter(t testing.TB, raw, key, value string) string {
	t.Helper()
	u, err := url.Parse(raw)
	must(err)
	q := u.Query()
	q.Set(key, value)
	u.RawQuery = q.Encode()
	return u.String()
}

var typeNumber atomic.Int64

// newType is a task type that no other test uses.
func newType() string { return fmt.Sprintf("TYPE_%d", typeNumber.Add(1)) }

// stored is a row of outbox.task.
type stored struct {
	ID               int64
	Type, Payload    string
	Headers          sql.NullString
	Priority         int
	MaxAttempts      sql.NullInt64
	State            string
	Attempt          int
	RunAt, CreatedAt time.Time
}

// rows are the tasks of a type, as q sees them, by id.
func rows(t testing.TB, q outbox.Querier, taskType string) []stored {
	t.Helper()
	rows, err := q.QueryContext(t.Context(), `SELECT task_id, task_type, payload::text, headers::text, priority, max_attempts, state, attempt, run_at, created_at
		  FROM outbox.task WHERE task_type = $1 ORDER BY task_id`, taskType)
	must(err)
	defer rows.Close()
	var all []stored
	for rows.Next() {
		var s stored
		must(rows.Scan(&s.ID, &s.Type, &s.Payload, &s.Headers, &s.Priority, &s.MaxAttempts, &s.State, &s.Attempt,
			&s.RunAt, &s.CreatedAt))
		all = append(all, s)
	}
	must(rows.Err())
	return all
}

// one is the only task of a type.
func one(t testing.TB, q outbox.Querier, taskType string) stored {
	t.Helper()
	all := rows(t, q, taskType)
	if len(all) != 1 {
		t.Fatalf("got %d tasks of %s, want 1", len(all), taskType)
	}
	return all[0]
}

func wantTasks(t testing.TB, q outbox.Querier, taskType string, n int) {
	t.Helper()
	if got := len(rows(t, q, taskType)); got != n {
		t.Errorf("got %d tasks of %s, want %d", got, taskType, n)
	}
}

// scan is the one value that a query returns.
func scan[T any](t testing.TB, q outbox.Querier, query string, args ...any) (value T) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// want checks the one value that a query returns.
func want[T comparable](t testing.TB, q outbox.Querier, want T, query string, args ...any) {
	t.Helper()
	if got := scan[T](t, q, query, args...); got != want {
		t.Errorf("%s: got %v, want %v", query, got, want)
	}
}

func exec(t testing.TB, q outbox.Querier, query string, args ...any) {
	t.Helper()
	if _, err := q.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// begin is a transaction that is rolled back at the end of the test, if it is still open.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.WithoutCancel(t.Context()), nil) // lib/pq closes a connection whose context ends
	must(err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// end is Commit or Rollback.
func end(t testing.TB, how func() error) {
	t.Helper()
	must(how())
}

// put is an Enqueue that does not fail.
func put(t testing.TB, tx outbox.Querier, taskType string, payload any, opts ...outbox.Option) outbox.Enqueued {
	t.Helper()
	got, err := outbox.Enqueue(t.Context(), tx, taskType, payload, opts...)
	must(err)
	return got
}

// putMany is an EnqueueMany that does not fail.
func putMany(t testing.TB, tx outbox.Querier, tasks ...outbox.TaskSpec) []outbox.Enqueued {
	t.Helper()
	got, err := outbox.EnqueueMany(t.Context(), tx, tasks)
	must(err)
	return got
}

// enqueue is a committed Enqueue over the test's own pool.
func (d database) enqueue(t testing.TB, taskType string, payload any, opts ...outbox.Option) outbox.Enqueued {
	t.Helper()
	tx := begin(t, d.db)
	got := put(t, tx, taskType, payload, opts...)
	end(t, tx.Commit)
	return got
}

// lease is what a claim of a Leased handler does to a task.
const lease = `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()
	WHERE task_id = $1`

// bury is the death of a task.
const bury = `WITH gone AS (DELETE FROM outbox.task WHERE task_id = $1 RETURNING *)
	INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason, task_type, payload, unique_key)
	SELECT task_id, run_at, created_at, priority, 1, 1, 'handler', task_type, payload, unique_key FROM gone`

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
