package doctor_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/schema"
)

func TestASchemaThatIsMissingOldOrNewerIsFound(t *testing.T) {
	needs.CI(t)
	db := open(t, pgtest.Database(t))
	found := diagnosis(t, db)
	has(t, found, "critical schema-version outbox … there is no outbox in the schema outbox … outbox migrate up",
		"unknown relays … see schema-version")
	fine(t, found, "connections", "autovacuum")
	db.Do(t, script(t, "outbox"))
	fine(t, diagnosis(t, db), doctor.Names()[:6]...)
	next := schema.Version() + 1
	for _, step := range []struct{ change, want string }{
		{`UPDATE outbox.migration SET functions = 'other'`,
			"critical schema-version outbox … its functions are of other code: relays of this program do not start … " +
				"outbox migrate up"},
		{fmt.Sprintf(`INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, %d)`, next, next-1),
			fmt.Sprintf("info schema-version outbox … at version %d … code that knows %d or newer may run beside it",
				next, next-1)},
		{`DROP INDEX outbox.task_lane`, "info indexes … not checked: the schema is at version"},
		// as a newer version may
		{fmt.Sprintf(`INSERT INTO outbox.migration (version) SELECT generate_series(%d, 99)`, next+1),
			"warning schema-version outbox … at version 99, which needs code that knows 99 … run the newer code again … else upgrade the module"},
		{fmt.Sprintf(`DELETE FROM outbox.migration WHERE version BETWEEN %d AND 98`, next),
			fmt.Sprintf("warning schema-version outbox … versions that were left out: %d", next)},
		{`DROP SCHEMA outbox CASCADE; CREATE SCHEMA outbox; CREATE TABLE outbox.migration (name text)`,
			"critical schema-version outbox … table migration … not the outbox's … a schema of its own"},
	} {
		db.Do(t, step.change)
		has(t, diagnosis(t, db), step.want)
	}
}

func TestFaultsOfTheSchemaAreFoundAndMended(t *testing.T) {
	const (
		invalid = `UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'outbox.%s'::regclass`
		hidden  = `SELECT outbox.note_origin(''); UPDATE outbox.origin SET system_id = NULL; `
	)
	findEach(t, []fault{
		{`DROP INDEX outbox.task_lane`, []string{"critical indexes task_lane … is missing"}, ";"},
		{`DROP INDEX outbox.task_head`, []string{"critical indexes task_head"}, ";"},
		{`ALTER TABLE outbox.relay DROP CONSTRAINT relay_pkey`,
			[]string{"critical indexes relay_pkey … ALTER TABLE outbox.relay ADD PRIMARY KEY"}, ""},
		{fmt.Sprintf(invalid, "task_lane"), []string{"critical indexes task_lane … is invalid"}, ";"},
		{`CREATE INDEX task_lane_ccnew ON outbox.task (task_id);` + fmt.Sprintf(invalid, "task_lane_ccnew"),
			[]string{"warning indexes task_lane_ccnew … leftover"}, ";"},
		{`CREATE INDEX of_the_app ON outbox.task (task_id);` + fmt.Sprintf(invalid, "of_the_app"),
			[]string{"warning indexes of_the_app … not the outbox's"}, ";"},
		{`ALTER TABLE outbox.task DISABLE TRIGGER task_wake`,
			[]string{"critical triggers task_wake … outbox repair -yes (admin.Client.Repair)"}, ";"},
		{`ALTER TABLE outbox.task ENABLE REPLICA TRIGGER task_removed`, []string{"critical triggers task_removed"},
			";"},
		{`DROP TRIGGER task_arrive ON outbox.task`, []string{"critical triggers task_arrive"}, ";"},
		{`DROP FUNCTION outbox.claim_tasks`, []string{"critical schema-objects claim_tasks"}, ";"},
		{`DROP TABLE outbox.bucket`, []string{"critical schema-objects bucket", "critical indexes bucket_pkey"}, ";"},
		{`DROP VIEW outbox.keyed_task`, []string{"critical schema-objects keyed_task",
			"critical triggers keyed_task_insert"}, ";"},
		{`ALTER TABLE outbox.task SET UNLOGGED`, []string{"critical schema-objects task … unlogged"}, ";"},
		{`CREATE TABLE mail (task_id bigint CONSTRAINT mail_task REFERENCES outbox.task ON DELETE CASCADE)`,
			[]string{"critical foreign-keys mail_task … of the table public.mail deletes the app's row … also if its " +
				"attempt fails"}, ";"},
		{`CREATE TABLE mail (dead bigint CONSTRAINT mail_dead REFERENCES outbox.dead_task)`,
			[]string{"critical foreign-keys mail_dead … refuses that"}, ";"},
		{`INSERT INTO outbox.task (task_type) VALUES ('A'), ('A'); DELETE FROM outbox.counter_log`,
			[]string{"warning counts A ready … 0 are counted, and there are 2 … outbox repair"}, ""},
		{`INSERT INTO outbox.task (task_type) VALUES ('A'), ('A'); SELECT setval('outbox.task_task_id_seq', 1)`,
			[]string{"critical sequences task_task_id_seq … is at 1 … outbox repair"}, ""},
		{hidden,
			[]string{"info copy … system identifier … GRANT EXECUTE"}, ""},
		{hidden + `UPDATE outbox.origin SET table_oid = 1`,
			[]string{"critical copy … this database may be a copy of … outbox adopt -keep-id"}, ""},
		{`ALTER TABLE outbox.task ADD COLUMN mine int`,
			[]string{"warning own-columns task.mine … lost when an attempt of a Tx or Batch task fails, and when the task dies … once its values are there, ALTER TABLE outbox.task DROP COLUMN mine"}, ""},
		{`ALTER TABLE outbox.task ADD COLUMN mine int; ALTER TABLE outbox.dead_task ADD COLUMN mine int NOT NULL`,
			[]string{"warning own-columns task.mine … fails -> keep it",
				"critical own-columns dead_task.mine … are refused … ALTER COLUMN mine DROP NOT NULL; keep it in a table"}, ""},
		{`CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
			CREATE TRIGGER mine AFTER DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION mine()`,
			[]string{"info own-triggers mine … again for each failed attempt"}, ""},
		{`ALTER TABLE outbox.task ENABLE ROW LEVEL SECURITY`, []string{"info row-security … is on for task"}, ""},
	})
}

func TestRowSecurityThatHidesRowsIsFound(t *testing.T) {
	db := ill(t)
	db.Do(t, `CREATE TABLE outbox.mine (n int); ALTER TABLE outbox.mine ENABLE ROW LEVEL SECURITY`)
	has(t, diagnosis(t, db), "ok row-security")
	app, role := as(t, db)
	db.Do(t, fmt.Sprintf(`GRANT USAGE ON SCHEMA outbox TO %[1]s; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO %[1]s;
		ALTER TABLE outbox.migration ENABLE ROW LEVEL SECURITY`, role))
	has(t, diagnosis(t, db), "critical row-security "+role+" … rows of migration … CREATE POLICY outbox ON outbox.migration TO")
	has(t, diagnosis(t, app),
		"critical row-security … from this role … ALTER TABLE outbox.migration DISABLE ROW LEVEL SECURITY",
		"critical schema-version outbox … row level security hides the versions … see row-security")
}

func TestEnvironmentsAreFound(t *testing.T) {
	db := ill(t)
	db.Do(t, `SELECT outbox.note_origin('')`)
	has(t, diagnosis(t, db), "info environment … snapshot … relay.Config.Environment")
	db.Do(t, `SELECT outbox.note_origin('production')`)
	has(t, diagnosis(t, db), `ok environment … "production"`, "ok copy")
	db.Do(t, `SELECT outbox.note_origin('staging'); INSERT INTO outbox.task (task_type) VALUES ('A')`)
	const refused = ` environment staging … relays of the environment "staging" run nothing … its environment is ` +
		`"production" … correct Config.Environment … outbox adopt -environment staging`
	only(t, diagnosis(t, db), "critical"+refused, "critical relays … no relay is alive, and 1 task is ready -> see environment",
		"warning unhandled-type A … -> see environment", "info starving-type … -> see environment")
	worker(t, db, true, 10, 12, "B")
	only(t, diagnosis(t, db), "warning"+refused, "warning unhandled-type A … -> see environment; else register")
	db.Do(t, `UPDATE outbox.origin SET refused_at = clock_timestamp() - interval '2 minutes'`) // they have ended
	only(t, diagnosis(t, db), "warning unhandled-type A … -> register")
}

// More relays and other handlers would not help there.
func TestInACopyMissingRelaysAreNotBlamed(t *testing.T) {
	db := ill(t)
	db.Do(t, `UPDATE outbox.origin SET database_oid = 1, table_oid = 1;
		INSERT INTO outbox.task (task_type) VALUES ('A');
		INSERT INTO outbox.schedule (name, task_type, definition, timing, payload, next_at) VALUES ('often', 'A', 'x', 'x', '{}', now() - interval '1 hour')`)
	only(t, diagnosis(t, db), "critical copy", "critical relays … no relay is alive, and 1 task is ready -> see copy",
		"warning unhandled-type A … -> see copy", "info starving-type … -> see copy", "warning schedules often … -> see copy")
	has(t, diagnosis(t, db), "ok environment … no relay is refused")
}

func TestRelaysOfAnotherSchemaAreNamedWhereNoneIsAlive(t *testing.T) {
	db := ill(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(schema.Migrate(t.Context(), db.DB, schema.Schema("select")))
	must(schema.Migrate(t.Context(), db.DB, schema.Schema("dead")))
	worker(t, db, true, 10, 12, "A")
	db.Do(t, `INSERT INTO "select".relay SELECT * FROM outbox.relay;
		INSERT INTO dead.relay SELECT * FROM outbox.relay; UPDATE dead.relay SET alive_until = now() - interval '1 hour';
		CREATE SCHEMA app; CREATE TABLE app.relay (n int); CREATE TABLE app.headless_key (n int);
		DELETE FROM outbox.relay; INSERT INTO outbox.task (task_type) VALUES ('A')`)
	f := has(t, diagnosis(t, db), `critical relays … 1 task is ready … alive are 1 relay in the schema "select" … `+
		"correct relay.Config.Schema … else start a process that calls Relay.Run")
	if strings.Contains(f.Message, "dead") || strings.Contains(f.Message, "app") {
		t.Errorf("it names relays that are not alive: %+v", f)
	}
}

func TestCountsOfManyTasksAreNotChecked(t *testing.T) {
	db := ill(t)
	db.Enqueue(t, "A", 10_000)
	has(t, diagnosis(t, db), "ok counts … not checked")
}

func TestASchemaOfAnotherName(t *testing.T) {
	db := open(t, pgtest.Database(t))
	if err := schema.Migrate(t.Context(), db.DB, schema.Schema("select")); err != nil {
		t.Fatal(err)
	}
	other := doctor.Schema("select")
	fine(t, diagnosis(t, db, other), doctor.Names()[:5]...)
	db.Do(t, `DROP INDEX "select".task_lane; ALTER TABLE "select".task SET (autovacuum_enabled = off)`)
	found := diagnosis(t, db, other)
	db.Do(t, has(t, found, "critical indexes task_lane").Remedy)
	db.Do(t, has(t, found, "warning autovacuum task").Remedy)
	fine(t, diagnosis(t, db, other), "indexes", "autovacuum")
	has(t, diagnosis(t, db), "critical schema-version outbox")
}

func TestRolesThatLackRightsAreFound(t *testing.T) {
	db := open(t, pgtest.Database(t))
	name := roles(t, db)
	mine := doctor.Schema(name)
	fine(t, diagnosis(t, db, mine), "roles")
	db.Do(t, fmt.Sprintf(`REVOKE ALL ON %[1]s.schedule FROM %[1]s_viewer;
		REVOKE SELECT (outcome) ON %[1]s.done_task FROM %[1]s_viewer; REVOKE ALL ON %[1]s.task FROM %[1]s_enqueuer;
		REVOKE EXECUTE ON FUNCTION %[1]s.poll FROM %[1]s_worker;
		REVOKE UPDATE ON SEQUENCE %[1]s.wake FROM %[1]s_worker; REVOKE USAGE ON SCHEMA %[1]s FROM %[1]s_worker; ALTER TABLE %[1]s.slot OWNER TO CURRENT_USER`, name))
	has(t, diagnosis(t, db, mine),
		"warning roles "+name+"_viewer … SELECT on done_task, SELECT on schedule … schema.GrantRoles",
		"warning roles "+name+"_worker … EXECUTE on poll, UPDATE on wake, USAGE on the schema",
		"warning roles "+name+"_enqueuer … INSERT on task", "warning roles slot … does not belong to")
	if err := schema.GrantRoles(t.Context(), db.DB, schema.Schema(name)); err != nil {
		t.Fatal(err)
	}
	fine(t, diagnosis(t, db, mine), "roles")
}

// An advice to drop it would reach an index of use. A role may not see what other sessions build.
func TestAnIndexThatIsBeingBuiltIsNoFault(t *testing.T) {
	db := ill(t)
	app, role := as(t, db)
	db.Do(t, fmt.Sprintf(`GRANT USAGE ON SCHEMA outbox TO %[1]s; GRANT SELECT ON ALL TABLES IN SCHEMA outbox TO %[1]s`, role))
	_, end := hold(t, db, sql.LevelDefault, `INSERT INTO outbox.task (task_type) VALUES ('A')`)
	built := make(chan error, 1)
	go func() {
		_, err := again(t, db).Exec(`CREATE INDEX CONCURRENTLY task_lane_ccnew ON outbox.task (task_id)`)
		built <- err
	}()
	relaytest.Eventually(t, time.Minute, "the index is being built", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_index WHERE NOT indisvalid`) == 1
	})
	for _, f := range diagnosis(t, app) {
		if f.Check == "indexes" && f.Severity.AtLeast(doctor.SeverityUnknown) {
			t.Errorf("found %+v", f)
		}
	}
	end()
	if err := <-built; err != nil {
		t.Error(err)
	}
}
