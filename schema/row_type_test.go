package schema

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// bound are the objects that refuse a change of the schema's tables: newer minors of PostgreSQL
// refuse a column with a default beside an object that depends on the type of a table's rows,
// except for a function whose body is a text. All refuse another type of a column that a parsed
// body names.
const bound = `
WITH relations AS (SELECT oid, reltype FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v')),
row_types AS (SELECT t.oid FROM pg_type t JOIN relations r ON t.oid = r.reltype OR t.typelem = r.reltype)
SELECT COALESCE(string_agg(DISTINCT pg_describe_object(d.classid, d.objid, d.objsubid), ', '), '')
  FROM pg_depend d LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
 WHERE d.deptype <> 'i'
   AND (d.refclassid = 'pg_type'::regclass AND d.refobjid IN (TABLE row_types) AND (p.oid IS NULL OR p.prosqlbody IS NOT NULL)
     OR d.refclassid = 'pg_class'::regclass AND d.refobjid IN (SELECT oid FROM relations) AND p.prosqlbody IS NOT NULL)`

func TestNoObjectRefusesAChangeOfTheTables(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	if got := scan[string](t, db, bound); got != "" {
		t.Errorf("PostgreSQL refuses columns with defaults beside %s", got)
	}
	for object, make := range map[string]string{
		"function of_row(outbox.task)":         `CREATE FUNCTION of_row(t outbox.task) RETURNS integer LANGUAGE sql RETURN 1`,
		"function of_rows(outbox.dead_task[])": `CREATE FUNCTION of_rows(t outbox.dead_task[]) RETURNS integer LANGUAGE sql RETURN 1`,
		"function rows()": `CREATE FUNCTION rows() RETURNS SETOF outbox.done_task LANGUAGE sql
			BEGIN ATOMIC SELECT * FROM outbox.done_task; END`,
		"function of_column()": `CREATE FUNCTION of_column() RETURNS bigint LANGUAGE sql RETURN (SELECT max(task_id) FROM outbox.task)`,
		"default value for column row of table with_default": `CREATE TABLE with_default (
			row text DEFAULT jsonb_populate_record(NULL::outbox.task, '{}')::text)`,
		"column row of table of_rows":            `CREATE TABLE of_rows (row outbox.relay)`,
		"column row of composite type composite": `CREATE TYPE composite AS (row outbox.relay)`,
		"type domain":                            `CREATE DOMAIN domain AS outbox.schedule`,
		"":                                       `CREATE FUNCTION as_text(t outbox.task) RETURNS integer LANGUAGE sql AS 'SELECT 1'`,
	} {
		tx, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tx.ExecContext(t.Context(), make); err != nil {
			t.Fatalf("%s: %v", make, err)
		}
		if got := scan[string](t, tx, bound); got != object {
			t.Errorf("after %s: found %q, want %q", make, got, object)
		}
		_ = tx.Rollback()
	}
}

// addColumns adds columns to all tables of the schema, as migrations and apps do.
func addColumns(t *testing.T, db *sql.DB, prefix string) string {
	t.Helper()
	return scan[string](t, db, `SELECT string_agg(format('ALTER TABLE %s
		ADD COLUMN `+prefix+`_default timestamptz DEFAULT now(), ADD COLUMN `+prefix+`_volatile uuid NOT NULL DEFAULT gen_random_uuid(),
		ADD COLUMN `+prefix+`_generated integer GENERATED ALWAYS AS (7) STORED;', oid::regclass), E'\n' ORDER BY relname)
		FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`)
}

// parsed are the functions that version 1 had with bodies that depend on the type of a task's row.
const parsed = `
CREATE OR REPLACE FUNCTION outbox.rest(t outbox.task) RETURNS jsonb LANGUAGE sql STABLE
RETURN CASE WHEN num_nonnulls(t.max_attempts, t.headers) = 0 THEN NULL ELSE to_jsonb(t) - '{task_id,run_at}'::text[] END;
CREATE OR REPLACE FUNCTION outbox.claimed(t outbox.task) RETURNS text LANGUAGE sql STABLE
RETURN concat_ws(E'\x1f', t.task_id, (date_part('epoch', t.run_at) * 1000000)::bigint, COALESCE(outbox.rest(t)::text, ''));
`

func TestAMigrationAddsColumnsBesideTheFunctions(t *testing.T) {
	today := []Option{files(migrations()...), state(current().functions, current().relations)}
	version1 := []Option{files(first()), state(parsed, "")}
	for name, before := range map[string][]Option{"of today": today, "of version 1": version1} {
		t.Run("the functions "+name, func(t *testing.T) {
			db := open(t, pgtest.Database(t))
			migrate(t, db, before...)
			run(t, db, `REVOKE EXECUTE ON FUNCTION outbox.claimed FROM PUBLIC; GRANT EXECUTE ON FUNCTION outbox.claimed TO pg_monitor`)
			columns := addColumns(t, db, "of_migration")
			next := fmt.Sprintf("%s\nINSERT INTO outbox.migration (version, oldest_version) VALUES (%d, 1)", columns, Version()+1)
			migrate(t, db, files(append(append([]string{}, migrations()...), next)...), state(current().functions, current().relations))
			run(t, db, addColumns(t, db, "of_app"))
			if got := scan[string](t, db, bound); got != "" {
				t.Errorf("PostgreSQL refuses columns with defaults beside %s", got)
			}
			if !scan[bool](t, db, `SELECT has_function_privilege('pg_monitor', 'outbox.claimed(outbox.task)', 'EXECUTE')`) {
				t.Error("a right on a function is gone")
			}
		})
	}
}

// A tool may end between two files: the functions of version 1 go on to work.
func TestTheFunctionsOfVersionOneMeanTheSameAsTexts(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db, files(first()), state(parsed, ""))
	run(t, db, `INSERT INTO outbox.task (task_type, headers) VALUES ('T', '{"a": "b"}'), ('T', NULL)`)
	const claimed = `SELECT string_agg(outbox.claimed(t), ' ' ORDER BY task_id) FROM outbox.task t`
	want := scan[string](t, db, claimed)
	run(t, db, migrations()[1])
	if got := scan[string](t, db, bound); got != "" {
		t.Errorf("PostgreSQL refuses columns with defaults beside %s", got)
	}
	if got := scan[string](t, db, claimed); got != want || !strings.Contains(got, `"a": "b"`) {
		t.Errorf("got %s, want %s", got, want)
	}
}
