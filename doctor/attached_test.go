package doctor_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/admin"
	"github.com/txoutbox/outbox/doctor"
)

func TestForeignKeysToTheOutboxAreFound(t *testing.T) {
	t.Parallel()
	db := ill(t)
	db.Do(t, `CREATE TABLE mail (mail_id bigint, task_id bigint CONSTRAINT mail_task REFERENCES outbox.task ON DELETE CASCADE,
		dead bigint CONSTRAINT mail_dead REFERENCES outbox.dead_task)`)
	found := diagnosis(t, db)
	one(t, found, "foreign-keys", doctor.Critical, "mail_task", "of the table public.mail deletes the app's row", "also if its attempt fails", `ALTER TABLE public.mail DROP CONSTRAINT "mail_task"`)
	one(t, found, "foreign-keys", doctor.Critical, "mail_dead", "refuses that")
}

// What the trigger did not do meanwhile is a defect that the advice repairs.
func TestADisabledTriggersWorkIsRepaired(t *testing.T) {
	t.Parallel()
	db := ill(t)
	db.Do(t, `ALTER TABLE outbox.task DISABLE TRIGGER USER; INSERT INTO outbox.task (task_type, unique_key) VALUES ('A', 'k')`)
	do := one(t, diagnosis(t, db), "triggers", doctor.Critical, "task_arrive", "outbox repair -yes (admin.Client.Repair)").Do
	if strings.Contains(do, "migrations") {
		t.Errorf("to do is %q: migrations repair no keys", do)
	}
	db.Do(t, `ALTER TABLE outbox.task ENABLE TRIGGER USER`)
	c, err := admin.New(db.DB, admin.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Repair(t.Context(), admin.RepairOptions{}); err != nil {
		t.Fatal(err)
	}
	fine(t, diagnosis(t, db), "triggers", "counts")
	if got := db.Text(t, `SELECT string_agg(key || task_id, ' ') FROM outbox.unique_key`); got != "k1" {
		t.Errorf("the keys are %q", got)
	}
}

func TestColumnsOfTheAppAreFound(t *testing.T) {
	t.Parallel()
	db := ill(t)
	fine(t, diagnosis(t, db), "own-columns")
	db.Do(t, `ALTER TABLE outbox.task ADD COLUMN tenant int, ADD COLUMN "Must" int NOT NULL; ALTER TABLE outbox.schedule ADD COLUMN note text`)
	found := diagnosis(t, db)
	one(t, found, "own-columns", doctor.Warning, "task.tenant", "lost when a failed attempt puts the row back", `DROP COLUMN "tenant"`)
	one(t, found, "own-columns", doctor.Critical, "task.Must", "are refused")
	one(t, found, "own-columns", doctor.Info, "schedule.note")
	number(t, found, "own-columns", 3)
	columns := doctor.ExpectedColumns()
	for table, names := range columns {
		want := db.Text(t, `SELECT string_agg(attname, ' ' ORDER BY attname) FROM pg_attribute WHERE attrelid = ('outbox.' || $1)::regclass AND attnum > 0 AND attname NOT IN ('tenant', 'Must', 'note')`, table)
		slices.Sort(names)
		if got := strings.Join(names, " "); got != want {
			t.Errorf("of %s the doctor knows %s, want %s", table, got, want)
		}
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind = 'r'`); n != len(columns) {
		t.Errorf("the doctor knows %d tables of %d", len(columns), n)
	}
}

func TestTriggersOfTheAppAreFound(t *testing.T) {
	t.Parallel()
	db := ill(t)
	db.Do(t, `CREATE FUNCTION mine() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
		CREATE TRIGGER mine AFTER DELETE ON outbox.task FOR EACH ROW EXECUTE FUNCTION mine()`)
	found := diagnosis(t, db)
	one(t, found, "own-triggers", doctor.Info, "mine", "an INSERT for each task and again for each failed attempt")
	number(t, found, "own-triggers", 1)
}

func TestRowSecurityIsFoundWithTheRolesThatItHurts(t *testing.T) {
	t.Parallel()
	db := ill(t)
	app, role := as(t, db)
	db.Do(t, fmt.Sprintf(`GRANT USAGE ON SCHEMA outbox TO %[1]s; GRANT ALL ON ALL TABLES IN SCHEMA outbox TO %[1]s`, role))
	db.Do(t, `ALTER TABLE outbox.task ENABLE ROW LEVEL SECURITY; ALTER TABLE outbox.migration ENABLE ROW LEVEL SECURITY`)
	one(t, diagnosis(t, db), "row-security", doctor.Critical, role, "hides rows of migration, task from the role "+role, "CREATE POLICY outbox ON outbox.migration TO")
	found := diagnosis(t, app)
	one(t, found, "row-security", doctor.Critical, "", "from this role", "ALTER TABLE outbox.migration DISABLE ROW LEVEL SECURITY")
	one(t, found, "schema-version", doctor.Critical, "outbox", "row level security hides the versions", "see row-security")
	db.Do(t, fmt.Sprintf(`CREATE POLICY outbox ON outbox.task TO %[1]s USING (true); CREATE POLICY outbox ON outbox.migration TO PUBLIC USING (true)`, role))
	one(t, diagnosis(t, db), "row-security", doctor.Info, "", "is on for migration, task")
	fine(t, diagnosis(t, app), "row-security", "schema-version")
}

func TestCountsAndSequencesThatAreWrongAreFound(t *testing.T) {
	t.Parallel()
	db := ill(t)
	db.Enqueue(t, "A", 3)
	db.Do(t, `DELETE FROM outbox.counter_log; SELECT setval('outbox.task_task_id_seq', 1)`)
	found := diagnosis(t, db)
	one(t, found, "counts", doctor.Warning, "A ready", "0 are counted, and there are 3", "outbox repair")
	one(t, found, "sequences", doctor.Critical, "task_task_id_seq", "is at 1", "outbox repair")
	db.Do(t, `SELECT setval('outbox.task_task_id_seq', 100)`)
	db.Enqueue(t, "B", 10_000-3)
	one(t, diagnosis(t, db), "counts", doctor.OK, "", "not checked")
}
