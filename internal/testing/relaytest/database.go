// Package relaytest is what the tests of relays share: a migrated database whose invariants are
// checked at the end, relays in this process, and handlers that leave an effect for each task.
//
// A package that uses it has the TestMain that [github.com/txoutbox/outbox/internal/testing/devpg/pgtest]
// asks for.
package relaytest

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver pgx
	_ "github.com/lib/pq"              // the driver postgres
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/invariants"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/proxy"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// Database is a pool of connections to a migrated database, which has the table that the tests'
// handlers write to.
type Database struct {
	*sql.DB
	URL string
}

// NewDatabase is a database of the test's own, on the server that the package's tests share. At the
// end of the test its invariants are checked, and that nothing is left open. The driver is
// [DriverName], unless another is named.
func NewDatabase(t testing.TB, driver ...string) *Database {
	t.Helper()
	name := append(driver, DriverName())[0]
	pooled := os.Getenv("OUTBOX_TEST_POOLER") != "" // sessions are the pooler's
	if (name == "postgres" || name == "pgx") && !pooled {
		return reuse(t, name)
	}
	return checked(t, pgtest.Prepared(t, prepare), driver...)
}

// Migrated is the URL of a database of the test's own with the outbox's schema, and nothing else.
func Migrated(t testing.TB, opts ...schema.Option) (url string) {
	t.Helper()
	if len(opts) == 0 {
		return pgtest.Prepared(t, Migrate)
	}
	url = pgtest.Database(t)
	if err := migrate(url, opts...); err != nil {
		t.Fatal(err)
	}
	return url
}

// Migrate is schema.Migrate in the database of the URL.
func Migrate(url string) error { return migrate(url) }

func migrate(url string, opts ...schema.Option) error {
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	return schema.Migrate(context.Background(), db, opts...)
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
	db.own(t)
	t.Cleanup(func() { db.Invariants(t); db.Idle(t) })
	return db
}

// own gives a database that was made of a template an id of its own, as its first relay would.
func (db *Database) own(t testing.TB) {
	t.Helper()
	db.Do(t, `SELECT outbox.note_origin(NULL)`)
}

// Open is another pool, which is closed at the end of the test. It is opened by [pgtest.Open]:
// where the tests run behind a pooler its connections have no session. URL leads to the server
// itself.
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
	db.SetMaxIdleConns(idleConns(db))
	t.Cleanup(func() { db.Close() })
	return &Database{db, url}
}

// idleConns of a pgxpool are its own.
func idleConns(db *sql.DB) int {
	if _, pool := db.Driver().(poolDriver); pool {
		return -1
	}
	return 20
}

// DriverName is the database/sql driver that the tests use: OUTBOX_TEST_DRIVER is postgres (lib/pq,
// the default), pgx, or pgxpool, which is pgx on connections of a pgxpool.
func DriverName() string {
	if name := os.Getenv("OUTBOX_TEST_DRIVER"); name != "" {
		return name
	}
	return "postgres"
}

// prepare makes an empty database one of the tests'.
func prepare(url string) error {
	if err := migrate(url); err != nil {
		return err
	}
	db, err := sql.Open("postgres", url)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec(`CREATE TABLE effect (task_id bigint NOT NULL, attempt int,
		at timestamptz NOT NULL DEFAULT clock_timestamp())`)
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

// Want checks the text that a query returns.
func (db *Database) Want(t testing.TB, want, query string, args ...any) {
	t.Helper()
	if got := db.Text(t, query, args...); got != want {
		t.Errorf("%s\nreturned %q, want %q", query, got, want)
	}
}

// Hold executes statements in a transaction, which release or the end of the test rolls back.
func (db *Database) Hold(t testing.TB, statements string, args ...any) (release func()) {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	if err == nil {
		_, err = tx.Exec(statements, args...)
	}
	if err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
	release = func() { _ = tx.Rollback() }
	t.Cleanup(release)
	return release
}

// Enqueue inserts n tasks with the payloads {"n": 1} and on.
func (db *Database) Enqueue(t testing.TB, taskType string, n int) {
	t.Helper()
	db.Do(t, `INSERT INTO outbox.task (task_type, payload) SELECT $1, jsonb_build_object('n', n)
		FROM generate_series(1, $2::int) n`, taskType, n)
}

// Due lets the time of all scheduled tasks come: the next poll promotes them.
func (db *Database) Due(t testing.TB) {
	t.Helper()
	db.Do(t, `UPDATE outbox.task SET run_at = LEAST(run_at, now()) WHERE state = 'scheduled'`)
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
	for name, query := range invariants.Always {
		if n := db.Int(t, query); n != 0 {
			t.Errorf("%s: %d times", name, n)
		}
	}
}

// busy are sessions of the database that have a statement or a transaction open, which is what
// holds locks.
const busy = `SELECT COALESCE(string_agg(format('%s: %s', state, left(query, 200)), '; '), '') FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'`

// Idle checks I11 when all relays of the test have ended: no connection of its pool is in use, and
// no session of its database is in a transaction. A session whose client was killed, or has closed
// it, may take a moment to notice.
func (db *Database) Idle(t testing.TB) {
	t.Helper()
	deadline := time.After(endWithin)
	for {
		inUse, sessions := db.Stats().InUse, db.Text(t, busy)
		if inUse == 0 && sessions == "" {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Errorf("I11: %v after the end of the test %d connections are in use, and sessions are busy: %s", endWithin, inUse,
				sessions)
			return
		}
	}
}

// ExampleDatabase is a migrated database for an example, which calls drop at its end.
func ExampleDatabase() (db *sql.DB, drop func()) {
	db, _, drop = ExampleServer()
	return db, drop
}

// ExampleServer is ExampleDatabase with its connection string.
func ExampleServer() (db *sql.DB, url string, drop func()) {
	url, dropDatabase := pgtest.ExamplePrepared(Migrate)
	db, err := pgtest.Open(DriverName(), url)
	Must(err)
	db.SetMaxIdleConns(idleConns(db)) // a new connection costs more than most examples
	return db, url, func() {
		_ = db.Close()
		dropDatabase()
	}
}

// Must panics on an error.
func Must(err error) {
	if err != nil {
		panic(err)
	}
}

// EnqueueAll enqueues tasks in a transaction of their own.
func EnqueueAll(db *sql.DB, tasks ...outbox.TaskSpec) {
	ctx := context.Background()
	Must(outbox.InTx(ctx, db, func(tx *sql.Tx) error {
		_, err := outbox.EnqueueMany(ctx, tx, tasks)
		return err
	}))
}

// RunDue runs what is due, one task after the other; an app calls Run.
func RunDue(ctx context.Context, db *sql.DB, reg *handlers.Registry) {
	r, err := relay.New(db, reg, relay.Config{Workers: 1, Logger: slog.New(slog.DiscardHandler)})
	Must(err)
	Must(r.RunOnce(ctx))
}

// Admin is a client of the outbox in a database, in the schema outbox unless one is given. It writes no audit log.
func Admin(t testing.TB, db *sql.DB, schema ...string) *admin.Client {
	t.Helper()
	client, err := admin.New(db, admin.Config{Schema: append(schema, "")[0]})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// Through starts a proxy before the server of the URL, which ends with the test, and returns the
// URL that leads through it.
func Through(t testing.TB, to string) (*proxy.Proxy, string) {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	p, err := proxy.New(u.Host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	query := u.Query()
	query.Set("sslmode", "disable") // the proxy reads the messages
	u.Host, u.RawQuery = p.Address(), query.Encode()
	return p, u.String()
}

// Timing says that tests assert rates and milliseconds too: OUTBOX_TEST_TIMING=1. A busy machine
// misses them.
var Timing = os.Getenv("OUTBOX_TEST_TIMING") == "1"

// Long says that tests try all of what they otherwise try a part of: OUTBOX_TEST_LONG=1.
var Long = os.Getenv("OUTBOX_TEST_LONG") != ""

// CI says that tests try what each push needs, and more than each go test: OUTBOX_TEST_REQUIRE=all.
var CI = needs.InCI()

// RaceDetector says whether the race detector is at work. It makes all slower.
var RaceDetector = func() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}()

// Times is few, or many where Long.
func Times(few, many int) int {
	if Long {
		return many
	}
	return few
}

// Part is some of all, evenly spread, where not Long.
func Part[T any](all []T, some int) (out []T) {
	if Long || len(all) <= some {
		return all
	}
	for i := range some {
		out = append(out, all[i*len(all)/some])
	}
	return out
}
