package schema

import (
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// renamed is a migrated schema "outbox" with another name.
func renamed(t *testing.T, name string) *sql.DB {
	t.Helper()
	db := open(t, pgtest.Database(t))
	migrate(t, db)
	run(t, db, `ALTER SCHEMA outbox RENAME TO "`+name+`"`)
	return db
}

// work enqueues and claims a task by functions, each of which names the schema in its text.
func work(t *testing.T, db *sql.DB, name string) {
	t.Helper()
	run(t, db, strings.ReplaceAll(`SELECT outbox.enqueue_task('T', '{}');
		INSERT INTO outbox.keyed_task (task_type, unique_key) VALUES ('T', 'key');
		SELECT outbox.claim_tasks('T', 0::smallint, 0::smallint, 0, 0::smallint, 10, NULL, '1s', '1s', '1s')`, "outbox.", `"`+name+`".`))
	if got := scan[int](t, db, `SELECT count(*) FROM "`+name+`".task`); got != 0 {
		t.Errorf("%d tasks were not claimed", got)
	}
}

func TestMigrateMendsARenamedSchema(t *testing.T) {
	for _, name := range []string{"tenant", "select", "outbox_2"} {
		t.Run(name, func(t *testing.T) {
			db := renamed(t, name)
			want := fmt.Sprintf(`schema: the outbox is not migrated: the schema %q was renamed: its functions work on the schema "outbox": run schema.Migrate`, name)
			if err := Check(t.Context(), db, Schema(name)); !errors.Is(err, ErrNotMigrated) || err.Error() != want {
				t.Errorf("got %v, want %s", err, want)
			}
			migrate(t, db, Schema(name))
			work(t, db, name)
			migrate(t, db) // a new one beside it
			if got, want := describe(t, db, name), describe(t, db, "outbox"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
			run(t, db, `DROP SCHEMA outbox CASCADE; ALTER SCHEMA "`+name+`" RENAME TO outbox`)
			if err := Check(t.Context(), db); !errors.Is(err, ErrNotMigrated) || !strings.Contains(err.Error(), fmt.Sprintf("its functions work on the schema %q", name)) {
				t.Errorf("renamed back: got %v", err)
			}
			migrate(t, db)
			work(t, db, "outbox")
			if err := Check(t.Context(), db); err != nil {
				t.Error(err)
			}
		})
	}
}

// Older code has no functions for it: nil would say that all is well.
func TestARenamedSchemaOfNewerCodeIsRefused(t *testing.T) {
	db := renamed(t, "tenant")
	run(t, db, fmt.Sprintf(`INSERT INTO tenant.migration (version, oldest_version) VALUES (%d, 1)`, Version()+1))
	for call, err := range map[string]error{
		"Migrate": Migrate(t.Context(), db, Schema("tenant")), "Check": Check(t.Context(), db, Schema("tenant")),
		"GrantRoles": GrantRoles(t.Context(), db, Schema("tenant")),
	} {
		if !errors.Is(err, ErrNotMigrated) || !strings.Contains(err.Error(), "have the newer code run schema.Migrate") {
			t.Errorf("%s: got %v", call, err)
		}
	}
}

// A member of the owner migrates. The roles have the old name, and the owner owns what is made.
// GrantRoles makes those of the new name, and members of the old ones go on.
func TestRolesOfARenamedSchema(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	before, name := newRoles(t, admin), newRoles(t, admin)
	migrate(t, admin, Schema(before))
	if err := GrantRoles(t.Context(), admin, Schema(before)); err != nil {
		t.Fatal(err)
	}
	member := newRole(t, admin)
	run(t, admin, fmt.Sprintf(`GRANT %[1]s_owner TO %[2]s; ALTER SCHEMA %[1]s RENAME TO %[3]s`, before, member, name))
	more := fmt.Sprintf("CREATE TABLE outbox.more (n integer); INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, 1)", Version()+1)
	migrate(t, open(t, url, "role", member), Schema(name), files(append(slices.Clone(migrations()), more)...),
		state(current().functions, current().relations))
	if got := scan[string](t, admin, `SELECT relowner::regrole FROM pg_class WHERE oid = '`+name+`.more'::regclass`); got != before+"_owner" {
		t.Errorf("a new table is %s's", got)
	}
	run(t, admin, fmt.Sprintf(`DELETE FROM %s.migration WHERE version > %d`, name, Version()))
	migrate(t, open(t, url, "role", member), Schema(name))
	if err := GrantRoles(t.Context(), admin, Schema(name)); err != nil {
		t.Fatal(err)
	}
	for _, of := range []string{before, name} {
		work(t, open(t, url, "role", of+"_worker"), name)
	}
}
