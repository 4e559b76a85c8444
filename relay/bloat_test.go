package relay_test

import (
	"database/sql"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// bloatOf is what one bloat check with low thresholds logs.
func bloatOf(t testing.TB, db *database, dead int64) (string, time.Duration) {
	t.Helper()
	var out records
	tx := db.begin(t)
	defer tx.Rollback()
	check := upkeep.Bloat{Dead: dead, Behind: 1}
	next, err := check.Check(t.Context(), "outbox", slog.New(slog.NewTextHandler(&out, nil)), tx)
	if err != nil {
		t.Fatal(err)
	}
	return out.String(), next
}

// F32: a forgotten transaction keeps vacuum from removing dead rows; the warning says whose it is.
// A session that has written and idles has no snapshot, but its transaction's id keeps dead rows as
// well. A role that sees less of other sessions is told which right would show it.
func TestTheBloatCheckNamesWhoKeepsDeadRows(t *testing.T) {
	needs.CI(t)
	for name, c := range map[string]struct {
		isolation sql.IsolationLevel
		forgotten string // returns its process id
		plainRole bool   // checks
		want      []string
	}{
		"a snapshot": {sql.LevelRepeatableRead, `SELECT pg_backend_pid() FROM (SELECT count(*) FROM outbox.task) t`, false,
			[]string{"level=WARN", "while a session may still see them", "table=task", "dead_rows=2000", "application_name=nightly-report", "age=", "transactions_behind="}},
		"a write": {sql.LevelReadCommitted, `INSERT INTO outbox.task (task_type) VALUES ('TX') RETURNING pg_backend_pid()`, false,
			[]string{"while a session may still see them"}},
		"no superuser": {sql.LevelRepeatableRead, `SELECT pg_backend_pid() FROM (SELECT count(*) FROM outbox.task) t`, true,
			[]string{"pg_read_all_stats"}},
	} {
		t.Run(name, func(t *testing.T) {
			db, plain := role(t, "")
			if log, next := bloatOf(t, db, 1000); log != "" || next != time.Minute {
				t.Errorf("without bloat it says %q and checks again after %v", log, next)
			}
			db.Enqueue(t, "TX", 2000)
			tx, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: c.isolation})
			if err != nil {
				t.Fatal(err)
			}
			defer tx.Rollback()
			if _, err := tx.Exec(`SET LOCAL application_name = 'nightly-report'`); err != nil {
				t.Fatal(err)
			}
			var pid int
			if err := tx.QueryRow(c.forgotten).Scan(&pid); err != nil {
				t.Fatal(err)
			}
			db.Do(t, `DELETE FROM outbox.task`)
			checker := db
			if c.plainRole {
				checker = plain
			}
			var log string
			var next time.Duration
			eventually(t, 30*time.Second, "it warns of the session", func() bool {
				db.Do(t, `SELECT 1`) // sends the statistics of what this session did
				log, next = bloatOf(t, checker, 1000)
				return strings.Contains(log, "pid="+strconv.Itoa(pid))
			})
			for _, want := range c.want {
				if !strings.Contains(log, want) {
					t.Errorf("the warning lacks %s: %s", want, log)
				}
			}
			if next < 10*time.Minute {
				t.Errorf("it would warn again after %v", next)
			}
			db.wantRows(t, 1, `pg_stat_activity WHERE pid = $1`, pid)
		})
	}
}

func TestTheBloatCheckSaysWhatIsWrongWithAutovacuum(t *testing.T) {
	for change, want := range map[string]string{
		`ALTER TABLE outbox.task SET (autovacuum_enabled = off)`:                           "autovacuum is off for the table task",
		`ALTER TABLE outbox.counter_log RESET (autovacuum_vacuum_scale_factor)`:            "the autovacuum settings of the table counter_log are not the outbox's",
		`ALTER TABLE outbox.running SET (autovacuum_vacuum_scale_factor = 0.2)`:            "the autovacuum settings of the table running are not the outbox's",
		`ALTER TABLE outbox.task SET (autovacuum_vacuum_threshold = 500, fillfactor = 90)`: "",
	} {
		db := newDatabase(t)
		db.Do(t, change)
		log, next := bloatOf(t, db, 1000)
		if (want == "") != (log == "") || !strings.Contains(log, want) || (want != "") != (next > time.Minute) {
			t.Errorf("%s: it says %q and checks again after %v, want %q", change, log, next, want)
		}
	}
}
