package doctor_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgbouncer"
	"github.com/txoutbox/outbox/internal/testing/needs"
)

func TestBadArgumentsAreRefusedBeforeAnySQL(t *testing.T) {
	none, err := sql.Open("postgres", "postgres://app:C4n4ry@127.0.0.1:1/none?sslmode=disable")
	if err != nil {
		t.Fatal(err)
	}
	defer none.Close()
	for want, opts := range map[string][]doctor.Option{
		`Schema("Bad")`:    {doctor.Schema("Bad")},
		"an Option is nil": {nil},
		"HeldFor(-1s)":     {doctor.HeldFor(-time.Second)},
		"StarvingFor(1ns)": {doctor.StarvingFor(1)},
		"Timeout(1m1s)":    {doctor.Timeout(61 * time.Second)},
	} {
		if _, err := doctor.Check(t.Context(), none, opts...); !errors.Is(err, outbox.ErrInvalidOption) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
	if _, err := doctor.Check(t.Context(), nil); !errors.Is(err, outbox.ErrInvalidOption) {
		t.Errorf("a nil *sql.DB: got %v", err)
	}
	if found, err := doctor.Check(t.Context(), none); err == nil ||
		strings.Contains(err.Error()+printed(found), "C4n4ry") {
		t.Errorf("without a server: got %v", err)
	}
	db := ill(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := doctor.Check(ended, db.DB); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: got %v", err)
	}
}

func TestSeveritiesAreOrdered(t *testing.T) {
	order := []doctor.Severity{doctor.SeverityOK, doctor.SeverityInfo, doctor.SeverityUnknown, doctor.SeverityWarning,
		doctor.SeverityCritical}
	for i, a := range order {
		for j, b := range order {
			if a.AtLeast(b) != (i >= j) {
				t.Errorf("%s is at least %s: got %v", a, b, a.AtLeast(b))
			}
		}
		if got := doctor.Worst([]doctor.Finding{{Severity: order[0]}, {Severity: a}, {}}); got != a {
			t.Errorf("the worst of ok, %s and none is %q", a, got)
		}
	}
	if got := doctor.Worst([]doctor.Finding{{}}); got != doctor.SeverityOK || !got.AtLeast("") || got.AtLeast("info") {
		t.Errorf("the worst of none is %q", got)
	}
}

// What a role may not see is said, with what it needs; the rest is looked at.
func TestARoleWithoutRightsIsToldWhatItLacks(t *testing.T) {
	needs.CI(t)
	db := ill(t)
	name := roles(t, db)
	mine := doctor.Schema(name)
	nobody, _ := as(t, db)
	found := diagnosis(t, nobody, mine)
	has(t, found, "unknown rights … the role lacks a right: schema-version, schema-objects,  … relays,  … "+
		"dead-letters … "+
		"a member of "+name+"_viewer … USAGE on the schema … SELECT")
	if strings.Count(printed(found), "unknown ") > 2 { // and held-transaction
		t.Errorf("a right that is lacking is said again:\n%s", printed(found))
	}
	fine(t, found, "autovacuum", "connections", "index-bloat")
	for _, group := range []string{"viewer", "operator", "worker"} {
		pool, _ := as(t, db, name+"_"+group)
		found = diagnosis(t, pool, mine)
		has(t, found, "unknown held-transaction … checked in part … pg_monitor")
		if strings.Count(printed(found), "unknown ") > 1 {
			t.Errorf("%s:\n%s", group, printed(found))
		}
	}
	monitor, _ := as(t, db, name+"_viewer", "pg_monitor")
	pid, _ := hold(t, db, sql.LevelDefault, `SELECT 1`)
	found = diagnosis(t, monitor, mine, doctor.HeldFor(time.Millisecond))
	has(t, found, fmt.Sprint("warning held-transaction pid ", pid, " … idle in transaction"))
	if strings.Contains(printed(found), "unknown ") {
		t.Errorf("with pg_monitor:\n%s", printed(found))
	}
}

func TestNoSecretIsInAFinding(t *testing.T) {
	db := ill(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, headers, run_at) VALUES
		('A', '{"p": "C4n4ry"}', '{"h": "C4n4ry"}', now() - interval '1 hour'),
		('B', '"C4n4ry"', NULL, now() - interval '1 hour')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, unique_key) VALUES ('A', '{}', 'C4n4ry')`)
	db.Do(t, `INSERT INTO outbox.task (task_type, payload, ordering_key) VALUES ('A', '{}', 'C4n4ry')`)
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, priority, attempt, max_attempts, reason,
		task_type, payload, last_error)
		VALUES (-1, now(), now(), 0, 10, 10, 'attempts', 'A', '"C4n4ry"', 'C4n4ry')`)
	db.Do(t, `INSERT INTO outbox.schedule (name, next_at, task_type, payload, timing, definition)
		VALUES ('s', now() - interval '1 hour', 'A', '"C4n4ry"', '', '')`)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off); DROP INDEX outbox.task_lane;
		ALTER TABLE outbox.dead_task DISABLE TRIGGER dead_task_added`)
	for _, setting := range []string{"app.secret = ''C4n4ry''", "statement_timeout = ''4s''"} {
		db.Do(t, `DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET `+setting+`', current_database()); END $$`)
	}
	worker(t, db, true, 20, 5, "A")
	hold(t, db, sql.LevelRepeatableRead, `SELECT 'C4n4ry' FROM outbox.task`)
	role, _ := as(t, db)
	for _, pool := range []*database{db, role} {
		found := printed(diagnosis(t, pool, doctor.HeldFor(time.Millisecond)))
		if strings.Contains(found, "C4n4ry") {
			t.Errorf("a secret is in\n%s", found)
		}
		for _, check := range []string{"held-transaction", "unhandled-type", "starving-type", "dead-letters",
			"schedules",
			"indexes", "triggers", "autovacuum", "relay-pool", "session-settings"} {
			if pool == db && !regexp.MustCompile("(warning|critical) "+check).MatchString(found) {
				t.Errorf("nothing is wrong with %s, so the test shows nothing of it", check)
			}
		}
	}
}

// The table of tasks is reached by its indexes, whatever the statistics say: with ten million tasks
// the cost is that of ten.
func TestNoCheckReadsAllTasks(t *testing.T) {
	needs.CI(t)
	db := ill(t)
	// As a relay does: before it, the tasks of a database made of a template are looked at.
	db.Do(t, `SELECT outbox.note_origin('')`)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off); ALTER TABLE outbox.dead_task
		SET (autovacuum_enabled = off)`)
	db.Enqueue(t, "A", 10_000)
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts,
		reason, task_type, payload)
		SELECT -n, now(), now(), now() - interval '1 day', 0, 10, 10, 'attempts', 'A', '{}'
		FROM generate_series(1, 10000) n`)
	worker(t, db, false, 10, 12, "A")
	const reads = `SELECT COALESCE(sum(seq_scan), 0)::int FROM pg_stat_user_tables WHERE schemaname = 'outbox'
		AND relname IN ('task', 'dead_task', 'done_task')`
	const scans = `SELECT COALESCE(sum(idx_scan), 0)::int FROM pg_stat_user_tables WHERE schemaname = 'outbox'
		AND relname IN ('task', 'dead_task', 'done_task')`
	for _, analyzed := range []bool{false, true} {
		if analyzed {
			db.Do(t, `ANALYZE outbox.task, outbox.dead_task`)
		}
		eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
			return db.Int(t, `SELECT min(n_live_tup)::int FROM pg_stat_user_tables WHERE schemaname = 'outbox'
				AND relname IN ('task', 'dead_task')`) >= 10_000
		})
		before, indexed := db.Int(t, reads), db.Int(t, scans)
		pool := direct(t, db.URL)
		diagnosis(t, pool)
		pool.Close() // which sends its statistics
		eventually(t, 30*time.Second, "the statistics of the checks have arrived",
			func() bool { return db.Int(t, scans) >= indexed+3 })
		if n := db.Int(t, reads) - before; n > 0 {
			t.Errorf("%d times a table of tasks was read as a whole; analyzed: %v", n, analyzed)
		}
	}
}

func TestThroughPgBouncerInTransactionMode(t *testing.T) {
	needs.Program(t, "pgbouncer", "pgbouncer")
	db := ill(t)
	worker(t, db, true, 10, 12, "A")
	server, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	pooler, err := pgbouncer.Start(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer pooler.Close()
	for driver, parameter := range map[string]string{"postgres": "binary_parameters=yes",
		"pgx": "default_query_exec_mode=exec"} {
		pool := direct(t, pooler.URL(server).String()+"&"+parameter, driver)
		for _, f := range diagnosis(t, pool) {
			if f.Severity.AtLeast(doctor.SeverityUnknown) && f.Check != "durability" && f.Check != "server-version" {
				t.Errorf("%s: %+v", driver, f)
			}
		}
		pool.Close()
	}
}

// docs/tools/doctor.md has a row for each check, in the order in which they are shown.
func TestEachCheckIsDocumented(t *testing.T) {
	text, err := os.ReadFile("../docs/tools/doctor.md")
	if err != nil {
		t.Fatal(err)
	}
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented = append(documented, m[1])
	}
	if names := doctor.Names(); !slices.Equal(documented, names) {
		t.Errorf("documented are %v\nchecks are %v", documented, names)
	}
}

// Each check has a case in which it finds something, and each such text names a check.
func TestEachCheckHasACase(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	wanted := regexp.MustCompile("[\"`](?:info|warning|critical) ([a-z]+(?:-[a-z]+)*)[ \"`]")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range wanted.FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
		}
	}
	names := doctor.Names()
	for _, name := range names {
		if !slices.Contains(found, name) {
			t.Errorf("no test has a fault that %s finds", name)
		}
	}
	for _, name := range found {
		if !slices.Contains(names, name) {
			t.Errorf("a test has a fault that %s finds: there is no such check", name)
		}
	}
}
