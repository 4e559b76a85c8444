package schema

import (
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/writable"
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

// A type or a view of the app's that has a name of the catalogs is no sign of another outbox.
func TestCheckFindsNothingByTheSearchPath(t *testing.T) {
	for name, c := range map[string]struct {
		prepare string
		want    error
		text    string
	}{
		"healthy":            {prepare: ""},
		"before release":     {`DROP SCHEMA outbox CASCADE;` + beforeRelease, ErrNotMigrated, "from before the first release"},
		"another's table":    {`DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox; CREATE TABLE outbox.migration (version text, applied_at timestamptz, functions text)`, ErrNotMigrated, "table migration"},
		"hidden by a policy": {`ALTER TABLE outbox.task ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox.task FORCE ROW LEVEL SECURITY`, ErrRowSecurity, "outbox.task"},
	} {
		t.Run(name, func(t *testing.T) {
			address := pgtest.Database(t)
			db := open(t, address)
			migrate(t, db)
			run(t, db, c.prepare+`;
				CREATE SCHEMA elsewhere;
				DO $$ DECLARE name text; BEGIN
					FOREACH name IN ARRAY '{text,timestamptz,int4,oid,name,char,regtype,regclass}'::text[] LOOP
						EXECUTE format('CREATE DOMAIN elsewhere.%I AS point', name);
					END LOOP;
					FOREACH name IN ARRAY '{pg_attribute,pg_class,pg_namespace,pg_policy,pg_proc}'::text[] LOOP
						EXECUTE format('CREATE TABLE elsewhere.%I ()', name);
					END LOOP;
				END $$;
				CREATE FUNCTION elsewhere.to_regclass(pg_catalog.text) RETURNS pg_catalog.regclass LANGUAGE sql RETURN NULL::pg_catalog.regclass;
				CREATE FUNCTION elsewhere.to_regnamespace(pg_catalog.text) RETURNS pg_catalog.regnamespace LANGUAGE sql RETURN NULL::pg_catalog.regnamespace;
				CREATE FUNCTION elsewhere.row_security_active(pg_catalog.oid) RETURNS boolean LANGUAGE sql RETURN false;
				CREATE FUNCTION elsewhere.pg_is_in_recovery() RETURNS boolean LANGUAGE sql RETURN true`)
			role := newRole(t, db)
			run(t, db, `GRANT USAGE ON SCHEMA outbox, elsewhere TO `+role+`; GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO `+role)
			app := open(t, address, "role", role, "search_path", "elsewhere,pg_catalog")
			err := errors.Join(Check(t.Context(), app), CheckRowSecurity(t.Context(), app))
			if c.want == nil && err != nil || !errors.Is(err, c.want) || c.want != nil && !strings.Contains(err.Error(), c.text) {
				t.Errorf("got %v, want %v: %s", err, c.want, c.text)
			}
			if err := writable.Check(t.Context(), app); err != nil {
				t.Error(err)
			}
		})
	}
}
