package relay_test

import (
	"crypto/rand"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
)

// restored is the database of the URL, in which a dump of another one was restored.
func restored(t *testing.T, of *database, url string, options ...string) *database {
	t.Helper()
	file := filepath.Join(t.TempDir(), "dump")
	for _, c := range []*exec.Cmd{
		exec.CommandContext(t.Context(), needs.Program(t, "postgresql-client", "pg_dump"), "-Fc", "-f", file, of.URL),
		exec.CommandContext(t.Context(), needs.Program(t, "postgresql-client", "pg_restore"),
			append(options, "-d", url, file)...),
	} {
		if out, err := c.CombinedOutput(); err != nil && len(options) == 0 { // rows of some tables collide
			t.Fatalf("%s: %v\n%s", c.Path, err, out)
		}
	}
	return open(t, url)
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
	copied.Enqueue(t, "TX", 1)
	once, err := relay.New(copied.DB, all(), config)
	if err != nil {
		t.Fatal(err)
	}
	if err := once.RunOnce(t.Context()); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("RunOnce: %v", err)
	}
	if got := copied.Int(t, `SELECT count(*) FROM outbox.task WHERE state = 'ready' AND attempt = 0`); got != tasks+1 {
		t.Errorf("%d tasks are as they were, want %d", got, tasks+1)
	}
	if got := copied.Int(t, `SELECT (SELECT count(*) FROM effect) + (SELECT count(*) FROM outbox.schedule
		WHERE last_at IS NOT NULL)
		+ (SELECT count(*) FROM outbox.relay) + (SELECT count(*) FROM outbox.maintenance)`); got != 0 {
		t.Errorf("%d effects of a relay", got)
	}
	r.Log.Want(t, 1, "level=ERROR")
	copied.Do(t, `SELECT outbox.adopt(false, false, '')`)
	copied.Emptied(t, 10*time.Second)
	if err := r.Health(); err != nil {
		t.Errorf("once it is adopted: %v", err)
	}
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
	config := relay.Config{Schedules: relay.Schedules{{Name: "often", Timing: relay.Every(time.Hour),
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
	before := db.Text(t, `SELECT alive_until FROM outbox.relay`)
	db.Do(t, `UPDATE outbox.origin SET system_id = system_id + 1, table_oid = 1`)
	eventually(t, 10*time.Second, "the relay says that it is in a copy, or beats twice more", func() bool {
		return errors.Is(r.Health(), relay.ErrCopy) ||
			db.Int(t, `SELECT count(*) FROM outbox.relay WHERE alive_until > $1::timestamptz + interval '5 seconds'`, before) > 0
	})
	if err := r.Health(); !errors.Is(err, relay.ErrCopy) {
		t.Fatalf("Health: %v", err)
	}
	db.Enqueue(t, "TX", 1)
	db.Do(t, `SELECT outbox.adopt(false, false, '')`)
	db.Emptied(t, 10*time.Second)
}

func TestARelayOfAnotherEnvironmentRunsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	once := func(environment string) error {
		r, err := relay.New(db.DB, all(), relay.Config{Environment: environment})
		if err != nil {
			t.Fatal(err)
		}
		db.Enqueue(t, "TX", 1)
		return r.RunOnce(t.Context())
	}
	for _, environment := range []string{"", "production", "production", ""} {
		if err := once(environment); err != nil {
			t.Errorf("%q: %v", environment, err)
		}
	}
	err := once("staging")
	if !errors.Is(err, relay.ErrCopy) || !strings.Contains(err.Error(), `"production"`) ||
		!strings.Contains(err.Error(), `"staging"`) {
		t.Errorf("staging: %v", err)
	}
	if got := db.Int(t, `SELECT count(*) FROM outbox.task`); got != 1 {
		t.Errorf("%d tasks wait, want 1", got)
	}
	for _, wrong := range []string{"a\x00b", "a\nb", "\xff", strings.Repeat("x", 129)} {
		if _, err := relay.New(db.DB, all(), relay.Config{Environment: wrong}); err == nil {
			t.Errorf("New takes the environment %q", wrong)
		}
	}
}

// Its rights are from before the table: GRANT … ON ALL TABLES names those that there are.
func TestARoleThatMayNotNoteTheOriginRunsARelay(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	role := "outbox_test_" + strings.ToLower(rand.Text())
	db.Do(t, `CREATE ROLE `+role+`; GRANT USAGE ON SCHEMA outbox TO `+role+`; GRANT ALL ON ALL TABLES IN SCHEMA outbox, public TO `+role+`;
		GRANT ALL ON ALL SEQUENCES IN SCHEMA outbox TO `+role+`; REVOKE ALL ON outbox.origin, outbox.identity FROM `+role)
	t.Cleanup(func() { db.Do(t, `DROP OWNED BY `+role+`; DROP ROLE `+role) })
	as := open(t, db.URL+"&role="+role)
	db.Enqueue(t, "TX", 1)
	if log := relaytest.Once(t, as.DB, all(), relay.Config{Environment: "staging"}); !strings.Contains(log,
		"the environment is not noted") {
		t.Errorf("the log does not say that it is not noted:\n%s", log)
	}
	if got := db.Text(t, `SELECT environment FROM outbox.origin`) + db.Text(t,
		`SELECT count(*) FROM outbox.task`); got != "0" {
		t.Errorf("environment and tasks: %s", got)
	}
	db.Do(t, `UPDATE outbox.origin SET table_oid = 1, database_oid = 1`)
	r, err := relay.New(as.DB, all(), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.RunOnce(t.Context()); !errors.Is(err, relay.ErrCopy) {
		t.Errorf("in a copy: %v", err)
	}
}
