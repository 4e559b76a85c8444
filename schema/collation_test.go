package schema

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
)

// Text that is for people, or that PostgreSQL compares nowhere.
const inTheDatabasesCollation = `dead_task.last_error done_task.last_error keyed_task.on_conflict keyed_task.outcome task.last_error`

// An index in the order of a locale misses rows once another libc or ICU has another order: unique
// keys are taken twice, and tasks never run.
func TestNoIndexOfTheSchemaIsInTheOrderOfALocale(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
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

// What the migration drops and makes again is as it was, and the roles, apps' ones too, keep their
// rights.
func TestTheCollationsOfColumnsChangeNothingElse(t *testing.T) {
	db := open(t, pgtest.Database(t))
	name := newRoles(t, db)
	at := slices.IndexFunc(migrations(), func(text string) bool { return strings.Contains(text, "DROP VIEW outbox.keyed_task") })
	schema := func(versions int) []Option { return []Option{Schema(name), files(migrations()[:versions]...)} }
	migrate(t, db, schema(at)...)
	// As apps have it, and GrantRoles.
	run(t, db, rename(`CREATE ROLE outbox_owner; CREATE ROLE outbox_worker; CREATE ROLE outbox_viewer;
		GRANT ALL ON SCHEMA outbox TO outbox_owner;
		ALTER TABLE outbox.task OWNER TO outbox_owner;
		ALTER VIEW outbox.keyed_task OWNER TO outbox_owner;
		ALTER DEFAULT PRIVILEGES IN SCHEMA outbox GRANT SELECT, DELETE ON TABLES TO outbox_worker;
		REVOKE ALL ON FUNCTION outbox.optional_columns FROM PUBLIC;
		GRANT EXECUTE ON FUNCTION outbox.optional_columns TO outbox_worker;
		GRANT INSERT (task_type), SELECT (outcome, unique_key) ON outbox.keyed_task TO outbox_viewer WITH GRANT OPTION;
		GRANT SELECT ON outbox.keyed_task TO PUBLIC;
		INSERT INTO outbox.keyed_task (task_type, unique_key) VALUES ('A', 'k');
		ANALYZE outbox.task`, name))
	described := func() string {
		return strings.NewReplacer(` COLLATE "C"`, "", "(", "", ")", "").Replace(describe(t, db, name)) // PostgreSQL writes these otherwise
	}
	want := described() + "\nversion " + strconv.Itoa(baseline+at)
	migrate(t, db, schema(at+1)...)
	if got := described(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	const statistics = `SELECT attname::text FROM pg_stats WHERE schemaname = '<schema>' AND tablename = 'task'
		AND attname IN ('task_type', 'unique_key')`
	if got := list(t, db, name, statistics); got != "task_type unique_key" {
		t.Errorf("there are statistics of %q, want task_type unique_key", got)
	}
}

// A transaction of the app may have locked any of the tables when the migration comes, and lock
// another one then. The migration gives way.
func TestTheMigrationOfCollationsMakesNobodyTheVictimOfADeadlock(t *testing.T) {
	url := pgtest.Database(t)
	at := slices.IndexFunc(migrations(), func(text string) bool { return strings.Contains(text, "DROP VIEW outbox.keyed_task") })
	migrate(t, open(t, url), files(migrations()[:at]...))
	db := open(t, url, "deadlock_timeout", "300ms")
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.Exec(`INSERT INTO outbox.inbox (source, event_id, keep_until) VALUES ('a', '1', now())`); err != nil {
		t.Fatal(err)
	}
	migrated := make(chan error, 1)
	go func() {
		migrated <- Migrate(t.Context(), db, LockTimeout(10*time.Second), files(migrations()[:at+1]...))
	}()
	// A migration that waits for so long has looked for deadlocks, and found none.
	const waits = `SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'outbox.inbox'::regclass
		AND waitstart < clock_timestamp() - interval '400 milliseconds'`
	for range 100 {
		if scan[int](t, db, waits) > 0 {
			break
		}
		<-time.After(10 * time.Millisecond)
	}
	if _, err := tx.Exec(`INSERT INTO outbox.task (task_type) VALUES ('A')`); err != nil {
		t.Errorf("the app, which had locked the inbox: %v", err)
	}
	if err := errors.Join(tx.Commit(), <-migrated); err != nil {
		t.Error(err)
	}
}
