package main

import (
	"strings"
	"testing"
)

func TestEnqueueTakesJSONFromTheArgumentOrStdin(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	if got := db.ok(t, "enqueue", "REPORT", `{"n": 1}`, "-priority", "-5", "-after", "1h", "-attempts", "3", "-unique", "u1", "-ordered", "o1", "-header", "a=b=c", "-header", "d="); got != "task 1: created\n" {
		t.Errorf("got %q", got)
	}
	got := db.text(t, `SELECT concat_ws(' ', task_type, payload, headers, priority, max_attempts, unique_key, ordering_key, state, run_at > now() + interval '59 min') FROM outbox.task`)
	if want := `REPORT {"n": 1} {"a": "b=c", "d": ""} -5 3 u1 o1 waiting t`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := db.ok(t, "enqueue", "REPORT", `{}`, "-unique", "u1"); got != "task 1: skipped\n" {
		t.Errorf("got %q", got)
	}
	c := command(t, environment(db.url), "enqueue", "REPORT", "-", "--at", "2030-05-01 15:04")
	c.Stdin = strings.NewReader("[1,\n2]\n")
	if r := finish(t, c); r.code != 0 || r.out != "task 2: created\n" && !strings.HasPrefix(r.out, "task ") {
		t.Errorf("got %+v", r)
	}
	if got := db.text(t, `SELECT payload::text || ' ' || (run_at AT TIME ZONE 'UTC') FROM outbox.task WHERE state = 'scheduled'`); got != "[1, 2] 2030-05-01 15:04:00" {
		t.Errorf("got %s", got)
	}
	for _, args := range [][]string{{`{"n": 1`}, {`"\u0000"`}, {``}, {`{}`, "-priority", "70000"}, {`{}`, "-at", "tomorrow"}, {`{}`, "-at", "2030-01-01", "-after", "1h"}, {`{}`, "-header", "x"},
		{`{}`, "-unique", ""}, {`{}`, "-attempts", "-1"}} {
		if r := db.run(t, append([]string{"enqueue", "REPORT"}, args...)...); r.code != exitUsage || r.out != "" {
			t.Errorf("%q: got %+v, want exit code 2", args, r)
		}
	}
	if got, want := db.audited(t), "enqueue task 1 of type REPORT 1\nenqueue task "; !strings.HasPrefix(got, want) || strings.Count(got, "\n") != 1 {
		t.Errorf("the audit has %q, want two entries, the first %q", got, want)
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.ok(t, "enqueue", "MAIL", `{}`)
	if got := db.ok(t, "pause", "MAIL", "-actor", "ada"); got != "type MAIL: paused\n" {
		t.Errorf("got %q", got)
	}
	if got := db.text(t, `SELECT paused FROM outbox.task_type WHERE task_type = 'MAIL'`); got != "true" {
		t.Errorf("paused is %s", got)
	}
	if got := db.ok(t, "resume", "MAIL"); got != "type MAIL: resumed\n" {
		t.Errorf("got %q", got)
	}
	if got := db.text(t, `SELECT paused FROM outbox.task_type WHERE task_type = 'MAIL'`); got != "false" {
		t.Errorf("paused is %s", got)
	}
	if r := db.run(t, "pause", "MIAL"); r.code != 0 || !strings.Contains(r.err, "no task of type MIAL was ever enqueued") {
		t.Errorf("got %+v, want a hint that the type is new", r)
	}
	if r := db.run(t, "resume", "MIAL"); r.code != 0 || r.out != "type MIAL: resumed\n" {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "resume", "MIIAL"); r.code != exitNotFound || r.out != "" || r.err != "outbox: there is no task type MIIAL: see outbox types\n" {
		t.Errorf("got %+v", r)
	}
	for _, command := range []string{"pause", "resume"} {
		if r := db.run(t, command, "A\nB"); r.code != exitUsage {
			t.Errorf("got %+v", r)
		}
	}
	if got := db.text(t, `SELECT count(*) FROM outbox.task_type WHERE task_type NOT IN ('MAIL', 'MIAL')`); got != "0" {
		t.Errorf("%s types were written that are none", got)
	}
	if got := db.text(t, `SELECT string_agg(CASE WHEN actor = 'ada' THEN actor WHEN actor ~ '^[^@]+@[^@]+$' THEN 'user@host' ELSE actor END || ' ' || tool, ', ' ORDER BY entry_id) FROM outbox.audit WHERE action <> 'enqueue'`); got !=
		"ada outbox, user@host outbox, user@host outbox, user@host outbox" {
		t.Errorf("actors: %s", got)
	}
	if got, want := db.audited(t), "pause MAIL 1\nresume MAIL 1\npause MIAL 1\nresume MIAL 1"; !strings.HasSuffix(got, want) {
		t.Errorf("the audit has %q, want %q at its end", got, want)
	}
}

func TestCancelAndRunNow(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	for range 3 {
		db.ok(t, "enqueue", "MAIL", `{}`, "-after", "1h")
	}
	if got := db.ok(t, "tasks", "run-now", "1"); got != "task 1: due\n" {
		t.Errorf("got %q", got)
	}
	if r := db.run(t, "tasks", "run-now", "2", "99"); r.code != exitNotFound || r.out != "task 2: due\n" || r.err != "outbox: not scheduled: 99\n" {
		t.Errorf("got %+v", r)
	}
	if got := db.text(t, `SELECT string_agg(task_id || ' ' || (run_at <= now()), ', ' ORDER BY task_id) FROM outbox.task`); got != "1 true, 2 true, 3 false" {
		t.Errorf("got %s", got)
	}
	if r := db.run(t, "tasks", "cancel", "3"); r.code != exitUsage || !strings.Contains(r.err, "Cancel 1 task (3)? Say --yes") {
		t.Errorf("got %+v, want a refusal", r)
	}
	if r := db.run(t, "tasks", "cancel", "3", "98", "-yes"); r.code != exitNotFound || r.out != "task 3: canceled\n" || !strings.Contains(r.err, "neither waiting nor running: 98") {
		t.Errorf("got %+v", r)
	}
	if got := db.text(t, `SELECT count(*) FROM outbox.task WHERE task_id = 3`); got != "0" {
		t.Errorf("the task is there")
	}
	if got, want := db.audited(t), "run_now task 1 1\nrun_now task 2 1\ncancel task 3 1"; !strings.HasSuffix(got, want) {
		t.Errorf("the audit has %q, want %q at its end", got, want)
	}
}

func TestTheAuditNamesEachOfManyTasks(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1001, 1000)
	db.exec(t, `INSERT INTO outbox.task (task_type, payload, run_at) SELECT 'MAIL', '{}', now() + interval '1 hour' FROM generate_series(1, 1000)`)
	ids := func(table string) []string {
		return strings.Fields(db.text(t, `SELECT string_agg(task_id::text, ' ' ORDER BY task_id) FROM outbox.`+table))
	}
	waiting, dead := ids("task"), ids("dead_task")
	db.ok(t, append([]string{"dead", "redrive"}, dead...)...)
	db.ok(t, append([]string{"tasks", "run-now"}, waiting...)...)
	db.ok(t, append([]string{"tasks", "cancel", "-yes"}, waiting...)...)
	for action, want := range map[string][]string{"redrive": dead, "run_now": waiting, "cancel": waiting} {
		named := map[string]int{}
		rows, err := db.Query(`SELECT target, count FROM outbox.audit WHERE action = $1`, action)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var target string
			var count int
			if err := rows.Scan(&target, &count); err != nil {
				t.Fatal(err)
			}
			list, found := strings.CutPrefix(target, "tasks ")
			of := strings.Split(list, ", ")
			if !found || len(of) != count {
				t.Errorf("%s: %d tasks are counted in %q", action, count, target)
			}
			for _, id := range of {
				named[id]++
			}
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		for _, id := range want {
			if named[id] != 1 {
				t.Fatalf("%s: the audit names task %s %d times", action, id, named[id])
			}
		}
		if len(named) != len(want) {
			t.Errorf("%s: the audit names %d tasks, want %d", action, len(named), len(want))
		}
		if got := db.text(t, `SELECT count(DISTINCT xmin::text) FROM outbox.audit WHERE action = $1`, action); got != "1" {
			t.Errorf("%s: its entries are of %s transactions, want 1", action, got)
		}
	}
}
