package schema

import (
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// tools are what is done to tables and databases: each writes rows, files or the catalog anew. None
// makes a database another one. <db> is the database's name.
var tools = []struct{ name, statements string }{
	{"UPDATE", `UPDATE outbox.origin SET noted_at = noted_at; UPDATE outbox.task SET payload = '{"name": "x"}'`},
	{"VACUUM FREEZE", `VACUUM (FREEZE)`},
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
	if err != nil {
		t.Fatal(err)
	}
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
		for _, tool := range tools {
			check(", "+tool.name+" before", []string{tool.statements}, nil)
			check(", "+tool.name+" after", nil, []string{tool.statements})
		}
	}
}
