package outboxtest_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/jmoiron/sqlx"
	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/outboxtest"
	"github.com/txoutbox/outbox/schema"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

type payload struct{ N int }

// newDB is a migrated database of the test's own with a table for the effects of handlers.
func newDB(t testing.TB, driver string, opts ...schema.Option) *sql.DB {
	t.Helper()
	db, err := pgtest.Open(driver, relaytest.Migrated(t, opts...))
	relaytest.Must(err)
	t.Cleanup(func() { db.Close() })
	exec(t, db, `CREATE TABLE effect (note text NOT NULL)`)
	exec(t, db, `CREATE TABLE parent (id int PRIMARY KEY)`)
	exec(t, db, `CREATE TABLE child (id int NOT NULL REFERENCES parent DEFERRABLE INITIALLY DEFERRED)`)
	return db
}

// eachDriver runs a test with lib/pq and with pgx.
func eachDriver(t *testing.T, test func(t *testing.T, db *sql.DB)) {
	t.Helper()
	for _, driver := range []string{"postgres", "pgx"} {
		t.Run(driver, func(t *testing.T) { test(t, newDB(t, driver)) })
	}
}

// places are where a test drains. A short run has every second one: each kind once.
var places = []struct {
	driver, name string
	in           func(t testing.TB, db *sql.DB) outbox.Querier
}{
	{"postgres", "sql.Tx", inTx}, {"pgx", "sql.Tx", inTx},
	{"postgres", "sqlx.DB", inSqlxDB}, {"pgx", "sqlx.DB", inSqlxDB},
	{"pgx", "sqlx.Tx", inSqlxTx}, {"postgres", "sqlx.Tx", inSqlxTx},
	{"pgx", "sql.DB", inDB}, {"postgres", "sql.DB", inDB},
}

func inTx(t testing.TB, db *sql.DB) outbox.Querier     { return begin(t, db) }
func inSqlxTx(t testing.TB, db *sql.DB) outbox.Querier { return &sqlx.Tx{Tx: begin(t, db)} }
func inDB(_ testing.TB, db *sql.DB) outbox.Querier     { return db }
func inSqlxDB(_ testing.TB, db *sql.DB) outbox.Querier { return sqlx.NewDb(db, "postgres") }

// eachPlace runs a test in each kind of transaction and on each kind of pool, with each driver.
func eachPlace(t *testing.T, test func(t *testing.T, db *sql.DB, in outbox.Querier)) {
	t.Helper()
	dbs := map[string]*sql.DB{"postgres": newDB(t, "postgres"), "pgx": newDB(t, "pgx")}
	for _, p := range relaytest.Part(places, len(places)/2) {
		t.Run(p.driver+" "+p.name, func(t *testing.T) {
			empty(t, dbs[p.driver])
			test(t, dbs[p.driver], p.in(t, dbs[p.driver]))
		})
	}
}

func empty(t testing.TB, db *sql.DB) {
	t.Helper()
	exec(t, db, `TRUNCATE outbox.task, outbox.dead_task, outbox.done_task, outbox.headless_key, outbox.unique_key,
		outbox.counter,
		outbox.counter_log, outbox.running, outbox.relay, effect, child RESTART IDENTITY`)
}

// begin is a transaction that is rolled back at the end of the test.
func begin(t testing.TB, db *sql.DB) *sql.Tx {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), nil)
	relaytest.Must(err)
	t.Cleanup(func() { tx.Rollback() })
	return tx
}

func exec(t testing.TB, q outbox.Querier, query string, args ...any) {
	t.Helper()
	if _, err := q.ExecContext(t.Context(), query, args...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

func text(t testing.TB, q outbox.Querier, query string, args ...any) string {
	t.Helper()
	var s sql.NullString
	if err := q.QueryRowContext(t.Context(), query, args...).Scan(&s); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return s.String
}

// wantText checks the text that a query returns.
func wantText(t testing.TB, q outbox.Querier, want, query string, args ...any) {
	t.Helper()
	if got := text(t, q, query, args...); got != want {
		t.Errorf("%s\nreturned %q, want %q", query, got, want)
	}
}

// wantRuns checks what a drain ran: type, attempt and outcome of each run.
func wantRuns(t testing.TB, want string, r *outboxtest.Result) {
	t.Helper()
	var out []string
	for _, run := range r.Runs {
		out = append(out, fmt.Sprintf("%s %d %s", run.Type, run.Attempt, run.Outcome))
	}
	if got := strings.Join(out, ", "); got != want {
		t.Errorf("it ran %s\nwant   %s", got, want)
	}
}

// enqueue works on pools as well.
func enqueue(t testing.TB, q outbox.Querier, taskType string, ns ...int) {
	t.Helper()
	for _, n := range ns {
		exec(t, q, `INSERT INTO outbox.task (task_type, payload) VALUES ($1, jsonb_build_object('N', $2::int))`, taskType, n)
	}
}

type txHandler = func(ctx context.Context, tx *sql.Tx, task *outbox.Task[payload]) error

func onTx(reg *handlers.Registry, name string, f txHandler, opts ...handlers.Option) {
	handlers.Tx(reg, outbox.NewTaskType[payload](name), f, opts...)
}

func onLeased(reg *handlers.Registry, name string, f func(ctx context.Context, task *outbox.Task[payload]) error,
	opts ...handlers.Option) {
	handlers.Leased(reg, outbox.NewTaskType[payload](name), f, opts...)
}

func returns(err error) txHandler {
	return func(context.Context, *sql.Tx, *outbox.Task[payload]) error { return err }
}

// recorder is a testing.TB whose failure is what is looked at.
type recorder struct {
	testing.TB
	failed bool
	fatal  string // its text and the line it was called from, by t.Helper
	logs   []string
	helper map[string]bool
}

// failing runs f and returns the text of its Fatalf, or "".
func failing(t testing.TB, f func(t testing.TB)) *recorder {
	t.Helper()
	r := &recorder{TB: t, helper: map[string]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r
}

func (r *recorder) Helper() {
	var pc [1]uintptr
	runtime.Callers(2, pc[:])
	f, _ := runtime.CallersFrames(pc[:]).Next()
	r.helper[f.Function] = true
}

func (r *recorder) Failed() bool { return r.failed }

func (r *recorder) FailNow() {
	r.failed = true
	runtime.Goexit()
}

func (r *recorder) Logf(format string, args ...any) {
	r.logs = append(r.logs, fmt.Sprintf(format, args...))
}

// Fatalf names the function whose line the testing package would show.
func (r *recorder) Fatalf(format string, args ...any) {
	var pcs [16]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if !r.helper[f.Function] || !more {
			r.fatal = fmt.Sprintf(format, args...) + " @" + f.Function
			break
		}
	}
	r.FailNow()
}

// wantFatal checks a failure's text and that it shows the test's line.
func wantFatal(t testing.TB, r *recorder, texts ...string) {
	t.Helper()
	if !r.failed {
		t.Errorf("the test did not fail, want %q", texts)
		return
	}
	message, at, _ := strings.Cut(r.fatal, " @")
	for _, s := range texts {
		if !strings.Contains(message, s) {
			t.Errorf("it failed with\n%s\nwithout %q", message, s)
		}
	}
	if !strings.Contains(at, "outboxtest_test.Test") {
		t.Errorf("it failed in %s, want the test's own function", at)
	}
}
