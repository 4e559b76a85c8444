package main

import (
	"strings"
	"testing"
)

// step is a command line, its exit code, and a text that it prints to stdout or stderr.
type step struct {
	args string
	code int
	want string
}

func (db *testDB) steps(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		if r := db.run(t, strings.Fields(s.args)...); r.code != s.code || !strings.Contains(r.out+r.err, s.want) {
			t.Errorf("%s: got %+v, want exit code %d and %q", s.args, r, s.code, s.want)
		}
	}
}

// is fails unless a query's result is the text.
func (db *testDB) is(t testing.TB, query, want string) {
	t.Helper()
	if got := db.Text(t, query); got != want {
		t.Errorf("%s:\n got %s\nwant %s", query, got, want)
	}
}

// wantAudit fails unless the audit ends with these lines.
func (db *testDB) wantAudit(t *testing.T, lines ...string) {
	t.Helper()
	if got, want := db.audited(t), strings.Join(lines, "\n"); !strings.HasSuffix(got, want) {
		t.Errorf("the audit has\n%s\nwant at its end\n%s", got, want)
	}
}

func TestEnqueueTakesJSONFromTheArgumentOrStdin(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.steps(t,
		step{`enqueue REPORT {"n":1} -priority -5 -after 1h -attempts 3 -unique u1 -ordered o1 -header a=b=c -header d=`, 0,
			"task 1: created\n"},
		step{`enqueue REPORT {} -unique u1`, 0, "task 1: skipped\n"},
		step{`enqueue REPORT {"n":1`, exitUsage, "not JSON"},
		step{`enqueue REPORT "\u0000"`, exitUsage, "payload"},
		step{`enqueue REPORT {} -priority 70000`, exitUsage, "70000"},
		step{`enqueue REPORT {} -at tomorrow`, exitUsage, "--at"},
		step{`enqueue REPORT {} -at 2030-01-01 -after 1h`, exitUsage, "exclude each other"},
		step{`enqueue REPORT {} -header x`, exitUsage, "NAME=VALUE"},
		step{`enqueue REPORT {} -unique=`, exitUsage, "nique"},
		step{`enqueue REPORT {} -attempts -1`, exitUsage, "-1"},
	)
	db.is(t, `SELECT concat_ws(' ', task_type, payload, headers, priority, max_attempts, unique_key, ordering_key, state,
			run_at > now() + interval '59 min') FROM outbox.task`,
		`REPORT {"n": 1} {"a": "b=c", "d": ""} -5 3 u1 o1 waiting t`)
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
	db.steps(t,
		step{"pause MAIL -actor ada", 0, "type MAIL: paused\n"},
		step{"pause MIAL", 0, "no task of type MIAL was ever enqueued"},
		step{"resume MIAL", 0, "type MIAL: resumed\n"},
		step{"resume MIIAL", exitNotFound, "outbox: there is no task type MIIAL: see outbox types\n"},
		step{"pause A\u202eB\x01", exitUsage, "outbox: "},
		step{"tasks run-now 1 1", 0, "task 1: due\n"},
		step{"tasks run-now 2 99", exitNotFound, "task 2: due\noutbox: not scheduled: 99\n"},
		step{"tasks cancel 3 98 -yes", exitNotFound, "task 3: canceled\noutbox: neither waiting nor running: 98\n"},
		step{"schedules", 0, "nightly  REPORT  @daily"},
		step{"schedules pause nightly", 0, "schedule nightly: paused\n"},
		step{"schedules resume nightly", 0, "schedule nightly: resumed\n"},
		step{"schedules remove nightly -yes", 0, "schedule nightly: removed\n"},
		step{"schedules remove nightly -yes", exitNotFound, `there is no schedule "nightly"`},
	)
	db.is(t, `SELECT string_agg(task_type || ' ' || paused, ', ' ORDER BY task_type) FROM outbox.task_type`,
		"MAIL true, MIAL false")
	db.is(t, `SELECT count(*) FROM outbox.task WHERE run_at <= now()`, "2")
	db.wantAudit(t, "pause MAIL 1", "pause MIAL 1", "resume MIAL 1", "run_now task 1 1", "run_now task 2 1",
		"cancel task 3 1", "pause_schedule nightly 1", "resume_schedule nightly 1", "remove_schedule nightly 1")
	db.is(t, `SELECT string_agg(DISTINCT regexp_replace(actor, '^[^@]+@[^@]+$', 'user@host') || ' ' || tool, ', ')
		FROM outbox.audit`, "ada outbox, user@host outbox")
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
		step{"dead purge -type= -yes", exitUsage, "which dead letters?"},
		step{"dead purge -all -type MAIL -yes", exitUsage, "exclude each other"},
		step{"dead purge -type MAIL -rate -1 -yes", exitUsage, "--rate"},
		step{"dead purge 815 -yes", exitUsage, "outbox: "},
		step{"dead purge -older 30m -type REPORT -yes", 0, "2 of 2 dead letters purged\n"},
	)
	db.bury(t, "MAIL", "no such mailbox", 6001, 1)
	db.steps(t, step{"dead purge -all -yes", 0, "1 of 1 dead letter purged\n"})
	db.is(t, `SELECT count(*) || ' ' || (SELECT count(*) FROM outbox.dead_task) FROM outbox.task`, "1503 0")
	const many = `redrive dead letters: type MAIL, error containing "mailbox", died before then `
	db.wantAudit(t, "redrive tasks 5001, 5002 2", "redrive task 5003 1", many+"1000", many+"500",
		"purge dead letters: type REPORT, died before then 2", "purge dead letters: died before then 1")
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
		step{"relays hand-back none", exitNotFound, "there is no relay"},
		step{"relays hand-back " + id + " -yes", 0, "1 task handed back\n"},
	)
	db.wantAudit(t, "hand_back relay "+id+" 0", "hand_back: done relay "+id+" 1")
}
