package main

import (
	"strings"
	"testing"
)

func TestDeadLettersAreListedInPages(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox\nat line 2", 1, 3)
	db.bury(t, "REPORT", "out of disk", 11, 2)
	out := db.ok(t, "dead", "list")
	if got := words(out, "3"); strings.Join(got, " ") != "3 MAIL attempts 5/5 1h00m no such mailbox" && strings.Join(got, " ") != "3 MAIL attempts 5/5 59m59s no such mailbox" {
		t.Errorf("got %q in\n%s", got, out)
	}
	type list struct {
		Letters []letter `json:"letters"`
		Next    *string  `json:"next"`
	}
	ids, after := "", ""
	for range 4 {
		var l list
		args := []string{"dead", "list", "-limit", "2"}
		if after != "" {
			args = append(args, "-after", after)
		}
		db.json(t, &l, args...)
		for _, k := range l.Letters {
			ids += " " + join([]int64{k.TaskID})
		}
		if l.Next == nil {
			break
		}
		after = *l.Next
	}
	if got := strings.Fields(ids); len(got) != 5 {
		t.Errorf("the pages have %q, want each of 5 once", got)
	}
	for args, want := range map[string]int{"-type REPORT": 2, "-error mailbox": 3, "-error 100%": 0, "-older 2h": 0, "-older 30m": 5, "-reason handler": 0, "-since 2020-01-01": 5, "-until 2020-01-01": 0} {
		var l list
		db.json(t, &l, append([]string{"dead", "list"}, strings.Fields(args)...)...)
		if len(l.Letters) != want {
			t.Errorf("%s: %d letters, want %d", args, len(l.Letters), want)
		}
	}
	if r := db.run(t, "dead", "list", "-after", "x"); r.code != exitUsage {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "dead", "list", "-limit", "2"); !strings.Contains(r.err, "there may be more: -after ") {
		t.Errorf("got %+v, want how to go on", r)
	}
}

func TestRedriveByIDAndByFilter(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 2500)
	db.bury(t, "REPORT", "out of disk", 5001, 3)
	if got := db.ok(t, "dead", "redrive", "5001", "5002", "5002"); got != "2 dead letters redriven\n" {
		t.Errorf("got %q", got)
	}
	if r := db.run(t, "dead", "redrive", "5001", "5003"); r.code != exitNotFound || r.out != "1 dead letter redriven\n" || !strings.Contains(r.err, "5001") {
		t.Errorf("got %+v", r)
	}
	if r := db.run(t, "dead", "redrive", "-type", "MAIL"); r.code != exitUsage || !strings.Contains(r.err, "Redrive 2,500 dead letters (type MAIL)? Say --yes") {
		t.Errorf("got %+v, want a refusal", r)
	}
	if got := db.ok(t, "dead", "redrive", "-type", "MAIL", "-error", "mailbox", "-yes"); got != "2,500 of 2,500 dead letters redriven\n" {
		t.Errorf("got %q", got)
	}
	if got := db.text(t, `SELECT count(*) || ' ' || (SELECT count(*) FROM outbox.dead_task) FROM outbox.task`); got != "2503 0" {
		t.Errorf("tasks and dead letters: %s", got)
	}
	want := "redrive tasks 5001, 5002 2\nredrive task 5003 1\n" +
		`redrive dead letters: type MAIL, error containing "mailbox", died before then 1000` + "\n" + `redrive dead letters: type MAIL, error containing "mailbox", died before then 1000` + "\n" +
		`redrive dead letters: type MAIL, error containing "mailbox", died before then 500`
	if got := db.audited(t); got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
	if r := db.run(t, "dead", "redrive", "-type", "MAIL", "-yes"); r.code != exitNotFound || r.err != "outbox: no dead letter matches: type MAIL\n" {
		t.Errorf("got %+v", r)
	}
}

func TestPurgeNeedsAFilterAndKeepsToIt(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	db.bury(t, "MAIL", "no such mailbox", 1, 1200)
	db.bury(t, "REPORT", "out of disk", 5001, 3)
	for _, args := range []string{"", "-yes", "-all -type MAIL -yes", "-type MAIL -rate -1 -yes", "-reason none -yes", "815 -yes"} {
		if r := db.run(t, append([]string{"dead", "purge"}, strings.Fields(args)...)...); r.code != exitUsage {
			t.Errorf("%s: got %+v, want exit code 2", args, r)
		}
	}
	if got := db.ok(t, "dead", "purge", "-older", "30m", "-type", "MAIL", "-yes"); got != "1,200 of 1,200 dead letters purged\n" {
		t.Errorf("got %q", got)
	}
	if got := db.text(t, `SELECT count(*) FROM outbox.dead_task`); got != "3" {
		t.Errorf("%s are left, want 3", got)
	}
	if got := db.ok(t, "dead", "purge", "-all", "-yes"); got != "3 of 3 dead letters purged\n" {
		t.Errorf("got %q", got)
	}
	want := "purge dead letters: type MAIL, died before then 1000\npurge dead letters: type MAIL, died before then 200\npurge dead letters: died before then 3"
	if got := db.audited(t); got != want {
		t.Errorf("the audit has\n%s\nwant\n%s", got, want)
	}
}
