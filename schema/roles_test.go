package schema

import (
	"crypto/rand"
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
)

// newRoles is the name of a schema whose roles are dropped at the end of the test, with what they
// own in the database.
func newRoles(t *testing.T, admins ...*sql.DB) string {
	t.Helper()
	name := "r_" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		for _, role := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
			role = quote(name + "_" + role)
			for _, admin := range admins {
				if _, err := admin.Exec("DROP OWNED BY " + role + " CASCADE"); err != nil && pgerr.Code(err) != "42704" { // undefined_object
					t.Error(err)
				}
			}
			if _, err := admins[0].Exec("DROP ROLE IF EXISTS " + role); err != nil {
				t.Error(err)
			}
		}
	})
	return name
}

func TestRolesSQLNamesTheRolesOfTheSchema(t *testing.T) {
	for _, name := range []string{"select", "x", "_", "my_outbox", "outbox2", "outbox_owner", strings.Repeat("x", 54)} {
		script, err := RolesSQL(Schema(name))
		noErr(t, err)
		left := code(script)
		for _, written := range []string{"", "_owner", "_enqueuer", "_worker", "_viewer", "_operator"} {
			if !strings.Contains(left, `"`+name+written+`"`) {
				t.Errorf("%s%s is not in the script", name, written)
			}
			left = strings.ReplaceAll(left, `"`+name+written+`"`, "")
		}
		if strings.Contains(left, "outbox") {
			t.Errorf("for %s: outbox is left in\n%s", name, left)
		}
	}
	if got, err := RolesSQL(); err != nil || got != rolesScript {
		t.Errorf("for outbox: got %q, %v, want the file", got, err)
	}
	for _, name := range badNames {
		if got, err := RolesSQL(Schema(name)); err == nil || got != "" {
			t.Errorf("RolesSQL(%q) = %q, %v, want an error", name, got, err)
		}
	}
	long := strings.Repeat("x", 55)
	_, err := RolesSQL(Schema(long))
	for want, err := range map[string]error{
		"_enqueuer has 64 bytes, PostgreSQL takes 63": errors.Join(err, GrantRoles(t.Context(), nil, Schema(long))),
		"*sql.DB is nil": GrantRoles(t.Context(), nil),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestGrantRolesNeedsAMigratedSchema(t *testing.T) {
	db := open(t, pgtest.Database(t))
	name := newRoles(t, db)
	if err := GrantRoles(t.Context(), db, Schema(name)); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("got %v, want ErrNotMigrated", err)
	}
	migrate(t, db, Schema(name), state("", ""))
	if err := GrantRoles(t.Context(), db, Schema(name)); !errors.Is(err, ErrNotMigrated) {
		t.Errorf("with the functions of other code: got %v, want ErrNotMigrated", err)
	}
}

// By psql, by Migrate's role or by a superuser, once or again: the rights are the same. The second
// time nobody is waited for who uses a table.
func TestGrantRolesAgainChangesNothing(t *testing.T) {
	url := pgtest.Database(t)
	db := open(t, url)
	name := newRoles(t, db)
	migrate(t, db, Schema(name))
	script, err := RolesSQL(Schema(name))
	noErr(t, err)
	psql(t, url, script)
	want := describe(t, db, name)
	if !strings.Contains(want, name+"_enqueuer=") {
		t.Fatalf("it granted nothing:\n%s", want)
	}
	begin(t, open(t, url), "SELECT FROM "+quote(name)+".task, "+quote(name)+".keyed_task, "+quote(name)+".dead_task")
	for range 2 {
		noErr(t, GrantRoles(t.Context(), db, Schema(name), LockTimeout(time.Second), option(func(s *settings) { s.patience = time.Nanosecond })))
		if got := describe(t, db, name); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}

func TestManyProcessesInTwoDatabasesGrantRolesAtOnce(t *testing.T) {
	programs.CI(t)
	urls := []string{pgtest.Database(t), pgtest.Database(t)}
	admins := []*sql.DB{open(t, urls[0]), open(t, urls[1])}
	name := newRoles(t, admins...)
	app := newRole(t, admins[0]) // owns both, so that its membership is new to both
	for _, admin := range admins {
		migrate(t, admin, Schema(name))
		run(t, admin, "ALTER TABLE "+quote(name)+".migration OWNER TO "+app)
	}
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 10 {
		db := open(t, urls[i%2])
		all.Go(func() {
			<-start
			if err := GrantRoles(t.Context(), db, Schema(name)); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	all.Wait()
	if a, b := describe(t, admins[0], name), describe(t, admins[1], name); a != b || !strings.Contains(a, app+" has "+name+"_owner") {
		t.Errorf("one database has\n%s\nthe other\n%s", a, b)
	}
}

// An app whose role owns everything and migrates goes on as before, and what a later version adds
// belongs to the owner as well, so that functions with the owner's rights reach it, and relays may
// use it at once.
func TestTheRoleThatOwnedTheOutboxGoesOnMigrating(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	name := newRoles(t, admin)
	app, other := newRole(t, admin), newRole(t, admin)
	run(t, admin, fmt.Sprintf("ALTER ROLE %s CREATEROLE; DO $$ BEGIN EXECUTE format('GRANT CREATE ON DATABASE %%I TO %s', current_database()); END $$", app, app))
	db := open(t, url, "role", app)
	migrate(t, db, Schema(name))
	run(t, admin, fmt.Sprintf(`GRANT ALL ON SCHEMA "%[1]s" TO %[2]s; CREATE TABLE "%[1]s".mine (); ALTER TABLE "%[1]s".mine OWNER TO %[2]s`, name, other))
	noErr(t, GrantRoles(t.Context(), db, Schema(name)))
	if got := scan[string](t, admin, `SELECT string_agg(DISTINCT relowner::regrole::text, ' ') FROM pg_class WHERE relnamespace = '"`+name+`"'::regnamespace AND relname <> 'mine'`); got != name+"_owner" {
		t.Errorf("the tables belong to %s", got)
	}
	if scan[bool](t, admin, "SELECT pg_has_role('"+other+"', '"+name+"_owner', 'MEMBER')") {
		t.Error("a role that owns a table of its own in the schema has become a member of the owner")
	}
	if scan[string](t, admin, `SELECT relowner::regrole::text FROM pg_class WHERE oid = '"`+name+`".mine'::regclass`) != other {
		t.Error("it has lost its table")
	}

	next := fmt.Sprintf(`CREATE TABLE outbox.added (n int);
ALTER TABLE outbox.task ADD COLUMN added int;
CREATE FUNCTION outbox.add() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS 'BEGIN INSERT INTO outbox.added VALUES (1); RETURN NULL; END';
CREATE TRIGGER added AFTER INSERT ON outbox.task FOR EACH STATEMENT EXECUTE FUNCTION outbox.add();
INSERT INTO outbox.migration (version) VALUES (%d)`, Version()+1)
	migrate(t, db, Schema(name), files(slices.Concat(migrations(), []string{next})...))
	for what, group := range map[string]string{
		"INSERT INTO " + quote(name) + ".task (task_type) VALUES ('A')":                     "enqueuer",
		"DELETE FROM " + quote(name) + ".added":                                             "worker",
		"DELETE FROM " + quote(name) + ".task":                                              "worker",
		"ALTER TABLE " + quote(name) + ".added ADD COLUMN more int; -- as the former owner": "",
	} {
		role := name + "_" + group
		if group == "" {
			role = app
		}
		run(t, open(t, url, "role", role), what)
	}
	run(t, admin, `DELETE FROM "`+name+`".task`)
}

func TestGrantRolesSaysWhichRightIsMissing(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	name := newRoles(t, admin)
	app := newRole(t, admin)
	run(t, admin, "CREATE SCHEMA "+quote(name)+" AUTHORIZATION "+app)
	db := open(t, url, "role", app)
	migrate(t, db, Schema(name))
	if err := GrantRoles(t.Context(), db, Schema(name)); pgerr.Code(err) != "42501" || !strings.Contains(err.Error(), granting) {
		t.Errorf("got %v, want permission denied and what the role needs", err)
	}
	// An administrator makes the roles, and gives the app's role the owner.
	for _, role := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
		run(t, admin, "CREATE ROLE "+quote(name+"_"+role))
	}
	run(t, admin, "GRANT "+quote(name+"_owner")+" TO "+app+"; ALTER SCHEMA "+quote(name)+" OWNER TO "+quote(name+"_owner"))
	noErr(t, GrantRoles(t.Context(), db, Schema(name)))
}

func TestGrantRolesRefusesAnOwnerThatWouldLoseItsRights(t *testing.T) {
	url := pgtest.Database(t)
	admin := open(t, url)
	name := newRoles(t, admin)
	app := newRole(t, admin)
	run(t, admin, "ALTER ROLE "+app+" NOINHERIT; CREATE SCHEMA "+quote(name)+" AUTHORIZATION "+app)
	migrate(t, open(t, url, "role", app), Schema(name))
	want := describe(t, admin, name)
	if err := GrantRoles(t.Context(), admin, Schema(name)); err == nil || !strings.Contains(err.Error(), "NOINHERIT") {
		t.Errorf("got %v, want that the role is NOINHERIT", err)
	}
	if got := describe(t, admin, name); got != want {
		t.Errorf("it changed\n%s\nto\n%s", want, got)
	}
}
