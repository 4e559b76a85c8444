package relaytest

import (
	"database/sql"
	"testing"

	"github.com/txoutbox/outbox/admin"
)

// Admin is a client of the outbox in a database, in the schema outbox unless one is given. It writes no audit log.
func Admin(t testing.TB, db *sql.DB, schema ...string) *admin.Client {
	t.Helper()
	client, err := admin.New(db, admin.Config{Schema: append(schema, "")[0]})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
