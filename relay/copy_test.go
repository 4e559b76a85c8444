package relay_test

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// restored is the database of the URL, in which a dump of another one was restored.
func restored(t *testing.T, of *database, url string, options ...string) *database {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	for _, c := range []*exec.Cmd{
		exec.CommandContext(t.Context(), pgtest.Program(t, pgtest.Server(t), "pg_dump"), "-Fc", "-f", file, of.URL),
		exec.CommandContext(t.Context(), pgtest.Program(t, pgtest.Server(t), "pg_restore"),
			append(options, "-d", url, file)...),
	} {
		if out, err := c.CombinedOutput(); err != nil && len(options) == 0 { // rows of some tables collide
			t.Fatalf("%s: %v\n%s", c.Path, err, out)
		}
	}
	return open(t, url)
}

// runOnce enqueues a task and runs what is due.
func runOnce(t *testing.T, db *database, config relay.Config) error {
	t.Helper()
	db.Enqueue(t, "TX", 1)
	r := unstarted(t, db, all(), config)
	return r.RunOnce(t.Context())
}

// runsNothing checks that a relay leaves a copy alone, and begins once it is adopted.
func runsNothing(t *testing.T, copied *database, tasks int, config relay.Config) {
	t.Helper()
	r := run(t, copied, all(), config)
	eventually(t, 10*time.Second, "the relay says that it is in a copy", func() bool {
		return errors.Is(r.Health(), relay.ErrCopy)
	})
	if err := r.Health(); !strings.Contains(err.Error(), "outbox adopt") {
		t.Errorf("Health does not say what to do: %v", err)
	}
	if err := runOnce(t, copied, config); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("RunOnce: %v", err)
	}
	copied.wantRows(t, tasks+1, `outbox.task WHERE state = 'ready' AND attempt = 0`)
	copied.want(t, 0, "effects of a relay", `SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM outbox.schedule
		WHERE last_at IS NOT NULL) + (SELECT count(*) FROM outbox.relay) + (SELECT count(*) FROM outbox.maintenance)`)
	r.Log.Want(t, 1, "level=ERROR")
	copied.Do(t, `SELECT outbox.adopt(false, false, '')`)
	copied.Emptied(t, 10*time.Second)
	noErr(t, r.Health())
	if got := copied.Int(t, `SELECT count(*) FROM effect`); got < tasks+1 {
		t.Errorf("%d effects, want %d", got, tasks+1)
	}
}

// The original goes on. A database whose origin is another gets that of the data.
func TestARelayRunsNothingInARestoredDumpUntilItIsAdopted(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.Enqueue(t, "TX", 2)
	db.Enqueue(t, "LEASED", 1)
	config := relay.Config{Schedules: []relay.Schedule{{Name: "often", Timing: relay.Every(time.Hour),
		Task: outbox.NewTaskType[map[string]int]("TX").New(nil)}}}
	copied := restored(t, db, pgtest.Database(t))
	url := relaytest.Migrated(t)
	into := open(t, url)
	into.Do(t, `CREATE TABLE effect (task_id bigint, attempt int); SELECT outbox.note_origin('')`)
	into = restored(t, db, url, "--data-only", "--disable-triggers")
	relaytest.Once(t, db.DB, all(), config)
	if got := db.Int(t, `SELECT count(*) FROM effect`); got != 3 {
		t.Errorf("%d effects of the original, want 3", got)
	}
	runsNothing(t, copied, 3, config)
	runsNothing(t, into, 3, relay.Config{})
}

// A failover to a wrong place, or a restore under the relay.
func TestARelayWhoseDatabaseBecomesACopyStopsAndBeginsAgain(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r := run(t, db, all(), relay.Config{})
	db.Enqueue(t, "TX", 1)
	db.Emptied(t, 10*time.Second)
	db.Do(t, `UPDATE outbox.origin SET system_id = system_id + 1, table_oid = 1`)
	eventually(t, 10*time.Second, "the relay says that it is in a copy", func() bool {
		return errors.Is(r.Health(), relay.ErrCopy)
	})
	db.Enqueue(t, "TX", 1)
	db.Do(t, `SELECT outbox.adopt(false, false, '')`)
	db.Emptied(t, 10*time.Second)
}

func TestARelayOfAnotherEnvironmentRunsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	for _, environment := range []string{"", "production", "production", ""} {
		if err := runOnce(t, db, relay.Config{Environment: environment}); err != nil {
			t.Errorf("%q: %v", environment, err)
		}
	}
	err := runOnce(t, db, relay.Config{Environment: "staging"})
	if !errors.Is(err, relay.ErrCopy) || !strings.Contains(err.Error(), `"production"`) ||
		!strings.Contains(err.Error(), `"staging"`) {
		t.Errorf("staging: %v", err)
	}
	db.want(t, 1, "tasks wait", `SELECT count(*) FROM outbox.task`)
	db.wantText(t, "staging", `SELECT refused_environment FROM outbox.origin WHERE refused_at <= clock_timestamp()`)
	for _, wrong := range []string{"a\x00b", "a\nb", "\xff", strings.Repeat("x", 129)} {
		if _, err := relay.New(db.DB, all(), relay.Config{Environment: wrong}); err == nil {
			t.Errorf("New takes the environment %q", wrong)
		}
	}
}

func TestTheLogSaysWhichDatabaseARelayWorksIn(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	r := run(t, db, all(), relay.Config{Environment: "production"})
	eventually(t, 20*time.Second, "it has started", func() bool { return r.Log.Count("outbox: relay started") == 1 })
	r.Log.Want(t, 1, fmt.Sprintf("environment=production database=%s schema=outbox version=(devel) schema_version=%d",
		db.Text(t, `SELECT current_database()`), schema.Version()))
}

// Its rights are from before the table: GRANT … ON ALL TABLES names those that there are.
func TestARoleThatMayNotNoteTheOriginRunsARelay(t *testing.T) {
	t.Parallel()
	db, app := role(t, "")
	db.Do(t, `REVOKE ALL ON outbox.origin, outbox.identity FROM `+app.Text(t, `SELECT current_user`))
	db.Enqueue(t, "TX", 1)
	if log := relaytest.Once(t, app.DB, all(), relay.Config{Environment: "staging"}); !strings.Contains(log,
		"the environment is not noted") {
		t.Errorf("the log does not say that it is not noted:\n%s", log)
	}
	db.wantText(t, " 0", `SELECT concat(environment, ' ', (SELECT count(*) FROM outbox.task)) FROM outbox.origin`)
	db.Do(t, `UPDATE outbox.origin SET table_oid = 1, database_oid = 1`)
	if err := runOnce(t, app, relay.Config{}); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("in a copy: %v", err)
	}
}

// A standby has its primary's system identifier and oids, as a base backup and a snapshot have.
func TestAPromotedStandbyStopsNoRelayAndABaseBackupInStagingDoes(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	primary := pgtest.Local(t, nil)
	relaytest.Adopt(t, primary.URL())
	production, staging := relay.Config{Environment: "production"}, relay.Config{Environment: "staging"}
	noErr(t, runOnce(t, direct(t, primary.URL()), production))
	standby := pgtest.Standby(t, primary)
	must(standby.Promote(t.Context()))
	noErr(t, runOnce(t, direct(t, standby.URL()), production)) // the relay after a failover
	if err := runOnce(t, direct(t, standby.URL()), staging); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("the relay of staging: %v", err)
	}
	noErr(t, runOnce(t, direct(t, standby.URL()), relay.Config{})) // a relay without an environment
}

func TestPgUpgradeStopsNoRelay(t *testing.T) {
	needs.CI(t)
	t.Parallel()
	old := pgtest.Local(t, nil)
	noErr(t, relaytest.Migrate(old.URL()))
	db := direct(t, old.URL())
	db.Do(t, `CREATE TABLE effect (task_id bigint, attempt int)`)
	must(runOnce(t, db, relay.Config{}))
	id := db.Text(t, `SELECT database_id FROM outbox.identity`)
	// the upgrade is to the same version
	db.Do(t, `UPDATE outbox.origin SET server_version = server_version - 1`)
	db.Close()
	upgraded := pgtest.Upgraded(t, old)
	in := direct(t, upgraded.URL())
	if err := runOnce(t, in, relay.Config{}); err != nil {
		t.Errorf("the relay after pg_upgrade: %v", err)
	}
	in.want(t, id, "the id", `SELECT database_id FROM outbox.identity`)
	in.wantRows(t, 1, `outbox.origin o, outbox.this_database() t
		WHERE (o.system_id, o.server_version) = (t.system_id, t.server_version)`)
}
