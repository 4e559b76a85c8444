package doctor_test

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/needs"
	"github.com/txoutbox/outbox/internal/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

// worker is the id of a relay that is alive for minutes, or dead for an hour, by its row alone.
func worker(t testing.TB, db *database, alive bool, workers, connections int, types ...string) string {
	t.Helper()
	until := "now() + interval '5 minutes'"
	if !alive {
		until = "now() - interval '1 hour'"
	}
	return db.Text(t, fmt.Sprintf(`INSERT INTO outbox.relay (relay_id, host, pid, started_at, alive_until, task_types, workers, connections)
		VALUES (gen_random_uuid(), 'worker-7', 4711, now() + interval '1 s', %s, string_to_array('%s', ','), NULLIF(%d, 0), NULLIF(%d, 0)) RETURNING relay_id`,
		until, strings.Join(types, ","), workers, connections))
}

// Nothing is wrong with an outbox as it should be, whoever looks.
func TestAHealthyOutboxHasNoWarning(t *testing.T) {
	server := pgtest.Local(t, map[string]string{"fsync": "on"})
	db := relaytest.Adopt(t, server.URL())
	if err := schema.GrantRoles(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	reg := handlers.New()
	ran := make(chan struct{}, 10)
	handlers.Leased(reg, outbox.NewTaskType[relaytest.Payload]("MAIL"), func(context.Context, *outbox.Task[relaytest.Payload]) error {
		ran <- struct{}{}
		return nil
	})
	handlers.Tx(reg, outbox.NewTaskType[relaytest.Payload]("TX"), relaytest.TxEffect)
	relaytest.Run(t, open(t, db.URL).DB, reg, relay.Config{})
	db.Enqueue(t, "MAIL", 3)
	db.Enqueue(t, "TX", 3)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('TX', now() + interval '1 hour')`)
	for range 3 {
		<-ran
	}
	eventually(t, 30*time.Second, "all is done", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 1 })
	viewer, _ := as(t, db, "outbox_viewer", "pg_monitor")
	for name, who := range map[string]*database{"owner, lib/pq": open(t, db.URL, "postgres"), "owner, pgx": open(t, db.URL, "pgx"), "viewer": viewer} {
		if found := diagnosis(t, who); doctor.Worst(found) > doctor.Info {
			t.Errorf("%s:\n%s", name, printed(found))
		}
	}
	one(t, diagnosis(t, db), "relays", doctor.OK, "", "1 relay alive")
	db.Do(t, `DELETE FROM outbox.task`)
}

func TestTypesThatNoRelayHandlesAreFound(t *testing.T) {
	db := ill(t)
	one(t, diagnosis(t, db), "relays", doctor.Info, "", "no relay is alive; there is nothing to do")
	finds(t, db, `INSERT INTO outbox.task (task_type, run_at) VALUES ('LATER', now() + interval '1 hour')`, "relays", doctor.Warning, "", "1 task to come")
	finds(t, db, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid(), run_at = now()`, "unhandled-type", doctor.Info, "", "see relays")
	db.Do(t, `DELETE FROM outbox.task`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('LATER', now() + interval '1 hour')`)
	db.Enqueue(t, "GONE", 2)
	db.Enqueue(t, "HERE", 1)
	found := diagnosis(t, db)
	one(t, found, "relays", doctor.Critical, "", "no relay is alive, and 3 tasks are ready", "Relay.Run")
	one(t, found, "unhandled-type", doctor.Warning, "GONE", "2 tasks wait")
	one(t, found, "unhandled-type", doctor.Warning, "HERE", "1 task waits")
	one(t, found, "unhandled-type", doctor.Info, "LATER", "1 task waits")
	one(t, found, "starving-type", doctor.Info, "", "see relays")

	worker(t, db, true, 10, 12, "HERE", "OTHER")
	worker(t, db, false, 10, 12, "GONE")
	found = diagnosis(t, db)
	fine(t, found, "relays")
	one(t, found, "unhandled-type", doctor.Warning, "GONE", "2 tasks wait", "of those that died the last one with a handler was ", "(pid 4711 on worker-7), silent for 1h", "ended in order are not on record", "register a handler")
	one(t, found, "unhandled-type", doctor.Info, "LATER", "1 task waits")
	number(t, found, "unhandled-type", 2)
	worker(t, db, true, 10, 12, "GONE", "LATER")
	fine(t, diagnosis(t, db), "unhandled-type")
}

func TestManyFindingsAreCutShort(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "HERE")
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'T' || n FROM generate_series(1, 45) n`)
	found := of(diagnosis(t, db), "unhandled-type")
	if len(found) != 21 || !strings.Contains(found[20].What, "25 more") || found[20].Severity != doctor.Warning {
		t.Errorf("got %d findings:\n%s", len(found), printed(found))
	}
}

func TestPausedTypesWithTasksAreFound(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "A")
	if err := outbox.InTx(t.Context(), db.DB, func(tx *sql.Tx) error { return relaytest.Admin(t, db.DB).In(tx).PauseType(t.Context(), "A") }); err != nil {
		t.Fatal(err)
	}
	fine(t, diagnosis(t, db), "paused-type")
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('A', now() - interval '10 minutes')`)
	found := diagnosis(t, db)
	one(t, found, "paused-type", doctor.Info, "A", "1 task waits", "the next one for 10m", "admin.Client.ResumeType")
	fine(t, found, "starving-type")
	finds(t, db, `UPDATE outbox.task SET run_at = now() - interval '2 hours'`, "paused-type", doctor.Warning, "A")
}

func TestTypesThatStarveAreFound(t *testing.T) {
	db := ill(t)
	id := worker(t, db, true, 2, 12, "A", "B")
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at) VALUES ('A', now() - interval '35 s'), ('B', now())`)
	fine(t, diagnosis(t, db), "starving-type")
	soon := doctor.StarvingFor(30 * time.Second)
	f := one(t, diagnosis(t, db, soon), "starving-type", doctor.Warning, "A", "due for", "1 task is ready", "1 living relay has", "0 of 2 workers are busy")
	if strings.Contains(f.What, "B") {
		t.Errorf("it is about more than A: %+v", f)
	}
	db.Do(t, `INSERT INTO outbox.running (task_id, token, relay_id) SELECT n, gen_random_uuid(), $1::uuid FROM generate_series(1, 2) n`, id)
	one(t, diagnosis(t, db, soon), "starving-type", doctor.Warning, "A", "all 2 workers are busy", "relay.Config.Workers")
	db.Do(t, `INSERT INTO outbox.task_type (task_type, max_running) VALUES ('A', 1)`)
	one(t, diagnosis(t, db, soon), "starving-type", doctor.Info, "A", "a limit of runs or a rate")
	db.Do(t, `UPDATE outbox.task_type SET max_running = NULL, rate = 5, rate_per = 1000000`)
	one(t, diagnosis(t, db, soon), "starving-type", doctor.Info, "A", "a limit of runs or a rate")
	finds(t, db, `DELETE FROM outbox.task; INSERT INTO outbox.task (task_type, state, run_at) VALUES ('B', 'scheduled', now() - interval '5 minutes')`, "starving-type", doctor.Warning, "B", "a scheduled task of the type B has been due for 5m")
}

// A relay's row says what its pool may have; New refuses one that is too small, but a pool can be
// made smaller later.
func TestPoolsThatAreTooSmallAreFound(t *testing.T) {
	needs.CI(t)
	db := relaytest.NewDatabase(t)
	pool := open(t, db.URL)
	reg := handlers.New()
	handlers.Leased(reg, outbox.NewTaskType[relaytest.Payload]("MAIL"), relaytest.LeasedEffect)
	r := relaytest.Prepare(t, pool.DB, reg, relay.Config{Workers: 10})
	pool.SetMaxOpenConns(5)
	r.Start()
	eventually(t, 30*time.Second, "the relay has a row", func() bool { return db.Int(t, `SELECT count(*) FROM outbox.relay`) == 1 })
	id := db.Text(t, `SELECT relay_id FROM outbox.relay`)
	one(t, diagnosis(t, db), "relay-pool", doctor.Warning, id, "limited to 5 connections, and it has 10 workers", "too small", "SetMaxOpenConns(12)")
	r.Stop()

	db.Do(t, `DELETE FROM outbox.relay`)
	id = worker(t, db, true, 100, 12, "MAIL")
	one(t, diagnosis(t, db), "relay-pool", doctor.Info, id, "only if all its handlers are Leased", "SetMaxOpenConns(102)")
	finds(t, db, `UPDATE outbox.relay SET connections = 11`, "relay-pool", doctor.Warning, id)
	db.Do(t, `UPDATE outbox.relay SET connections = 102`)
	fine(t, diagnosis(t, db), "relay-pool")
	db.Do(t, `UPDATE outbox.relay SET connections = NULL, workers = 5000`) // as many as they need, which is few if all handlers are Leased
	one(t, diagnosis(t, db), "relay-pool", doctor.Info, "", "may take 5002 connections together (or no more than 12", id)
	limit := db.Int(t, `SELECT current_setting('max_connections')::int`)
	db.Do(t, `UPDATE outbox.relay SET connections = $1, workers = 10`, limit*2/3)
	worker(t, db, true, 10, limit*2/3, "MAIL") // in the same process, so it may have the same pool
	one(t, diagnosis(t, db), "relay-pool", doctor.Info, "", fmt.Sprintf("may take %d connections together (or no more than %d", limit*2/3*2, limit*2/3))
	finds(t, db, `UPDATE outbox.relay SET host = relay_id::text`, "relay-pool", doctor.Warning, "", fmt.Sprintf("may take %d connections together,", limit*2/3*2), id)
	db.Do(t, `DELETE FROM outbox.relay WHERE relay_id <> $1::uuid`, id)
	finds(t, db, `UPDATE outbox.relay SET connections = 100000`, "relay-pool", doctor.Warning, "", "may take 100000 connections together", "PgBouncer")
	db.Do(t, `UPDATE outbox.relay SET workers = NULL, connections = NULL`)
	fine(t, diagnosis(t, db), "relay-pool")
	db.Do(t, `UPDATE outbox.relay SET alive_until = now() - interval '1 hour', workers = 10, connections = 1`)
	fine(t, diagnosis(t, db), "relay-pool")
}

func TestDeadRelaysWithLeasesAndOldOnesAreFound(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "A")
	dead := worker(t, db, false, 10, 12, "A")
	fine(t, diagnosis(t, db), "relays")
	db.Do(t, `INSERT INTO outbox.task (task_type, state, lease_token, relay_id) SELECT 'A', 'leased', gen_random_uuid(), $1::uuid FROM generate_series(1, 2)`, dead)
	one(t, diagnosis(t, db), "relays", doctor.Warning, dead, "dead for 1h0m", "2 leased tasks", "admin.Client.HandBack", "worker-7")
	db.Do(t, `UPDATE outbox.relay SET started_at = now() - interval '1 day' WHERE relay_id <> $1::uuid`, dead)
	one(t, diagnosis(t, db), "relays", doctor.Info, "", "1 of 1 living relay began before the newest migration")
}

func TestDeadLettersAreFoundByTypeAndReason(t *testing.T) {
	db := ill(t)
	db.Do(t, `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason, task_type, payload, last_error)
		SELECT -n, now(), now(), now() - interval '5 minutes', 0, 10, 10, CASE n % 4 WHEN 0 THEN 'attempts' WHEN 1 THEN 'handler' WHEN 2 THEN 'lost_connections' ELSE 'committed' END,
		       'MAIL', '{}', 'C4n4ry' FROM generate_series(1, 12) n`)
	found := diagnosis(t, db)
	for _, why := range []string{"used up their attempts", "given up by their handler", "lost the connection", "ended the relay's transaction"} {
		these := slices.DeleteFunc(of(found, "dead-letters"), func(f doctor.Finding) bool { return !strings.Contains(f.What, why) })
		number(t, these, "dead-letters", 1)
		one(t, these, "dead-letters", doctor.Warning, "MAIL", "3 tasks of the type MAIL", "5m")
	}
	one(t, found, "dead-letters", doctor.Info, "", "12 dead letters in all")
	db.Do(t, `UPDATE outbox.dead_task SET died_at = now() - interval '2 hours'`)
	fine(t, diagnosis(t, db), "dead-letters")
	finds(t, db, `INSERT INTO outbox.counter (task_type, kind, tasks, arrived) VALUES ('MAIL', 'dead', 100000, 0)`, "dead-letters", doctor.Warning, "", "there are 100012 dead letters", "relay.Config.DeadRetention")
}

func TestSchedulesAndMaintenanceThatAreLateAreFound(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "A")
	db.Do(t, `INSERT INTO outbox.schedule (name, next_at, paused, task_type, payload, timing, definition) VALUES
		('nightly', now() - interval '1 hour', false, 'A', '{}', '', ''), ('paused', now() - interval '1 hour', true, 'A', '{}', '', ''),
		('soon', now() + interval '1 hour', false, 'A', '{}', '', ''), ('now', now(), false, 'A', '{}', '', ''), ('ended', NULL, false, 'A', '{}', '', '')`)
	found := diagnosis(t, db)
	one(t, found, "schedules", doctor.Warning, "nightly", "1h0m", "relay.Config.Schedules")
	one(t, found, "schedules", doctor.Info, "ended")
	number(t, found, "schedules", 2)

	// Living relays that say which schedules they have.
	db.Do(t, `UPDATE outbox.schedule SET definition = name`)
	db.Do(t, `UPDATE outbox.relay SET schedules = '{"nightly": "nightly", "now": "now", "soon": "another", "gone": "gone"}'`)
	found = diagnosis(t, db)
	one(t, found, "schedules", doctor.Warning, "soon", "no living relay has")
	one(t, found, "schedules", doctor.Warning, "gone", "is missing")
	number(t, found, "schedules", 4)

	fine(t, found, "future-times")
	db.Do(t, `UPDATE outbox.relay SET alive_until = now() + interval '1 day'`)
	db.Do(t, `INSERT INTO outbox.task (task_type, run_at, attempted_at, attempt) VALUES ('A', now() + interval '1 day', now() + interval '1 day', 1)`)
	finds(t, db, `INSERT INTO outbox.maintenance (job, due_at) VALUES ('sample', now() + interval '1 day')`, "future-times", doctor.Warning, "maintenance", "1 row")
	found = diagnosis(t, db)
	one(t, found, "future-times", doctor.Warning, "task", "RunNow")
	one(t, found, "future-times", doctor.Warning, "relay")
	db.Do(t, `DELETE FROM outbox.maintenance`)

	fine(t, found, "maintenance")
	db.Do(t, `INSERT INTO outbox.maintenance (job, due_at) VALUES ('sample', now() - interval '1 hour'), ('fold', now() - interval '1 hour'), ('purge dead letters', now() - interval '1 day')`)
	db.Do(t, `DELETE FROM outbox.counter_log`)
	found = diagnosis(t, db)
	one(t, found, "maintenance", doctor.Warning, "sample", "1h0m")
	number(t, found, "maintenance", 1)
	finds(t, db, `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (1, 'A', 'ready')`, "maintenance", doctor.Warning, "fold")
	db.Do(t, `DELETE FROM outbox.relay`)
	fine(t, diagnosis(t, db), "maintenance")
}
