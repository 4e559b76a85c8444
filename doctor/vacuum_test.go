package doctor_test

import (
	"database/sql"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
)

// Whatever a forgotten transaction has done, its session is named.
func TestAHeldTransactionIsFoundWithItsSession(t *testing.T) {
	needs.CI(t)
	for name, test := range map[string]struct {
		level     sql.IsolationLevel
		statement string
		effect    string
	}{
		"it has read":     {sql.LevelDefault, `SELECT count(*) FROM outbox.task`, "keeps its locks and its connection"},
		"it has written":  {sql.LevelDefault, `INSERT INTO outbox.task (task_type) VALUES ('A')`, "vacuum can remove no rows that died since"},
		"it has snapshot": {sql.LevelRepeatableRead, `SELECT count(*) FROM outbox.task`, "vacuum can remove no rows that died since"},
	} {
		t.Run(name, func(t *testing.T) {
			db := ill(t)
			pid, end := hold(t, db, test.level, test.statement)
			fine(t, diagnosis(t, db), "held-transaction")
			subject := "pid " + strconv.Itoa(pid)
			f := one(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)), "held-transaction", doctor.Warning, subject,
				"idle in transaction", test.effect, "pg_terminate_backend("+strconv.Itoa(pid)+")")
			if strings.Contains(f.What, "outbox.task") {
				t.Errorf("it shows the query: %s", f.What)
			}
			end()
			fine(t, diagnosis(t, db, doctor.HeldFor(time.Minute)), "held-transaction")
		})
	}
}

func TestAPreparedTransactionIsFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"max_prepared_transactions": "2"})

	prepare := func(statement, id string) {
		t.Helper()
		tx, err := db.Begin()
		if err == nil {
			_, err = tx.Exec(statement + `; PREPARE TRANSACTION ` + id)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = tx.Rollback()
	}
	prepare(`INSERT INTO outbox.task (task_type) VALUES ('A')`, `'the bank''s'`)
	fine(t, diagnosis(t, db), "prepared-transaction")
	f := one(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)), "prepared-transaction", doctor.Warning, "the bank's", "vacuum can remove no rows", `ROLLBACK PREPARED 'the bank''s'`)
	_, rollback, _ := strings.Cut(f.Do, " or ")
	db.Do(t, rollback)
	fine(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)), "prepared-transaction")

	prepare(`LOCK TABLE outbox.task IN EXCLUSIVE MODE`, `'locker'`)
	short := doctor.Thresholds(1<<40, 1<<40, 10*time.Millisecond)
	eventually(t, 10*time.Second, "its lock is found", func() bool {
		return doctor.Worst(of(diagnosis(t, db, short), "lock-wait")) == doctor.Critical
	})
	one(t, diagnosis(t, db, short), "lock-wait", doctor.Critical, "locker", "ExclusiveLock", "ROLLBACK PREPARED 'locker'")
	db.Do(t, `ROLLBACK PREPARED 'locker'`)
}

func TestAStandbyAndItsSlotAreFound(t *testing.T) {
	needs.Long(t)
	server := pgtest.Local(t, map[string]string{"max_wal_senders": "5", "max_replication_slots": "5"})
	if err := relaytest.Migrate(server.URL()); err != nil {
		t.Fatal(err)
	}
	db := direct(t, server.URL(), "postgres")
	standby := pgtest.Standby(t, server)
	there := direct(t, standby.URL(), "postgres")
	there.Do(t, `ALTER SYSTEM SET hot_standby_feedback = on`)
	there.Do(t, `ALTER SYSTEM SET wal_receiver_status_interval = '1s'`)
	there.Do(t, `SELECT pg_reload_conf()`)
	// Of a standby the doctor says that it is one, and reads nothing that it could not.
	found := diagnosis(t, there)
	one(t, found, "primary", doctor.Info, "", "standby")
	for _, f := range found {
		if f.Severity == doctor.Unknown {
			t.Errorf("on a standby: %+v", f)
		}
	}
	hold(t, there, sql.LevelRepeatableRead, `SELECT count(*) FROM outbox.task`)
	eventually(t, 30*time.Second, "the standby has sent its snapshot", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_stat_replication WHERE backend_xmin IS NOT NULL`) == 1
	})
	fine(t, diagnosis(t, db), "standby-feedback")
	db.Do(t, `DO $$ BEGIN FOR i IN 1..51000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	one(t, diagnosis(t, db), "standby-feedback", doctor.Warning, "walreceiver", "hot_standby_feedback", "transactions ago")

	db.Do(t, `SELECT pg_create_physical_replication_slot('copy')`)
	there.Do(t, `ALTER SYSTEM SET primary_slot_name = 'copy'`)
	there.Do(t, `SELECT pg_reload_conf()`)
	eventually(t, 30*time.Second, "the slot has the snapshot", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL AND active`) == 1
	})
	found = diagnosis(t, db)
	one(t, found, "replication-slot", doctor.Warning, "copy", "active")
	fine(t, found, "standby-feedback")
	if err := standby.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the slot is left alone", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_replication_slots WHERE xmin IS NOT NULL AND NOT active`) == 1
	})
	f := one(t, diagnosis(t, db), "replication-slot", doctor.Warning, "copy", "inactive", `pg_drop_replication_slot('copy')`)
	db.Do(t, f.Do[strings.Index(f.Do, "SELECT"):])
	fine(t, diagnosis(t, db), "replication-slot", "standby-feedback")
}

func TestAutovacuumThatIsOffIsFound(t *testing.T) {
	needs.Long(t)
	for change, want := range map[string]string{
		`ALTER TABLE outbox.task SET (autovacuum_enabled = false)`:                 "task",
		`ALTER TABLE outbox.dead_task SET (autovacuum_enabled = off)`:              "dead_task",
		`ALTER TABLE outbox.counter_log RESET (autovacuum_vacuum_scale_factor)`:    "counter_log",
		`ALTER TABLE outbox.running SET (autovacuum_vacuum_scale_factor = 0.2)`:    "running",
		`ALTER TABLE outbox.headless_key SET (autovacuum_vacuum_scale_factor = 1)`: "headless_key",
		`ALTER TABLE outbox.counter RESET (autovacuum_vacuum_scale_factor)`:        "counter",
		`ALTER TABLE outbox.task SET (autovacuum_vacuum_threshold = 2000000000)`:   "task",
		`ALTER TABLE outbox.unique_key SET (autovacuum_vacuum_cost_delay = 100)`:   "unique_key",
		`ALTER TABLE outbox.task SET (autovacuum_vacuum_threshold = 500)`:          "",
		`CREATE TABLE public.task (n int) WITH (autovacuum_enabled = false)`:       "",
	} {
		db := ill(t)
		db.Do(t, change)
		found := diagnosis(t, db)
		if want == "" {
			fine(t, found, "autovacuum")
			continue
		}
		f := one(t, found, "autovacuum", doctor.Warning, want, "ALTER TABLE outbox."+want)
		db.Do(t, f.Do)
		fine(t, diagnosis(t, db), "autovacuum")
	}

	db := local(t, map[string]string{"autovacuum": "off", "autovacuum_naptime": "1d"})
	found := diagnosis(t, db)
	one(t, found, "autovacuum", doctor.Critical, "autovacuum", "on the command line")
	one(t, found, "autovacuum", doctor.Warning, "autovacuum_naptime", "24:00:00", "ALTER SYSTEM SET autovacuum_naptime = '1min'")

	name := db.Text(t, `SELECT quote_ident(current_database())`)
	db.Do(t, `ALTER DATABASE `+name+` SET track_counts = off`)
	f := one(t, diagnosis(t, again(t, db)), "autovacuum", doctor.Critical, "track_counts", "ALTER DATABASE "+name+" RESET track_counts")
	statement, _, _ := strings.Cut(f.Do, ",")
	db.Do(t, statement)
	db.Do(t, `ALTER SYSTEM SET track_counts = off`)
	db.Do(t, `SELECT pg_reload_conf()`)
	eventually(t, 10*time.Second, "it is read", func() bool { return again(t, db).Text(t, `SHOW track_counts`) == "off" })
	one(t, diagnosis(t, again(t, db)), "autovacuum", doctor.Critical, "track_counts", "ALTER SYSTEM SET track_counts = on")
}

// What failed in a transaction that was left open keeps its connection, and PostgreSQL forgets when
// it began.
func TestAnAbortedTransactionIsFound(t *testing.T) {
	db := ill(t)
	tx, pid, _ := begin(t, db, sql.LevelDefault)
	if _, err := tx.Exec(`SELECT 1/0`); err == nil {
		t.Fatal("no error")
	}
	one(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)), "held-transaction", doctor.Warning, "pid "+strconv.Itoa(pid), "idle in transaction (aborted)", `ALTER DATABASE "`)
}

func TestDeadRowsThatNobodyRemovesAreFound(t *testing.T) {
	needs.CI(t)
	db := ill(t)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off)`)
	db.Enqueue(t, "A", 2000)
	db.Do(t, `DELETE FROM outbox.task`)
	few := doctor.Thresholds(1500, 1<<40, time.Hour)
	var found []doctor.Finding
	eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
		found = diagnosis(t, db, few)
		return doctor.Worst(of(found, "dead-rows")) > doctor.OK
	})
	fine(t, diagnosis(t, db), "dead-rows")
	f := one(t, found, "dead-rows", doctor.Warning, "task", "2000 dead and", "never vacuumed", "VACUUM (ANALYZE) outbox.task")
	statement, _, _ := strings.Cut(f.Do, ";")
	db.Do(t, statement)
	eventually(t, 30*time.Second, "they are gone", func() bool { return doctor.Worst(of(diagnosis(t, db, few), "dead-rows")) == doctor.OK })
}

func TestAnIndexThatIsMuchLargerThanItsEntriesIsFound(t *testing.T) {
	needs.CI(t)
	db := ill(t)
	db.Enqueue(t, "A", 20_000)
	small := doctor.Thresholds(1<<40, 256<<10, time.Hour)
	db.Do(t, `VACUUM ANALYZE outbox.task`)
	eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
		return db.Int(t, `SELECT n_live_tup FROM pg_stat_user_tables WHERE relname = 'task' AND schemaname = 'outbox'`) >= 20_000
	})
	fine(t, diagnosis(t, db, small), "index-bloat")
	db.Do(t, `DELETE FROM outbox.task WHERE task_id % 100 <> 0`)
	var found []doctor.Finding
	eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
		// Again, as those of the DELETE may arrive after those of a VACUUM, and be added to them.
		db.Do(t, `VACUUM ANALYZE outbox.task`)
		found = diagnosis(t, db, small)
		return doctor.Worst(of(found, "index-bloat")) > doctor.OK
	})
	fine(t, diagnosis(t, db), "index-bloat")
	f := one(t, found, "index-bloat", doctor.Warning, "task_lane", "200 entries")
	statement, _, _ := strings.Cut(f.Do, ",")
	db.Do(t, statement)
	for _, f := range of(diagnosis(t, db, small), "index-bloat") {
		if f.Subject == "task_lane" {
			t.Errorf("after %s: %+v", statement, f)
		}
	}
}

// waits executes a statement that waits for a lock, until done is closed.
func waits(t *testing.T, db *database, statement string) (done chan struct{}) {
	t.Helper()
	done = make(chan struct{})
	waiter := direct(t, db.URL)
	go func() {
		defer close(done)
		_, _ = waiter.Exec(statement)
	}()
	eventually(t, 10*time.Second, "it waits", func() bool {
		return db.Int(t, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
			WHERE datname = current_database() AND NOT granted AND waitstart < clock_timestamp() - interval '10 ms'`) > 0
	})
	return done
}

func TestWhoWaitsForALockIsFoundWithWhoHasIt(t *testing.T) {
	db := ill(t)
	pid, end := hold(t, db, sql.LevelDefault, `LOCK TABLE outbox.maintenance IN ACCESS EXCLUSIVE MODE`)
	done := waits(t, db, `UPDATE outbox.maintenance SET due_at = now()`)
	short := doctor.Thresholds(1<<40, 1<<40, 10*time.Millisecond)
	found := diagnosis(t, db, short, doctor.Timeout(time.Second))
	one(t, found, "lock-wait", doctor.Critical, "maintenance", "1 session waits for RowExclusiveLock", "pid "+strconv.Itoa(pid))
	one(t, found, "lock-wait", doctor.Critical, "pid "+strconv.Itoa(pid), "has locked the table maintenance by AccessExclusiveLock", "pg_terminate_backend")
	// What cannot be read meanwhile is reported, and all else is looked at.
	one(t, found, "maintenance", doctor.Unknown, "", "another session holds a lock", "see lock-wait")
	fine(t, found, "relays", "schema-version", "dead-letters", "clock")
	end()
	<-done
	fine(t, diagnosis(t, db, short), "lock-wait", "maintenance")
}

// A row, or a unique key, of a transaction that does not end.
func TestWhoWaitsForAnothersTransactionIsFoundWithIt(t *testing.T) {
	db := ill(t)
	const statement = `INSERT INTO outbox.task_type (task_type) VALUES ('A')`
	pid, end := hold(t, db, sql.LevelDefault, statement)
	done := waits(t, db, statement)
	fine(t, diagnosis(t, db), "lock-wait")
	one(t, diagnosis(t, db, doctor.Thresholds(1<<40, 1<<40, 10*time.Millisecond)), "lock-wait", doctor.Warning, "", "1 session waits for another transaction's end", "pid "+strconv.Itoa(pid))
	end()
	<-done
}
