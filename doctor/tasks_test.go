package doctor_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox"
	"github.com/txoutbox/outbox/doctor"
	"github.com/txoutbox/outbox/handlers"
	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
	"github.com/txoutbox/outbox/internal/testing/relaytest"
	"github.com/txoutbox/outbox/relay"
	"github.com/txoutbox/outbox/schema"
)

func TestAHealthyOutboxHasNoWarning(t *testing.T) {
	server := pgtest.Local(t, map[string]string{"fsync": "on"})
	db := relaytest.Adopt(t, server.URL())
	if err := schema.GrantRoles(t.Context(), db.DB); err != nil {
		t.Fatal(err)
	}
	reg := handlers.New()
	ran := make(chan struct{}, 10)
	mail := outbox.NewTaskType[relaytest.Payload]("MAIL")
	handlers.Leased(reg, mail, func(context.Context, *outbox.Task[relaytest.Payload]) error {
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
	eventually(t, 30*time.Second, "all is done",
		func() bool { return db.Int(t, `SELECT count(*) FROM outbox.task`) == 1 })
	viewer, _ := as(t, db, "outbox_viewer", "pg_monitor")
	for name, pool := range map[string]*database{
		"owner, lib/pq": open(t, db.URL, "postgres"), "owner, pgx": open(t, db.URL, "pgx"), "viewer": viewer,
	} {
		found := slices.DeleteFunc(diagnosis(t, pool), func(f doctor.Finding) bool { return f.Check == "server-version" })
		if doctor.Worst(found).AtLeast(doctor.SeverityUnknown) { // the server of the tests may be old
			t.Errorf("%s:\n%s", name, printed(found))
		}
		has(t, found, "ok relays … 1 relay alive")
	}
	db.Do(t, `DELETE FROM outbox.task`)
}

func TestFaultsOfRelaysAndTasksAreFound(t *testing.T) {
	const (
		none   = `DELETE FROM outbox.relay; `
		later  = `INSERT INTO outbox.task (task_type, run_at) VALUES ('LATER', now() + interval '1 hour')`
		here   = `INSERT INTO outbox.task (task_type, run_at) VALUES ('A', now() - interval '40 minutes')`
		paused = `; INSERT INTO outbox.task_type (task_type, paused) VALUES ('A', true)`
		dead   = `; UPDATE outbox.relay SET alive_until = now() - interval '1 hour'`
		leased = `INSERT INTO outbox.task (task_type, state, lease_token, relay_id)
			SELECT 'A', 'leased', gen_random_uuid(), relay_id FROM outbox.relay, generate_series(1, 2)`
		noRelay = "info starving-type … see relays"
	)
	findEach(t, []fault{
		{none, []string{"info relays … no relay is alive; there is nothing to do"}, ""},
		{none + later, []string{"warning relays … 1 task to come", "info unhandled-type LATER … 1 task waits", noRelay},
			""},
		{none + here, []string{"critical relays … no relay is alive, and 1 task is ready … Relay.Run",
			"warning unhandled-type A … 1 task waits", noRelay}, ""},
		{leased + `; ` + none, []string{"warning relays … 2 tasks to come", "info unhandled-type … see relays",
			noRelay}, ""},
		{here + dead, []string{"critical relays … the last one that died was", noRelay,
			"warning unhandled-type A … the last one with a handler was … (pid 4711 on worker-7), silent for 1h"}, ""},
		{later, []string{"info unhandled-type LATER … 1 task waits … register a handler"}, ""},
		{`UPDATE outbox.relay SET started_at = now() - interval '1 day'`,
			[]string{"info relays … 1 of 1 living relay began before the newest migration"}, ""},
		{here + paused, []string{"info paused-type A … 1 task waits … the next one for 4#m … admin.Client.ResumeType"},
			""},
		{here + paused + `; UPDATE outbox.task SET run_at = now() - interval '2 hours'`,
			[]string{"warning paused-type A"}, ""},
		{here, []string{"warning starving-type A … due for 4#m … 1 task is ready … 1 living relay has … 0 of 10 " +
			"workers are busy"}, ""},
		{here + `; INSERT INTO outbox.running (task_id, token, relay_id)
			SELECT n, gen_random_uuid(), relay_id FROM outbox.relay, generate_series(1, 10) n;
			SELECT setval('outbox.task_task_id_seq', 99)`,
			[]string{"warning starving-type A … all 10 workers are busy … relay.Config.Workers"}, ""},
		{here + `; INSERT INTO outbox.task_type (task_type, max_running) VALUES ('A', 1)`,
			[]string{"info starving-type A … a limit of runs or a rate"}, ""},
		{here + `; INSERT INTO outbox.task_type (task_type, rate, rate_per) VALUES ('A', 5, 1000000)`,
			[]string{"info starving-type A … a limit of runs or a rate"}, ""},
		{`INSERT INTO outbox.task (task_type, state, run_at) VALUES ('B', 'scheduled', now() - interval '40 minutes')`,
			[]string{"warning starving-type B … a scheduled task of the type B has been due for 4#m"}, ""},
		{`INSERT INTO outbox.task (task_type, state, attempt, last_error, run_at)
			VALUES ('A', 'scheduled', 1, E'no such\nhost', now() + interval '1 hour');
			INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (7, 'A', 'failed');
			INSERT INTO outbox.sample (task_type, at, ready, scheduled, leased, waiting, dead, finished, failed, oldest_ready)
			VALUES ('', now() - interval '1 minute', 0, 0, 0, 0, 0, 0, 0, 0)`,
			[]string{"warning failing-type A … failed runs: 7, finished tasks: 0, since … " +
				"-state retrying … outbox pause TYPE"},
			""},
		{`UPDATE outbox.relay SET connections = 11`,
			[]string{"warning relay-pool " + alive + " … limited to 11 connections, and it has 10 workers"}, ""},
		{`UPDATE outbox.relay SET workers = 100`,
			[]string{"info relay-pool " + alive + " … only if all its handlers are Leased … SetMaxOpenConns(102)"}, ""},
		{`UPDATE outbox.relay SET connections = 100000`,
			[]string{"warning relay-pool … may take 100000 connections together … PgBouncer"}, ""},
	})
}

// The relays of one process may share a pool, and dead ones and those of unknown size have none.
func TestPoolsThatFitTheServerAreNoFault(t *testing.T) {
	db := ill(t)
	limit := db.Int(t, `SELECT current_setting('max_connections')::int`)
	worker(t, db, true, 10, limit*2/3, "A")
	worker(t, db, true, 10, limit*2/3, "A")
	worker(t, db, true, 5000, 0, "A")
	worker(t, db, true, 0, 0, "A")
	worker(t, db, false, 10, 1, "A")
	fine(t, diagnosis(t, db), "relay-pool")
	db.Do(t, `UPDATE outbox.relay SET host = relay_id::text`)
	has(t, diagnosis(t, db), "warning relay-pool … connections together")
}

func TestLeasesOfADeadRelayAreFound(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "A")
	dead := worker(t, db, false, 10, 12, "A")
	fine(t, diagnosis(t, db), "relays")
	db.Do(t, `INSERT INTO outbox.task (task_type, state, lease_token, relay_id)
		SELECT 'A', 'leased', gen_random_uuid(), $1::uuid FROM generate_series(1, 2)`, dead)
	only(t, diagnosis(t, db), "warning relays "+dead+" … dead for 1h … 2 leased tasks … admin.Client.HandBack … "+
		"worker-7")
}

func TestManyFindingsAreCutShort(t *testing.T) {
	db := ill(t)
	worker(t, db, true, 10, 12, "HERE")
	db.Do(t, `INSERT INTO outbox.task (task_type) SELECT 'T' || n FROM generate_series(1, 45) n`)
	found := diagnosis(t, db)
	has(t, found, "warning unhandled-type … 25 more")
	if n := strings.Count(printed(found), "warning unhandled-type "); n != 21 {
		t.Errorf("%d findings, want 20 and the rest", n)
	}
}

func TestDeadLettersAreFoundByTypeAndReason(t *testing.T) {
	const bury = `INSERT INTO outbox.dead_task (task_id, run_at, created_at, died_at, priority, attempt, max_attempts, reason,
			task_type, payload)
		SELECT -n, now(), now(), now() - interval '%s', 0, 10, 10, CASE n %% 2 WHEN 0 THEN 'attempts' ELSE 'handler' END,
			'MAIL', '{}' FROM generate_series(1, 6) n;
		INSERT INTO outbox.counter_log (tasks, arrived, task_type, kind) VALUES (0, 6, 'MAIL', 'ready'); `
	findEach(t, []fault{
		{fmt.Sprintf(bury, "20 minutes"), []string{"warning dead-letters MAIL … of the type MAIL … 3, the latest 00:2#:## ago … all " +
			"attempts were used",
			"warning dead-letters MAIL … its handler gave it up", "info dead-letters … dead letters in all: 6"}, ""},
		{fmt.Sprintf(bury, "2 hours"), []string{"info dead-letters … dead letters in all: 6"}, ""},
		{fmt.Sprintf(bury, "2 hours") + `INSERT INTO outbox.counter (task_type, kind, tasks, arrived)
			VALUES ('MAIL', 'dead', 100000, 0)`, []string{"warning dead-letters … dead letters in all: 100006 … " +
			"relay.Config.DeadRetention",
			"warning counts MAIL dead", "warning counts MAIL finished"}, ""},
	})
}

func TestSchedulesAndMaintenanceThatAreLateAreFound(t *testing.T) {
	const (
		schedules = `INSERT INTO outbox.schedule (name, next_at, paused, task_type, payload, timing, definition) VALUES
			('nightly', now() - interval '20 hours', false, 'A', '{}', '', 'nightly'),
			('paused', now() - interval '20 hours', true, 'A', '{}', '', 'paused'),
			('soon', now() + interval '1 hour', false, 'A', '{}', '', 'soon'),
			('ended', NULL, false, 'A', '{}', '', 'ended'); `
		jobs = `INSERT INTO outbox.maintenance (job, due_at) SELECT job, now() - interval '20 hours'
			FROM unnest(ARRAY['sample', 'fold', 'purge dead letters']) job; `
	)
	late, ended := "warning schedules nightly … fired 20:##:## ago … relay.Config.Schedules", "info schedules ended"
	findEach(t, []fault{
		{schedules, []string{late, ended}, ""},
		{schedules + `UPDATE outbox.relay SET schedules = '{"nightly": "nightly", "soon": "another", "gone": "gone"}'`,
			[]string{late, ended, "warning schedules soon … no living relay has",
				"warning schedules gone … is missing"}, ""},
		{`UPDATE outbox.relay SET schedules = '{}'; INSERT INTO outbox.schedule (name, stored, task_type, payload,
			spec, timing, definition, wrong) VALUES
			('new', true, 'A', '{}', '1h', '', 'n', NULL), ('bad', true, 'A', '{}', 'x', '', 'b', 'Cron: 100% wrong')`,
			[]string{"warning schedules new … no living relay fires the stored schedule new … ParseSchedule",
				"warning schedules bad … no living relay fires", "warning schedules bad … bad: Cron: 100% wrong"},
			""},
		{jobs, []string{"warning maintenance sample … due for 20:##:##,"}, ""},
		{jobs + `INSERT INTO outbox.counter_log (tasks, task_type, kind) VALUES (0, 'A', 'ready')`,
			[]string{"warning maintenance sample", "warning maintenance fold"}, ""},
		{jobs + `DELETE FROM outbox.relay`, []string{"info relays"}, ""},
		{`INSERT INTO outbox.maintenance (job, due_at) VALUES ('sample', now() + interval '1 day')`,
			[]string{"warning future-times maintenance … in 1 rows"}, ""},
		{`UPDATE outbox.relay SET alive_until = now() + interval '1 day'`, []string{"warning future-times relay"}, ""},
		{`INSERT INTO outbox.task (task_type, state, run_at, attempted_at)
			VALUES ('A', 'scheduled', now() + interval '1 day', now() + interval '1 day')`,
			[]string{"warning future-times task … the function RunNow", "warning counts A finished"}, ""},
	})
}
