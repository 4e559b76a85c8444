// Package relaytest is what the tests of relays share: a migrated database whose invariants are checked at the end, relays in this
// process and in processes of their own, which can be killed, and handlers that leave an effect for each task.
//
// A package that uses it has the TestMain that [github.com/txoutbox/outbox/internal/devpg/pgtest] asks for.
package relaytest

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"              // the driver postgres
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// Database is a pool of connections to a migrated database, which has the table that the tests' handlers write to.
type Database struct {
	*sql.DB
	URL string
}

// NewDatabase is a database of the test's own, on the server that the package's tests share. At the end of the test its
// invariants are checked. The driver is [DriverName], unless another is named.
func NewDatabase(t testing.TB, driver ...string) *Database {
	t.Helper()
	return checked(t, pgtest.Prepared(t, prepare), driver...)
}

// Adopt is NewDatabase with an empty database that is there already.
func Adopt(t testing.TB, url string) *Database {
	t.Helper()
	if err := prepare(url); err != nil {
		t.Fatal(err)
	}
	return checked(t, url)
}

func checked(t testing.TB, url string, driver ...string) *Database {
	t.Helper()
	db := Open(t, url, driver...)
	t.Cleanup(func() { db.Invariants(t) })
	return db
}

// Open is another pool, which is closed at the end of the test. It is opened by [pgtest.Open]: where the tests run behind a pooler its
// connections have no session. URL leads to the server itself.
func Open(t testing.TB, url string, driver ...string) *Database {
	t.Helper()
	db, err := pgtest.Open(append(driver, DriverName())[0], url)
	return opened(t, db, url, err)
}

// Direct is Open for what needs a session, whatever the tests run behind.
func Direct(t testing.TB, url string, driver ...string) *Database {
	t.Helper()
	db, err := sql.Open(append(driver, DriverName())[0], url)
	return opened(t, db, url, err)
}

func opened(t testing.TB, db *sql.DB, url string, err error) *Database {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { db.Close() })
	return &Database{db, url}
}

// DriverName is the database/sql driver that the tests use: OUTBOX_TEST_DRIVER is postgres (lib/pq, the default) or pgx.
func DriverName() string {
	if name := os.Getenv("OUTBOX_TEST_DRIVER"); name != "" {
		return name
	}
	return "postgres"
}

// prepare makes an empty database one of the tests'.
func prepare(url string) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	if err := schema.Migrate(context.Background(), db); err != nil {
		return err
	}
	_, err = db.Exec(`CREATE TABLE effect (task_id bigint NOT NULL, attempt int, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	return err
}

// Do executes a statement, or more without arguments.
func (db *Database) Do(t testing.TB, query string, args ...any) {
	t.Helper()
	if _, err := db.DB.ExecContext(context.Background(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// Int is the number that the query returns.
func (db *Database) Int(t testing.TB, query string, args ...any) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&n); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return n
}

// Text is the text that the query returns, empty for NULL.
func (db *Database) Text(t testing.TB, query string, args ...any) string {
	t.Helper()
	var s sql.NullString
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s.String
}

// Enqueue inserts n tasks with the payloads {"n": 1} and on.
func (db *Database) Enqueue(t testing.TB, taskType string, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, jsonb_build_object('n', n) FROM generate_series(1, $2::int) n`, taskType, n)
}

// Emptied waits until no task is left.
func (db *Database) Emptied(t testing.TB, within time.Duration) {
	t.Helper()
	Eventually(t, within, "all tasks are done", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 0 })
}

// Dump is some rows of each table, for a failure's message.
func (db *Database) Dump(t testing.TB) string {
	t.Helper()
	return fmt.Sprintf("task %s\ndead %s\nrunning %s",
		db.Text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.task LIMIT 10) t`),
		db.Text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.dead_task LIMIT 10) t`),
		db.Text(t, `SELECT json_agg(t) FROM (SELECT * FROM outbox.running LIMIT 10) t`))
}

// Invariants checks those of docs/design.md that can be read from the tables.
func (db *Database) Invariants(t testing.TB) {
	t.Helper()
	for name, query := range map[string]string{
		"I1: a task is in task and in dead_task": `SELECT count(*) FROM outbox.task JOIN outbox.dead_task USING (task_id)`,
		"I5: a dead task has attempts left":      `SELECT count(*) FROM outbox.dead_task WHERE reason = 'attempts' AND attempt <> max_attempts`,
		"a run without a task is in the journal, and its relay has signed off": `SELECT count(*) FROM outbox.running r WHERE NOT EXISTS (SELECT 1 FROM outbox.task t WHERE t.task_id = r.task_id)
			AND NOT EXISTS (SELECT 1 FROM outbox.relay l WHERE l.relay_id = r.relay_id)`,
		"I9: the counts are not those of the rows": Miscounted,
		"I9: more tasks are counted as left than were enqueued": `SELECT count(*) FROM (
			SELECT sum(CASE kind WHEN 'dead' THEN -arrived WHEN 'canceled' THEN -tasks WHEN 'failed' THEN 0 ELSE arrived - tasks END) AS finished
			  FROM (SELECT task_type, kind, tasks, arrived FROM outbox.counter UNION ALL SELECT task_type, kind, tasks, arrived FROM outbox.counter_log) c
			 GROUP BY task_type) f WHERE finished < 0`,
	} {
		if n := db.Int(t, query); n != 0 {
			t.Errorf("%s: %d times", name, n)
		}
	}
}

// Miscounted counts the types and kinds of which outbox.counter and its log say something else than count(*).
const Miscounted = `SELECT count(*) FROM (
	SELECT task_type, kind, sum(n) FROM (
		SELECT task_type, state AS kind, count(*) AS n FROM outbox.task GROUP BY 1, 2
		UNION ALL SELECT task_type, 'dead', count(*) FROM outbox.dead_task GROUP BY 1
		UNION ALL SELECT task_type, kind, -tasks FROM outbox.counter WHERE kind NOT IN ('failed', 'canceled')
		UNION ALL SELECT task_type, kind, -tasks FROM outbox.counter_log WHERE kind NOT IN ('failed', 'canceled')) AS c
	 GROUP BY 1, 2 HAVING sum(n) <> 0) AS wrong`
