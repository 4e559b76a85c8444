package schema

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/lib/pq"
	"github.com/txoutbox/outbox/internal/testing/invariants"
)

// Triggers do the work of CHECKs, in one way for few rows and in another for many.
func TestTheTableRefusesRowsThatNoRelayCouldRun(t *testing.T) {
	db := migrated(t)
	run(t, db, "INSERT INTO outbox.task (task_type) VALUES ('here')")
	const token, relay = "'00000000-0000-0000-0000-000000000001'", "'00000000-0000-0000-0000-000000000002'"
	type tried struct{ columns, values, violates string }
	cases := []tried{
		{"task_type", "''", "task_type_check"},
		{"task_type", "repeat('x', 128)", ""},
		{"task_type", "repeat('x', 129)", "task_type_check"},
		{"task_type", "repeat('ä', 65)", "task_type_check"},
		{"task_type", `E'a\nb'`, "task_type_check"},
		{"task_type", `E'\u007f'`, "task_type_check"},
		{"task_type", `E'a\u0085'`, "task_type_check"},
		{"task_type", `E'ü \u00a0\u2028'`, ""},
		{"task_type", "NULL", "23502"},
		{"task_type, payload", "'T', NULL", "23502"},
		{"task_type, state", "'T', 'done'", "task_state_check"},
		{"task_type, state", "'T', 'waiting'", "task_state_check"},
		{"task_type, state, ordering_key", "'T', 'waiting', 'k'", ""},
		{"task_type, timeout_ms", "'T', 0", "task_timeout_check"},
		{"task_type, timeout_ms, run_at", "'T', 0, now() + interval '1 hour'", "task_timeout_check"},
		{"task_type, timeout_ms, ordering_key", "'T', 0, 'k'", "task_timeout_check"},
		{"task_type, ordering_key", "'T', ''", "task_ordering_check"},
		{"task_type, ordering_key", "'T', repeat('x', 257)", "task_ordering_check"},
		{"task_type, group_key", "'T', ''", "task_group_check"},
		{"task_type, group_key", "'T', repeat('x', 257)", "task_group_check"},
		{"task_type, group_key, ordering_key", "'T', 'k', 'k'", "task_group_check"},
		{"task_type, group_place", "'T', 1", "task_place_check"},
		{"task_type, state, lease_token, relay_id, group_key",
			"'T', 'leased', " + token + ", " + relay + ", 'k'", "task_place_check"},
		{"task_type, state", "'T', 'leased'", "task_lease_check"},
		{"task_type, lease_token", "'T', " + token, "task_lease_check"},
		{"task_type, leased_until", "'T', now()", "task_lease_check"},
		{"task_type, state, lease_token", "'T', 'leased', " + token, "task_lease_check"},
		{"task_type, state, lease_token, relay_id, leased_until", "'T', 'ready', " + token + ", " + relay + ", NULL", "task_lease_check"},
		{"task_type, state, lease_token, relay_id, leased_until", "'T', 'leased', " + token + ", " + relay + ", now()", ""},
		{"task_type, attempt", "'T', -1", "task_attempt_check"},
		{"task_type, max_attempts", "'T', 0", "task_max_attempts_check"},
		{"task_type, max_attempts", "'T', 1", ""},
		{"task_type, headers", "'T', '[]'", "task_headers_check"},
		{"task_type, headers", "'T', 'null'", "task_headers_check"},
		{"task_type, headers", "'T', '{}'", ""},
		{"task_type, run_at", "'T', '9999-12-31 23:59:59.999999+00'", ""},
		{"task_type, run_at", "'T', '4713-01-01 00:00:00+00 BC'", ""},
		{"task_type, task_id", "'T', 1", "428C9"}, // ids are the sequence's
	}
	// leased_until alone violates task_lease_check.
	times := scan[string](t, db, `SELECT string_agg(attname, ' ') FROM pg_attribute
		WHERE attrelid = 'outbox.task'::regclass AND atttypid = 'timestamptz'::regtype AND attname <> 'leased_until'`)
	for _, column := range strings.Fields(times) {
		for _, time := range []string{"infinity", "-infinity", "10000-01-01 00:00:00+00"} {
			cases = append(cases, tried{"task_type, " + column, "'T', '" + time + "'", "task_time_check"})
		}
	}
	for _, c := range cases {
		good := "('T'" + strings.Repeat(", DEFAULT", strings.Count(c.columns, ",")) + "), "
		insert := fmt.Sprintf("INSERT INTO outbox.task (%s) VALUES ", c.columns)
		for _, statement := range []string{
			insert + "(" + c.values + ")",
			insert + strings.Repeat(good, 4) + "(" + c.values + ")",
			fmt.Sprintf("UPDATE outbox.task SET (%s) = ROW(%s)", c.columns, c.values),
		} {
			unchanged := []string{"task_timeout_check", "task_ordering_check", "task_group_check"} // no relay changes these
			if strings.HasPrefix(statement, "UPDATE") && slices.Contains(unchanged, c.violates) {
				continue
			}
			tx, err := db.BeginTx(t.Context(), nil)
			noErr(t, err)
			_, err = tx.Exec(statement)
			var e *pq.Error
			refused := errors.As(err, &e) && (e.Constraint == c.violates || string(e.Code) == c.violates)
			if c.violates == "" && err != nil || c.violates != "" && !refused {
				t.Errorf("%s: got %v, want a violation of %q", statement, err, c.violates)
			}
			noErr(t, tx.Rollback())
		}
	}
	run(t, db, "INSERT INTO outbox.task (task_type, group_key) VALUES ('T', 'k')")
	run(t, db, "UPDATE outbox.task SET state = 'ready' WHERE group_key = 'k'") // as a relay that knows no groups
	if state := scan[string](t, db, "SELECT state FROM outbox.task WHERE group_key = 'k'"); state != "waiting" {
		t.Errorf("a task without a place is %s", state)
	}
}

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
	db := migrated(t)
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
		noErr(t, err)
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
			db := migrated(t, before...)
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
	db := migrated(t, files(first()), state(parsed, ""))
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

// Text that is for people, or that PostgreSQL compares nowhere.
const inTheDatabasesCollation = `dead_task.last_error done_task.last_error keyed_task.on_conflict keyed_task.outcome task.last_error`

// An index in the order of a locale misses rows once another libc or ICU has another order: unique
// keys are taken twice, and tasks never run.
func TestNoIndexOfTheSchemaIsInTheOrderOfALocale(t *testing.T) {
	db := migrated(t)
	const indexed = `SELECT i.indexrelid::regclass || ' ' || k.n FROM pg_index i
		JOIN pg_class c ON c.oid = i.indrelid, unnest(i.indcollation) WITH ORDINALITY AS k (of, n)
		WHERE c.relnamespace = <ns> AND k.of NOT IN (0, 'pg_catalog."C"'::regcollation)`
	if got := list(t, db, "outbox", indexed); got != "" {
		t.Errorf("index columns in another collation than C: %s", got)
	}
	const columns = `SELECT c.relname || '.' || a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
		WHERE c.relnamespace = <ns> AND c.relkind IN ('r', 'v') AND a.attnum > 0 AND NOT a.attisdropped
		  AND a.attcollation NOT IN (0, 'pg_catalog."C"'::regcollation)`
	if got := list(t, db, "outbox", columns); got != inTheDatabasesCollation {
		t.Errorf("columns in another collation than C: %s\nwant %s", got, inTheDatabasesCollation)
	}
	const predicates = `SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
		WHERE c.relnamespace = <ns> AND i.indpred::text ~ ':(inputcollid|opcollid) 100 '`
	if got := list(t, db, "outbox", predicates); got != "" {
		t.Errorf("conditions of indexes in another collation than C: %s", got)
	}
}

// Beside a publication PostgreSQL refuses to change or delete rows that it could not name to a
// subscriber.
func TestRowsOfEveryTableCanBeDeletedBesideAPublication(t *testing.T) {
	db := migrated(t)
	run(t, db, `CREATE PUBLICATION everything FOR ALL TABLES;
		INSERT INTO outbox.task (task_type) VALUES ('A');
		DELETE FROM outbox.task`)
	run(t, db, `DO $$
		DECLARE name regclass; col name;
		BEGIN
			FOR name, col IN SELECT c.oid, (SELECT attname FROM pg_attribute
				WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = '' ORDER BY attnum LIMIT 1)
				FROM pg_class c WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'
			LOOP
				EXECUTE format('UPDATE %1$s SET %2$I = %2$I; DELETE FROM %1$s', name, col);
			END LOOP;
			ASSERT FOUND;
		END $$`)
}

// Who promoted heads before the migration, by rights of any kind, gives places after it.
func TestTheMigrationOfGroupsGivesItsRightsToWhoPromotesHeads(t *testing.T) {
	db := migrated(t)
	role := newRole(t, db)
	run(t, db, `GRANT SELECT, INSERT, DELETE ON outbox.headless_key TO `+role)
	const may = `SELECT has_table_privilege($1, 'outbox.place_request', 'SELECT, INSERT, DELETE')
		AND has_sequence_privilege($1, 'outbox.headless_key_headless_key_id_seq', 'USAGE')`
	for _, want := range []bool{false, true} {
		var got bool
		noErr(t, db.QueryRow(may, role).Scan(&got))
		if got != want {
			t.Errorf("the role may give places: %v, want %v", got, want)
		}
		run(t, db, migrations()[4])
	}
}

// Older functions have counted retries as scheduled, in the log and in the counters. A tool may apply
// a file twice.
func TestTasksThatAreRetriedAreCountedApartFromTheMigrationOn(t *testing.T) {
	db := migrated(t)
	run(t, db, `INSERT INTO outbox.task (task_type, state, attempt) VALUES ('A', 'scheduled', 2), ('A', 'ready', 1),
		('A', 'scheduled', 0), ('B', 'scheduled', 1), ('B', 'scheduled', 1)`)
	run(t, db, `UPDATE outbox.counter_log SET kind = 'scheduled' WHERE kind = 'retrying'`)
	run(t, db, `WITH folded AS (DELETE FROM outbox.counter_log WHERE task_type = 'B' RETURNING *)
		INSERT INTO outbox.counter (task_type, kind, tasks, arrived)
		SELECT task_type, kind, sum(tasks), sum(arrived) FROM folded GROUP BY task_type, kind`)
	if scan[int](t, db, invariants.Miscounted) == 0 {
		t.Error("the counts are right before, so the test shows nothing")
	}
	for range 2 {
		run(t, db, migrations()[3])
		if n := scan[int](t, db, invariants.Miscounted); n != 0 {
			t.Errorf("%d counts are wrong", n)
		}
	}
	const finished = `SELECT sum(arrived - tasks) FROM (SELECT arrived, tasks FROM outbox.counter
		UNION ALL SELECT arrived, tasks FROM outbox.counter_log) AS c`
	if n := scan[int](t, db, finished); n != 0 {
		t.Errorf("%d tasks count as finished", n)
	}
}
