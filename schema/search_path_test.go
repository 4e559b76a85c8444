package schema

import (
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// What the role's search_path has before pg_catalog is not what the schema is made of.
func TestMigrateFindsNothingByTheSearchPath(t *testing.T) {
	plain := open(t, pgtest.Database(t))
	migrate(t, plain)
	address := pgtest.Database(t)
	db := open(t, address)
	run(t, db, `CREATE SCHEMA elsewhere;
		CREATE DOMAIN elsewhere.text AS integer;
		CREATE DOMAIN elsewhere.bigint AS boolean;
		CREATE FUNCTION elsewhere.pg_xact_status(xid8) RETURNS pg_catalog.text LANGUAGE sql RETURN NULL::pg_catalog.text;
		CREATE FUNCTION elsewhere.now() RETURNS timestamptz LANGUAGE sql RETURN timestamptz 'epoch'`)
	migrate(t, open(t, address, "search_path", "elsewhere,pg_catalog"))
	if got, want := describe(t, db, "outbox"), describe(t, plain, "outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
