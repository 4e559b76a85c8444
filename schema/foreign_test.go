package schema

import (
	"errors"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// An app may have a schema with a table of the outbox's names, or give it its own schema.
func TestMigrateNamesWhatIsNotTheOutboxsBeforeAnythingIsMade(t *testing.T) {
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
			db, w := watched(t, pgtest.Database(t))
			run(t, db, "CREATE SCHEMA "+c.name+"; "+c.prepare)
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
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, "DROP TABLE outbox.migration")
	err := Migrate(t.Context(), db)
	if err == nil || !strings.Contains(err.Error(), " more: give the outbox a schema of its own") || len(err.Error()) > 500 {
		t.Errorf("got %v, want five names and the number of the others", err)
	}
}

// A dump of the schema alone has the objects and an empty table of versions.
func TestADumpOfTheSchemaAloneIsMigrated(t *testing.T) {
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	want := describe(t, db, "outbox")
	run(t, db, "DELETE FROM outbox.migration")
	migrate(t, db)
	if got := describe(t, db, "outbox"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
