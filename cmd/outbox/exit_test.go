package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/schema"
)

func TestWrongArgumentsEndWithExitCode2(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"nope", "stats extra", "stats -nope", "tasks", "tasks lsit", "dead", "dead show", "dead show x", "dead show -3", "dead list -limit 0", "history show", "pause", "migrate",
		"migrate down", "schedules pause", "schedules nope", "relays hand-back", "top -every 1ms", "top -sort nope", "stats -schema Pg", "stats -timeout x", "dead redrive 1 -all", "roles", "stats -timeout -5s", "help nope", "help dead nope", "completion", "completion csh"} {
		// There is no server at this address: nothing is asked of one.
		r := finish(t, command(t, environment("postgres://nobody@127.0.0.1:1/none?sslmode=disable"), strings.Fields(args)...))
		if r.code != exitUsage || r.out != "" || !strings.HasPrefix(r.err, "outbox: ") || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%s: got %+v, want exit code 2 and one line", args, r)
		}
	}
}

func TestHelpNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "help", "-help", "--help", "-h", "help tasks list", "tasks list -help", "completion bash", "version", "version -json", "migrate print", "roles print -schema own"} {
		r := finish(t, command(t, environment(""), strings.Fields(args)...))
		if r.code != exitOK || r.out == "" || r.err != "" {
			t.Errorf("%s: got %+v", args, r)
		}
	}
	for _, c := range (&app{}).root().Commands() {
		for _, c := range append(c.Commands(), c) {
			if own := c.Name() != "help" && !strings.Contains(c.CommandPath(), " completion"); own && (c.Example == "" || c.Short == "") {
				t.Errorf("%s has no example or no help", c.CommandPath())
			}
		}
	}
}

func TestAnUnknownDatabaseIsReportedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	direct := pgtest.Database(t)
	wrong := strings.Replace(direct, "@", "C4n4ry@", 1) // another password
	for dsn, want := range map[string]string{
		wrong: "check user and password",
		strings.Replace(direct, "/outbox_test_", "/C4n4ry_", 1):      "check the database's name", // a name that is not there may be named
		"postgres://app:C4n4ry@127.0.0.1:1/x?sslmode=disable":        "connection refused",
		"postgres://app:C4n4ry@127.0.0.1:port/x":                     "check --database-url",
		"postgres://app:C4n/4ry@127.0.0.1/x":                         "password",
		"postgres://app:C4n4ry?x@127.0.0.1/x":                        "password",
		"postgres://app:12/C4n4ry@127.0.0.1/x":                       "password",
		"postgres://app:C4n4ry@%zz/x":                                "check --database-url",
		"host=127.0.0.1 port=1 password=a C4n4ry":                    "check --database-url",
		"host=127.0.0.1 port=1 sslmode=disable password=C4n4ry":      "connection refused",
		"host=127.0.0.1 port=1 password='C4n4ry":                     "check --database-url",
		"mysql://app:C4n4ry@h/x":                                     "check --database-url",
		"service=C4n4ry password=C4n4ry":                             "check --database-url",
		"postgres://app:C4n4ry@127.0.0.1/x?target_session_attrs=any": "127.0.0.1",
	} {
		for _, how := range []string{"flag", "environment"} {
			args, env := []string{"stats"}, environment("", "OUTBOX_DATABASE_URL="+dsn)
			if how == "flag" {
				args, env = append(args, "-database-url", dsn), environment("")
			}
			r := finish(t, command(t, env, args...))
			if r.code == exitOK || r.code == exitNotFound || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, want) {
				t.Errorf("%s: got %+v, want %q", dsn, r, want)
			}
			if leaks := strings.Contains(strings.ReplaceAll(r.err, `database "C4n4ry_`, ""), "C4n4ry") || strings.Contains(r.err, "4ry"); leaks && !strings.Contains(dsn, "/C4n4ry_") || strings.Contains(r.err, dsn) {
				t.Errorf("%s leaks: %s", dsn, r.err)
			}
		}
	}
}

func TestAConnectionStringInTheWrongPlaceIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"stats", "postgres://app:C4n4ry@db/x"}, {"postgres://app:C4n4ry@db/x"}, {"dead", "show", "host=db password=C4n4ry"}, {"-timeout", "postgres://app:C4n4ry@db/x", "stats"}} {
		if r := finish(t, command(t, environment(""), args...)); r.code != exitUsage || strings.Contains(r.err, "C4n4ry") || strings.Count(r.err, "\n") != 1 {
			t.Errorf("%q: got %+v", args, r)
		}
	}
}

func TestTheExitCodesAreThoseOfTheHelp(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.steps(t, step{"stats", 0, ""}, step{"stats -timeout 1ns", 1, "no answer within 1ns: try a longer --timeout"}, step{"stats extra", 2, ""},
		step{"dead show 99", 3, ""}, step{"doctor -schema none", 4, "schema-version"})
}

func TestTheEnvironmentAndTheServiceFileOfLibpqLeadToTheDatabase(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	user, rest, _ := strings.Cut(strings.TrimPrefix(db.URL, "postgres://"), ":")
	password, rest, _ := strings.Cut(rest, "@")
	address, rest, _ := strings.Cut(rest, "/")
	host, port, _ := strings.Cut(address, ":")
	name, _, _ := strings.Cut(rest, "?")
	home := t.TempDir()
	for file, text := range map[string]string{
		".pg_service.conf": "[shop]\nhost=" + host + "\nport=" + port + "\ndbname=" + name + "\nuser=" + user + "\nsslmode=disable\n",
		".pgpass":          host + ":" + port + ":" + name + ":" + user + ":" + password + "\n",
	} {
		if err := os.WriteFile(filepath.Join(home, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pg := []string{"PGHOST=" + host, "PGPORT=" + port, "PGDATABASE=" + name, "PGUSER=" + user, "PGSSLMODE=disable"}
	for what, env := range map[string][]string{
		"PGHOST and PGPASSWORD":     environment("", append(pg, "PGPASSWORD="+password)...),
		"PGHOST and .pgpass":        environment("", append(pg, "PGPASSFILE="+filepath.Join(home, ".pgpass"))...),
		"PGSERVICE and files":       environment("", "HOME="+home, "PGSERVICE=shop"),
		"service= in a URL's place": environment("service=shop", "HOME="+home),
		"PGSERVICEFILE":             environment("", "PGSERVICEFILE="+filepath.Join(home, ".pg_service.conf"), "PGSERVICE=shop", "PGPASSWORD="+password),
	} {
		if r := finish(t, command(t, env, "stats")); r.code != 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	// The flag counts more than the environment.
	if r := finish(t, command(t, environment("postgres://nobody@127.0.0.1:1/none"), "stats", "-database-url", db.URL)); r.code != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestASchemaThatIsNotMigratedIsOldOrNewerIsSaid(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.steps(t,
		step{"stats", exitFailed, "outbox: the schema outbox is not migrated: run outbox migrate up\n"},
		step{"stats -schema other", exitFailed, "outbox: the schema other is not migrated: run outbox --schema other migrate up\n"},
		step{"migrate up", 0, ""},
	)
	for _, c := range []struct {
		version int
		want    string
	}{
		{0, ": run outbox migrate up\n"},
		{99, "install the command of that version\n"},
	} {
		db.Do(t, `DELETE FROM outbox.migration`)
		db.Do(t, `INSERT INTO outbox.migration (version) SELECT generate_series(1, $1::int)`, c.version)
		db.steps(t, step{"dead list", exitFailed, c.want})
		if c.version > 0 {
			db.steps(t, step{"migrate up", exitFailed, c.want})
		}
	}
	db.Do(t, `DELETE FROM outbox.migration`)
	db.Do(t, `INSERT INTO outbox.migration (version, oldest_version) SELECT v, 1 FROM generate_series(1, 99) AS v`)
	db.steps(t,
		step{"stats", exitOK, ""},
		step{"migrate up", exitOK, fmt.Sprintf("schema outbox: at version 99 already, newer than this command's %d, which may run beside it\n", schema.Version())},
		step{"roles apply -yes", exitFailed, "install the command of that version\n"},
	)
	db.steps(t, step{"migrate status", 0, "99  of a newer command"})
}

func TestASchemaFromBeforeTheFirstReleaseIsRefused(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.steps(t, step{"migrate up", exitOK, ""})
	db.Do(t, `ALTER TABLE outbox.migration DROP COLUMN functions`)
	const want = "from before the first release, and cannot be migrated: drop the schema, with the tasks in it, and start anew\n"
	db.steps(t, step{"dead list", exitFailed, want}, step{"migrate up", exitFailed, want}, step{"migrate status", exitOK, "1  tables  pending"})
}

func TestATableOfTheAppsIsNotTakenForTheOutboxs(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.Do(t, `CREATE TABLE task (id integer)`)
	db.steps(t,
		step{"migrate up -schema public", exitFailed, "have its names: table task: give the outbox a schema of its own by --schema, or rename them\n"},
		step{"migrate up", exitOK, ""},
	)
}

// as is the database as a member of a role sees it.
func (db *testDB) as(t *testing.T, role string) *testDB {
	t.Helper()
	login := role + "_" + db.Text(t, `SELECT current_database()`)
	db.Do(t, `CREATE ROLE `+login+` LOGIN PASSWORD 'v' IN ROLE outbox_`+role)
	t.Cleanup(func() { db.Do(t, `DROP ROLE `+login) })
	_, rest, _ := strings.Cut(db.URL, "@")
	return openDB(t, "postgres://"+login+":v@"+rest)
}

// internal/rights tests the rights of each role.
func TestARoleWithoutRightsIsToldWhichRoleHasThem(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 2)
	db.ok(t, "roles", "apply", "-yes")
	viewer, worker := db.as(t, "viewer"), db.as(t, "worker")
	const denied = "outbox_operator to act, outbox_worker to enqueue"
	viewer.steps(t,
		step{"top", exitOK, "MAIL"},
		step{"dead show 1", exitOK, "no such mailbox"},
		step{"dead show 1 -payload", exitFailed, denied},
		step{"dead redrive 1", exitFailed, denied},
		step{"enqueue MAIL {}", exitFailed, denied},
		step{"reindex", exitFailed, denied},
		step{"repair -yes", exitFailed, denied},
	)
	worker.steps(t, step{"enqueue MAIL {} -after 1h -unique u", exitOK, "created"})
	db.is(t, `SELECT concat_ws(' ', (SELECT count(*) FROM outbox.dead_task), (SELECT count(*) FROM outbox.task))`, "2 1")
}
