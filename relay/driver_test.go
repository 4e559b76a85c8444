package relay_test

import (
	"database/sql"
	"testing"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

// drivers are those of database/sql that the relay works with, whatever OUTBOX_TEST_DRIVER says: how a handler's
// misdeeds and a broken connection show depends on them.
var drivers = []string{"postgres", "pgx"}

// onEachDriver runs a test on a database of its own with each driver.
func onEachDriver(t *testing.T, test func(t *testing.T, db *database)) {
	t.Helper()
	for _, driver := range drivers {
		t.Run(driver, func(t *testing.T) {
			t.Parallel()
			test(t, newDatabaseOn(t, driver))
		})
	}
}

// newDatabaseOn is newDatabase with the given driver.
func newDatabaseOn(t testing.TB, driver string) *database {
	t.Helper()
	url := pgtest.Database(t)
	db := &database{openOn(t, driver, url), url}
	if err := schema.Migrate(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	db.exec(t, `CREATE TABLE effect (task_id bigint NOT NULL, attempt int, at timestamptz NOT NULL DEFAULT clock_timestamp())`)
	t.Cleanup(func() { db.invariants(t) })
	return db
}

func openOn(t testing.TB, driver, url string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, url)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(20)
	t.Cleanup(func() { db.Close() })
	return db
}
