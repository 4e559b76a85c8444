package schema

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/pgerr"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	programs "github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/writable"
)

func TestMigrateCreatesTheSchemaAndCheckAgrees(t *testing.T) {
	for _, settings := range [][]string{
		nil,
		{"binary_parameters", "yes"},
	} {
		t.Run(strings.Join(settings, " "), func(t *testing.T) {
			db := open(t, pgtest.Database(t), settings...)
			if err := Check(t.Context(), db); !errors.Is(err, ErrNotMigrated) {
				t.Fatalf("before: got %v, want ErrNotMigrated", err)
			}
			migrate(t, db)
			noErr(t, Check(t.Context(), db))
			if got := scan[int](t, db, "SELECT max(version) FROM outbox.migration"); got != Version() {
				t.Fatalf("got version %d, want %d", got, Version())
			}
		})
	}
}

// With an older version of the code among them, which must not put back what the newer one
// replaced.
func TestManyProcessesMigrateAtOnce(t *testing.T) {
	programs.CI(t)
	url := pgtest.Database(t)
	which := func(version string) string {
		return "CREATE OR REPLACE FUNCTION outbox.which() RETURNS text LANGUAGE sql RETURN '" + version + "';"
	}
	older, newer := first()+which("older"), second(which("newer"))
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 20 {
		db := open(t, url)
		texts := []string{older, newer}[:2-i%2]
		all.Go(func() {
			<-start
			err := Migrate(t.Context(), db, files(texts...))
			if err != nil && !(len(texts) == 1 && errors.Is(err, ErrNewer)) {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	const got = "SELECT string_agg(version::text, ' ' ORDER BY version) || ' ' || outbox.which() FROM outbox.migration"
	if got := scan[string](t, open(t, url), got); got != "1 2 newer" {
		t.Errorf("got the versions and the function %s, want 1 2 newer", got)
	}
}

// A process that looks while another one migrates takes no table of that for the app's.
func TestATableThatWasJustMadeIsNotForeign(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	noErr(t, err)
	defer tx.Rollback()
	noErr(t, tx.QueryRow("SELECT 1").Scan(new(int))) // the snapshot
	migrate(t, open(t, url))
	if err := Check(t.Context(), tx); !errors.Is(err, ErrNotMigrated) || strings.Contains(err.Error(), "have its names") {
		t.Errorf("got %v, want a schema of version 0", err)
	}
}

func TestMigrateWritesOnlyInTransactionsAndWithoutParameters(t *testing.T) {
	db, w := watched(t, pgtest.Database(t))
	migrate(t, db, files(first(), second("SELECT 1")))
	if got := len(w.writes()); got != 5 { // the table, the lock, two files, and the functions
		t.Errorf("got %d writes, want 5: %q", got, w.writes())
	}
	if len(w.alone) > 0 || len(w.faults) > 0 {
		t.Errorf("outside of a transaction: %q; faults: %q", w.alone, w.faults)
	}
}

func TestMigrateOnlyReadsWhenThereIsNothingToDo(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	migrate(t, admin)
	reader := newRole(t, admin)
	run(t, admin, "GRANT USAGE ON SCHEMA outbox TO "+reader+"; GRANT SELECT ON outbox.migration TO "+reader)
	// Someone else is migrating to the next version just now.
	begin(t, open(t, url), "LOCK TABLE outbox.migration IN EXCLUSIVE MODE")

	db, w := watched(t, url, "role", reader, "default_transaction_read_only", "on")
	noErr(t, Migrate(t.Context(), db, LockTimeout(10*time.Millisecond), patience(time.Millisecond)))
	if len(w.sent) == 0 || len(w.writes()) > 0 {
		t.Errorf("got %q, want reads only", w.sent)
	}
	noErr(t, Check(t.Context(), db))
}

func TestMigrateSaysWhichRightIsMissing(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	nobody := newRole(t, admin)
	db := open(t, url, "role", nobody)
	denied := func(want string, opts ...Option) {
		t.Helper()
		err := Migrate(t.Context(), db, opts...)
		if pgerr.Code(err) != "42501" || !strings.Contains(fmt.Sprint(err), "the role needs "+want) {
			t.Errorf("got %v, want permission denied and: the role needs %s", err, want)
		}
	}
	denied("CREATE on the database")
	migrate(t, admin, files(first()))
	denied("USAGE on the schema")
	run(t, admin, "GRANT USAGE ON SCHEMA outbox TO "+nobody)
	denied("USAGE on the schema and SELECT on its table migration")
	run(t, admin, "GRANT SELECT ON outbox.migration TO "+nobody)
	denied("to own the outbox's schema and tables", files(first(), second("SELECT 1")))
	run(t, admin, "GRANT ALL ON outbox.migration TO "+nobody)
	denied("to own the outbox's schema and tables", files(first(), second("SELECT 1")))
}

func TestAFailedVersionLeavesNothing(t *testing.T) {
	db := open(t, pgtest.Database(t))
	err := Migrate(t.Context(), db, files(first(), second("SELECT 1/0")))
	if pgerr.Code(err) != "22012" || !strings.Contains(fmt.Sprint(err), "apply version 2") {
		t.Fatalf("got %v, want a division by zero in version 2", err)
	}
	if scan[bool](t, db, "SELECT to_regnamespace('outbox') IS NOT NULL") {
		t.Fatal("there is a schema")
	}
	migrate(t, db, files(first(), second("SELECT 1")))
}

// beforeRelease is a schema of before the first release.
const beforeRelease = `CREATE SCHEMA outbox;
CREATE TABLE outbox.migration (version integer PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now(), oldest_version integer);
CREATE TABLE outbox.counter_log (tasks bigint);
INSERT INTO outbox.migration (version) SELECT generate_series(19, 40);`

func TestWhatCannotBeMigratedIsRefusedBeforeAnyWrite(t *testing.T) {
	const before = `the schema "outbox" is from before the first release, and cannot be migrated: rename it, which keeps its tasks`
	const encoding = " has the encoding %s, the outbox needs UTF8: create a database with"
	for name, c := range map[string]struct {
		url       func(testing.TB) string
		settings  []string
		prepare   string
		from, to  string // what a statement says instead
		want      error
		text      string
		onlyWrite bool // Check may go on
	}{
		"a newer schema": {prepare: first() + "INSERT INTO outbox.migration VALUES (999)",
			want: ErrNewer, text: fmt.Sprintf("version 999, which needs code that knows version 999; this code knows %d: after a rollback run the newer code again", Version())},
		"before release":   {prepare: beforeRelease, want: ErrNotMigrated, text: before},
		"an old server":    {from: "current_setting('server_version_num')", to: "'130022'", want: ErrUnsupportedServer, text: "the outbox needs 14 or newer"},
		"LATIN1":           {url: func(t testing.TB) string { return pgtest.Encoded(t, "LATIN1") }, want: ErrUnsupportedEncoding, text: fmt.Sprintf(encoding, "LATIN1")},
		"SQL_ASCII":        {url: func(t testing.TB) string { return pgtest.Encoded(t, "SQL_ASCII") }, want: ErrUnsupportedEncoding, text: fmt.Sprintf(encoding, "SQL_ASCII")},
		"a standby":        {from: "pg_catalog.pg_is_in_recovery()", to: "true", text: "is a standby", onlyWrite: true},
		"a read-only role": {settings: []string{"default_transaction_read_only", "on"}, want: ErrReadOnly, text: "default_transaction_read_only is on for the role", onlyWrite: true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.url == nil {
				c.url = pgtest.Database
			}
			url := c.url(t)
			if c.prepare != "" {
				run(t, open(t, url), c.prepare)
			}
			db, w := watched(t, url, c.settings...)
			if c.from != "" {
				w.rewrite = func(q string) string { return strings.ReplaceAll(q, c.from, c.to) }
			}
			errs := map[string]error{"Migrate": Migrate(t.Context(), db)}
			if !c.onlyWrite {
				errs["Check"], errs["GrantRoles"] = Check(t.Context(), db), GrantRoles(t.Context(), db)
			} else if c.want != nil {
				errs["writable.Check"] = writable.Check(t.Context(), db)
			}
			for call, err := range errs {
				if err == nil || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
					t.Errorf("%s: got %v, want %v: %s", call, err, c.want, c.text)
				}
			}
			if got := w.writes(); len(got) > 0 {
				t.Errorf("it wrote %q", got)
			}
		})
	}
}

// As psql and goose apply it.
func TestTheFirstFileRefusesWhatCannotBeMigrated(t *testing.T) {
	old := open(t, pgtest.Database(t))
	run(t, old, beforeRelease)
	if _, err := old.Exec(first()); pgerr.Code(err) != "0A000" || !strings.Contains(err.Error(), "before the first release") {
		t.Errorf("got %v, want SQLSTATE 0A000", err)
	}
	latin := open(t, pgtest.Encoded(t, "LATIN1"))
	if _, err := latin.Exec(gooseStatements(t, first())[0]); pgerr.Code(err) != "0A000" || !strings.Contains(err.Error(), "LATIN1") {
		t.Errorf("got %v, want SQLSTATE 0A000 with the encoding", err)
	}
	if scan[bool](t, latin, "SELECT to_regnamespace('outbox') IS NOT NULL") {
		t.Error("there is a schema")
	}
}

func TestSupportedServers(t *testing.T) {
	for number, want := range map[int]bool{90624: false, 130022: false, 140000: true, 150018: true, 180004: true, 190000: true, 300001: true} {
		err := checkServer(number, "9.9beta")
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "PostgreSQL 9.9beta, the outbox needs 14 or newer") {
			t.Errorf("%d: got %v, want supported: %v", number, err, want)
		}
	}
}

func TestBadOptionsAreRefusedBeforeAnySQL(t *testing.T) {
	db := open(t, "postgres://127.0.0.1:1/nowhere") // connecting would be another error
	for want, opt := range map[string]Option{
		`an Option is nil`:                    nil,
		`LockTimeout(-1s): must be between`:   LockTimeout(-time.Second),
		`LockTimeout(1µs): must be between`:   LockTimeout(time.Microsecond),
		`LockTimeout(1m0.1s): must be betwee`: LockTimeout(time.Minute + 100*time.Millisecond),
	} {
		if err := Migrate(t.Context(), db, opt); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if err := Check(t.Context(), db, Schema("pg_outbox")); err == nil || !strings.Contains(err.Error(), "no pg_ first") {
		t.Errorf("the error does not say what is wrong with pg_outbox: %v", err)
	}
	for _, name := range badNames {
		for call, err := range map[string]error{"Migrate": Migrate(t.Context(), db, Schema(name)), "Check": Check(t.Context(), db, Schema(name))} {
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("invalid schema name %q", name)) {
				t.Errorf("%s: got %v, want the invalid name %q", call, err, name)
			}
		}
	}
	if err := Migrate(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "the *sql.DB is nil") {
		t.Errorf("got %v, want: the *sql.DB is nil", err)
	}
}

func TestTheSettingsOfAMigration(t *testing.T) {
	url := pgtest.Database(t)
	settings := []string{"statement_timeout", "60s", "lock_timeout", "1s", "default_transaction_isolation", "serializable"}
	if scan[bool](t, open(t, url), "SELECT current_setting('transaction_timeout', true) IS NOT NULL") {
		settings = append(settings, "transaction_timeout", "60s")
	}
	db := open(t, url, settings...)
	migrate(t, db, files(first(), second(`CREATE TABLE outbox.probe AS SELECT concat_ws(' ', current_setting('statement_timeout'),
current_setting('lock_timeout'), current_setting('transaction_isolation'),
NULLIF(current_setting('transaction_timeout', true), '0')) settings`)), LockTimeout(1500*time.Millisecond))
	if got, want := scan[string](t, db, "SELECT settings FROM outbox.probe"), "0 1500ms read committed"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	// Set for the transaction only.
	if got := scan[string](t, db, "SHOW lock_timeout"); got != "1s" {
		t.Errorf("after it: got lock_timeout %s, want 1s", got)
	}
}

var badNames = slices.Concat([]string{"", "Outbox", "1a", "a-b", "a b", `a"b`, "a'b", "ä", "a\n", "a\x00", "a.b", "pg_outbox", "$a"}, []string{strings.Repeat("a", 64)})

// What the role's search_path has before pg_catalog is not what the schema is made of.
func TestMigrateFindsNothingByTheSearchPath(t *testing.T) {
	plain := migrated(t)
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
			noErr(t, writable.Check(t.Context(), app))
		})
	}
}

// An app may have a schema with a table of the outbox's names, or give it its own schema.
func TestMigrateNamesWhatIsNotTheOutboxsBeforeAnythingIsMade(t *testing.T) {
	db, w := watched(t, pgtest.Database(t))
	for _, c := range []struct{ name, prepare, want string }{
		{"outbox", "CREATE TABLE outbox.task (id integer)", "table task"},
		{"app", "CREATE TABLE app.task (id integer)", "table task"},
		{"outbox", "CREATE VIEW outbox.dead_task AS SELECT 1", "view dead_task"},
		{"outbox", "CREATE SEQUENCE outbox.wake", "sequence wake"},
		{"outbox", "CREATE TYPE outbox.schedule AS ENUM ('a')", "type schedule"},
		{"outbox", "CREATE FUNCTION outbox.poll() RETURNS integer LANGUAGE sql RETURN 1", "function poll"},
		{"outbox", "CREATE TABLE outbox.job (id integer); CREATE INDEX task_due ON outbox.job (id)", "index task_due"},
		{"outbox", "CREATE TABLE outbox.inbox (id integer); CREATE TABLE outbox.task (id integer)", "table inbox, table task"},
		{"outbox", "CREATE TABLE outbox.migration (version integer)", "table migration"},
		{"outbox", "CREATE TABLE outbox.migration (version bigint, applied_at timestamptz); INSERT INTO outbox.migration VALUES (3)", "table migration"},
		{"outbox", "CREATE TABLE outbox.migration (id text, name text); INSERT INTO outbox.migration VALUES ('1', 'users')", "table migration"},
		{"outbox", "CREATE TABLE outbox.migration (version integer, dirty boolean); CREATE TABLE outbox.task (id integer)", "table migration"},
		{"outbox", "CREATE TABLE outbox.job (id integer); CREATE FUNCTION outbox.tick() RETURNS integer LANGUAGE sql RETURN 1", ""},
	} {
		t.Run(c.prepare, func(t *testing.T) {
			run(t, db, "CREATE SCHEMA "+c.name+"; "+c.prepare)
			defer run(t, db, "DROP SCHEMA "+c.name+" CASCADE")
			const objects = "SELECT (SELECT count(*) FROM pg_class WHERE relnamespace = $1::regnamespace) + (SELECT count(*) FROM pg_proc WHERE pronamespace = $1::regnamespace)"
			before := scan[int](t, db, objects, c.name)
			w.sent = nil
			err := Migrate(t.Context(), db, Schema(c.name))
			if c.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			want := `the schema "` + c.name + `" has objects that are not the outbox's, and have its names: ` + c.want + `: give the outbox a schema of its own`
			if !errors.Is(err, ErrNotMigrated) || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %s", err, want)
			}
			if got := w.writes(); len(got) > 0 || scan[int](t, db, objects, c.name) != before {
				t.Errorf("it wrote %q", got)
			}
			if err := Check(t.Context(), db, Schema(c.name)); !errors.Is(err, ErrNotMigrated) {
				t.Errorf("Check: got %v, want ErrNotMigrated", err)
			}
		})
	}
}

func TestManyObjectsOfTheOutboxsNamesAreCounted(t *testing.T) {
	db := migrated(t)
	run(t, db, "DROP TABLE outbox.migration")
	err := Migrate(t.Context(), db)
	if err == nil || !strings.Contains(err.Error(), " more: give the outbox a schema of its own") || len(err.Error()) > 500 {
		t.Errorf("got %v, want five names and the number of the others", err)
	}
}

// A dump of the schema alone has the objects and an empty table of versions.
func TestADumpOfTheSchemaAloneIsMigrated(t *testing.T) {
	db := migrated(t)
	want := describe(t, db, "outbox")
	run(t, db, "DELETE FROM outbox.migration")
	migrate(t, db)
	if got := describe(t, db, "outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
