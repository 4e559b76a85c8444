package schema

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	programs "github.com/txoutbox/outbox/internal/testing/needs"
)

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
	if err := os.RemoveAll(filepath.Join(dir, "schema", "functions")); err != nil {
		t.Fatal(err)
	}
	command(t, ".", nil, "sh", "-c", `cp -r *.sql functions "$0"`, filepath.Join(dir, "schema"))
	if oldest == 1 { // that version wrote this answer of Cancel with a blank
		command(t, dir, nil, "sed", "-i", `s/"not found"$/"not_found"/`, "change.go")
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
