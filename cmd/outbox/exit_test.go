package main

import (
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

// exitCodes have the words that begin their meaning in the documentation.
var exitCodes = map[int]string{
	exitOK: "0 done", exitFailed: "1 failed", exitUsage: "2 wrong arguments", exitNotFound: "3 not found",
	exitFindings: "4 doctor",
}

// The tests with steps have the commands that end with each code.
func TestTheExitCodesAreThoseOfTheDocumentation(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(docs)
	if err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(string(page)), " ")
	for code, meaning := range exitCodes {
		if !strings.HasPrefix(meaning, strconv.Itoa(code)) || !strings.Contains(text, meaning) {
			t.Errorf("the code %d is not %q, or %s lacks that", code, meaning, docs)
		}
	}
}

func TestWrongArgumentsEndWithExitCode2(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"nope", "stats extra", "stats -nope", "tasks", "tasks lsit", "dead", "dead show", "dead show x", "dead show -3",
		"dead list -limit 0", "migrate", "migrate down", "pause", "schedules nope", "top -every 1ms", "top -sort nope",
		"stats -schema Pg", "stats -timeout x", "stats -timeout -5s", "dead redrive 1 -all", "completion csh",
		"help nope", "help dead nope", "dead list -since x", "dead purge -until x", "enqueue A {} -at x",
		"stats postgres://app:C4n4ry@db/x", "postgres://app:C4n4ry@db/x", "dead show password=C4n4ry",
		"-timeout postgres://app:C4n4ry@db/x stats",
	} {
		// There is no server at this address: nothing is asked of one.
		env := environment("postgres://nobody@127.0.0.1:1/none?sslmode=disable")
		r := finish(t, command(t, env, strings.Fields(args)...))
		line := strings.HasPrefix(r.err, "outbox: ") && strings.Count(r.err, "\n") == 1
		if r.code != exitUsage || r.out != "" || !line || strings.Contains(r.err, "C4n4ry") {
			t.Errorf("%s: got %+v, want exit code 2 and one line", args, r)
		}
	}
}

func TestHelpNeedsNoDatabase(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"", "help", "-help", "--help", "-h", "help tasks list", "tasks list -help", "completion bash", "version",
		"migrate print", "roles print -schema own",
	} {
		r := finish(t, command(t, environment(""), strings.Fields(args)...))
		if r.code != exitOK || r.out == "" || r.err != "" {
			t.Errorf("%s: got %+v", args, r)
		}
	}
	for _, c := range (&app{}).root().Commands() {
		for _, c := range append(c.Commands(), c) {
			own := c.Name() != "help" && !strings.Contains(c.CommandPath(), " completion")
			if own && (c.Example == "" || c.Short == "") {
				t.Errorf("%s has no example or no help", c.CommandPath())
			}
		}
	}
}

func TestAnUnknownDatabaseIsReportedWithoutItsPassword(t *testing.T) {
	t.Parallel()
	direct := pgtest.Database(t)
	_, random, _ := strings.Cut(direct, "/outbox_test_")
	random, _, _ = strings.Cut(random, "?")
	wrong := strings.Replace(direct, "@", "C4n4ry@", 1) // another password
	for dsn, want := range map[string]string{
		wrong: "check user and password",
		strings.Replace(direct, "/outbox_test_", "/C4n4ry_", 1): "check the database's name", // which is no secret
		"postgres://app:C4n4ry@127.0.0.1:1/x?sslmode=disable":   "connection refused",
		"postgres://app:C4n4ry@127.0.0.1:port/x":                "check --database-url",
		"postgres://app:C4n/4ry@127.0.0.1/x":                    "password",
		"postgres://app:C4n4ry@%zz/x":                           "check --database-url",
		"host=127.0.0.1 port=1 password=a C4n4ry":               "check --database-url",
		"host=127.0.0.1 port=1 sslmode=disable password=C4n4ry": "connection refused",
		"mysql://app:C4n4ry@h/x":                                "check --database-url",
		"service=C4n4ry password=C4n4ry":                        "check --database-url",
	} {
		byFlag := command(t, environment(""), "stats", "-database-url", dsn)
		for _, c := range []*exec.Cmd{byFlag, command(t, environment(dsn), "stats")} {
			r := finish(t, c)
			if r.code != exitFailed && r.code != exitUsage || strings.Count(r.err, "\n") != 1 || !strings.Contains(r.err, want) {
				t.Errorf("%s: got %+v, want %q", dsn, r, want)
			}
			named := strings.ReplaceAll(r.err, "C4n4ry_"+random, "")
			if strings.Contains(named, "4ry") || strings.Contains(r.err, dsn) {
				t.Errorf("%s leaks: %s", dsn, r.err)
			}
		}
	}
}

func TestTheEnvironmentAndTheServiceFileOfLibpqLeadToTheDatabase(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	at, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	password, _ := at.User.Password()
	host, port, user, name := at.Hostname(), at.Port(), at.User.Username(), strings.TrimPrefix(at.Path, "/")
	home := t.TempDir()
	for file, lines := range map[string][]string{
		".pg_service.conf": {"[shop]", "host=" + host, "port=" + port, "dbname=" + name, "user=" + user, "sslmode=disable"},
		".pgpass":          {strings.Join([]string{host, port, name, user, password}, ":")},
	} {
		if err := os.WriteFile(filepath.Join(home, file), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pg := []string{"PGHOST=" + host, "PGPORT=" + port, "PGDATABASE=" + name, "PGUSER=" + user, "PGSSLMODE=disable"}
	for what, env := range map[string][]string{
		"PGHOST and PGPASSWORD":     environment("", append(pg, "PGPASSWORD="+password)...),
		"PGHOST and .pgpass":        environment("", append(pg, "PGPASSFILE="+filepath.Join(home, ".pgpass"))...),
		"PGSERVICE and files":       environment("", "HOME="+home, "PGSERVICE=shop"),
		"service= in a URL's place": environment("service=shop", "HOME="+home),
	} {
		if r := finish(t, command(t, env, "stats")); r.code != 0 {
			t.Errorf("%s: %+v", what, r)
		}
	}
	// The flag counts more than the environment.
	nowhere := environment("postgres://nobody@127.0.0.1:1/none")
	if r := finish(t, command(t, nowhere, "stats", "-database-url", db.URL)); r.code != 0 {
		t.Errorf("got %+v", r)
	}
}

func TestASchemaThatIsNotMigratedIsOldOrNewerIsSaid(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.Do(t, `CREATE TABLE task (id integer)`)
	db.steps(t,
		step{"doctor", exitFindings, "schema-version"},
		step{"stats -timeout 1ns", exitFailed, "no answer within 1ns: try a longer --timeout"},
		step{"stats", exitFailed, "outbox: the schema outbox is not migrated: run outbox migrate up\n"},
		step{"stats -schema other", exitFailed, "other is not migrated: run outbox --schema other migrate up\n"},
		step{"migrate up -schema public", exitFailed, "table task: give the outbox a schema of its own by --schema"},
		step{"migrate up", exitOK, ""},
	)
	versions := func(last, oldest int) {
		db.Do(t, `DELETE FROM outbox.migration`)
		db.Do(t, `INSERT INTO outbox.migration (version, oldest_version)
			SELECT v, least(v, $2::int) FROM generate_series(1, $1::int) v`, last, oldest)
	}
	versions(0, 1)
	db.steps(t, step{"dead list", exitFailed, ": run outbox migrate up\n"})
	const install = "install the command of that version\n"
	versions(99, 99)
	db.steps(t, step{"dead list", exitFailed, install}, step{"migrate up", exitFailed, install})
	versions(99, 1)
	db.steps(t,
		step{"stats", exitOK, ""},
		step{"migrate up", exitOK, "outbox: at version 99 already, newer than this command's "},
		step{"roles apply -yes", exitFailed, install},
		step{"migrate status", exitOK, "99  of a newer command"},
	)
	db.Do(t, `ALTER TABLE outbox.migration DROP COLUMN functions`)
	const old = "cannot be migrated: rename it, which keeps its tasks for code of that time, and run outbox migrate up for a new one\n"
	db.steps(t, step{"dead list", exitFailed, old}, step{"migrate up", exitFailed, old})
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

// internal/testing/rights tests the rights of each role.
func TestARoleWithoutRightsIsToldWhichRoleHasThem(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 2)
	db.ok(t, "roles", "apply", "-yes")
	const denied = "outbox_operator to act, outbox_worker to enqueue"
	db.as(t, "viewer").steps(t,
		step{"top", exitOK, "MAIL"},
		step{"dead show 1", exitOK, "no such mailbox"},
		step{"dead show 1 -payload", exitFailed, denied},
		step{"dead redrive 1", exitFailed, denied},
		step{"enqueue MAIL {}", exitFailed, denied},
		step{"reindex", exitFailed, denied},
	)
}
