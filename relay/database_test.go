package relay_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

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
