package schema

import (
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// state replaces the functions, views and triggers of a Migrate.
func state(functions, relations string) Option {
	return option(func(s *settings) { s.present = present{functions, relations} })
}

const objects = `SELECT string_agg(name, ' ' ORDER BY name COLLATE "C") FROM (
	SELECT p.oid::regprocedure::text FROM pg_proc p WHERE pronamespace = 'outbox'::regnamespace
	UNION ALL SELECT relname FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'v'
	UNION ALL SELECT tgname || ' on ' || tgrelid::regclass FROM pg_trigger WHERE NOT tgisinternal) AS o (name)`

// Whatever its signature was, and whether a trigger or another function needed it.
func TestAnObjectOfAnOlderStateNeverStays(t *testing.T) {
	db := open(t, pgtest.Database(t))
	const f, trigger = `CREATE OR REPLACE FUNCTION outbox.`, `CREATE OR REPLACE TRIGGER `
	const body = ` LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;`
	migrate(t, db, state(
		f+`a() RETURNS text`+body+f+`a(n integer, OUT m bigint) RETURNS SETOF bigint LANGUAGE sql AS 'SELECT 1::bigint';`+
			f+`a(VARIADIC of text[]) RETURNS text`+body+f+`a(t outbox.task) RETURNS text`+body+
			f+`kept(n integer DEFAULT 1) RETURNS text`+body+f+`gone() RETURNS trigger`+body+f+`moved() RETURNS trigger`+body,
		`CREATE OR REPLACE VIEW outbox.old AS SELECT outbox.kept(); CREATE OR REPLACE VIEW outbox.kept AS SELECT 1 AS one;`+
			trigger+`t1 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.gone();`+
			trigger+`t2 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.gone();`+
			trigger+`t3 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.moved();`))
	run(t, db, `CREATE FUNCTION outbox.of_the_app() RETURNS integer LANGUAGE sql RETURN 1;
		CREATE VIEW outbox.of_the_app AS SELECT 1;
		GRANT EXECUTE ON FUNCTION outbox.kept TO pg_monitor`)
	oid := scan[int](t, db, `SELECT 'outbox.kept'::regproc::oid`)

	newer := state(f+`kept(n integer DEFAULT 1) RETURNS text`+body+f+`a(t outbox.relay) RETURNS text`+body+f+`moved() RETURNS trigger`+body,
		`CREATE OR REPLACE VIEW outbox.kept AS SELECT 1 AS one, 2 AS two;`+
			trigger+`t1 AFTER INSERT ON outbox.task EXECUTE FUNCTION outbox.moved();`+
			trigger+`t3 AFTER INSERT ON outbox.dead_task EXECUTE FUNCTION outbox.moved();`)
	migrate(t, db, newer)
	want := "kept of_the_app outbox.a(outbox.relay) outbox.kept(integer) outbox.moved() outbox.of_the_app() t1 on outbox.task t3 on outbox.dead_task"
	if got := scan[string](t, db, objects); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if now := scan[int](t, db, `SELECT 'outbox.kept'::regproc::oid`); now != oid || !scan[bool](t, db, `SELECT has_function_privilege('pg_monitor', 'outbox.kept(integer)', 'EXECUTE')`) {
		t.Error("a function was not replaced in its place, with its rights")
	}
}

// A change of functions alone is applied, and reaches a busy database: it locks no table.
func TestAChangeOfAFunctionAloneIsApplied(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	before := current()
	before.functions += "CREATE OR REPLACE FUNCTION outbox.which() RETURNS text LANGUAGE sql AS 'SELECT 1::text';"
	migrate(t, db, state(before.functions, before.relations))
	begin(t, open(t, url), `INSERT INTO outbox.task (task_type) VALUES ('A')`)
	if err := Check(t.Context(), db); !errors.Is(err, ErrNotMigrated) || !strings.Contains(err.Error(), "its functions are of other code: run schema.Migrate") {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
	migrate(t, db)
	if err := Check(t.Context(), db); err != nil {
		t.Error(err)
	}
	if scan[bool](t, db, `SELECT to_regproc('outbox.which') IS NOT NULL`) {
		t.Error("the function of before is still there")
	}
	if got := scan[int](t, db, `SELECT count(*) FROM pg_trigger WHERE NOT tgisinternal`); got == 0 {
		t.Error("the triggers are gone")
	}
}

// Code of an older version never puts its functions back.
func TestOlderCodeLeavesTheFunctionsOfANewerVersion(t *testing.T) {
	db := open(t, pgtest.Database(t))
	of := func(version string) Option {
		return state("CREATE OR REPLACE FUNCTION outbox.which() RETURNS text LANGUAGE sql AS 'SELECT ''"+version+"''';", "")
	}
	allows := second("SELECT 1") + `UPDATE outbox.migration SET oldest_version = 1 WHERE version = 2;`
	migrate(t, db, files(first()), of("older"))
	migrate(t, db, files(first(), allows), of("newer"))
	migrate(t, db, files(first()), of("older"))
	if got := scan[string](t, db, `SELECT outbox.which()`); got != "newer" {
		t.Errorf("the function is of the %s code", got)
	}
}

// psql sets a savepoint before each statement where ON_ERROR_ROLLBACK is on.
func TestTheScriptIsAppliedAgainUnderASavepoint(t *testing.T) {
	db := open(t, pgtest.Database(t))
	script, err := SQL()
	if err != nil {
		t.Fatal(err)
	}
	run(t, db, script)
	want := scan[string](t, db, objects)
	run(t, db, "BEGIN; SAVEPOINT a; "+script+"; RELEASE a; COMMIT")
	if got := scan[string](t, db, objects); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
