package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/devpg/pgtest"
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
	for args, want := range map[string]int{"stats": 0, "stats -timeout 1ns": 1, "stats extra": 2, "dead show 99": 3, "tasks show 99": 3, "doctor -schema none": 4} {
		if r := db.run(t, strings.Fields(args)...); r.code != want {
			t.Errorf("%s: got %+v, want exit code %d", args, r, want)
		}
	}
}

func TestTheEnvironmentAndTheServiceFileOfLibpqLeadToTheDatabase(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	user, rest, _ := strings.Cut(strings.TrimPrefix(db.url, "postgres://"), ":")
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
	if r := finish(t, command(t, environment("postgres://nobody@127.0.0.1:1/none"), "stats", "-database-url", db.url)); r.code != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestTheConnectionSaysWhoItIs(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	// The table is locked, so the command waits where it can be seen.
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	if _, err := tx.Exec(`LOCK TABLE outbox.counter IN ACCESS EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	done := begin(t, command(t, environment(db.url), "stats", "-timeout", "2s"))
	eventually(t, "a session is called outbox", func() bool {
		return db.text(t, `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'outbox' AND datname = current_database()`) == "1"
	})
	if r := <-done; r.code != exitFailed || !strings.Contains(r.err, "no answer within 2s: try a longer --timeout") {
		t.Errorf("got %+v", r)
	}
}

func TestASchemaThatIsNotMigratedIsOldOrNewerIsSaid(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	if r := db.run(t, "stats"); r.code != exitFailed || r.err != "outbox: the schema outbox is not migrated: run outbox migrate up\n" {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "stats", "-schema", "other"); r.err != "outbox: the schema other is not migrated: run outbox --schema other migrate up\n" {
		t.Errorf("got %+v", r)
	}
	db.ok(t, "migrate", "up")
	const early = "from before the first release, and cannot be migrated: drop the schema, with the tasks in it, and start anew\n"
	db.exec(t, `DELETE FROM outbox.migration; INSERT INTO outbox.migration (version) VALUES (15)`)
	for _, args := range [][]string{{"stats"}, {"migrate", "up"}, {"migrate", "status"}} {
		if r := db.run(t, args...); r.code != exitFailed || !strings.HasSuffix(r.err, early) {
			t.Errorf("%v: got %+v", args, r)
		}
	}
	db.exec(t, `DELETE FROM outbox.migration; INSERT INTO outbox.migration (version) VALUES (19), (20)`)
	if r := db.run(t, "dead", "list"); r.code != exitFailed || !strings.Contains(r.err, `the schema "outbox" is at version 20, this command needs `) || !strings.HasSuffix(r.err, ": run outbox migrate up\n") {
		t.Errorf("got %+v", r)
	}
	db.exec(t, `INSERT INTO outbox.migration (version) SELECT generate_series(21, 99)`)
	if r := db.run(t, "dead", "list"); r.code != exitFailed || !strings.Contains(r.err, `is at version 99`) || !strings.HasSuffix(r.err, "install the command of that version\n") {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "migrate", "up"); r.code != exitFailed || !strings.HasSuffix(r.err, "install the command of that version\n") {
		t.Errorf("got %+v", r)
	}
	var status struct {
		Version, Newest int
	}
	if db.json(t, &status, "migrate", "status"); status.Version != 99 || status.Newest > 50 {
		t.Errorf("got %+v", status)
	}
}

// as is the database as a member of a role sees it.
func (db *testDB) as(t *testing.T, role string) *testDB {
	t.Helper()
	login := role + "_" + db.text(t, `SELECT current_database()`)
	db.exec(t, `CREATE ROLE `+login+` LOGIN PASSWORD 'v' IN ROLE outbox_`+role)
	t.Cleanup(func() { db.exec(t, `DROP ROLE `+login) })
	_, rest, _ := strings.Cut(db.url, "@")
	return &testDB{db.DB, "postgres://" + login + ":v@" + rest}
}

func TestWhoMayNotEnqueueByTheCommandIsSentToTheRoleThatMay(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "roles", "apply", "-yes")
	for _, role := range []string{"operator", "enqueuer"} {
		member := db.as(t, role)
		for _, args := range []string{"enqueue MAIL {}", "enqueue MAIL {} -after 1h -unique u"} {
			r := member.run(t, strings.Fields(args)...)
			if r.code != exitFailed || !strings.Contains(r.err, "permission denied") || !strings.Contains(r.err, "outbox_worker to enqueue") {
				t.Errorf("%s as %s: got %+v", args, role, r)
			}
		}
	}
	if got := db.text(t, `SELECT count(*) FROM outbox.task`); got != "0" {
		t.Errorf("%s tasks, want none", got)
	}
	worker := db.as(t, "worker")
	worker.ok(t, "enqueue", "MAIL", "{}")
	worker.ok(t, "enqueue", "MAIL", "{}", "-after", "1h", "-unique", "u")
}

func TestARoleWithoutRightsIsTold(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 2)
	db.ok(t, "roles", "apply", "-yes")
	viewer := db.as(t, "viewer")
	for _, args := range []string{"stats", "dead list", "dead show 1", "tasks show 1", "types", "relays", "audit", "schedules", "top"} {
		if r := viewer.run(t, strings.Fields(args)...); r.code != exitOK {
			t.Errorf("%s: got %+v", args, r)
		}
	}
	for _, args := range []string{"dead show 1 -payload", "dead redrive 1", "dead purge -all -yes", "pause MAIL", "enqueue MAIL {}", "reindex", "tasks cancel 1 -yes"} {
		if r := viewer.run(t, strings.Fields(args)...); r.code != exitFailed || !strings.Contains(r.err, "permission denied") && !strings.Contains(r.err, "must be owner") || !strings.Contains(r.err, "outbox_operator to act") {
			t.Errorf("%s: got %+v", args, r)
		}
	}
	if got := db.text(t, `SELECT count(*) FROM outbox.dead_task`); got != "2" {
		t.Errorf("%s dead letters, want 2", got)
	}
}
