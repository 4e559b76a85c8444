package schema

import (
	"context"
	"crypto/rand"
	"database/sql"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/lib/pq"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestMain(m *testing.M) { os.Exit(pgtest.Main(m)) }

// open is a pool of the test's own. Each pair of a setting and its value is set for all its
// connections.
func open(t testing.TB, address string, settings ...string) *sql.DB {
	t.Helper()
	db, _ := watched(t, address, settings...)
	return db
}

// watched is open with a driver that the test can watch and disturb.
func watched(t testing.TB, address string, settings ...string) (*sql.DB, *watch) {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	for i := 0; i < len(settings); i += 2 {
		q.Set(settings[i], settings[i+1])
	}
	u.RawQuery = q.Encode()
	connector, err := pq.NewConnector(u.String())
	if err != nil {
		t.Fatal(err)
	}
	w := &watch{Connector: connector}
	db := sql.OpenDB(w)
	t.Cleanup(func() { _ = db.Close() })
	return db, w
}

// run sends statements on one connection, in one transaction unless they say otherwise.
func run(t *testing.T, db *sql.DB, statements string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statements); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// scan reads one value.
func scan[T any](t *testing.T, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, query string, args ...any) (value T) {
	t.Helper()
	if err := q.QueryRowContext(t.Context(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

func migrate(t *testing.T, db *sql.DB, opts ...Option) {
	t.Helper()
	if err := Migrate(t.Context(), db, opts...); err != nil {
		t.Fatal(err)
	}
}

// begin runs a statement in a transaction that stays open until release is called, at the latest at
// the test's end.
func begin(t *testing.T, db *sql.DB, statement string) (release func()) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	release = func() { _ = tx.Rollback() }
	t.Cleanup(release)
	if _, err := tx.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return release
}

// newRole creates a role without rights in the database of admin, for the connection setting
// "role".
func newRole(t *testing.T, admin *sql.DB) string {
	t.Helper()
	name := "outbox_test_" + strings.ToLower(rand.Text())
	run(t, admin, "CREATE ROLE "+name)
	t.Cleanup(func() {
		if _, err := admin.Exec("DROP OWNED BY " + name + "; DROP ROLE " + name); err != nil {
			t.Errorf("drop role %s: %v", name, err)
		}
	})
	return name
}

// files replaces the migrations of a Migrate. It has no functions, which may need later tables.
func files(texts ...string) Option {
	return option(func(s *settings) { s.files, s.present = texts, present{functions: "-- none\n"} })
}

// second makes a second version that can be applied only once.
func second(statements string) string {
	return statements + `;
ALTER TABLE outbox.relay ADD COLUMN second integer;
INSERT INTO outbox.migration (version) VALUES (2);`
}

func first() string { return migrations()[0] }
