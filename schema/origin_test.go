package schema

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

const refusedSQL = `SELECT count(*) > 0 FROM outbox.origin_state($1) WHERE refused`

func TestTheOwnDatabaseIsKnownByWhatItKeeps(t *testing.T) {
	db := original(t)
	if scan[bool](t, db, refusedSQL, "") {
		t.Fatal("a migrated database is not its own")
	}
	for what, c := range map[string]struct {
		noted   string // what the row says instead
		refused bool
	}{
		"a dump in another server":                        {`system_id = system_id + 1, table_oid = 1, mark = '1 x'`, true},
		"a base backup with another id":                   {`system_id = system_id + 1`, true},
		"a dump in a newer server":                        {`system_id = system_id + 1, table_oid = 1, server_version = 13`, true},
		"pg_upgrade":                                      {`system_id = system_id + 1, server_version = 13`, false},
		"an upgrade backwards":                            {`system_id = system_id + 1, server_version = 99`, true},
		"a dump that got the same oids in a newer server": {`system_id = system_id + 1, server_version = 13, mark = '1 x'`, true},
		"a hidden id, and a dump that got the same oids":  {`system_id = NULL, mark = '1 x'`, true},
		"a hidden id, and the data of another database":   {`system_id = NULL, mark = split_part(mark, ' ', 1) || ' x'`, true},
		"a hidden id, and a row of an unknown mark":       {`system_id = NULL, mark = NULL`, true},
		"a hidden id":                                     {`system_id = NULL`, false},
		"a hidden id, and pg_upgrade":                     {`system_id = NULL, server_version = 13`, false},
		"a hidden id, and a dump":                         {`system_id = NULL, table_oid = 1`, true},
		"a restore in place":                              {`table_oid = 1, mark = '1 x'`, false},
		"another name":                                    {`database_name = 'other'`, false},
		"a dump in another of its databases":              {`database_oid = 1, table_oid = 1`, true},
	} {
		tx, err := db.BeginTx(t.Context(), nil)
		noErr(t, err)
		id := scan[string](t, tx, `UPDATE outbox.origin SET `+c.noted+` RETURNING database_id`)
		if got := scan[bool](t, tx, refusedSQL, ""); got != c.refused {
			t.Errorf("%s: refused: %v", what, got)
		}
		// What is noted anew is so in full, and a copy is left as it is.
		scan[string](t, tx, `SELECT outbox.note_origin('')::text`)
		if got := scan[bool](t, tx, refusedSQL, ""); got != c.refused {
			t.Errorf("%s: refused once it was noted: %v", what, got)
		}
		if got := scan[string](t, tx, `SELECT database_id FROM outbox.identity`); got != id {
			t.Errorf("%s: the id is another one", what)
		}
		const inFull = `SELECT (o.database_name, o.system_id, o.database_oid, o.table_oid, o.mark, o.server_version)
			IS NOT DISTINCT FROM (t.name, t.system_id, t.database_oid, t.table_oid, outbox.this_mark(), t.server_version)
			FROM outbox.origin o, outbox.this_database() t`
		if got := scan[bool](t, tx, inFull); got == c.refused {
			t.Errorf("%s: noted in full: %v", what, got)
		}
		_ = tx.Rollback()
	}
	// As pg_dump --data-only does in a database that was migrated before.
	run(t, db, `INSERT INTO outbox.origin (database_name, database_oid, table_oid, server_version)
		SELECT 'production', database_oid, table_oid, server_version FROM outbox.this_database()`)
	if n := scan[int](t, db, `SELECT count(*) FROM outbox.identity`); !scan[bool](t, db, refusedSQL, "") || n != 1 {
		t.Errorf("the rows of a second database are not refused, or have %d ids", n)
	}
}

// As a dump does that is loaded under another name, such as a tenant's schema made of another one's.
// Both would have tasks of the same keys.
func TestASchemaThatWasCopiedBesideItsOriginalIsRefused(t *testing.T) {
	db := original(t)
	migrate(t, db, Schema("second"))
	const half = `SELECT left(database_id::text, 18) FROM ` // the tasks of both have the same ids
	if one, two := scan[string](t, db, half+`outbox.identity`), scan[string](t, db, half+`second.identity`); one == two {
		t.Errorf("both have the id %s…", one)
	}
	run(t, db, `DELETE FROM second.origin`)
	run(t, db, `INSERT INTO second.origin SELECT * FROM outbox.origin`)
	const second = `FROM second.note_origin('') WHERE refused`
	if got := scan[string](t, db, `SELECT COALESCE(max(database_name), '') `+second); got != scan[string](t, db, `SELECT current_database()`)+", schema outbox" {
		t.Errorf("it is a copy of %q", got)
	}
	if scan[bool](t, db, refusedSQL, "") {
		t.Error("the original is refused")
	}
	run(t, db, `SELECT second.adopt(true, false, '')`)
	if scan[int](t, db, `SELECT count(*) `+second) > 0 {
		t.Error("it is refused once it was adopted")
	}
	run(t, db, `DELETE FROM second.origin`)
	run(t, db, `INSERT INTO second.origin SELECT * FROM outbox.origin`)
	run(t, db, `DROP SCHEMA outbox CASCADE`)
	if scan[int](t, db, `SELECT count(*) `+second) > 0 {
		t.Error("it is refused where the original is gone")
	}
}

func TestAnEnvironmentIsNotedOnceAndAnotherOneIsRefused(t *testing.T) {
	db := original(t)
	for _, c := range []struct {
		named   string
		refused bool
	}{{"", false}, {"production", false}, {"production", false}, {"staging", true}, {"", false}} {
		run(t, db, `SELECT outbox.note_origin('`+c.named+`')`)
		if got := scan[bool](t, db, refusedSQL, c.named); got != c.refused {
			t.Errorf("%q: refused: %v", c.named, got)
		}
	}
	if got := scan[string](t, db, `SELECT environment FROM outbox.origin`); got != "production" {
		t.Errorf("noted: %q", got)
	}
}

// Tests of apps make their databases so.
func TestACopyOfAnEmptyTemplateIsADatabaseOfItsOwn(t *testing.T) {
	db := open(t, pgtest.Prepared(t, prepareMigrated))
	run(t, db, `INSERT INTO outbox.task (task_type) VALUES ('A')`)
	before := scan[string](t, db, `SELECT database_id FROM outbox.identity`)
	if scan[bool](t, db, refusedSQL, "") {
		t.Error("it is refused")
	}
	run(t, db, `SELECT outbox.note_origin('')`)
	if got := scan[string](t, db, `SELECT database_id FROM outbox.identity`); got == before {
		t.Error("it has the template's id")
	}
	if scan[bool](t, db, refusedSQL, "") {
		t.Error("it is refused once it was noted")
	}
}

func TestARoleWithoutTheRightToReadTheSystemIdentifierIsNotStopped(t *testing.T) {
	address := pgtest.Database(t)
	db := open(t, address)
	role := newRole(t, db)
	run(t, db, `REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC;
		DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %I TO `+role+`', current_database()); END $$;
		SET ROLE `+role+`; CREATE SCHEMA outbox; RESET ROLE`)
	own := open(t, address, "role", role)
	migrate(t, own)
	if got := scan[bool](t, own, `SELECT system_id IS NULL FROM outbox.origin`); !got {
		t.Fatal("it can read the identifier")
	}
	if scan[bool](t, own, refusedSQL, "") {
		t.Error("it is refused")
	}
}

func TestAdoptMakesTheDatabaseItsOwn(t *testing.T) {
	const filled = `
		UPDATE outbox.origin SET system_id = system_id + 1, table_oid = 1, environment = 'production';
		INSERT INTO outbox.task (task_type) VALUES ('A');
		INSERT INTO outbox.task (task_type, state, attempt, relay_id, lease_token, leased_until)
		VALUES ('A', 'leased', 2, gen_random_uuid(), gen_random_uuid(), now());
		INSERT INTO outbox.running (task_id, token, relay_id) SELECT task_id, gen_random_uuid(), gen_random_uuid() FROM outbox.task;
		INSERT INTO outbox.relay (relay_id, host, pid, alive_until, task_types) VALUES (gen_random_uuid(), 'h', 1, now(), '{A}');
		INSERT INTO outbox.schedule (name, task_type, payload, timing, definition, paused)
		VALUES ('nightly', 'A', '{}', '', '', false), ('paused', 'A', '{}', '', '', true);
		INSERT INTO outbox.cancel (task_id) VALUES (1);
		INSERT INTO outbox.dead_task (task_id, task_type, payload, priority, attempt, max_attempts, reason, run_at, created_at, died_at)
		SELECT n, 'A', '{}', 0, 1, 1, 'attempts', now(), now(), now() FROM generate_series(100, 102) n`
	for what, c := range map[string]struct{ call, want string }{
		"adopt": {`outbox.adopt(false, false, '')`,
			"another id, environment none, ready 2, most attempts 1, running 0, relays 0, schedules 2, " +
				"dead 3, cancels 1; (1,0,0,0)"},
		"keep the id": {`outbox.adopt(true, false, '')`,
			"the same id, environment production, ready 2, most attempts 1, running 0, relays 0, schedules 2, " +
				"dead 3, cancels 1; (1,0,0,0)"},
		"discard": {`outbox.adopt(false, true, 'staging')`,
			"another id, environment staging, ready 0, most attempts 0, running 0, relays 0, schedules 1, " +
				"dead 0, cancels 0; (0,2,3,1)"},
	} {
		db := open(t, pgtest.Prepared(t, prepareMigrated))
		run(t, db, `SELECT outbox.note_origin('')`)
		run(t, db, filled)
		before := scan[string](t, db, `SELECT database_id::text FROM outbox.identity`)
		if !scan[bool](t, db, refusedSQL, "") {
			t.Fatal("it is no copy")
		}
		returned := scan[string](t, db, `SELECT `+c.call+`::text`)
		got := scan[string](t, db, `SELECT concat(CASE WHEN i.database_id = $1 THEN 'the same' ELSE 'another' END, ' id, environment ',
			COALESCE(o.environment, 'none'), ', ready ', (SELECT count(*) FROM outbox.task WHERE state = 'ready'),
			', most attempts ', (SELECT COALESCE(max(attempt), 0) FROM outbox.task), ', running ', (SELECT count(*) FROM outbox.running),
			', relays ', (SELECT count(*) FROM outbox.relay), ', schedules ', (SELECT count(*) FROM outbox.schedule),
			', dead ', (SELECT count(*) FROM outbox.dead_task), ', cancels ', (SELECT count(*) FROM outbox.cancel))
			FROM outbox.identity i, outbox.origin o`, before) + "; " + returned
		if got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
		if scan[bool](t, db, refusedSQL, "") {
			t.Errorf("%s: it is refused", what)
		}
	}
}

type tool struct{ name, statements string }

// tools are what is done to tables and databases: each writes rows, files or the catalog anew. None
// makes a database another one. <db> is the database's name.
var tools = []tool{
	{"UPDATE", `UPDATE outbox.origin SET noted_at = noted_at; UPDATE outbox.task SET payload = '{"name": "x"}'`},
	{"VACUUM FREEZE", `VACUUM (FREEZE) pg_enum, pg_type, pg_class, pg_database, outbox.origin, outbox.task`},
	{"VACUUM FULL", `VACUUM FULL outbox.origin; VACUUM FULL outbox.task; VACUUM FULL pg_class`},
	{"CLUSTER", `CLUSTER outbox.origin USING origin_pkey; CLUSTER outbox.task USING task_pkey`},
	{"SET UNLOGGED and back", `ALTER TABLE outbox.task SET UNLOGGED; ALTER TABLE outbox.origin SET UNLOGGED;
		ALTER TABLE outbox.origin SET LOGGED; ALTER TABLE outbox.task SET LOGGED`},
	// pg_repack copies the rows into a new file, with new row versions.
	{"pg_repack", `BEGIN; CREATE TEMP TABLE o ON COMMIT DROP AS TABLE outbox.origin; CREATE TEMP TABLE q ON COMMIT DROP AS TABLE outbox.task;
		SET LOCAL session_replication_role = replica; TRUNCATE outbox.origin, outbox.task;
		INSERT INTO outbox.origin SELECT * FROM o; INSERT INTO outbox.task OVERRIDING SYSTEM VALUE SELECT * FROM q; COMMIT`},
	{"a column that rewrites", `ALTER TABLE outbox.origin ADD COLUMN x uuid DEFAULT gen_random_uuid();
		ALTER TABLE outbox.origin DROP COLUMN x; ALTER TABLE outbox.task SET (fillfactor = 80)`},
	{"REINDEX", `REINDEX SCHEMA outbox`},
	{"GRANT", `GRANT ALL ON outbox.origin, outbox.task TO PUBLIC; REVOKE ALL ON outbox.origin, outbox.task FROM PUBLIC`},
	{"GRANT on the database", `GRANT ALL ON DATABASE <db> TO PUBLIC; REVOKE ALL ON DATABASE <db> FROM PUBLIC`},
	{"ALTER DATABASE CONNECTION LIMIT", `ALTER DATABASE <db> CONNECTION LIMIT 77`},
	{"ALTER DATABASE IS_TEMPLATE", `ALTER DATABASE <db> IS_TEMPLATE true; ALTER DATABASE <db> IS_TEMPLATE false`},
	{"ALTER DATABASE SET", `ALTER DATABASE <db> SET work_mem = '5MB'`},
	{"ALTER DATABASE RENAME", `ALTER DATABASE <db> RENAME TO <db>_x; ALTER DATABASE <db>_x RENAME TO <db>`},
}

// in executes statements in the database of the URL, and leaves no connection. Those with <db> for
// its name are executed in another one, as they want no session in it.
func in(t *testing.T, address, statements string) {
	t.Helper()
	u, err := url.Parse(address)
	noErr(t, err)
	name := strings.TrimPrefix(u.Path, "/")
	if strings.Contains(statements, "<db>") {
		u.Path = "/postgres"
	}
	db := open(t, u.String())
	defer db.Close()
	db.SetMaxOpenConns(1)
	for statement := range strings.SplitSeq(strings.ReplaceAll(statements, "<db>", name), ";") {
		run(t, db, statement)
	}
}

// refused reports whether relays are, also once a relay was started.
func refused(t *testing.T, address string) bool {
	t.Helper()
	db := open(t, address)
	defer db.Close()
	before := scan[bool](t, db, refusedSQL, "")
	run(t, db, started)
	after := scan[bool](t, db, refusedSQL, "")
	if before != after {
		t.Errorf("refused: %v, and %v once a relay was started", before, after)
	}
	return after
}

const (
	started = `SELECT outbox.note_origin('');`
	five    = `INSERT INTO outbox.task (task_type) SELECT 'A' FROM generate_series(1, 5);`
	// As relays leave it that ran five tasks, and were killed.
	worked = started + `SELECT setval('outbox.wake', extract(epoch FROM now())::bigint + 60);` + five + `DELETE FROM outbox.task;`
	buried = `INSERT INTO outbox.dead_task (task_id, task_type, payload, priority, attempt, max_attempts, reason, run_at, created_at, died_at)
		SELECT 1, 'A', '{}', 0, 1, 1, 'attempts', now(), now(), now();`
	scheduled = `INSERT INTO outbox.schedule (name, task_type, payload, timing, definition, paused)
		VALUES ('nightly', 'A', '{}', '', '', false);`
	hideID   = `UPDATE outbox.origin SET system_id = NULL;`
	upgraded = `UPDATE outbox.origin SET system_id = system_id + 1, server_version = 13;`
)

// docs/guide/copies.md holds, whatever was done before or after.
func TestNoToolMakesADatabaseACopyNorACopyTheOriginal(t *testing.T) {
	t.Parallel()
	var inside, outside []string // the database
	for _, tool := range tools {
		if strings.Contains(tool.statements, "<db>") {
			outside = append(outside, tool.statements)
		} else {
			inside = append(inside, tool.statements)
		}
	}
	all := []string{strings.Join(inside, ";"), strings.Join(outside, ";")}
	for name, c := range map[string]struct {
		production string // what was done in it
		copied     bool   // the database is made of it by CREATE DATABASE … TEMPLATE
		then       string // what is done in the database
		refused    bool
	}{
		"production":                               {started + five, false, five, false},
		"production whose identifier is hidden":    {started + five, false, hideID, false},
		"production after pg_upgrade":              {started + five, false, upgraded, false},
		"a copy":                                   {started + five, true, "", true},
		"a copy without a relay so far":            {five, true, five, true},
		"a copy, the identifier is hidden":         {five, true, hideID, true},
		"a copy with a dead letter":                {buried, true, five, true},
		"a copy with a schedule":                   {scheduled, true, five, true},
		"a copy of an empty template":              {"", true, five, false},
		"the same, the identifier is hidden":       {"", true, five + hideID, false},
		"a copy of a template where relays worked": {worked, true, five + five, false},
		"a copy that was emptied":                  {five, true, `DELETE FROM outbox.task`, false},
		"a copy, emptied and rolled back":          {five, true, `BEGIN; DELETE FROM outbox.task;` + five + `ROLLBACK`, true},
		"a copy, truncated and rolled back":        {five, true, `BEGIN; TRUNCATE outbox.task;` + five + `ROLLBACK`, true},
		"a copy, adopted and rolled back":          {five, true, `BEGIN; SELECT outbox.adopt(false, true, ''); ROLLBACK`, true},
		"a copy, emptied, marked and rolled back": {five, true,
			`BEGIN; DELETE FROM outbox.task; SELECT outbox.mark_origin(); ROLLBACK`, true},
		"an enqueue that is rolled back": {"", true, `BEGIN;` + five + `ROLLBACK;` + five, false},
	} {
		check := func(about string, before, after []string) {
			t.Run(name+about, func(t *testing.T) {
				t.Parallel()
				address := pgtest.Prepared(t, prepareMigrated)
				in(t, address, c.production)
				for _, statements := range before {
					in(t, address, statements)
				}
				if c.copied {
					address = pgtest.Copied(t, address)
				}
				in(t, address, c.then)
				for _, statements := range after {
					in(t, address, statements)
				}
				if got := refused(t, address); got != c.refused {
					t.Errorf("relays are refused: %v", got)
				}
			})
		}
		check("", all, all)
		if os.Getenv("OUTBOX_TEST_LONG") == "" {
			continue
		}
		for _, tool := range append(tools, tool{"VACUUM FREEZE of all tables", `VACUUM (FREEZE)`}) {
			check(", "+tool.name+" before", []string{tool.statements}, nil)
			check(", "+tool.name+" after", nil, []string{tool.statements})
		}
	}
}
