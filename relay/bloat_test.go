package relay_test

import (
	"database/sql"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/upkeep"
)

// bloatOf is what one bloat check with low thresholds logs.
func bloatOf(t testing.TB, db *database, dead int64) (log string, next time.Duration) {
	t.Helper()
	var out records
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback()
	check := upkeep.Bloat{Dead: dead, Behind: 1}
	if next, err = check.Check(t.Context(), "outbox", slog.New(slog.NewTextHandler(&out, nil)), tx); err != nil {
		t.Fatal(err)
	}
	return out.String(), next
}

// F32: a forgotten transaction keeps vacuum from removing dead rows; the warning says whose it is.
func TestTheBloatCheckNamesWhoKeepsDeadRows(t *testing.T) {
	needs.CI(t)
	db := newDatabase(t)
	if log, next := bloatOf(t, db, 1000); log != "" || next != time.Minute {
		t.Errorf("without bloat it says %q and checks again after %v", log, next)
	}
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("application_name", "nightly-report")
	u.RawQuery = q.Encode()
	forgotten, err := open(t, u.String()).BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer forgotten.Rollback()
	var pid int
	if err := forgotten.QueryRow(`SELECT pg_backend_pid() FROM (SELECT count(*) FROM outbox.task) t`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	db.Enqueue(t, "TX", 2000)
	db.Do(t, `DELETE FROM outbox.task`)
	var log string
	eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
		log, _ = bloatOf(t, db, 1000)
		return log != ""
	})
	for _, want := range []string{"level=WARN", "while a session may still see them", "table=task", "dead_rows=2000", "pid=" + strconv.Itoa(pid), "application_name=nightly-report", "age=", "transactions_behind="} {
		if !strings.Contains(log, want) {
			t.Errorf("the warning lacks %s: %s", want, log)
		}
	}
	if _, next := bloatOf(t, db, 1000); next < 10*time.Minute {
		t.Errorf("it would warn again after %v", next)
	}
	if n := db.Int(t, `SELECT count(*) FROM pg_stat_activity WHERE pid = $1`, pid); n != 1 {
		t.Error("the session is gone")
	}
}

// A session that has written and idles has no snapshot, but its transaction's id keeps dead rows as well.
func TestTheBloatCheckNamesASessionThatHasWrittenAndIdles(t *testing.T) {
	needs.CI(t)
	db := newDatabase(t)
	db.Enqueue(t, "TX", 2000)
	forgotten, err := open(t, db.URL).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer forgotten.Rollback()
	var pid int
	if err := forgotten.QueryRow(`INSERT INTO outbox.task (task_type) VALUES ('TX') RETURNING pg_backend_pid()`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	db.Do(t, `DELETE FROM outbox.task`)
	eventually(t, 30*time.Second, "it warns", func() bool {
		log, _ := bloatOf(t, db, 1000)
		return strings.Contains(log, "while a session may still see them") && strings.Contains(log, "pid="+strconv.Itoa(pid))
	})
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

// A role that sees less of other sessions is told which right would show it.
func TestTheBloatCheckNeedsNoSuperuser(t *testing.T) {
	db := newDatabase(t)
	name := fmt.Sprint("app_", time.Now().UnixNano())
	db.Do(t, `CREATE ROLE `+name+` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() { db.Do(t, `DROP OWNED BY `+name+`; DROP ROLE `+name) })
	db.Do(t, `GRANT USAGE ON SCHEMA outbox TO `+name)
	forgotten, err := db.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
	if err != nil {
		t.Fatal(err)
	}
	defer forgotten.Rollback()
	var pid int
	if err := forgotten.QueryRow(`SELECT pg_backend_pid() FROM (SELECT count(*) FROM outbox.task) t`).Scan(&pid); err != nil {
		t.Fatal(err)
	}
	db.Enqueue(t, "TX", 2000)
	db.Do(t, `DELETE FROM outbox.task`)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(name, "secret")
	app := open(t, u.String())
	defer app.Close()
	eventually(t, 30*time.Second, "it warns", func() bool {
		db.Do(t, `SELECT 1`) // sends the statistics of what this session did
		log, _ := bloatOf(t, app, 1000)
		return strings.Contains(log, "pid="+strconv.Itoa(pid)) && strings.Contains(log, "pg_read_all_stats")
	})
}
