package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lib/pq"
	_ "github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
)

func TestMain(m *testing.M) { relaytest.Main(m) }

// noErr ends the test unless err is nil.
func noErr(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// unstarted is relay.New with a Config that is accepted.
func unstarted(t testing.TB, db *database, reg *handlers.Registry, config relay.Config) *relay.Relay {
	t.Helper()
	r, err := relay.New(db.DB, reg, config)
	noErr(t, err)
	return r
}

// wantRows checks how many rows there are of a table, or of what else may follow FROM.
func (db *database) wantRows(t testing.TB, want int, from string, args ...any) {
	t.Helper()
	if got := db.Int(t, `SELECT count(*) FROM `+from, args...); got != want {
		t.Errorf("%d rows of %s, want %d\n%s", got, from, want, db.Dump(t))
	}
}

// wantText checks the text that a query returns; NULL is empty.
func (db *database) wantText(t testing.TB, want, query string, args ...any) {
	t.Helper()
	if got := db.Text(t, query, args...); got != want {
		t.Errorf("%s\nreturned %q, want %q\n%s", query, got, want, db.Dump(t))
	}
}

// begin begins a transaction; the test ends it.
func (db *database) begin(t testing.TB) *sql.Tx {
	t.Helper()
	tx, err := db.Begin()
	must(err)
	return tx
}

// inTx does f in a transaction that commits.
func (db *database) inTx(t testing.TB, f func(tx *sql.Tx) error) {
	t.Helper()
	must(outbox.InTx(context.Background(), db.DB, f))
}

// through is a pool of connections to the database that wrap changes. They are lib/pq's.
func (db *database) through(t testing.TB, wrap func(driver.Connector) driver.Connector) *database {
	t.Helper()
	connector, err := pq.NewConnector(db.URL)
	must(err)
	pool := sql.OpenDB(wrap(connector))
	t.Cleanup(func() { pool.Close() })
	return &database{&relaytest.Database{DB: pool, URL: db.URL}}
}

// want checks that the query returns the value.
func (db *database) want(t testing.TB, want any, what, query string, args ...any) {
	t.Helper()
	if got := db.Text(t, query, args...); got != fmt.Sprint(want) {
		t.Errorf("%s: %s, want %v\n%s", what, got, want, db.Dump(t))
	}
}

// becomes waits until the query returns the value.
func (db *database) becomes(t testing.TB, within time.Duration, want any, what, query string, args ...any) {
	t.Helper()
	eventually(t, within, what, func() bool { return db.Text(t, query, args...) == fmt.Sprint(want) })
}

// with is the URL with a parameter. To pgx a + is no space.
func with(t testing.TB, dsn, name, value string) string {
	t.Helper()
	return withURL(t, dsn, func(u *url.URL) {
		query := u.Query()
		query.Set(name, value)
		u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20")
	})
}

// as is the URL with another user.
func as(t testing.TB, dsn, user, password string) string {
	t.Helper()
	return withURL(t, dsn, func(u *url.URL) { u.User = url.UserPassword(user, password) })
}

func withPort(t testing.TB, dsn, port string) string {
	t.Helper()
	return withURL(t, dsn, func(u *url.URL) { u.Host = u.Hostname() + ":" + port })
}

func withURL(t testing.TB, dsn string, change func(u *url.URL)) string {
	t.Helper()
	u, err := url.Parse(dsn)
	must(err)
	change(u)
	return u.String()
}

// hold executes statements in a transaction, which release rolls back, as does the end of the test.
func hold(t testing.TB, db *database, statements string, args ...any) (release func()) {
	t.Helper()
	return holding(t, db, sql.LevelDefault, (*sql.Tx).Rollback, statements, args...)
}

// holdSnapshot keeps the snapshot of a transaction, as a forgotten one does, until the test ends.
func holdSnapshot(t testing.TB, db *database) {
	t.Helper()
	holding(t, db, sql.LevelRepeatableRead, (*sql.Tx).Rollback, `SELECT count(*) FROM outbox.task`)
}

// uncommitted executes statements in a transaction, which commit commits.
func uncommitted(t testing.TB, db *database, statements string, args ...any) (commit func()) {
	t.Helper()
	return holding(t, db, sql.LevelDefault, (*sql.Tx).Commit, statements, args...)
}

func holding(t testing.TB, db *database, level sql.IsolationLevel, end func(*sql.Tx) error, statements string,
	args ...any) func() {
	t.Helper()
	tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: level})
	must(err)
	t.Cleanup(func() { _ = tx.Rollback() })
	if _, err := tx.Exec(statements, args...); err != nil {
		t.Fatal(err)
	}
	return sync.OnceFunc(func() {
		if err := end(tx); err != nil {
			t.Error(err)
		}
	})
}

// waitsAtAGate reports whether a session of the database waits for an advisory lock.
func (db *database) waitsAtAGate(t testing.TB) bool {
	t.Helper()
	return db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
		AND wait_event = 'advisory'`) == 1
}

// enqueueEach enqueues n tasks of each kind.
func (db *database) enqueueEach(t testing.TB, n int) {
	t.Helper()
	for _, kind := range []string{"TX", "BATCH", "LEASED"} {
		db.Enqueue(t, kind, n)
	}
}
