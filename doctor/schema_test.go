package doctor_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestASchemaThatIsMissingOldOrNewerIsFound(t *testing.T) {
	needs.CI(t)
	db := open(t, pgtest.Database(t))
	found := diagnosis(t, db)
	one(t, found, "schema-version", doctor.Critical, "outbox", "there is no outbox in the schema outbox", "outbox migrate up")
	one(t, found, "relays", doctor.Unknown, "", "see schema-version")
	fine(t, found, "connections", "clock", "server-version", "autovacuum")

	db.Do(t, script(t, "outbox"))
	unexpected(t, db)
	fine(t, diagnosis(t, db), "schema-version")
	db.Do(t, `UPDATE outbox.migration SET functions = 'other'`)
	one(t, diagnosis(t, db), "schema-version", doctor.Critical, "outbox", "the functions of the schema are not those of this program", "outbox migrate up")
	db.Do(t, script(t, "outbox"))
	fine(t, diagnosis(t, db), "schema-version", "schema-objects", "indexes", "triggers")
	db.Do(t, `INSERT INTO outbox.migration (version, oldest_version) VALUES ($1, $2)`, schema.Version()+1, schema.Version())
	found = diagnosis(t, db)
	one(t, found, "schema-version", doctor.Info, "outbox",
		fmt.Sprintf("at version %d, this program knows %[2]d: code that knows %[2]d or newer may run beside it", schema.Version()+1, schema.Version()))
	// Newer migrations may have added these.
	db.Do(t, `ALTER TABLE outbox.task ADD COLUMN later integer`)
	db.Do(t, `CREATE TRIGGER later BEFORE DELETE ON outbox.relay FOR EACH STATEMENT EXECUTE FUNCTION suppress_redundant_updates_trigger()`)
	found = diagnosis(t, db)
	one(t, found, "own-columns", doctor.Info, "", "not checked: the schema is at version")
	one(t, found, "own-triggers", doctor.Info, "", "not checked: the schema is at version")
	for _, check := range []string{"own-columns", "own-triggers", "schema-objects", "indexes", "triggers"} {
		number(t, found, check, 1)
	}
	db.Do(t, `INSERT INTO outbox.migration (version) SELECT generate_series($1::int, 99)`, schema.Version()+2)
	one(t, diagnosis(t, db), "schema-version", doctor.Warning, "outbox", "at version 99, which needs code that knows 99", "upgrade the module")
	db.Do(t, `DELETE FROM outbox.migration WHERE version BETWEEN $1 AND 98`, schema.Version()+1)
	db.Do(t, `UPDATE outbox.migration SET oldest_version = $1 WHERE version = 99`, schema.Version())
	if what := diagnosis(t, db); !strings.Contains(fmt.Sprint(what), "versions that were left out: "+fmt.Sprint(schema.Version()+1)) {
		t.Errorf("got %v", what)
	}
}

func TestATableOfVersionsThatIsNotTheOutboxsIsFound(t *testing.T) {
	db := open(t, pgtest.Database(t))
	db.Do(t, `CREATE SCHEMA outbox`)
	db.Do(t, `CREATE TABLE outbox.migration (name text)`)
	one(t, diagnosis(t, db), "schema-version", doctor.Critical, "outbox", "table migration", "not the outbox's", "a schema of its own")
}

func script(t testing.TB, name string) string {
	t.Helper()
	text, err := schema.SQL(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// unexpected reports objects of a schema that the doctor would not miss.
func unexpected(t *testing.T, db *database) {
	t.Helper()
	want := doctor.Expected()
	rows, err := db.Query(`
		SELECT CASE relkind WHEN 'r' THEN 'table' WHEN 'v' THEN 'view' WHEN 'S' THEN 'sequence' WHEN 'i' THEN 'index' END, relname FROM pg_class c
		 WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'v', 'S', 'i')
		   AND NOT EXISTS (SELECT 1 FROM pg_depend d WHERE d.objid = c.oid AND d.classid = 'pg_class'::regclass AND d.deptype = 'i' AND relkind = 'S')
		UNION SELECT 'trigger', tgname FROM pg_trigger WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = 'outbox'::regnamespace) AND NOT tgisinternal
		UNION SELECT 'function', proname FROM pg_proc WHERE pronamespace = 'outbox'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var o [2]string
		if err := rows.Scan(&o[0], &o[1]); err != nil {
			t.Fatal(err)
		}
		if !want[o] {
			t.Errorf("the schema has the %s %s, which the doctor does not expect", o[0], o[1])
		}
		delete(want, o)
	}
	if rows.Err() != nil || len(want) > 0 {
		t.Errorf("the schema lacks %v, %v", want, rows.Err())
	}
}

// Whatever is done to it, it is found, and what the doctor says mends it.
func TestMissingAndDisabledObjectsAreFoundAndMended(t *testing.T) {
	again := script(t, "outbox")
	const optionsSQL = `SELECT COALESCE(string_agg(oid::regclass || ' ' || reloptions::text, ', ' ORDER BY oid::regclass::text), '') FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'i' AND relname <> 'of_the_app'`
	options := ill(t).Text(t, optionsSQL)
	cases := map[string]struct {
		check    string
		severity doctor.Severity
		subject  string
		mend     string // "": the statement that the finding begins with
	}{
		`DROP INDEX outbox.task_lane`:                                                            {"indexes", doctor.Critical, "task_lane", ""},
		`DROP INDEX outbox.task_head`:                                                            {"indexes", doctor.Critical, "task_head", ""},
		`ALTER TABLE outbox.relay DROP CONSTRAINT relay_pkey`:                                    {"indexes", doctor.Critical, "relay_pkey", `ALTER TABLE outbox.relay ADD PRIMARY KEY (relay_id)`},
		`ALTER TABLE outbox.task DISABLE TRIGGER task_wake`:                                      {"triggers", doctor.Critical, "task_wake", ""},
		`ALTER TABLE outbox.task ENABLE REPLICA TRIGGER task_removed`:                            {"triggers", doctor.Critical, "task_removed", ""},
		`DROP TRIGGER task_arrive ON outbox.task`:                                                {"triggers", doctor.Critical, "task_arrive", again},
		`DROP FUNCTION outbox.claim_tasks`:                                                       {"schema-objects", doctor.Critical, "claim_tasks", again},
		`DROP TABLE outbox.bucket`:                                                               {"schema-objects", doctor.Critical, "bucket", again},
		`DROP VIEW outbox.keyed_task`:                                                            {"schema-objects", doctor.Critical, "keyed_task", again},
		`ALTER TABLE outbox.task SET UNLOGGED`:                                                   {"schema-objects", doctor.Critical, "task", ""},
		`UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.task_lane'::regclass`: {"indexes", doctor.Critical, "task_lane", ""},
		`CREATE INDEX task_lane_ccnew ON outbox.task (task_id);
		 UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.task_lane_ccnew'::regclass`: {"indexes", doctor.Warning, "task_lane_ccnew", ""},
		`CREATE INDEX of_the_app ON outbox.task (task_id);
		 UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.of_the_app'::regclass`: {"indexes", doctor.Warning, "of_the_app", ""},
	}
	for _, change := range relaytest.Part(slices.Sorted(maps.Keys(cases)), 6) {
		test := cases[change]
		t.Run(change, func(t *testing.T) {
			t.Parallel()
			db := ill(t)
			db.Do(t, change)
			f := one(t, diagnosis(t, db), test.check, test.severity, test.subject)
			mend := test.mend
			if mend == "" {
				mend, _, _ = strings.Cut(f.Do, ";")
			}
			db.Do(t, mend)
			if got := db.Text(t, optionsSQL); got != options {
				t.Errorf("the indexes have %s, want %s", got, options)
			}
			fine(t, diagnosis(t, db), "schema-objects", "indexes", "triggers")
		})
	}
}

func TestASchemaOfAnotherName(t *testing.T) {
	db := open(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema("select")); err != nil {
		t.Fatal(err)
	}
	other := doctor.Schema("select")
	found := diagnosis(t, db, other)
	fine(t, found, doctor.Names()[:5]...)
	db.Do(t, `DROP INDEX "select".task_lane; ALTER TABLE "select".task SET (autovacuum_enabled = off)`)
	found = diagnosis(t, db, other)
	db.Do(t, one(t, found, "indexes", doctor.Critical, "task_lane").Do)
	db.Do(t, one(t, found, "autovacuum", doctor.Warning, "task").Do)
	fine(t, diagnosis(t, db, other), "indexes", "autovacuum")
	one(t, diagnosis(t, db), "schema-version", doctor.Critical, "outbox")
}

func TestRolesThatLackRightsAreFound(t *testing.T) {
	db := open(t, pgtest.Database(t))
	name := roles(t, db)
	mine := doctor.Schema(name)
	fine(t, diagnosis(t, db, mine), "roles")
	db.Do(t, fmt.Sprintf(`REVOKE ALL ON %[1]s.schedule FROM %[1]s_viewer; REVOKE EXECUTE ON FUNCTION %[1]s.poll FROM %[1]s_worker; ALTER TABLE %[1]s.slot OWNER TO CURRENT_USER`, name))
	found := diagnosis(t, db, mine)
	one(t, found, "roles", doctor.Warning, name+"_viewer", "SELECT on schedule", "schema.GrantRoles")
	one(t, found, "roles", doctor.Warning, name+"_worker", "EXECUTE on poll")
	one(t, found, "roles", doctor.Warning, "slot", "does not belong to")
	if err := schema.GrantRoles(t.Context(), db.DB, schema.Schema(name)); err != nil {
		t.Fatal(err)
	}
	fine(t, diagnosis(t, db, mine), "roles")
}
