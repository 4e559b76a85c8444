package doctor_test

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/needs"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
)

func TestAHeldTransactionIsFoundWithItsSession(t *testing.T) {
	needs.CI(t)
	const keeps, vacuum = "keeps its locks and its connection", "vacuum can remove no rows that died since"
	for statement, effect := range map[string]string{
		`SELECT count(*) FROM outbox.task`:                 keeps,
		`INSERT INTO outbox.task (task_type) VALUES ('A')`: vacuum,
		`DECLARE c CURSOR FOR SELECT 1 FROM outbox.task`:   vacuum,
		`SELECT 1/0`: "idle in transaction (aborted)",
	} {
		t.Run(statement, func(t *testing.T) {
			db := ill(t)
			pid, end := hold(t, db, sql.LevelDefault, statement)
			fine(t, diagnosis(t, db), "held-transaction")
			f := has(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)),
				fmt.Sprintf("warning held-transaction pid %d … "+
					"idle in transaction … %s … pg_terminate_backend(%[1]d) … ALTER DATABASE ", pid, effect))
			if strings.Contains(f.Message, "outbox.task") {
				t.Errorf("it shows the query: %s", f.Message)
			}
			end()
			fine(t, diagnosis(t, db, doctor.HeldFor(time.Minute)), "held-transaction")
		})
	}
}

func TestAPreparedTransactionIsFound(t *testing.T) {
	needs.Long(t)
	db := local(t, map[string]string{"max_prepared_transactions": "2"})
	db.Do(t, `BEGIN; LOCK TABLE outbox.maintenance IN ACCESS EXCLUSIVE MODE; INSERT INTO outbox.task (task_type) VALUES ('A');
		PREPARE TRANSACTION 'the bank''s'`)
	fine(t, diagnosis(t, db), "prepared-transaction")
	done := waits(t, db, `UPDATE outbox.maintenance SET due_at = now()`)
	f := has(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond), soon),
		"warning prepared-transaction the bank's … vacuum can remove no rows … ROLLBACK PREPARED 'the bank''s'",
		"critical lock-wait … a prepared transaction … 1 session ")
	_, rollback, _ := strings.Cut(f.Remedy, " or ")
	db.Do(t, rollback)
	<-done
	fine(t, diagnosis(t, db, doctor.HeldFor(time.Millisecond)), "prepared-transaction")
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
	for _, setting := range []string{"hot_standby_feedback = on", "wal_receiver_status_interval = '1s'"} {
		there.Do(t, `ALTER SYSTEM SET `+setting)
	}
	there.Do(t, `SELECT pg_reload_conf()`)
	found := diagnosis(t, there)
	has(t, found, "info primary … standby")
	if strings.Contains(printed(found), "unknown") {
		t.Errorf("on a standby:\n%s", printed(found))
	}
	counted := func(what, sql string) {
		t.Helper()
		eventually(t, 30*time.Second, what, func() bool { return db.Int(t, `SELECT count(*) FROM `+sql) == 1 })
	}
	hold(t, there, sql.LevelRepeatableRead, `SELECT count(*) FROM outbox.task`)
	counted("the standby has sent its snapshot", `pg_stat_replication WHERE backend_xmin IS NOT NULL`)
	fine(t, diagnosis(t, db), "standby-feedback")
	db.Do(t, `DO $$ BEGIN FOR i IN 1..51000 LOOP PERFORM pg_current_xact_id(); COMMIT; END LOOP; END $$`)
	has(t, diagnosis(t, db), "warning standby-feedback walreceiver … hot_standby_feedback … transactions ago")

	db.Do(t, `SELECT pg_create_physical_replication_slot('copy')`)
	there.Do(t, `ALTER SYSTEM SET primary_slot_name = 'copy'`)
	there.Do(t, `SELECT pg_reload_conf()`)
	counted("the slot has the snapshot", `pg_replication_slots WHERE xmin IS NOT NULL AND active`)
	has(t, diagnosis(t, db), "warning replication-slot copy … active")
	if err := standby.Close(); err != nil {
		t.Fatal(err)
	}
	counted("the slot is left alone", `pg_replication_slots WHERE xmin IS NOT NULL AND NOT active`)
	f := has(t, diagnosis(t, db), "warning replication-slot copy … inactive … pg_drop_replication_slot('copy')")
	db.Do(t, f.Remedy[strings.Index(f.Remedy, "SELECT"):])
	fine(t, diagnosis(t, db), "replication-slot", "standby-feedback")
}

func TestAutovacuumThatIsOffIsFound(t *testing.T) {
	needs.Long(t)
	var faults []fault
	for change, table := range map[string]string{
		`task SET (autovacuum_enabled = false)`:               "task",
		`dead_task SET (autovacuum_enabled = off)`:            "dead_task",
		`counter_log RESET (autovacuum_vacuum_scale_factor)`:  "counter_log",
		`running SET (autovacuum_vacuum_scale_factor = 0.2)`:  "running",
		`task SET (autovacuum_vacuum_threshold = 2000000000)`: "task",
		`unique_key SET (autovacuum_vacuum_cost_delay = 100)`: "unique_key",
	} {
		faults = append(faults, fault{`ALTER TABLE outbox.` + change,
			[]string{"warning autovacuum " + table + " … ALTER TABLE outbox." + table}, "\n"})
	}
	findEach(t, append(faults, fault{change: `ALTER TABLE outbox.task SET (autovacuum_vacuum_threshold = 500);
		CREATE TABLE public.task (n int) WITH (autovacuum_enabled = false)`}))

	db := local(t, map[string]string{"autovacuum": "off", "autovacuum_naptime": "1d"})
	has(t, diagnosis(t, db), "critical autovacuum autovacuum … on the command line",
		"warning autovacuum autovacuum_naptime … 24:00:00 … ALTER SYSTEM SET autovacuum_naptime = '1min'")
	db.Do(t, `ALTER DATABASE postgres SET track_counts = off`)
	f := has(t, diagnosis(t, again(t, db)), "critical autovacuum track_counts … ALTER DATABASE postgres RESET "+
		"track_counts")
	statement, _, _ := strings.Cut(f.Remedy, ",")
	db.Do(t, statement)
	db.Do(t, `ALTER SYSTEM SET track_counts = off`)
	db.Do(t, `SELECT pg_reload_conf()`)
	eventually(t, 10*time.Second, "it is read",
		func() bool { return again(t, db).Text(t, `SHOW track_counts`) == "off" })
	has(t, diagnosis(t, again(t, db)), "critical autovacuum track_counts … ALTER SYSTEM SET track_counts = on")
}

func TestDeadRowsAndBloatAreFoundAndMended(t *testing.T) {
	needs.CI(t)
	db := ill(t)
	db.Do(t, `ALTER TABLE outbox.task SET (autovacuum_enabled = off)`)
	db.Enqueue(t, "A", 20_000)
	small := doctor.Thresholds(15_000, 256<<10, time.Hour)
	finds := func(check string) (found []doctor.Finding) {
		eventually(t, 30*time.Second, "the statistics have arrived", func() bool {
			found = diagnosis(t, db, small)
			return strings.Contains(printed(found), "warning "+check)
		})
		return found
	}
	db.Do(t, `DELETE FROM outbox.task WHERE task_id % 100 <> 0`)
	f := has(t, finds("dead-rows"), "warning dead-rows task … 19800 dead and … never vacuumed … VACUUM (ANALYZE) "+
		"outbox.task")
	statement, _, _ := strings.Cut(f.Remedy, ";")
	db.Do(t, statement)
	eventually(t, 30*time.Second, "they are gone", func() bool {
		return !strings.Contains(printed(diagnosis(t, db, small)), "warning dead-rows")
	})
	f = has(t, finds("index-bloat"), "warning index-bloat task_lane … 200 entries")
	statement, _, _ = strings.Cut(f.Remedy, ",")
	db.Do(t, statement)
	if found := printed(diagnosis(t, db, small)); strings.Contains(found, "index-bloat task_lane") {
		t.Errorf("after %s:\n%s", statement, found)
	}
	fine(t, diagnosis(t, db), "dead-rows", "index-bloat")
}

// soon has waits reported after 10 ms.
var soon = doctor.Thresholds(1<<40, 1<<40, 10*time.Millisecond)

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
			WHERE datname = current_database() AND NOT granted
			AND waitstart < clock_timestamp() - interval '10 ms'`) > 0
	})
	return done
}

// A handler or an Enqueue has locks of the outbox's, and waits for another of the app's own.
func TestAWaitForALockOfTheAppsOwnIsNotTheOutboxs(t *testing.T) {
	t.Parallel()
	db := ill(t)
	db.Do(t, `CREATE TABLE account (id int PRIMARY KEY, n int); INSERT INTO account VALUES (1, 0)`)
	for _, c := range needs.Few(t, map[string]struct{ held, waits string }{
		"a row":            {`UPDATE account SET n = 1`, `UPDATE account SET n = 2`},
		"a key":            {`INSERT INTO account VALUES (2, 0)`, `INSERT INTO account VALUES (2, 0)`},
		"a table":          {`LOCK TABLE account`, `SELECT FROM account`},
		"an advisory lock": {`SELECT pg_advisory_xact_lock(1)`, `SELECT pg_advisory_xact_lock(1)`},
	}, "a row") {
		_, end := hold(t, db, sql.LevelDefault, c.held)
		waiter := direct(t, db.URL)
		tx, err := waiter.BeginTx(t.Context(), nil)
		if err == nil {
			_, err = tx.Exec(`INSERT INTO outbox.task (task_type) VALUES ('A')`)
		}
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = tx.Exec(c.waits)
			_ = tx.Rollback()
		}()
		eventually(t, 30*time.Second, "it waits", func() bool {
			return db.Int(t, `SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
				WHERE datname = current_database() AND NOT granted AND waitstart < clock_timestamp() - interval '10 ms'`) > 0
		})
		// It waits for the table's lock as well, for half of the timeout.
		fine(t, diagnosis(t, db, soon, doctor.Timeout(6*time.Second)), "lock-wait")
		end()
		<-done
	}
}

func TestASessionThatHoldsUpOthersIsFound(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ held, waits, severity string }{
		"a table": {`LOCK TABLE outbox.maintenance IN ACCESS EXCLUSIVE MODE`,
			`UPDATE outbox.maintenance SET due_at = now()`, "critical"},
		"a key": {`INSERT INTO outbox.task_type (task_type) VALUES ('A')`,
			`INSERT INTO outbox.task_type (task_type) VALUES ('A')`, "warning"},
		"a row": {`UPDATE outbox.origin SET noted_at = now()`,
			`UPDATE outbox.origin SET noted_at = now()`, "warning"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := ill(t)
			pid, end := hold(t, db, sql.LevelDefault, c.held)
			done := waits(t, db, c.waits)
			if name == "a key" {
				fine(t, diagnosis(t, db, doctor.Thresholds(1<<40, 1<<40, time.Hour)), "lock-wait")
			}
			found := diagnosis(t, db, soon, doctor.Timeout(6*time.Second)) // half of it for a lock
			has(t, found, fmt.Sprintf("%s lock-wait pid %d … 1 session on … pg_terminate_backend", c.severity, pid))
			if name == "a table" { // the others are looked at
				has(t, found, "unknown maintenance … another session holds a lock … see lock-wait", "ok schema-version")
			}
			end()
			<-done
			fine(t, diagnosis(t, db, soon), "lock-wait", "maintenance")
		})
	}
}
