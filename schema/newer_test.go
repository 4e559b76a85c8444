package schema

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	programs "github.com/txoutbox/outbox/internal/testing/needs"
)

const unsaid = -100

// newer adds versions that newer code has applied, each with the oldest code that may run beside it,
// both as the distance from this code's version.
func newer(t *testing.T, db *sql.DB, versions ...[2]int) {
	t.Helper()
	for _, v := range versions {
		oldest := "NULL"
		if v[1] != unsaid {
			oldest = fmt.Sprint(Version() + v[1])
		}
		run(t, db, fmt.Sprintf("INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, %s)", Version()+v[0], oldest))
	}
}

func TestOlderCodeRunsBesideANewerSchemaThatAllowsIt(t *testing.T) {
	db, w := watched(t, pgtest.Prepared(t, prepareMigrated))
	for _, c := range []struct {
		name     string
		versions [][2]int
		needs    int // what the error says, as the distance; 0: no error
	}{
		{"one that allows this code", [][2]int{{1, 0}}, 0},
		{"two of which each allows the one before", [][2]int{{1, 0}, {2, 1}}, 1},
		{"two that allow this code", [][2]int{{1, 0}, {2, 0}}, 0},
		{"one that allows its own code only", [][2]int{{1, 1}}, 1},
		{"the second does not allow it", [][2]int{{1, 0}, {2, 2}, {3, 0}}, 2},
		{"one that does not say", [][2]int{{1, unsaid}}, 1},
		{"one that does not say below one that allows", [][2]int{{1, unsaid}, {2, 0}}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, db, fmt.Sprintf("DELETE FROM outbox.migration WHERE version > %d", Version()))
			newer(t, db, c.versions...)
			w.sent = nil
			newest := Version() + c.versions[len(c.versions)-1][0]
			errs := map[string]error{"Migrate": Migrate(t.Context(), db), "Check": Check(t.Context(), db), "GrantRoles": GrantRoles(t.Context(), db)}
			for call, err := range errs {
				if c.needs == 0 && err != nil {
					t.Errorf("%s: %v", call, err)
				}
				want := fmt.Sprintf(`the schema "outbox" is at version %d, which needs code that knows version %d; this code knows %d: `+
					`after a rollback run the newer code again, or do what its changelog says; else upgrade the module`,
					newest, Version()+c.needs, Version())
				if c.needs > 0 && (!errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), want)) {
					t.Errorf("%s: got %v, want ErrNewer: %s", call, err, want)
				}
				if c.needs > 0 && strings.Count(err.Error(), "schema: ") != 1 {
					t.Errorf("%s names its package twice: %v", call, err)
				}
			}
			if got := w.writes(); len(got) > 0 {
				t.Errorf("it wrote %q", got)
			}
			state, _ := Inspect(t.Context(), db)
			if state.Version != newest || c.needs > 0 && state.OldestVersion != Version()+c.needs {
				t.Errorf("got %+v, want version %d", state, newest)
			}
		})
	}
}

// Replicas of the old and the new code restart in any order, while the new one migrates.
func TestOldAndNewCodeMigrateAtOnce(t *testing.T) {
	url := pgtest.Database(t)
	allows := second(`SELECT 1`) + `UPDATE outbox.migration SET oldest_version = 1 WHERE version = 2;`
	older, newer := []string{first()}, []string{first(), allows}
	start := make(chan struct{})
	var all sync.WaitGroup
	for i := range 8 {
		db := open(t, url)
		texts := older
		if i%2 == 0 {
			texts = newer
		}
		all.Go(func() {
			<-start
			for range 3 {
				if err := Migrate(t.Context(), db, files(texts...)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	close(start)
	all.Wait()
	if got := scan[int](t, open(t, url), "SELECT max(version) FROM outbox.migration"); got != 2 {
		t.Errorf("got version %d, want 2", got)
	}
}

// As psql applies them, in a schema of another name.
func TestTheOldestVersionIsReadInAnySchema(t *testing.T) {
	db := open(t, pgtest.Database(t))
	script, err := SQL(Schema("select"))
	noErr(t, err)
	run(t, db, script)
	run(t, db, fmt.Sprintf(`INSERT INTO "select".migration (version, oldest_version) VALUES (%d, %d)`, Version()+1, Version()))
	noErr(t, errors.Join(Migrate(t.Context(), db, Schema("select")), Check(t.Context(), db, Schema("select"))))
}

func TestANewerServerIsLetPassAndSaid(t *testing.T) {
	db, w := watched(t, pgtest.Database(t))
	w.rewrite = func(q string) string {
		q = strings.ReplaceAll(q, "current_setting('server_version_num')", "'190001'")
		return strings.ReplaceAll(q, "current_setting('server_version')", "'19.1'")
	}
	migrate(t, db)
	state, err := Inspect(t.Context(), db)
	if err != nil || !state.UntestedServer || state.Server != "19.1" {
		t.Errorf("got %+v, %v, want the untested server 19.1", state, err)
	}
	w.rewrite = nil
	if state, err = Inspect(context.Background(), db); err != nil || state.UntestedServer {
		t.Errorf("got %+v, %v, want a tested server", state, err)
	}
}

// renamed is a migrated schema "outbox" with another name.
func renamed(t *testing.T, name string) *sql.DB {
	t.Helper()
	db := migrated(t)
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
	for _, name := range []string{"select", "outbox_2"} {
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
			noErr(t, Check(t.Context(), db))
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
	noErr(t, GrantRoles(t.Context(), admin, Schema(before)))
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
	noErr(t, GrantRoles(t.Context(), admin, Schema(name)))
	for _, of := range []string{before, name} {
		work(t, open(t, url, "role", of+"_worker"), name)
	}
}

// records finds the statement with which a migration records itself.
var records = regexp.MustCompile(`INSERT INTO outbox\.migration \(version, oldest_version\) VALUES \((\d+), (\d+)\) ON CONFLICT DO NOTHING;\s*$`)

// Where a migration does not say it, no older code may run beside it. CONTRIBUTING.md has the rule.
func TestEachMigrationSaysTheOldestCodeThatMayRunBesideIt(t *testing.T) {
	for i, text := range migrations() {
		version := i + 1
		m := records.FindStringSubmatch(text)
		if m == nil {
			t.Errorf("migration %d does not end with: INSERT INTO outbox.migration (version, oldest_version) VALUES (%d, …) ON CONFLICT DO NOTHING;"+
				" CONTRIBUTING.md says which oldest_version it needs", version, version)
			continue
		}
		if oldest, err := strconv.Atoi(m[2]); m[1] != strconv.Itoa(version) || err != nil || oldest > version || oldest < 1 {
			t.Errorf("migration %d records itself as %s, and the oldest code that may run beside it as %s", version, m[1], m[2])
		}
	}
}

// ofTasks are the tests of what old processes do beside a newer schema: enqueue, and run tasks of
// each kind to each of their ends.
const ofTasks = "TestEnqueue$|TestPayloads$|TestUniqueKeys|TestCancel$|RunNowStarts|EachTaskOfEachKindRunsOnce|FailuresAreRetried|LeasedTasksArrive" +
	"|CompleteCommits|TasksOfAnOrderingKeyRun|KeptTypesHave|HandBackTakes|StatsCountEachState|ScheduleFires|ATaskIsFoundWherever|RelaysAreListed"

// The oldest code that the migrations allow does its work on the schema of today: it is taken from
// git, with today's migrations in place of its own, and its tests run.
func TestTheOldestCodeThatIsAllowedWorksBesideTheSchema(t *testing.T) {
	programs.CI(t)
	git := programs.Program(t, "git", "git")
	if said, err := exec.CommandContext(t.Context(), git, "rev-parse", "--is-shallow-repository").Output(); err != nil || strings.TrimSpace(string(said)) != "false" {
		t.Skipf("this is no clone with its history: %s %v", said, err)
	}
	oldest := oldestAllowed(t)
	if oldest == Version() {
		t.Skipf("version %d allows no older code", oldest)
	}
	commit := lastOf(t, git, oldest)
	dir := t.TempDir()
	command(t, "..", nil, "sh", "-c", `"$0" archive --format=tar "$1" | tar -x -C "$2"`, git, commit, dir)
	noErr(t, os.RemoveAll(filepath.Join(dir, "schema", "functions")))
	command(t, ".", nil, "sh", "-c", `cp -r *.sql functions "$0"`, filepath.Join(dir, "schema"))
	if oldest == 1 { // that version wrote this answer of Cancel with a blank
		command(t, dir, nil, "sed", "-i", `s/"not found"$/"not_found"/`, "change.go")
	}
	if oldest < 4 { // code of these versions knows no kind retrying; its tests count the rows
		command(t, dir, nil, "sh", "-c",
			`grep -rl "state AS kind" internal |
			xargs sed -i "s/state AS kind, count/outbox.kind_of(state, attempt) AS kind, count/"`)
	}
	// What this run was asked for is not asked of that one.
	env := []string{"OUTBOX_TEST_REQUIRE=", "OUTBOX_TEST_LONG=", "OUTBOX_TEST_TIMING="}
	said := command(t, dir, env, "go", "test", "-count=1", "-vet=off", "-v", "-run", ofTasks, ".", "./relay", "./admin")
	if n := strings.Count(said, "\n--- PASS"); n < 12 {
		t.Errorf("only %d tests of version %d (%s) ran:\n%s", n, oldest, commit, said)
	}
	t.Logf("code of version %d (%s) works beside version %d", oldest, commit, Version())
}

// Code of an equal version would put its own functions back: so a release with other functions, views or
// triggers than the latest one has another version.
func TestAReleaseWithOtherFunctionsHasAnotherVersion(t *testing.T) {
	git := programs.Program(t, "git", "git")
	said, err := exec.CommandContext(t.Context(), git, "describe", "--tags", "--abbrev=0", "--match", "v*").Output()
	if err != nil {
		t.Skip("there is no release here")
	}
	same := func(paths ...string) bool {
		args := append([]string{"diff", "--quiet", strings.TrimSpace(string(said)), "--"}, paths...)
		return exec.CommandContext(t.Context(), git, args...).Run() == nil
	}
	if !same("functions", "relations.sql") && same(":(glob)0*.sql") {
		t.Errorf("the functions have changed since %s: add a migration, if only with its INSERT", said)
	}
}

// oldestAllowed is the oldest code that may run beside all migrations.
func oldestAllowed(t *testing.T) (oldest int) {
	t.Helper()
	for i, text := range migrations() {
		said := i + 1
		if m := records.FindStringSubmatch(text); m != nil {
			said, _ = strconv.Atoi(m[2]) // digits
		}
		oldest = max(oldest, said)
	}
	return oldest
}

// lastOf is the last commit whose newest migration is the given one. Migrations from before the first
// one of today had the same numbers.
func lastOf(t *testing.T, git string, version int) string {
	t.Helper()
	next := fmt.Sprintf("schema/%05d_*.sql", version+1)
	first := command(t, "..", nil, git, "log", "-1", "--diff-filter=A", "--format=%H", "--", "schema/"+fileNames()[0])
	since := strings.TrimSpace(first) + "..HEAD"
	added := command(t, "..", nil, git, "log", "--diff-filter=A", "--format=%H", since, "--", next)
	commits := regexp.MustCompile(`[0-9a-f]{40}`).FindAllString(added, -1)
	if len(commits) == 0 {
		return "HEAD" // the next one is not committed yet
	}
	return commits[len(commits)-1] + "^"
}

// command runs a program, and returns what it printed.
func command(t *testing.T, dir string, env []string, name string, args ...string) string {
	t.Helper()
	c := exec.CommandContext(t.Context(), name, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	said, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", c, err, said)
	}
	return string(said)
}
