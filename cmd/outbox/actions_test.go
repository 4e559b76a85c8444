package main

import (
	"strings"
	"testing"
	"time"

	"github.com/txoutbox/outbox/internal/testing/devpg/pgtest"
)

func TestEnqueueTakesJSONFromTheArgumentOrStdin(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.steps(t,
		step{`enqueue REPORT {"n":1} -priority -5 -after 1h -attempts 3 -unique u1 -ordered o1 -header a=b=c ` +
			`-header d= -expires-after 1h -unique-for 3h`, 0,
			"task 1: created\n"},
		step{`enqueue REPORT {} -unique u1`, 0, "task 1: skipped\n"},
		step{`enqueue REPORT {"n":1`, exitUsage, "not JSON"},
		step{`enqueue REPORT "\u0000"`, exitUsage, "payload"},
		step{`enqueue REPORT {} -priority 70000`, exitUsage, "70000"},
		step{`enqueue REPORT {} -at tomorrow`, exitUsage, "--at"},
		step{`enqueue REPORT {} -at 2030-01-01 -after 1h`, exitUsage, "exclude each other"},
		step{`enqueue REPORT {} -header x`, exitUsage, "NAME=VALUE"},
		step{`enqueue REPORT {} -unique-for 1h`, exitUsage, "--unique key"},
		step{`enqueue REPORT {} -expires-after -1s`, exitUsage, "ExpiresAfter(-1s)"},
		step{`enqueue REPORT {} -unique=`, exitUsage, "nique"},
		step{`enqueue REPORT {} -attempts -1`, exitUsage, "-1"},
	)
	db.is(t, `SELECT concat_ws(' ', task_type, payload, headers, priority, max_attempts, unique_key, ordering_key, state,
			run_at > now() + interval '59 min', round(extract(epoch FROM expires_at - now()) / 3600),
			round(extract(epoch FROM unique_until - now()) / 3600)) FROM outbox.task`,
		`REPORT {"n": 1} {"a": "b=c", "d": ""} -5 3 u1 o1 waiting t 2 3`)
	c := command(t, environment(db.URL), "enqueue", "REPORT", "-", "--at", "2030-05-01 15:04")
	c.Stdin = strings.NewReader("[1,\n2]\n")
	if r := finish(t, c); r.code != 0 {
		t.Errorf("got %+v", r)
	}
	db.is(t, `SELECT payload::text || ' ' || (run_at AT TIME ZONE 'UTC') FROM outbox.task WHERE state = 'scheduled'`,
		"[1, 2] 2030-05-01 15:04:00")
	db.is(t, `SELECT string_agg(action || ' ' || split_part(target, ' ', 1), ', ') FROM outbox.audit`,
		"enqueue task, enqueue task")
}

func TestCommandsChangeTypesTasksAndSchedules(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for range 3 {
		db.ok(t, "enqueue", "MAIL", `{}`, "-after", "1h")
	}
	db.schedule(t, "nightly")
	db.Do(t, `INSERT INTO outbox.task (task_type, state, attempt, run_at)
		VALUES ('RETRIED', 'scheduled', 1, now() + interval '1 hour')`)
	db.steps(t,
		step{"pause MAIL -actor ada", 0, "type MAIL: paused\n"},
		step{"pause MIAL", 0, "no task of type MIAL was ever enqueued"},
		step{"resume MIAL", 0, "type MIAL: resumed\n"},
		step{"resume MIIAL", exitNotFound, "outbox: there is no task type MIIAL: see outbox types\n"},
		step{"pause A\u202eB\x01", exitUsage, "outbox: "},
		step{"tasks run-now 1 1", 0, "task 1: due\n"},
		step{"tasks run-now 2 99", exitNotFound, "task 2: due\noutbox: not scheduled: 99\n"},
		step{"tasks run-now", exitUsage, "which tasks? Use --type"},
		step{"tasks run-now 1 -type MAIL", exitUsage, "ids and a filter exclude each other"},
		step{"tasks run-now -type RETRIED", exitUsage, "Run at once 1 task (type RETRIED)? Say --yes"},
		step{"tasks run-now -type RETRIED -state retrying -yes", 0, "1 of 1 task due\n"},
		step{"tasks run-now -type RETRIED -yes", exitNotFound, "outbox: no task matches: type RETRIED\n"},
		step{"tasks cancel 3 98 -yes", exitNotFound, "task 3: canceled\noutbox: neither waiting nor running: 98\n"},
		step{"schedules", 0, "nightly  REPORT  @daily"},
		step{"schedules pause nightly", 0, "schedule nightly: paused\n"},
		step{"schedules resume nightly", 0, "schedule nightly: resumed\n"},
		step{"schedules run-now nightly", 0, "schedule nightly: due now\n"},
		step{"schedules put nightly -type REPORT -spec 1h", exitFailed, "the schedule is of a relay's Config"},
		step{"schedules put hourly -spec 1h", exitUsage, "type"},
		step{"schedules put hourly -type REPORT -spec 1h -zone Nowhere", exitUsage, "no time zone"},
		step{"schedules put hourly -type REPORT -spec 1h -zone Europe/Berlin -paused -payload 7", 0,
			"schedule hourly: stored\n"},
		step{"schedules put hourly -spec 2h", 0, "schedule hourly: stored\n"},
		step{"schedules", 0, "2h in Europe/Berlin  -                    -     paused"},
		step{"schedules run-now hourly", exitUsage, "paused"},
		step{"schedules remove hourly -yes", 0, "schedule hourly: removed\n"},
		step{"schedules remove nightly -yes", 0, "schedule nightly: removed\n"},
		step{"schedules remove nightly -yes", exitNotFound, `there is no schedule "nightly"`},
	)
	db.is(t, `SELECT string_agg(task_type || ' ' || paused, ', ' ORDER BY task_type) FROM outbox.task_type`,
		"MAIL true, MIAL false")
	db.is(t, `SELECT count(*) FROM outbox.task WHERE run_at <= now()`, "3")
	db.wantAudit(t, "pause MAIL 1", "pause MIAL 1", "resume MIAL 1", "run_now task 1 1", "run_now task 2 1",
		"run_now tasks: type RETRIED, state retrying, before then 1", "cancel task 3 1",
		"pause_schedule nightly 1", "resume_schedule nightly 1", "run_schedule nightly 1",
		"put_schedule hourly 1", "put_schedule hourly 1",
		"remove_schedule hourly 1", "remove_schedule nightly 1")
	db.is(t, `SELECT string_agg(DISTINCT regexp_replace(actor, '^[^@]+@[^@]+$', 'user@host') || ' ' || tool, ', ')
		FROM outbox.audit`, "ada outbox, user@host outbox")
}

// What each action does to tasks is tested in package admin.
func TestTasksAreChangedByIDsAndByFilters(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for range 4 { // 1 to 4
		db.ok(t, "enqueue", "MAIL", `{"user_id": 7}`)
	}
	db.ok(t, "enqueue", "REPORT", `{"user_id": 8}`, "-unique", "k")
	db.ok(t, "enqueue", "NEW", `{}`, "-unique", "k")
	db.Do(t, `UPDATE outbox.task SET state = 'leased', relay_id = gen_random_uuid(), lease_token = gen_random_uuid()
		WHERE task_id = 1`)
	const runs = "are running or locked and were not changed: repeat it for them later"
	db.steps(t,
		step{"tasks reschedule 1 2 99 -at 2031-01-01", exitNotFound,
			"task 2: rescheduled to 2031-01-01 00:00:00 UTC\noutbox: neither waiting nor running: 99\n"},
		step{"tasks reschedule 1 -after 2h", exitFailed, "outbox: " + runs + ": 1\n"},
		step{"tasks reschedule 2", exitUsage, "--at TIME, or --after"},
		step{"tasks reschedule 2 -at 2030-01-01 -after 1h", exitUsage, "say when"},
		step{"tasks reschedule -after 2h", exitUsage, "which tasks?"},
		step{"tasks reschedule -type MAIL -at 2030-01-01", exitUsage,
			"Reschedule 3 tasks (type MAIL) to 2030-01-01 00:00:00 UTC? Say --yes"},
		step{"tasks reschedule -type MAIL -at 2030-01-01 -yes", 0,
			"3 of 3 tasks rescheduled to 2030-01-01 00:00:00 UTC\n1 " + runs + "\n"},
		step{"tasks list -type MAIL -state scheduled", 0, "2030-01-01"},
		step{"tasks list -payload {\"user_id\":7} -json", 0, `"task_id": 4`},
		step{"tasks list -payload {", exitUsage, "is no JSON"},
		step{"tasks list -state late", exitUsage, "Filter.State"},
		step{"tasks set-priority 2", exitUsage, "say the priority"},
		step{"tasks retype 2", exitUsage, "say the new type"},
		step{"tasks run-now -state ready", exitUsage, "run-now takes"},
		step{"tasks set-priority 2 -to 40000", exitUsage, "40000"},
		step{"tasks set-priority -unique k -to -5 -yes", 0, "2 of 2 tasks changed to priority -5\n"},
		step{"tasks retype -type REPORT -to NEW -yes", exitFailed,
			"0 of 1 task retyped to NEW\noutbox: 1 task skipped, as another task holds"},
		step{"tasks retype 3 -to NEW", 0, "task 3: retyped to NEW\nno living relay has a handler for the type NEW\n"},
		step{"tasks count -payload {\"user_id\":7}", 0, "4\n"},
		step{"tasks cancel -payload {\"user_id\":7}", exitUsage, "Cancel 4 tasks (payload contains {\"user_id\":7})?"},
		step{"tasks retype 3 -to NEW", exitNotFound, "neither waiting nor running, or of the type: 3"},
		step{"tasks set-payload 2 {} -yes", 0, "task 2: payload replaced\n"},
		step{"tasks set-payload 2 {}", exitUsage, "Replace the payload of task 2? Say --yes"},
		step{"tasks set-payload 2 {x -yes", exitUsage, "payload"},
		step{"tasks set-payload 1 {} -yes", exitFailed, "outbox: admin: the task runs: task 1\n"},
		step{"tasks set-payload 99 {} -yes", exitNotFound, "task 99 is not there"},
		step{"tasks cancel -type MAIL -yes", 0, "2 of 3 tasks canceled\n1 running, asked to end\n"},
		step{"tasks show 1", 0, "asked to end  20"},
		step{"tasks cancel -state dead -yes", exitUsage, "cancel takes"},
		step{"tasks retype 6 -to B%d", 0, "task 6: retyped to B%d\n"},
		step{"tasks reschedule 6 -at 2030-01-01 -after -5h", exitUsage, "say when"},
		step{"tasks cancel -all -type MAIL -yes", exitUsage, "exclude each other"},
	)
	db.is(t, `SELECT string_agg(concat_ws(' ', task_id, task_type, state, priority), ', ' ORDER BY task_id)
			FROM outbox.task`,
		"1 MAIL leased 0, 3 NEW scheduled 0, 5 REPORT ready -5, 6 B%d ready -5")
	db.wantAudit(t, "reschedule task 2 to then 1", "reschedule tasks: type MAIL, before then to then 3",
		"set_priority tasks: of a unique key, before then to priority -5 2", "retype task 3 to type NEW 1",
		"set_payload task 2 1", "cancel tasks: type MAIL, before then 3", "retype task 6 to type B%d 1")
}

// Which letters a filter lets through is tested in package admin.
func TestListsHavePagesAndFilters(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox\nat line 2", 1, 3)
	db.bury(t, "REPORT", "out of disk", 11, 2)
	db.Do(t, `UPDATE outbox.dead_task SET iterations = 7 WHERE task_id = 11`)
	var page struct{ Next string }
	db.json(t, &page, "dead", "list", "-limit", "4")
	none, all, disk := `"tasks": []`, `"next": null`, `"last_error": "out of disk"`
	db.steps(t,
		step{"dead list -limit 2", 0, "there may be more: -after "},
		step{"dead list -limit 4 -json -after " + page.Next, 0, all},
		step{"dead list -limit 2 -json -type REPORT -error disk -reason attempts -older 30m -since 2020-01-01", 0, disk},
		step{"dead list -type MAIL", 0, "DIED  ERROR"},
		step{"dead list -type REPORT", 0, "DIED  ITERATIONS  ERROR"},
		step{"dead list -json -reason handler", 0, none},
		step{"dead list -json -since 2100-01-01", 0, none},
		step{"dead list -json -until 2020-01-01", 0, none},
		step{"dead list -after x", exitUsage, "outbox: "},
		step{"audit -after 0", exitUsage, "outbox: "},
		step{"dead list -reason none", exitUsage, "none"},
		step{"dead list -older -1s", exitUsage, "--older"},
	)
}

func TestRedriveAndPurge(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 1500)
	db.bury(t, "REPORT", "out of disk", 5001, 5)
	db.steps(t,
		step{"dead redrive 5001 5002 5002 -rate 1", 0, "2 dead letters redriven\n"},
		step{"dead redrive 5001 5003", exitNotFound,
			"1 dead letter redriven\noutbox: no dead letter, or another transaction has it: 5001\n"},
		step{"dead redrive -type MAIL", exitUsage, "Redrive 1,500 dead letters (type MAIL)? Say --yes"},
		step{"dead redrive -type MAIL -error mailbox -yes", 0, "1,500 of 1,500 dead letters redriven\n"},
		step{"dead redrive -type MAIL -yes", exitNotFound, "outbox: no dead letter matches: type MAIL\n"},
		step{"dead purge -yes", exitUsage, "which dead letters?"},
		step{"dead purge -type= -older 1h -yes", exitUsage, "it is empty"},
		step{"tasks cancel 3 -rate 5 -yes", exitUsage, "--rate is for a filter"},
		step{"dead purge -all -type MAIL -yes", exitUsage, "exclude each other"},
		step{"dead purge -type MAIL -rate -1 -yes", exitUsage, "--rate"},
		step{"dead purge 815 -yes", exitUsage, "outbox: "},
		step{"dead purge -older 30m -type REPORT -yes", 0, "2 of 2 dead letters purged\n"},
	)
	db.bury(t, "MAIL", "no such mailbox", 6001, 1)
	db.steps(t, step{"dead purge -all -yes", 0, "1 of 1 dead letter purged\n"})
	db.is(t, `SELECT count(*) || ' ' || (SELECT count(*) FROM outbox.dead_task) FROM outbox.task`, "1503 0")
	const many = `redrive dead letters: type MAIL, error containing "mailbox", before then `
	db.wantAudit(t, "redrive tasks 5001, 5002 2", "redrive task 5003 1", many+"1000", many+"500",
		"purge dead letters: type REPORT, before then 2", "purge dead letters: before then 1")
}

func TestTheHistoryIsPurgedByAFilter(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.finish(t, "KEPT", 1, 1500)
	db.finish(t, "PAY", 5001, 3)
	db.steps(t,
		step{"history purge -yes", exitUsage, "which finished tasks?"},
		step{"history purge 5001 -yes", exitUsage, "outbox: "},
		step{"history purge -reason handler -yes", exitUsage, "reason"},
		step{"history purge -state finished -yes", exitUsage, "state"},
		step{"history purge -all -type PAY -yes", exitUsage, "exclude each other"},
		step{"history purge -type PAY -rate -1 -yes", exitUsage, "--rate"},
		step{`history purge -payload {"user_id":5002}`, exitUsage,
			`Delete 1 finished task (payload contains {"user_id":5002})? Say --yes`},
	)
	db.is(t, `SELECT count(*) FROM outbox.done_task`, "1503")
	db.steps(t,
		step{`history purge -payload {"user_id":5002} -yes`, 0, "1 of 1 finished task purged\n"},
		step{`history purge -payload {"user_id":5002} -yes`, exitNotFound, "outbox: no finished task matches: "},
		step{"history purge -type KEPT -older 2h -yes", exitNotFound, "no finished task matches"},
		step{"history purge -type KEPT -older 30m -yes", 0, "1,500 of 1,500 finished tasks purged\n"},
	)
	db.is(t, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.done_task`, "5001 5003")
	const many = "purge_finished finished tasks: type KEPT, before then "
	db.wantAudit(t, "purge_finished finished tasks: with a payload, before then 1", many+"1000", many+"500")
}

func TestARedriveSkipsThoseWhoseKeyAnotherTaskHolds(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 6001, 5)
	db.Do(t, `UPDATE outbox.dead_task SET unique_key = 'k' WHERE task_id > 6002`)
	db.ok(t, "enqueue", "MAIL", "{}", "-unique", "k")
	const held = "as another task holds the unique key: "
	db.steps(t,
		step{"dead redrive 6001 6003", exitFailed, "redriven\noutbox: 1 dead letter skipped, " + held + "6003\n"},
		step{"dead redrive 6003 99", exitNotFound, "has it: 99; 1 dead letter skipped, " + held + "6003\n"},
		step{"dead redrive -type MAIL -yes", exitFailed,
			"1 of 4 dead letters redriven\noutbox: 3 dead letters skipped, " + held + "6003, 6004, 6005\n"},
		step{"dead redrive 6003 -without-key -json", 0, `"skipped": []`},
		step{"dead redrive -error mailbox -without-key -yes", 0, "2 of 2 dead letters redriven\n"},
	)
	db.is(t, `SELECT count(*) || ' ' || count(unique_key) FROM outbox.task WHERE task_id BETWEEN 6001 AND 6005`, "5 0")
}

func TestHandBackNeedsAWordForARelayThatLives(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	id := db.relay(t)
	db.ok(t, "enqueue", slow, "{}")
	eventually(t, "it runs", func() bool { return db.Text(t, `SELECT state FROM outbox.task`) == "leased" })
	db.steps(t,
		step{"tasks show 1", 0, id},
		step{"relays hand-back " + id, exitUsage, "is alive. Take all leased tasks from it? Say --yes"},
		step{"relays hand-back none", exitUsage, "is not the id of a relay"},
		step{"relays hand-back 0b0e5fd5-2f4c-4d1b-9d3a-6f1f0a7c8e21", exitNotFound, "there is no relay"},
		step{"relays hand-back " + id + " -yes", 0, "1 task handed back\n"},
	)
	db.wantAudit(t, "hand_back relay "+id+" 0", "hand_back: done relay "+id+" 1")
}

// becomeCopy has the database look as one that a dump of production's was restored in.
const becomeCopy = `UPDATE outbox.origin SET database_name = 'production', database_oid = 1, table_oid = 1`

func TestACopyIsAdoptedOrEmptied(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `SELECT outbox.note_origin('')`)
	db.steps(t, step{"adopt -yes", exitFailed, "this database is no copy"})
	db.ok(t, "enqueue", "MAIL", "{}")
	db.bury(t, "MAIL", "no such mailbox", 1001, 2)
	db.schedule(t, "nightly")
	db.Do(t, becomeCopy)
	db.steps(t,
		step{"adopt", exitUsage, `This database may be a copy of "production", made after `},
		step{"adopt", exitUsage, "Take it over, with 1 task to run? Say --yes"},
		step{"adopt -keep-id", exitUsage, "Continue the original here, with 1 task to run? Say --yes"},
		step{"adopt -discard", exitUsage, "DELETE its 1 task and 2 dead letters, and take it over? Say --yes"},
		step{"adopt -discard -keep-id -yes", exitUsage, "exclude each other"},
		step{"adopt -discard -yes", exitOK, "1 task, 2 dead letters and 1 schedule discarded\n"},
		step{"adopt -yes", exitFailed, "this database is no copy"},
		step{"adopt -environment staging", exitUsage, "and not known to be a copy. Take it over"},
		step{"adopt -environment staging -yes", exitOK, "adopted: this is the database "},
		step{"adopt -environment staging -yes", exitFailed, "this database is no copy"},
	)
	db.is(t, `SELECT string_agg(action || ' ' || count, ', ' ORDER BY entry_id)
		FROM outbox.audit WHERE action LIKE 'adopt%'`, "adopt_discard 3, adopt 0")
	db.steps(t,
		step{"doctor", exitFindings, `environment: the environment is "staging"`},
		step{"adopt -environment test", exitUsage, ` of the environment "staging", and not known to be a copy.`})
	db.Do(t, `SELECT outbox.note_origin('test')`) // as a relay does
	db.steps(t,
		step{"adopt -environment test", exitUsage, `its environment is "staging", and Config.Environment is "test". Take`})
	db.Do(t, becomeCopy)
	db.steps(t, step{"adopt -keep-id -yes", exitOK, db.Text(t, `SELECT database_id FROM outbox.identity`)})
}

func TestRepairPrintsWhatIsWrongAndMendsItWhenTold(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, state, unique_key) VALUES ('REPORT', 'scheduled', 'may');
		DELETE FROM outbox.counter_log;
		SELECT setval('outbox.task_task_id_seq', 1, false)`)
	db.steps(t,
		step{"repair", exitOK, "count       REPORT scheduled                  0          1  -\n"},
		step{"repair", exitOK, "nothing was changed: outbox repair -yes repairs these\n"},
		step{"repair -yes", exitOK, "sequence    task_task_id_seq                  0    1000001  -\n"},
		step{"repair", exitOK, "nothing to repair\n"},
		step{"repair -above -1", exitUsage, "RepairOptions.Above: -1"},
	)
	db.wantAudit(t, "repair sequence 1, count 1, unique_key 1 0", "repair: done sequence 1, count 1, unique_key 1 3")
	db.bury(t, "REPORT", "no", 1, 1)
	db.steps(t,
		step{"repair", exitFailed, "the tasks 1 have the ids of dead letters"},
		step{"repair -yes", exitFailed, "1 conflict to be decided by a person"},
	)
}

func TestMigrateUpStatusAndPrint(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Database(t))
	db.steps(t,
		step{"migrate status", 0, "1  tables  "},
		step{"migrate status", 0, "  pending\n"},
		step{"migrate up", 0, "schema outbox: migrated from version 0 to "},
		step{"migrate up", 0, "schema outbox: at version "},
		step{"migrate status", 0, "  " + time.Now().UTC().Format(time.DateOnly)},
	)
	if got := db.audited(t); !strings.HasPrefix(got, "migrate schema version 0 to ") || strings.Contains(got, "\n") {
		t.Errorf("the audit has %q", got)
	}
	// What print prints makes the same schema, under another name.
	db.Do(t, db.ok(t, "migrate", "print", "-schema", "printed"))
	db.steps(t, step{"stats -schema printed", 0, "TYPE "})
	db.Do(t, db.ok(t, "roles", "print", "-schema", "printed"))
	db.is(t, `SELECT count(*) FROM pg_roles WHERE rolname LIKE 'printed\_%'`, "5")
	db.Do(t, `REASSIGN OWNED BY printed_owner TO CURRENT_USER`)
	for _, role := range []string{"owner", "enqueuer", "worker", "viewer", "operator"} {
		db.Do(t, `DROP OWNED BY printed_`+role)
		db.Do(t, `DROP ROLE printed_`+role)
	}
}

func TestTheHistoryIsListedAndShown(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.Do(t, `INSERT INTO outbox.done_task (task_id, run_at, created_at, attempted_at, finished_at, keep_until, priority,
		attempt, task_type, payload, last_error) SELECT n, now(), now(), now(), now(), now(), 0, 1, 'KEPT', '{}',
		(ARRAY[NULL, 'not wanted'])[n] FROM generate_series(1, 2) n`)
	key := db.Text(t, `SELECT concat(left(database_id::text, 14), '8', substr(database_id::text, 16, 3),
		'-8000-000000000001') FROM outbox.identity`)
	db.steps(t,
		step{"history show " + key, 0, key},
		step{"tasks show 11111111-1111-8111-8000-000000000001", exitNotFound, "is not there"}, // another database's
		step{"tasks show 1-1", exitUsage, `"1-1" is not the key of a task`},
		step{"history list -type KEPT", 0, "  done\n"},
		step{"history list -type KEPT", 0, "  discarded: not wanted\n"},
		step{"history show 1", 0, "kept until"},
		step{"history show 3", exitNotFound, "task 3 is not there"},
		step{"dead show 1", exitNotFound, "task 1 is finished, not dead: see outbox tasks show 1"},
	)
}

func TestPayloadsHeadersAndKeysAreOnlyShownWithPayload(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1001, 1)
	db.ok(t, "enqueue", "MAIL", `{"secret": "C4n4ry"}`, "-header", "h=C4n4ry", "-unique", "C4n4ry", "-ordered", "C4n4ry")
	id := db.Text(t, `SELECT task_id FROM outbox.task`)
	for _, args := range []string{"types", "top", "audit", "dead list", "dead show 1001",
		"tasks list -type MAIL -state waiting", "tasks show " + id} {
		for _, more := range [][]string{nil, {"-json"}} {
			r := db.run(t, append(strings.Fields(args), more...)...)
			if r.code != exitOK || strings.Contains(r.out+r.err, "C4n4ry") {
				t.Errorf("%s: got %+v", args, r)
			}
		}
	}
	show := "tasks show " + id + " -payload"
	for args, want := range map[string]int{"dead show 1001 -payload": 1, show: 4, show + " -json": 4} {
		if got := strings.Count(db.ok(t, strings.Fields(args)...), "C4n4ry"); got != want {
			t.Errorf("%s: %d times, want %d", args, got, want)
		}
	}
}

func TestDoctorSaysWhatIsWrongAndEndsWithExitCode4(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.relay(t)
	db.Do(t, `INSERT INTO outbox.task (task_type, created_at, run_at)
		VALUES ('ORPHAN', now() - interval '1 hour', now() - interval '1 hour')`)
	db.steps(t,
		step{"doctor", exitFindings, "unhandled-type: ORPHAN: "},
		step{"doctor", exitFindings, "\n          do: "},
		step{"doctor", exitFindings, " checks fine\n"},
		step{"doctor -all", exitFindings, "\nok        "},
		step{"doctor -held -1s", exitUsage, "HeldFor"},
	)
}

func TestADoctorThatMayNotLookAtEverythingDoesNotSayThatAllIsWell(t *testing.T) {
	t.Parallel()
	db := openDB(t, pgtest.Local(t, map[string]string{"fsync": "on"}).URL()) // with no other finding
	db.Do(t, `CREATE ROLE nobody LOGIN PASSWORD 'v'`)
	db.ok(t, "migrate", "up")
	r := db.run(t, "doctor")
	if old := strings.Contains(r.out, "server-version: "); r.code != exitOK && !old {
		t.Errorf("as the owner: got %+v", r)
	}
	_, rest, _ := strings.Cut(db.URL, "@")
	openDB(t, "postgres://nobody:v@"+rest).steps(t,
		step{"doctor", exitFailed, "unknown   rights: not checked, as the role lacks a right: schema-version, "})
}
